"""Scratch folders: removed at the end, and by the next process if theirs was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from skytrain.storage import ScratchFolder

NAME = "skytrain-test-scratch"


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_scratch_folder_lives_as_long_as_its_block(tmp_path: Path) -> None:
    with ScratchFolder(NAME) as folder:
        (folder / "file").write_text("x")
        with ScratchFolder(NAME) as other:
            assert folder.exists() and other != folder  # a second one leaves the first alone
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    script = (
        f"from skytrain.storage import ScratchFolder; s = ScratchFolder('{NAME}'); print(s.path, flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert child.stdout is not None
    left = Path(child.stdout.readline().strip())
    ScratchFolder(NAME).remove()
    assert left.exists()  # its process is alive
    child.send_signal(signal.SIGKILL)
    child.wait()
    ScratchFolder(NAME).remove()
    assert not left.exists()
