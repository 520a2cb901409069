"""Checkpoints in DeepSpeed's format whose author is hostile, written here without DeepSpeed."""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from skytrain.checkpoints import open_deepspeed, open_weights, step_key
from skytrain.checkpoints.commits import commit
from skytrain.checkpoints.deepspeed import cache_of
from skytrain.checkpoints.errors import DamagedCheckpoint
from skytrain.checkpoints.manifest import DEEPSPEED, CheckpointManifest, SavedFile
from skytrain.runs import claim_attempt
from skytrain.storage import Store

LAYOUT = {"deepspeed": {"stage": 1, "world_size": 1, "bf16": True, "offload": ""}}
MODEL = "mp_rank_00_model_states.pt"
OPTIMIZER = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
SHAPES = {"param_shapes": [{"model.w": torch.Size([2, 3])}]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path / "cache"))


def saved_files(
    store: Store, run: str, step: int, files: Mapping[str, bytes], state: Mapping[str, Any] = LAYOUT
) -> str:
    """Commit files of DeepSpeed's as those of a run, and return the checkpoint's folder."""
    key = step_key(run, step)
    attempt = claim_attempt(store, run)
    saved = {}
    for name, data in files.items():
        store.write(f"{key}/0.0/deepspeed/{name}", data)
        saved[f"deepspeed/{name}"] = SavedFile(len(data), hashlib.sha256(data).hexdigest())
    commit(store, key, attempt, "0.0", CheckpointManifest(saved, state=dict(state), kind=DEEPSPEED))
    return key


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def optimizer(row: Any) -> bytes:
    return pickled({"optimizer_state_dict": {"single_partition_of_fp32_groups": [row]}})


def a_script() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), file)
    return file.getvalue()


def a_file_of_old() -> bytes:
    file = io.BytesIO()
    torch.save(SHAPES, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_converted_weights_are_kept_by_what_was_read_whatever_a_marker_says_since(store):
    """A machine that rewrites its marker would have its weights kept in the place of another run's."""
    key = saved_files(store, "r", 5, {})
    marker = json.loads(store.read(f"{key}/COMMITTED.0", None))
    opened = open_deepspeed(store, key)
    store.write(f"{key}/COMMITTED.0", json.dumps({**marker, "manifest_sha256": "0" * 64}).encode())
    assert cache_of(opened).name == marker["manifest_sha256"]


@pytest.mark.parametrize("layout", [None, {}, {"stage": "3", "world_size": 2, "bf16": True, "offload": ""}])
def test_a_layout_of_deepspeed_that_is_none_is_damage(store, layout):
    state = {} if layout is None else {"deepspeed": layout}
    key = saved_files(store, "r", 5, {}, state)
    with pytest.raises(DamagedCheckpoint, match="is damaged"):
        open_deepspeed(store, key)


def test_two_runs_that_have_the_same_weights_at_different_steps_are_both_read(store):
    """A machine that copies the checkpoint of another run, as its own of another step, would keep that one from being read."""
    files = {MODEL: pickled(SHAPES), OPTIMIZER: optimizer(torch.arange(6.0))}
    keys = [saved_files(store, "copied", 7, files), saved_files(store, "r", 5, files)]
    for key in keys:
        [weight] = open_weights(store, key).tensors.below("model").read().values()
        assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.filterwarnings("ignore:.*TorchScript")
@pytest.mark.parametrize(
    ("model", "row"),
    [
        (a_script(), torch.arange(6.0)),
        (a_file_of_old(), torch.arange(6.0)),
        (b"", torch.arange(6.0)),
        (b"junk", torch.arange(6.0)),
        (pickled(SHAPES)[:-9], torch.arange(6.0)),
        (pickled([]), torch.arange(6.0)),
        (pickled({"param_shapes": [{"model.w": "2x3"}]}), torch.arange(6.0)),
        (pickled(SHAPES), torch.arange(5.0)),
        (pickled(SHAPES), "a row"),
        (pickled({"param_shapes": [{"model.w": torch.Size([1 << 40])}]}), torch.zeros(1).expand(1 << 40)),
    ],
    ids=["script", "legacy", "empty", "junk", "cut", "list", "shape", "short", "text", "repeated"],
)
def test_files_of_deepspeed_that_are_none_are_damage(store, model, row):
    key = saved_files(store, "r", 5, {MODEL: model, OPTIMIZER: optimizer(row)})
    with pytest.raises(DamagedCheckpoint, match="has contents that no DeepSpeed checkpoint has") as caught:
        open_weights(store, key)
    assert caught.value.exit_code == 9
