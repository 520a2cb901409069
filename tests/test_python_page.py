"""docs/python.md, run as one script in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_in_order(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trainer.steps" in done.stdout, "the last block prints the nearest key"
    assert re.search(r"'train/loss': tensor.*'val/loss': tensor", done.stdout), "the plain Trainer logged its losses"
    (log,) = tmp_path.glob("logs/lightning_logs/version_0/metrics.csv")
    assert re.search(r"^[^,]*,59,", log.read_text(), flags=re.MULTILINE), "it reached step 60"
