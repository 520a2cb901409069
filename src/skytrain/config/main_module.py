"""Hides the user's own script from worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_main() -> Iterator[None]:
    """Let processes that are started meanwhile not import `__main__`.

    multiprocessing runs the caller's script again in each new process, unless the script guards its code with
    `if __name__ == "__main__"`. Our workers need nothing of it, and a script that calls `skytrain.prepare` on its first
    line would call it again in each of them.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    main.__spec__ = None
    if "__file__" in hidden:
        del main.__file__
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)
