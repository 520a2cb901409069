"""torchrun as several nodes start it: `skytrain.jobs.agent`."""

import subprocess
import sys

from skytrain.config import child_environment
from skytrain.jobs import Supervision

WORKER = """
import os, pathlib, sys
from skytrain.jobs import Supervision
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + os.environ["TORCHELASTIC_RESTART_COUNT"] + " ")
count = len(starts.read_text().split())
Supervision.from_environment().report_resume(10 * min(count, 3))
sys.exit(1)
"""


def test_torchrun_gives_up_after_restarts_without_progress_not_after_as_many_in_all(tmp_path):
    script, starts = tmp_path / "worker.py", tmp_path / "starts"
    script.write_text(WORKER)
    starts.write_text("")
    supervision = Supervision.begin(tmp_path)
    options = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "2", "--monitor-interval", "0.05"]
    command = [sys.executable, "-m", "skytrain.jobs.agent", *options, str(script), str(starts)]
    ended = subprocess.run(command, env=child_environment(supervision.environment()), capture_output=True, timeout=300)
    assert ended.returncode == 1
    # Resumed from 10, 20, 30 and twice more from 30; the workers see every restart counted.
    assert starts.read_text().split() == ["0", "1", "2", "3", "4"]
