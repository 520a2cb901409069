import json

import pytest

from skytrain.checkpoints.folder import FolderReader, committed_steps, prune, step_key, write_folder
from skytrain.config import SkytrainError
from skytrain.storage import open_store


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"w" * 1000)
    return {"weights": path}


def test_a_committed_folder_reads_back(store, files):
    write_folder(store, step_key("r", 5), files)
    assert committed_steps(store, "r") == [5]
    with FolderReader(store, step_key("r", 5)) as folder:
        assert folder.fetch("weights").read_bytes() == b"w" * 1000


def test_a_folder_without_its_marker_does_not_exist(store, files):
    write_folder(store, step_key("r", 5), files)
    store.delete(f"{step_key('r', 5)}/COMMITTED")
    assert committed_steps(store, "r") == []
    with pytest.raises(SkytrainError, match="not a committed checkpoint"):
        FolderReader(store, step_key("r", 5))


def test_a_committed_folder_is_never_overwritten(store, files):
    write_folder(store, step_key("r", 5), files)
    with pytest.raises(SkytrainError, match="not overwritten"):
        write_folder(store, step_key("r", 5), files)


def test_an_altered_file_is_found_when_read(store, files):
    key = step_key("r", 5)
    write_folder(store, key, files)
    store.write(f"{key}/weights", b"w" * 999 + b"x")
    with FolderReader(store, key) as folder, pytest.raises(SkytrainError, match="weights"):
        folder.fetch("weights")


def test_an_altered_manifest_is_found_when_opened(store, files):
    key = step_key("r", 5)
    write_folder(store, key, files)
    store.write(f"{key}/manifest.json", store.read(f"{key}/manifest.json").replace(b"1000", b"1001"))
    with pytest.raises(SkytrainError, match="altered"):
        FolderReader(store, key)


def test_a_newer_format_is_refused(store, files):
    key = step_key("r", 5)
    manifest = json.dumps({"format": 99, "files": {}}).encode()
    import hashlib

    store.write(f"{key}/manifest.json", manifest)
    store.create(f"{key}/COMMITTED", hashlib.sha256(manifest).hexdigest().encode())
    with pytest.raises(SkytrainError, match="newer Skytrain"):
        FolderReader(store, key)


def test_pruning_keeps_the_newest(store, files):
    for step in (1, 20, 300):
        write_folder(store, step_key("r", step), files)
    assert prune(store, "r", keep=2) == [1]
    assert committed_steps(store, "r") == [20, 300]
    assert store.list(step_key("r", 1) + "/") == []
