"""torch.distributed.checkpoint over a store, without its pickles.

DCP plans which rank writes and reads what, and reshards. DCP's writer pickles the metadata, and its planner pickles
every value that is not a tensor; loading unpickles both, which can execute code. Here tensors are raw bytes, and
everything else is JSON in the manifest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.checkpoint as torch_dcp
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ..config import SkytrainError
from ..storage import Store
from .errors import USE_ANOTHER, CheckpointError, DamagedCheckpoint, save_failure
from .manifest import CheckpointManifest, Piece, SavedFile, SavedTensor
from .parts import TensorPart
from .ranges import ALIGNED_BYTES, read_exactly, spans

PIECE_BYTES = 16 << 20  # each has a hash, so this much is read for any part of it
THREADS = 8
READS = 3  # of bytes with a wrong hash, before the stored bytes are blamed rather than the network

# A single process reads and writes on purpose, and never writes to buffers that it has read.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class PartsPlanner(DefaultSavePlanner):
    """A planner that saves the parts that this rank has copied, in pieces. `share` is added to the manifest's state."""

    def __init__(self, share: Any) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._share = share

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self.state_dict: dict[str, TensorPart] = state_dict
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        items = [item for name, part in self.state_dict.items() for item in _write_items(name, part)]
        self.plan = SavePlan(items, planner_data=self._share)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, dataclasses.replace(metadata, planner_data=[plan.planner_data for plan in all_plans])

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        part = self.state_dict[write_item.index.fqn]
        data = write_item.tensor_data
        assert data is not None
        values = part.values
        for dim, (offset, size) in enumerate(zip(data.chunk.offsets, data.chunk.sizes, strict=True)):
            values = values.narrow(dim, offset - part.offsets[dim], size)
        return values


def _write_items(name: str, part: TensorPart) -> list[WriteItem]:
    values = part.values
    properties = TensorProperties(dtype=values.dtype)
    whole = torch.Size(part.shape)
    rows = values.size(0) if values.ndim else 1
    together = max(1, PIECE_BYTES * rows // (values.numel() * values.element_size()))
    items = []
    for row in range(0, rows, together):
        offsets = list(part.offsets)
        sizes = list(values.shape)
        if values.ndim:
            offsets[0] = part.offsets[0] + row
            sizes[0] = min(together, rows - row)
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        data = TensorWriteData(chunk, properties, whole)
        items.append(WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
    return items


class StoreWriter(StorageWriter):
    """A writer of one file per rank below `folder`, which then calls `finish` with the manifest on one rank."""

    def __init__(
        self, store: Store, folder: str, finish: Callable[[CheckpointManifest], None], state: Mapping[str, Any]
    ) -> None:
        self._store = store
        self._folder = folder
        self._finish = finish
        self._state = state

    def reset(self, checkpoint_id: Any = None) -> None:
        return

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=f"rank-{rank:05d}.bin") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        start = 0
        buffers: list[memoryview] = []
        starts: list[int] = []
        for item in plan.items:
            padding = -start % ALIGNED_BYTES
            buffers += [memoryview(bytes(padding)), _buffer(planner.resolve_data(item))]
            starts.append(start + padding)
            start += padding + buffers[-1].nbytes
        with ThreadPoolExecutor(THREADS) as pool:
            hashes = [pool.submit(hashlib.sha256, buffer) for buffer in buffers[1::2]]
            if buffers:
                with sendable_errors():
                    self._store.write_parts(f"{self._folder}/{plan.storage_data}", buffers)
        results = []
        for item, buffer, start, digest in zip(plan.items, buffers[1::2], starts, hashes, strict=True):
            offsets, sizes = (tuple(box) for box in (_chunk(item).offsets, _chunk(item).sizes))
            piece = Piece(
                offsets=offsets, sizes=sizes, file=plan.storage_data, start=start, sha256=digest.result().hexdigest()
            )
            results.append(WriteResult(item.index, buffer.nbytes, piece))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pieces: dict[str, list[Piece]] = {}
        sizes: dict[str, int] = {}
        for result in (result for rank in results for result in rank):
            piece: Piece = result.storage_data
            pieces.setdefault(result.index.fqn, []).append(piece)
            sizes[piece.file] = max(sizes.get(piece.file, 0), piece.start + result.size_in_bytes)
        tensors = {}
        for name, described in metadata.state_dict_metadata.items():
            assert isinstance(described, TensorStorageMetadata)
            dtype = str(described.properties.dtype).removeprefix("torch.")
            tensors[name] = SavedTensor(dtype, tuple(described.size), tuple(pieces[name]))
        files = {name: SavedFile(size) for name, size in sorted(sizes.items())}
        # Ranks of one pipeline stage have equal shares; each stage has its own.
        shares = list({json.dumps(share, sort_keys=True): share for share in metadata.planner_data}.values())
        with sendable_errors():
            self._finish(CheckpointManifest(files, tensors, {**self._state, "shares": shares}))


@contextmanager
def sendable_errors() -> Iterator[None]:
    """Turn errors of the store into errors that can be sent to another rank."""
    try:
        yield
    except CheckpointError:
        raise
    except SkytrainError as error:
        raise save_failure(error) from error


def _chunk(item: WriteItem) -> ChunkStorageMetadata:
    assert item.tensor_data is not None
    return item.tensor_data.chunk


def _buffer(values: Any) -> memoryview:
    flat: Any = values.contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


@dataclass(frozen=True)
class RankData:
    """The data that one rank saves. The manifest keeps rank 0's `state`, and each distinct `share` once."""

    parts: Mapping[str, TensorPart]
    state: Mapping[str, Any]
    share: Any = None


def save(
    store: Store, folder: str, data: RankData, finish: Callable[[CheckpointManifest], None], group: Any = None
) -> None:
    """Write every rank's parts to the store, then call `finish` on rank 0. An error on any rank is raised on all."""
    try:
        torch_dcp.save(
            dict(data.parts),
            storage_writer=StoreWriter(store, folder, finish, data.state),
            planner=PartsPlanner(data.share),
            process_group=group,
            no_dist=group is None,
        )
    except torch_dcp.api.CheckpointException as error:
        raise _first_cause(error) from error


def _first_cause(error: torch_dcp.api.CheckpointException) -> BaseException:
    causes = [cause for _, (cause, _) in sorted(error.failures.items())]
    known = [cause for cause in causes if isinstance(cause, CheckpointError)]
    return known[0] if known else causes[0]


@dataclass(frozen=True)
class _Wanted:
    item: ReadItem
    tensor: SavedTensor
    piece: Piece

    @property
    def file(self) -> str:
        return self.piece.file

    @property
    def start(self) -> int:
        return self.piece.start

    @property
    def end(self) -> int:
        return self.piece.start + self.tensor.piece_bytes(self.piece)


class StoreReader(StorageReader):
    """A reader of only the pieces that a rank needs, which checks the hash of each."""

    def __init__(self, store: Store, folder: str, manifest: CheckpointManifest) -> None:
        self._store = store
        self._folder = folder
        self._manifest = manifest

    def reset(self, checkpoint_id: Any = None) -> None:
        return

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def read_metadata(self) -> Metadata:
        described: dict[str, Any] = {}
        for name, tensor in self._manifest.tensors.items():
            chunks = [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in tensor.pieces]
            properties = TensorProperties(dtype=getattr(torch, tensor.dtype))
            described[name] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        return Metadata(described)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted = [self._find(item) for item in plan.items]
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(lambda span: self._read(span, planner), spans(wanted)):
                pass  # an error is raised here
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _find(self, item: ReadItem) -> _Wanted:
        tensor = self._manifest.tensors[item.storage_index.fqn]
        assert item.storage_index.index is not None
        return _Wanted(item, tensor, tensor.pieces[item.storage_index.index])

    def _read(self, span: Sequence[_Wanted], planner: LoadPlanner) -> None:
        start = span[0].start
        data = self._verified_bytes(span)
        for want in span:
            piece = want.piece
            item = want.item
            values = data[want.start - start : want.end - start]
            saved = torch.frombuffer(values, dtype=getattr(torch, want.tensor.dtype)).view(piece.sizes)
            for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                saved = saved.narrow(dim, offset, length)
            target = planner.resolve_tensor(item)
            target.copy_(saved)
            planner.commit_tensor(item, target)

    def _verified_bytes(self, span: Sequence[_Wanted]) -> memoryview:
        """Return the bytes of a span. Bytes with a wrong hash are read again: the network may be at fault."""
        key = f"{self._folder}/{span[0].file}"
        start = span[0].start
        end = max(want.end for want in span)
        for _ in range(READS):
            data = memoryview(read_exactly(self._store, key, start, end - start))
            altered = [
                want
                for want in span
                if hashlib.sha256(data[want.start - start : want.end - start]).hexdigest() != want.piece.sha256
            ]
            if not altered:
                return data
        name = altered[0].item.storage_index.fqn
        raise DamagedCheckpoint(
            f"{self._store.url(key)} was altered: the bytes of {name} are not those committed{USE_ANOTHER}"
        )


class _IntoTensors(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise AssertionError("Skytrain's checkpoints contain only tensors")


def load(store: Store, folder: str, manifest: CheckpointManifest, targets: Mapping[str, Tensor]) -> None:
    """Fill each target, a tensor or this rank's part, from the tensor of that name. Ranks do not wait for others."""
    try:
        torch_dcp.load(
            # Detached, because no_grad would apply only to this thread, and other threads read.
            {name: target.detach() for name, target in targets.items()},
            storage_reader=StoreReader(store, folder, manifest),
            planner=_IntoTensors(),
            no_dist=True,
        )
    except torch_dcp.api.CheckpointException as error:
        raise _first_cause(error) from error
