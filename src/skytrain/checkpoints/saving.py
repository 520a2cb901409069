"""Saves a checkpoint: each rank's state is copied to the host, then written and committed while training continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..config import SkytrainError
from ..storage import Store
from .commits import commit, save_folder
from .dcp import RankData, save
from .manifest import CheckpointManifest
from .parts import HostCopy, cpu_parts

GRACE_SECONDS = 30.0
# How long one operation of a save is retried. A longer outage fails the save, and the next one has newer weights.
SAVE_SECONDS = 60.0


def for_saves(store: Store) -> Store:
    """Return the same store with the retries of a save."""
    return store.hurried(SAVE_SECONDS)


@dataclass(frozen=True)
class SaveOptions:
    """The options of a save.

    The rank that commits calls `before_commit` when everything else is written, and `committed` after the commit.
    """

    attempt: int = 0
    background: bool = False
    before_commit: Callable[[], object] = lambda: None
    committed: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class TrainingState:
    """The state to save: this rank's tensors by name, the rest (from rank 0), and each rank's share of the manifest."""

    tensors: Mapping[str, Tensor]
    rest: Mapping[str, Any] = field(default_factory=dict)
    share: Any = None


@dataclass(frozen=True)
class SaveTarget:
    """The destination of a save. `number` counts an attempt's saves; `group` has its ranks, None for one process."""

    store: Store
    key: str
    number: int = 0
    options: SaveOptions = SaveOptions()
    group: Any = None

    @property
    def name(self) -> str:
        """The name of the folder with the files, within the step's folder."""
        return save_folder(self.options.attempt, self.number)

    @property
    def folder(self) -> str:
        return f"{self.key}/{self.name}"


def write_and_commit(
    target: SaveTarget,
    data: RankData,
    tell: Callable[[str], None] = lambda text: None,
    amend: Callable[[CheckpointManifest], CheckpointManifest] = lambda manifest: manifest,
) -> None:
    """Write what every rank has, and commit it on rank 0 with the manifest that `amend` returns."""
    options = target.options
    made = False

    def finish(manifest: CheckpointManifest) -> None:
        nonlocal made
        options.before_commit()
        commit(target.store, target.key, options.attempt, target.name, amend(manifest))
        made = True

    save(target.store, target.folder, data, finish, target.group)
    if made:
        try:
            options.committed()
        except SkytrainError as error:  # the checkpoint is committed nevertheless
            tell(f"after the checkpoint {target.key}: {error}")


class PendingSave:
    """A save that runs in a daemon thread, so that a dead peer cannot keep the process alive."""

    def __init__(self, key: str, work: Callable[[], None], copy_seconds: float) -> None:
        self.key = key
        self.copy_seconds = copy_seconds
        self.seconds: float | None = None  # from the start of the save to the commit
        self.error: BaseException | None = None
        self._work = work
        self._began = time.monotonic() - copy_seconds
        self._thread = threading.Thread(target=self._run, name=f"save {key}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # the training thread raises it
            self.error = error
        self.seconds = time.monotonic() - self._began

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self.done

    def wait(self) -> None:
        """Wait until the checkpoint is committed; raises the save's error."""
        self._thread.join()
        if self.error is not None:
            raise self.error


class Saver:
    """A saver of one checkpoint at a time, which all ranks of a job call together."""

    def __init__(self, store: Store, tell: Callable[[str], None] = lambda text: None) -> None:
        self.store = for_saves(store)
        self._copy = HostCopy(tell)
        self._tell = tell
        self._saves = 0
        self._group: Any = None
        self._reserving: threading.Thread | None = None
        self.pending: PendingSave | None = None

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Start to reserve memory for the first save, while training continues."""
        self._join()
        self._reserving = threading.Thread(target=self._copy.reserve, args=(dict(tensors),), daemon=True)
        self._reserving.start()

    def save(self, key: str, state: TrainingState, options: SaveOptions) -> PendingSave:
        """Start a save, and return when the state is copied; without `options.background`, when it is committed."""
        self.wait()
        self._join()
        began = time.monotonic()
        self._join_group()
        parts = self._copy.take(state.tensors)
        self._saves += 1
        target = SaveTarget(store=self.store, key=key, number=self._saves, options=options, group=self._group)
        data = RankData(parts, {"rest": state.rest}, state.share)
        self.pending = PendingSave(key, lambda: write_and_commit(target, data, self._tell), time.monotonic() - began)
        if not options.background:
            self.wait()
        return self.pending

    def wait(self) -> None:
        """Wait for the running save, if there is one; raises its error."""
        pending = self.pending
        if pending is not None:
            self.pending = None
            pending.wait()

    def _join(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _join_group(self) -> None:
        """Create a process group over the CPU, so that saves and training do not mix their collectives."""
        if self._group is None and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    def close(self) -> None:
        """Release the memory, at the end or after an error, unless a save is still waiting for a lost rank."""
        self._join()
        if self.pending is None or self.pending.ended_within(GRACE_SECONDS):
            self._copy.release()


def write_checkpoint(store: Store, key: str, state: TrainingState, attempt: int = 0, number: int = 0) -> None:
    """Write and commit a checkpoint from one process that has all of it."""
    target = SaveTarget(store=store, key=key, number=number, options=SaveOptions(attempt))
    write_and_commit(target, RankData(cpu_parts(state.tensors), {"rest": state.rest}, state.share))
