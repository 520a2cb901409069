"""Several ranks save one checkpoint: each its own parts, every value once, and a failure is everybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.parallel.processes import run_ranks

from skytrain.checkpoints import committed, committed_steps, open_checkpoint, read_manifest, step_key
from skytrain.storage import open_store


def whole_matrix() -> torch.Tensor:
    return torch.arange(70, dtype=torch.float32).reshape(10, 7)


def on_each_rank(root: Path) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from skytrain.checkpoints import SaveOptions
    from skytrain.checkpoints.saving import Saver, TrainingState
    from skytrain.storage import StoreError
    from skytrain.storage.folder import FolderStore

    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    rows = distribute_tensor(whole_matrix(), mesh, [Shard(0)])
    tensors = {
        "model/rows": rows,
        "model/columns": distribute_tensor(whole_matrix(), mesh, [Shard(1)]),
        "model/both": distribute_tensor(whole_matrix(), mesh, [Replicate()]),
        "model/narrow": distribute_tensor(torch.ones(1, 3), mesh, [Shard(0)]),  # the second rank holds nothing of it
        "model/plain": torch.full((3,), 5.0),
        f"random/{rank:05d}/torch": torch.full((4,), rank, dtype=torch.uint8),
    }
    share = {"groups": [{"stage": rank}]}
    saver = Saver(open_store(str(root)))
    pending = saver.save(step_key("r", 1), TrainingState(tensors, {"rank": rank}, share), SaveOptions(background=True))
    with torch.no_grad():
        rows.add_(1000)  # training goes on
    pending.wait()
    said = ""
    written = FolderStore.write_parts
    if rank == 1:

        def fail(self: Any, key: str, parts: Any) -> None:
            raise StoreError("write", self.url(key), "No space left on device", hint="make room")

        FolderStore.write_parts = fail  # type: ignore[method-assign]
    try:
        saver.save(step_key("r", 2), TrainingState(tensors, {}, share), SaveOptions())
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    FolderStore.write_parts = written  # type: ignore[method-assign]
    saver.pending = None
    columns = distribute_tensor(torch.zeros(10, 7), mesh, [Shard(1)])
    open_checkpoint(open_store(str(root)), step_key("r", 1)).model.read_into([("rows", columns)])
    return {"said": said, "columns": columns.to_local()}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def ranks(root) -> list[dict[str, Any]]:
    return run_ranks(2, on_each_rank, root)


def test_a_whole_is_read_from_the_parts_of_the_moment_of_the_save(ranks, root):
    saved = open_checkpoint(open_store(str(root)), step_key("r", 1))
    model = saved.model.read()
    for name in ("rows", "columns", "both"):
        assert torch.equal(model[name], whole_matrix()), name
    assert model["narrow"].tolist() == [[1.0, 1.0, 1.0]]
    assert saved.rest() == {"rank": 0}
    assert saved.state["shares"] == [{"groups": [{"stage": 0}]}, {"groups": [{"stage": 1}]}]
    assert {name: value[0].item() for name, value in saved.random.read().items()} == {
        "00000/torch": 0,
        "00001/torch": 1,
    }


def test_each_rank_writes_its_own_parts_and_no_value_is_stored_twice(ranks, root):
    store = open_store(str(root))
    _, manifest = read_manifest(store, committed(store, "r")[0])
    assert sorted(manifest.files) == ["rank-00000.bin", "rank-00001.bin"]
    files = {name: [piece.file for piece in tensor.pieces] for name, tensor in manifest.tensors.items()}
    assert files["model/rows"] == files["model/columns"] == ["rank-00000.bin", "rank-00001.bin"]
    assert len(files["model/both"]) == len(files["model/plain"]) == len(files["model/narrow"]) == 1


def test_another_cut_of_a_tensor_is_read_from_the_pieces_that_overlap_it(ranks):
    assert torch.equal(torch.cat([rank["columns"] for rank in ranks], dim=1), whole_matrix())


def test_what_one_rank_cannot_write_is_said_on_every_rank_and_nothing_is_committed(ranks, root):
    for rank in ranks:
        assert rank["said"].startswith("SaveFailed: cannot write")
        assert "No space left on device" in rank["said"]
    assert committed_steps(open_store(str(root)), "r") == [1]
