"""The Lightning data module: identical global batches for any number of ranks and workers, from any position."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from ..config import BatchSizes, SkytrainError
from .batch import Batch
from .blend import Blend, Shuffle
from .mixture import Phase
from .reader import TokenSplit
from .stream import ShardStream

# The order is computed for this many sequences at a time; for only eight, a call would cost as much as reading them.
ORDER_CHUNK = 8192
# Shard streams plan in chunks of this many sequences; the shards of three chunks must be local at once.
STREAM_CHUNK = 256
# Batches that each data loader worker prefetches.
PREFETCH = 2


class Windows(Dataset[Batch]):
    """The windows of a blend, as batches; with the places where documents begin if `document_starts`."""

    def __init__(self, blend: Blend, *, document_starts: bool) -> None:
        self.blend = blend
        self.document_starts = document_starts

    def __len__(self) -> int:
        return self.blend.windows

    def __getitem__(self, window: int) -> Batch:
        return self.__getitems__(np.array([window]))

    def __getitems__(self, windows: np.ndarray) -> Batch:
        """Return a whole batch with one gather. `DataLoader` calls this method by name."""
        return self.blend.batch(windows, document_starts=self.document_starts)


class TrainBatches(Sampler[np.ndarray]):
    """This rank's micro-batches from the module's position to the end of the run, across epochs.

    Step s covers positions [before(s), before(s + 1)) of the global order, where `BatchSizes` says how many sequences
    come before a step. Each global micro-batch is the next `world * micro_batch` positions, and rank r takes the r-th
    slice. The union over ranks and accumulation steps is therefore the same for any world size.
    """

    def __init__(self, module: TokenDataModule, rank: int, world: int) -> None:
        self.module = module
        self.rank = rank
        self.world = world

    def __len__(self) -> int:
        # Counts the whole run, also on resume: Lightning treats the batches before the resume as already fetched. It counts
        # them as if all steps had as many as the next one, so the largest step decides.
        module = self.module
        return module.total_steps * module.largest_batch // (module.micro_batch * self.world)

    def __iter__(self) -> Iterator[np.ndarray]:
        # Read the position now, not in the constructor: Lightning may create the loader before it restores our state,
        # and starts another "epoch" if the checkpoint's batch count came from a different number of ranks.
        module = self.module
        stride = self.module.micro_batch * self.world
        position = module.position_now
        end = module.end_position
        mine = np.arange(self.rank * module.micro_batch, (self.rank + 1) * module.micro_batch)
        batches_a_chunk = max(1, ORDER_CHUNK // module.micro_batch)
        with ExitStack() as stack:
            stream = self._stream(position, end)
            if stream is not None:
                stream.start(position)
                stack.callback(stream.close)
            for start in range(position, end, stride * batches_a_chunk):
                firsts = np.arange(start, min(end, start + stride * batches_a_chunk), stride)
                positions = firsts[:, None] + mine[None, :]
                windows = module.blend.at(positions.ravel()).reshape(positions.shape)
                if stream is None:
                    yield from windows
                    continue
                # Wait here, in the trainer's process, so that workers only read shards that are already local.
                shards = module.blend.shards_of(windows.ravel()).reshape(positions.shape)
                for first, batch, needed in zip(firsts.tolist(), windows, shards, strict=True):
                    stream.wait_for(first, set(needed.tolist()))
                    yield batch

    def _stream(self, position: int, end: int) -> ShardStream | None:
        module = self.module
        blend = self.module.blend
        if blend.shuffle == "global":
            return None  # the whole split was made local when it was opened

        def shards_of(start: int, stop: int) -> list[int]:
            # Chunk boundaries do not depend on the resume position, so all ranks plan the same chunks.
            shards = blend.shards_of(blend.at(np.arange(max(start, position), min(stop, end))))
            firsts = np.unique(shards, return_index=True)[1]
            return shards[np.sort(firsts)].tolist()

        stride = module.micro_batch * self.world
        chunk = max(STREAM_CHUNK, 2 * module.largest_batch, 2 * (module.workers * PREFETCH + 1) * stride)
        cache = blend.splits[0].cache
        return ShardStream(blend.supply, shards_of, blend.shard_bytes(), cache.limit_bytes, chunk, cache.wait_seconds)


class ValidationBatches(Sampler[np.ndarray]):
    """This rank's share of the first `windows` windows, in order.

    Collectives require the same number of batches on every rank, so the last ones may be smaller or even empty.
    Compute a mean as the sum over tokens divided by their number.
    """

    def __init__(self, windows: int, micro_batch: int, rank: int, world: int) -> None:
        self.windows = windows
        self.micro_batch = micro_batch
        self.rank = rank
        self.world = world

    def __len__(self) -> int:
        return -(-self.windows // (self.micro_batch * self.world))

    def __iter__(self) -> Iterator[np.ndarray]:
        stride = self.micro_batch * self.world
        for start in range(0, self.windows, stride):
            # Windows are dealt one at a time, so that a short last round is spread over the ranks.
            yield np.arange(start + self.rank, min(self.windows, start + stride), self.world)


@dataclass(frozen=True)
class BatchSettings:
    """Settings that determine the batch size and the sequence order."""

    sequence_length: int
    micro_batch: int
    batches: BatchSizes  # sequences of each optimizer step, over all ranks
    total_steps: int
    seed: int
    workers: int = 0
    validation_tokens: int = 0
    shuffle: Shuffle = "global"
    block_shards: int = 8
    phases: Sequence[Phase] = ()
    document_starts: bool = False  # whether batches say where documents begin, for models that separate them


class TokenDataModule(L.LightningDataModule):
    """Training and validation batches (`Batch`) of `micro_batch` windows of `sequence_length + 1` tokens.

    The only state is a global position, in sequences. The trainer needs `use_distributed_sampler=False`:
    Lightning would otherwise replace our sampler.
    The data-parallel rank and world size come from the trainer's strategy, so that tensor, pipeline and context
    parallel peers share a batch. Without a trainer there is one rank.
    """

    def __init__(
        self,
        train: TokenSplit | Mapping[str, TokenSplit],
        validation: TokenSplit | None,
        batches: BatchSettings,
    ) -> None:
        super().__init__()
        sources = {"train": train} if isinstance(train, TokenSplit) else train
        sequence_length = batches.sequence_length
        self.seed = batches.seed
        self.blend = Blend(
            sources,
            sequence_length,
            self.seed,
            shuffle=batches.shuffle,
            block_shards=batches.block_shards,
            phases=batches.phases,
        )
        self.sequence_length = sequence_length
        self.micro_batch = batches.micro_batch
        self.batches = batches.batches
        self.total_steps = batches.total_steps
        self.largest_batch = max(self.batches.sizes(self.total_steps))
        self.workers = batches.workers
        self.document_starts = batches.document_starts
        self.validation_windows = 0
        if validation is not None and batches.validation_tokens:
            wanted = max(1, batches.validation_tokens // sequence_length)
            self.validation_blend = Blend({"validation": validation}, sequence_length, self.seed)
            self.validation_windows = min(self.validation_blend.windows, wanted)
            last = validation.shards_of(np.array([self.validation_windows - 1]), sequence_length)[0]
            validation.supply_all(range(last + 1))
        self.waited_seconds = 0.0  # time that the trainer spent waiting for training batches
        self.position = 0  # in sequences, where this attempt starts
        self.position_step = 0  # the optimizer step that it belongs to
        # The restored state is another run's: with another order of samples, only its step counts.
        self.branches_off = False

    @property
    def position_now(self) -> int:
        """The current position, derived from completed optimizer steps.

        Batches handed out by a loader do not count: prefetched ones have not been trained on.
        """
        return self._position_of(self._step_now)

    @property
    def end_position(self) -> int:
        """One past the last sequence of the run, counted from this attempt's position and step."""
        return self._position_of(self.total_steps)

    def _position_of(self, step: int) -> int:
        """Return the position at which a step begins, counted from this attempt's position and step."""
        return self.position + self.batches.before(step) - self.batches.before(self.position_step)

    def targets_in_step(self, step: int) -> int | None:
        """Return the number of target tokens in optimizer step `step` (from 0), over all ranks and micro-batches.

        None means that every position of every sequence is predicted. The number is a pure function of the order, so
        each rank knows it without communication, before the first micro-batch.
        """
        first = self._position_of(step)
        return self.blend.targets(np.arange(first, first + self.batches.at(step)))

    def train_dataloader(self) -> TrainLoader:
        rank, world = self._data_parallel()
        sizes = self.batches.sizes(self.total_steps)
        uneven = next((size for size in sizes if size % (self.micro_batch * world)), None)
        if uneven is not None:
            raise SkytrainError(
                f"a batch of {uneven} sequences does not divide into micro-batches of {self.micro_batch} on {world} data-parallel ranks\n"
                f"  choose trainer.batch_tokens as a multiple of {self.micro_batch * world * self.sequence_length}, or another trainer.micro_batch"
            )
        self.blend.check_cache()
        return TrainLoader(self, **self._loader_settings(self.blend, TrainBatches(self, rank, world)))

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        if not self.validation_windows:
            return []
        rank, world = self._data_parallel()
        return DataLoader(
            **self._loader_settings(
                self.validation_blend, ValidationBatches(self.validation_windows, self.micro_batch, rank, world)
            )
        )

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position_now, "step": self._step_now, **self._order_identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]
        self.position_step = state_dict.get("step", self.batches.steps_in(self.position))
        for name, mine in self._order_identity().items():
            if name in state_dict and state_dict[name] != mine:
                if self.branches_off:
                    self.position = self.batches.before(self.position_step)
                    return
                raise SkytrainError(
                    f"the checkpoint's position is of another order of samples: {name} was {state_dict[name]}, now it is {mine}\n"
                    "  resume with the same data, sequence length and seed, or start a new run"
                )

    @property
    def _step_now(self) -> int:
        # A trainer that has not yet restored its counters is behind the restored position.
        return max(self.position_step, self.trainer.global_step) if self.trainer is not None else self.position_step

    def _order_identity(self) -> dict[str, Any]:
        """Return the settings that define the order: a saved position is valid only if they are unchanged."""
        return {"seed": self.seed, "sequence_length": self.sequence_length, **self.blend.identity()}

    def _data_parallel(self) -> tuple[int, int]:
        kwargs = self.trainer.distributed_sampler_kwargs if self.trainer is not None else None
        return (kwargs["rank"], kwargs["num_replicas"]) if kwargs else (0, 1)

    def _loader_settings(self, blend: Blend, batches: Sampler[np.ndarray]) -> dict[str, Any]:
        return {
            "dataset": Windows(blend, document_starts=self.document_starts),
            "batch_sampler": batches,
            "collate_fn": _as_it_is,
            "num_workers": self.workers,
            "prefetch_factor": PREFETCH if self.workers else None,
            "pin_memory": torch.cuda.is_available(),
            # A separate generator: drawing from the global one would change dropout after a resume.
            "generator": torch.Generator(),
        }


class TrainLoader(DataLoader[Batch]):
    """The training loader, with the `state_dict` that Lightning expects: the module's state, the same on all ranks."""

    def __init__(self, module: TokenDataModule, **settings: Any) -> None:
        super().__init__(**settings)
        self.module = module

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # starts with the first batch
        batches = super().__iter__() if self.num_workers else self._in_this_process()
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.module.waited_seconds += time.perf_counter() - began
            yield batch

    def _in_this_process(self) -> Iterator[Batch]:
        # The overhead of torch's own iterator is as large as the time to gather a batch.
        assert self.batch_sampler is not None
        read = self.dataset.__getitems__  # type: ignore[attr-defined]
        pinned = self.pin_memory
        for windows in self.batch_sampler:
            batch = read(windows)
            yield batch.pin_memory() if pinned else batch

    def state_dict(self) -> dict[str, Any]:
        return self.module.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.module.load_state_dict(state_dict)


def _as_it_is(batch: Any) -> Any:
    return batch
