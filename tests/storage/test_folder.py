"""What a folder promises beyond the common interface: nothing half-written, and errors that name the place."""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import ConfigError, StoreConfig
from skytrain.storage import AccessDenied, StoreError, open_store, transfer
from skytrain.storage.transfer import write_whole

MIB = 1 << 20


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may grow past one MiB: to a writer, a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_path_a_file_url_and_home_name_the_same_kind_of_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for root in ("my store", "~/my store", f"{tmp_path}/my store", (tmp_path / "my store").as_uri()):
        assert open_store(root).local_path("a/b") == tmp_path / "my store" / "a" / "b"
        assert open_store(root).root == (tmp_path / "my store").as_uri()


def test_opening_and_reading_make_no_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    assert store.list() == [] and store.folders() == [] and store.stat("a") is None
    assert not (tmp_path / "store").exists()


def test_a_file_being_written_is_not_in_the_store(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    seen = []

    def chunks() -> Iterator[bytes]:
        yield b"half"
        seen.append((store.list(), store.exists("a/key"), len(everything_in(tmp_path))))
        yield b"whole"

    write_whole(tmp_path / "a" / "key", chunks())
    assert seen == [([], False, 1)]
    assert store.read("a/key") == b"halfwhole"


def test_bytes_reach_the_disk_before_their_name_and_then_the_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"), fsync(fd))
    )
    write_whole(
        tmp_path / "key", [b"1"], publish=lambda temporary, path: (events.append("name"), temporary.replace(path))
    )
    assert events == ["file", "name", "folder"]


def test_a_full_disk_leaves_the_old_object_and_nothing_else(tmp_path: Path, small_disk: None) -> None:
    store = open_store(str(tmp_path / "store"))
    store.write("key", b"old")
    for write in (store.write, store.create):
        with pytest.raises(StoreError, match=r"File too large[^\n]*\n.*free some space"):
            write("key" if write == store.write else "new", bytes(2 * MIB))
    assert store.read("key") == b"old" and everything_in(tmp_path) == ["key"]


def test_a_full_disk_stops_an_upload_and_leaves_nothing(tmp_path: Path, large_file: Path, small_disk: None) -> None:
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(StoreError, match=r"cannot upload file://.*store/key: File too large"):
        store.upload(large_file, "key")
    assert everything_in(tmp_path / "store") == []


def test_a_root_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=rf"cannot write {tmp_path.as_uri()}/file/store/key: Not a directory"):
        open_store(str(tmp_path / "file" / "store")).write("key", b"1")


def test_a_root_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    root = (
        Path("/sys/skytrain-test") if os.geteuid() == 0 else tmp_path / "locked" / "store"
    )  # root may write anywhere but there
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(AccessDenied, match=rf"cannot write {root.as_uri()}/key: .*\n.*store.root"):
        open_store(str(root)).write("key", b"1")


def test_a_root_that_cannot_be_made_is_not_called_a_missing_object() -> None:
    with pytest.raises(StoreError, match="cannot write file:///proc/skytrain-test/key: No such file or directory"):
        open_store("/proc/skytrain-test").write("key", b"1")


def test_what_a_killed_writer_left_is_removed_after_a_day_and_what_may_be_under_way_is_not(tmp_path: Path) -> None:
    dead, under_way = tmp_path / ".skytrain-dead", tmp_path / ".skytrain-now"
    for path in (dead, under_way):
        path.write_bytes(b"half of it")
    os.utime(dead, (0, 0))
    open_store(str(tmp_path)).write("key", b"1")
    assert not dead.exists() and under_way.exists()


def test_what_a_writer_of_this_machine_left_is_removed_when_it_is_dead_and_not_before(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from skytrain.storage.transfer import write_whole\n"
    script += "def chunks():\n    yield b'half of it'; print(flush=True); sys.stdin.read()\n"
    script += f"write_whole(Path({str(tmp_path)!r}, 'key'), chunks())"
    writer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    [left] = tmp_path.iterdir()
    transfer._clear_dead.cache_clear()  # as a new process does
    open_store(str(tmp_path)).write("other", b"1")
    assert left.exists()
    writer.kill()
    writer.communicate()
    transfer._clear_dead.cache_clear()
    open_store(str(tmp_path)).write("other", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_file_that_was_taken_for_a_dead_writers_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        monkeypatch.undo()
        transfer._clear_dead.cache_clear()
        transfer._clear_dead(tmp_path)
        assert list(tmp_path.iterdir()) == []
        plain(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    store = open_store(str(tmp_path))
    store.write("key", b"whole")
    assert store.read("key") == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_name_of_our_temporary_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="being written"):
        open_store(str(tmp_path)).write(".skytrain-1", b"1")


def test_deleting_the_last_object_removes_its_folders_and_not_the_root(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.write("a/b/c", b"1")
    store.delete("a/b/c")
    assert (tmp_path / "store").is_dir() and store.folders() == []


def test_encryption_of_a_folder_is_refused_rather_than_ignored(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store.sse: 's3' is for s3:// only"):
        open_store(StoreConfig(root=str(tmp_path), sse="s3", kms_key=None, patience=60.0))
