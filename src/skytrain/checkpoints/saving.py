"""Saving: what a rank holds is copied to the host at once, and written and committed beside training."""

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
from .dcp import save
from .manifest import Manifest
from .parts import HostCopy, Part, part_of

GRACE_SECONDS = 30.0
# That one operation of a save keeps trying. A longer outage fails the save, which is tried again with newer weights.
SAVE_SECONDS = 60.0


def for_saves(store: Store) -> Store:
    """The same store with the patience of a save."""
    return store.hurried(SAVE_SECONDS)


@dataclass(frozen=True)
class SaveOptions:
    """How to save, beside what and where."""

    attempt: int = 0
    background: bool = False
    before_commit: Callable[[], object] = lambda: None  # called by the rank that commits, when all else is written
    committed: Callable[[], None] = lambda: None  # called after the commit, on the rank that made it


@dataclass(frozen=True)
class State:
    """What is saved: tensors by name, on every rank its own; the rest is the first rank's, and what each rank shares."""

    tensors: Mapping[str, Tensor]
    rest: Mapping[str, Any] = field(default_factory=dict)
    share: Any = None


class PendingSave:
    """One save under way, in a thread that ends with the process: a dead peer must not keep it alive."""

    def __init__(self, key: str, work: Callable[[], None], copy_seconds: float) -> None:
        self.key, self.copy_seconds = key, copy_seconds
        self.seconds: float | None = None  # from the beginning to the commit
        self.error: BaseException | None = None
        self._work, self._began = work, time.monotonic() - copy_seconds
        self._thread = threading.Thread(target=self._run, name=f"save {key}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # whatever it is, the training thread must hear of it
            self.error = error
        self.seconds = time.monotonic() - self._began

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def ended_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self.done

    def wait(self) -> None:
        """Returns when the checkpoint is committed; raises what went wrong."""
        self._thread.join()
        if self.error is not None:
            raise self.error


class Saver:
    """Saves one checkpoint at a time, from all ranks of a job together."""

    def __init__(self, store: Store, tell: Callable[[str], None] = lambda text: None) -> None:
        self.store = for_saves(store)
        self._copy = HostCopy(tell)
        self._tell = tell
        self._saves = 0
        self._group: Any = None
        self._reserving: threading.Thread | None = None
        self.pending: PendingSave | None = None

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Begins to set memory aside for the first save, beside training."""
        self._join()
        self._reserving = threading.Thread(target=self._copy.reserve, args=(dict(tensors),), daemon=True)
        self._reserving.start()

    def save(self, key: str, state: State, options: SaveOptions) -> PendingSave:
        """Returns when the state is copied; with `background` off, when it is committed."""
        self.wait()
        self._join()
        began = time.monotonic()
        self._join_group()
        parts = self._copy.take(state.tensors)
        self._saves += 1
        folder = save_folder(options.attempt, self._saves)
        self.pending = PendingSave(
            key, lambda: self._write(key, folder, parts, state, options), time.monotonic() - began
        )
        if not options.background:
            self.wait()
        return self.pending

    def _write(self, key: str, folder: str, parts: Mapping[str, Part], state: State, options: SaveOptions) -> None:
        made: list[None] = []

        def finish(manifest: Manifest) -> None:
            options.before_commit()
            commit(self.store, key, options.attempt, folder, manifest)
            made.append(None)

        save(self.store, f"{key}/{folder}", parts, {"rest": state.rest}, state.share, finish, self._group)
        if made:
            try:
                options.committed()
            except SkytrainError as error:  # the checkpoint is there all the same
                self._tell(f"after the checkpoint {key}: {error}")

    def wait(self) -> None:
        """Until nothing is under way; raises what went wrong with it, unless that was raised before."""
        pending = self.pending
        if pending is not None:
            self.pending = None
            pending.wait()

    def _join(self) -> None:
        if self._reserving is not None:
            self._reserving.join()
            self._reserving = None

    def _join_group(self) -> None:
        """A group of its own, over the CPU: what the thread says must not mix with what training says."""
        if self._group is None and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    def close(self) -> None:
        """At the end, or after an error, when a save may be waiting for a rank that is no more."""
        self._join()
        if self.pending is None or self.pending.ended_within(GRACE_SECONDS):
            self._copy.release()


def write_checkpoint(store: Store, key: str, state: State, attempt: int = 0, number: int = 0) -> None:
    """A whole checkpoint from one process that holds all of it."""
    parts = {name: part for name, tensor in state.tensors.items() if (part := part_of(tensor.cpu())) is not None}
    folder = save_folder(attempt, number)

    def finish(manifest: Manifest) -> None:
        commit(store, key, attempt, folder, manifest)

    save(store, f"{key}/{folder}", parts, {"rest": state.rest}, state.share, finish)
