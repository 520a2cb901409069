"""Whatever lies in a checkpoint's folder, reading it runs no code."""

import hashlib
import json
import os
import pickle

import pytest

from skytrain.checkpoints import SaveOptions, committed_steps, open_checkpoint, step_key
from skytrain.checkpoints.saving import Saver
from skytrain.config import SkytrainError
from tests.checkpoints.conftest import some_state


class Malicious:
    """Unpickling it makes a folder."""

    def __init__(self, trace) -> None:
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    return tmp_path / "it-ran"


@pytest.fixture
def poison(trace) -> bytes:
    data = pickle.dumps(Malicious(trace))
    pickle.loads(data)  # it is a working one
    assert trace.exists()
    trace.rmdir()
    return data


def read_all(store, key: str) -> None:
    saved = open_checkpoint(store, key)
    saved.rest()
    saved.tensors.read()


def test_a_pickle_in_dcps_own_place_is_not_looked_at(store, saved, poison, trace):
    key = saved()
    for name in (".metadata", "0.0/.metadata", "0.0/__0_0.distcp", "model.ckpt", "0.0/state.pkl"):
        store.write(f"{key}/{name}", poison)
    read_all(store, key)
    assert not trace.exists()


def test_no_file_of_ours_is_unpickled_when_it_is_replaced_by_one(store, saved, poison, trace):
    names = [stat.key for stat in store.list(saved())]
    assert len(names) == 3
    for name in names:
        key = saved(seed=1)
        whole = store.read(name)
        store.write(name, poison)
        with pytest.raises(SkytrainError):
            read_all(store, key)
        store.write(name, whole)
    assert not trace.exists()


def test_bytes_of_a_tensor_that_are_a_pickle_stay_bytes(store, saved, poison, trace):
    """Even with all hashes made to fit, as one who may write to the store can do."""
    key = saved()
    file = next(stat.key for stat in store.list(key) if stat.key.endswith(".bin"))
    data = poison.ljust(len(store.read(file)), b".")
    store.write(file, data)
    manifest = json.loads(store.read(f"{key}/0.0/manifest.json"))
    sizes = {"float32": 4, "bfloat16": 2, "uint8": 1}
    for tensor in manifest["tensors"].values():
        for piece in tensor["pieces"]:
            count = 1
            for size in piece[1]:
                count *= size
            piece[4] = hashlib.sha256(data[piece[3] : piece[3] + count * sizes[tensor["dtype"]]]).hexdigest()
    raw = json.dumps(manifest).encode()
    store.write(f"{key}/0.0/manifest.json", raw)
    marker = {**json.loads(store.read(f"{key}/COMMITTED.0")), "manifest_sha256": hashlib.sha256(raw).hexdigest()}
    store.write(f"{key}/COMMITTED.0", json.dumps(marker).encode())
    read_all(store, key)
    assert not trace.exists()


def test_nothing_that_is_written_is_a_pickle(store, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a checkpoint needs no pickle")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr("torch.save", refuse)
    monkeypatch.setattr("torch.load", refuse)
    Saver(store).save(step_key("r", 5), some_state(), SaveOptions())
    assert committed_steps(store, "r") == [5]
    read_all(store, step_key("r", 5))
