"""The progress display: a bar in a terminal, plain lines elsewhere."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from skytrain.report import Console
from skytrain.runs import progress_line

DETAIL = "loss 4.2314 | lr 6.00e-04 | norm 0.512 | 102 ms | 40.1K tok/s | mfu 41.2%"
SCRIPT = f"""
from skytrain.report import Console
with Console() as console:
    console.progress("train", 1, 300, {DETAIL!r})
    console.note("step 1 | validation loss 4.1000")
    console.progress("train", 20, 300, {DETAIL!r}, 190.4)
"""


def in_a_terminal(columns: int) -> str:
    """What the script draws in a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        drawn += piece
    os.close(ours)
    assert child.wait() == 0
    return drawn.decode()


def test_a_line_ends_with_the_time_to_go():
    assert progress_line("step", 20, 300, "loss 4.2", 190.4) == "step 20/300 | loss 4.2 | 3m10s to go"
    assert progress_line("step", 300, 300, "loss 4.2", 0.0) == "step 300/300 | loss 4.2"
    assert progress_line("prepare", 5, None) == "prepare 5"


def test_where_nobody_watches_each_step_is_a_line_on_stderr(capsys):
    with Console() as console:
        console.progress("train", 20, 300, "loss 4.2", 190.4)
        console.progress("train", 21, 300, "loss 4.1", 189.0)
    assert capsys.readouterr().err.splitlines() == [
        "step 20/300 | loss 4.2 | 3m10s to go",
        "step 21/300 | loss 4.1 | 3m09s to go",
    ]


def test_a_terminal_shows_a_bar_with_the_time_to_go_on_one_line_whatever_its_width():
    for columns in (70, 160):
        drawn = in_a_terminal(columns)
        frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).replace("\r", "\n").splitlines()
        bars = [frame for frame in frames if frame.startswith("train")]
        assert "20/300 3m10s to go" in bars[-1] and all(len(bar) <= columns for bar in bars)
        assert any(frame.startswith("step 1 | validation loss 4.1000") for frame in frames)
        assert not any(frame.lstrip().startswith(("|", "ms", "tok/s")) for frame in frames)  # nothing wraps


def test_progress_never_passes_its_total() -> None:
    assert progress_line("clean", 9.4, 8.0) == "clean 8/8"
    assert progress_line("clean", 9.4, None) == "clean 9"
    assert progress_line("clean", 0.00004, 0.0001, "40 B") == "clean 40% | 40 B"  # of a megabyte
