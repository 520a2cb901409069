"""Writes the table of what can be combined into docs/parallelism.md.

python -m benchmarks.parallel.capabilities
"""

from __future__ import annotations

from benchmarks.parallel.document import insert

from skytrain.config.capabilities import capability_table

if __name__ == "__main__":
    insert("capabilities", capability_table())
