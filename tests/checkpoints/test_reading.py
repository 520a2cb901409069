"""What was saved is read back, by pieces, and whatever is wrong with it is said."""

import hashlib
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from skytrain.checkpoints import AnotherModel, dcp, open_checkpoint, step_key
from skytrain.checkpoints.errors import DamagedCheckpoint
from skytrain.checkpoints.saving import TrainingState, write_checkpoint
from skytrain.storage.folder import FolderStore
from tests.checkpoints.conftest import some_state

DTYPES = ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"]


def file_of(store, key: str) -> str:
    return next(stat.key for stat in store.list(key) if stat.key.endswith(".bin"))


def test_every_value_comes_back_with_its_type_and_shape(store, saved):
    found = open_checkpoint(store, saved())
    expected = some_state()
    read = found.tensors.read()
    assert set(read) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)
    assert found.rest() == {"global_step": 5}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(1, 9), max_size=3), dtype=st.sampled_from(DTYPES), piece=st.integers(1, 200))
def test_any_tensor_in_pieces_of_any_size_comes_back(store, monkeypatch, shape, dtype, piece):
    monkeypatch.setattr(dcp, "PIECE_BYTES", piece)
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    store.delete_all("anywhere") if store.folders() else None
    write_checkpoint(store, "anywhere/here", TrainingState({"model/t": tensor}, {}, {"groups": []}))
    assert torch.equal(open_checkpoint(store, "anywhere/here").model.read()["t"], tensor)


def test_evaluation_reads_the_models_bytes_and_not_the_optimizers(store, saved, monkeypatch):
    key, ranges = saved(), []
    read = FolderStore.read_range

    def noting(self, key, start, length):
        ranges.append(length)
        return read(self, key, start, length)

    monkeypatch.setattr(FolderStore, "read_range", noting)
    open_checkpoint(store, key).model.read()
    assert sum(ranges) < 40 * 6 * 4 + 7 * 2 + dcp.ALIGNED_BYTES


def test_a_byte_that_was_altered_is_found_and_named(store, saved):
    key = saved()
    data = bytearray(store.read(file_of(store, key)))
    data[100] ^= 1
    store.write(file_of(store, key), bytes(data))
    with pytest.raises(DamagedCheckpoint, match="was altered: the bytes of model/weight are not those committed"):
        open_checkpoint(store, key).tensors.read()


def test_a_file_cut_short_is_found_and_says_by_how_much(store, saved):
    key = saved()
    store.write(file_of(store, key), store.read(file_of(store, key))[:500])
    with pytest.raises(DamagedCheckpoint, match=r"cut short: 500 bytes are there, at least \d\d\d\d were committed"):
        open_checkpoint(store, key).tensors.read()


def test_a_missing_file_is_found(store, saved):
    key = saved()
    store.delete(file_of(store, key))
    with pytest.raises(DamagedCheckpoint, match="is missing"):
        open_checkpoint(store, key).tensors.read()


def test_an_altered_manifest_is_found_before_anything_is_read(store, saved):
    key = saved()
    manifest = store.read(f"{key}/0.0/manifest.json")
    store.write(f"{key}/0.0/manifest.json", manifest.replace(b'"global_step":5', b'"global_step":6'))
    with pytest.raises(DamagedCheckpoint, match="altered after the checkpoint was committed"):
        open_checkpoint(store, key)


@pytest.mark.parametrize("data", [b"", b"\x80\x04.", b"[]", b"{}", b'{"format": 2}', b'{"format": "2"}'])
def test_a_manifest_of_anything_else_is_a_message_and_no_traceback(store, saved, data):
    key = saved()
    marker = json.loads(store.read(f"{key}/COMMITTED.0"))
    store.write(f"{key}/0.0/manifest.json", data)
    marker["manifest_sha256"] = hashlib.sha256(data).hexdigest()
    store.write(f"{key}/COMMITTED.0", json.dumps(marker).encode())
    with pytest.raises(DamagedCheckpoint, match="use another checkpoint"):
        open_checkpoint(store, key)


def test_another_models_checkpoint_says_what_it_lacks(store, saved):
    model = open_checkpoint(store, saved()).model
    with pytest.raises(AnotherModel, match="it has no gain, nor 1 others of 3"):
        model.read_into([("weight", torch.zeros(40, 6)), ("gain", torch.zeros(1)), ("other", torch.zeros(1))])


def test_another_vocabulary_is_named_with_both_sizes(store, saved):
    model = open_checkpoint(store, saved()).model
    with pytest.raises(AnotherModel, match="weight is 40 x 6 there and 48 x 6 here"):
        model.read_into([("weight", torch.zeros(48, 6))])


def test_nothing_of_a_target_changes_when_it_does_not_fit(store, saved):
    model, target = open_checkpoint(store, saved()).model, torch.zeros(40, 6)
    with pytest.raises(AnotherModel):
        model.read_into([("weight", target), ("gain", torch.zeros(1))])
    assert not target.any()


def test_a_step_that_was_never_saved_is_no_checkpoint(store, saved):
    saved(5)
    with pytest.raises(Exception, match="not a committed checkpoint"):
        open_checkpoint(store, step_key("r", 6))
