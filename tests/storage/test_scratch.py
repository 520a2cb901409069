"""Scratch folders: removed at the end, and by the next process if theirs was killed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from skytrain.storage import ScratchFolder, ScratchFull

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


def test_a_folder_whose_process_was_killed_before_it_locked_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}-early").mkdir()
    with ScratchFolder(NAME) as folder:
        assert [path for path in tmp_path.iterdir() if path != folder] == []


@pytest.mark.parametrize("moment", ["made", "opened"])
def test_a_folder_that_was_taken_for_a_dead_ones_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another process begins between making the folder and locking it."""
    plain_mkdtemp, plain_flock = tempfile.mkdtemp, fcntl.flock
    others: list[Path] = []

    def other_process_begins() -> None:
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        others.append(ScratchFolder(NAME).path)

    def mkdtemp(**options: str) -> str:
        made = plain_mkdtemp(**options)
        other_process_begins()
        return made

    def flock(file: object, operation: int) -> None:
        other_process_begins()
        plain_flock(file, operation)  # type: ignore[arg-type]

    if moment == "made":
        monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    else:
        monkeypatch.setattr(fcntl, "flock", flock)
    with ScratchFolder(NAME) as folder:
        assert folder.exists() and len(others) == 1 and folder not in others


def test_a_full_disk_is_told_with_what_is_needed(tmp_path: Path) -> None:
    folder = ScratchFolder(NAME)
    with pytest.raises(ScratchFull, match=rf"{NAME}.*\n.*it takes 3 GB\n.*TMPDIR"), folder.needing("3 GB"):
        Path("/dev/full").write_text("x")
    with pytest.raises(FileNotFoundError), folder.needing("3 GB"):
        (tmp_path / "nothing").read_text()
