"""When a run saves a checkpoint, how a save in the background ends, and what is recorded with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import lightning.pytorch as pl

from ..checkpoints import (
    AnotherModel,
    Keep,
    SaveDenied,
    SaveFailed,
    SaveOptions,
    for_saves,
    prune,
    step_key,
    write_validation,
)
from ..config import (
    INTERRUPTED,
    WEIGHTS,
    Interval,
    ModelConfig,
    SkytrainError,
    flatten,
    format_seconds,
    select,
    upgrade,
)
from ..jobs import Ranks
from ..parallel import StateByName, dump_checkpoint
from ..planning import Budget, young_daly_seconds
from ..runs import attempt_numbers, read_attempt, read_outcome
from ..storage import AccessDenied, Patience, Retry, Store, StoreError, StoreUnreachable
from .callbacks import AtStep, is_last
from .services import RunServices
from .step import CausalLM

FIRST_SAVE_SECONDS = 60.0  # when an adaptive interval saves first: later saves depend on how long one takes
# Shortest and longest wait after a failed save, while training continues.
FIRST_RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 60.0
POLL_SECONDS = 0.1  # time between two checks of the save that the next one waits for
FINAL_RETRY_SECONDS = 5.0  # wait after a failed last save, when nothing else is left to do
ENOUGH_INTERRUPTIONS = 3  # number needed to estimate how often a run is interrupted
NO_LIMIT = Budget(usd=None)


@dataclass(frozen=True)
class SavePolicy:
    """How often a run saves, what it keeps, and what is recorded with each checkpoint."""

    every: Interval | None
    keep: Keep
    attempt: int = 0
    lineage: Mapping[str, Any] = field(default_factory=dict)  # run, attempt, model, tokenizer, what it resumed from
    seconds_between_interruptions: float = math.inf
    patience_seconds: float = 1800.0  # how long saves may fail before training stops
    budget: Budget = NO_LIMIT  # once it is spent, the last save is not tried again


def seconds_between_interruptions(store: Store, run: str) -> float | None:
    """Return the mean time between interruptions of this run; None before there were enough of them."""
    former = attempt_numbers(store, run)
    lost = [
        n for n in former[:-1] if (read_outcome(store, run, n) or {"outcome": INTERRUPTED})["outcome"] == INTERRUPTED
    ]
    if len(lost) < ENOUGH_INTERRUPTIONS:
        return None
    first, last = (datetime.fromisoformat(read_attempt(store, run, n)["started_at"]) for n in (former[0], former[-1]))
    seconds = (last - first).total_seconds()
    return seconds / len(lost) if seconds > 0 else None  # the clocks of two machines may disagree


class Checkpoints(AtStep):
    """A callback that saves every so many steps or seconds in the background, and the last step in the foreground.

    With the `services` of an attempt, each checkpoint records what the run has cost, and the meter, the page for
    Prometheus and the synced streams follow it.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        ranks: Ranks,
        policy: SavePolicy,
        tell: Callable[[str], None],
        services: RunServices | None = None,
    ) -> None:
        self._store = for_saves(store)
        self._run = run
        self._ranks = ranks
        self._policy = policy
        self._tell = tell
        self._services = services
        self._patience = Patience(Retry(policy.patience_seconds, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))
        self._saved_at = time.monotonic()
        self._soon = False
        self._retry_at: float | None = None
        self._under_way: int | None = None  # the step that is being written
        self._reserved = False
        self.save_seconds = 0.0  # duration of the slowest save, from its start to its commit
        self.stall_seconds = 0.0  # longest time that a save held up training
        self.last_saved: int | None = None

    def save_soon(self) -> None:
        """Request a checkpoint after the current step. Every rank calls this at the same step."""
        self._soon = True

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        self._saved_at = time.monotonic()

    def at_step(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        self._reserve(trainer, module)
        self._finish_if_done(trainer)
        if is_last(trainer, step):
            with module.clock.pause():
                self._save_and_wait(trainer, step)
        elif self._soon or self._due(step):
            with module.clock.pause():
                self._begin(trainer, step)

    def save_last(self, trainer: pl.Trainer, module: CausalLM, step: int) -> None:
        """Save the step at which training has ended, unless it was saved already."""
        with module.clock.pause():
            if self._under_way is not None:
                self._finish(trainer)
            if self.last_saved != step:
                self._save_and_wait(trainer, step)

    def _reserve(self, trainer: pl.Trainer, module: CausalLM) -> None:
        """Pin memory after the first step, when the optimizer has its state: it takes too long to do within a save."""
        if self._reserved or module.device.type != "cuda" or not isinstance(trainer.strategy, StateByName):
            return
        self._reserved = True
        io: Any = trainer.strategy.checkpoint_io
        io.reserve(dump_checkpoint(trainer))

    def _due(self, step: int) -> bool:
        every = self._policy.every
        if self._patience.failing:
            # During an outage only the back-off decides, and training does not wait for a save under way.
            if self._under_way is not None:
                return False
        elif every is None:
            return False
        elif every.steps is not None:
            return step % every.steps == 0
        # Rank 0's clock decides: all ranks must save together.
        return self._ranks.any(self._ranks.first and time.monotonic() >= self._due_at())

    def _due_at(self) -> float:
        if self._retry_at is not None:
            return self._retry_at
        every = self._policy.every
        assert every is not None
        if every.seconds is not None:
            return self._saved_at + every.seconds
        if self._under_way is not None:
            return math.inf
        if not self.save_seconds:
            return self._saved_at + FIRST_SAVE_SECONDS
        return self._saved_at + young_daly_seconds(self.save_seconds, self._policy.seconds_between_interruptions)

    def _begin(self, trainer: pl.Trainer, step: int) -> None:
        began = time.monotonic()
        if self._under_way is not None:
            before = self._under_way
            if not self._wait_while_the_store_works(trainer):
                self._soon = True  # postponed: training continues
                return
            self._finish(trainer)
            waited = time.monotonic() - began
            if waited >= 1:
                self._tell(f"step {step} waited {waited:.1f} s for the checkpoint of step {before} to be written")
            if self._patience.failing:
                return  # the back-off decides when it is tried again
        self._soon = False
        self._retry_at = None
        self._saved_at = began
        try:
            self._start(trainer, step, background=True)
        except SaveFailed as error:  # raised by a strategy that saves in the foreground
            self._failed(step, error)
        self.stall_seconds = max(self.stall_seconds, time.monotonic() - began)

    def _wait_while_the_store_works(self, trainer: pl.Trainer) -> bool:
        """Wait for the save under way; return False on all ranks if the store fails on any of them."""
        while not self._is_done(trainer):
            if self._ranks.any(self._store.failing):
                return False
            trainer.strategy.checkpoint_io.pending.ended_within(POLL_SECONDS)  # type: ignore[attr-defined]
        return True

    def _start(self, trainer: pl.Trainer, step: int, *, background: bool) -> None:
        self._under_way = step
        options = SaveOptions(self._policy.attempt, background, self._before_commit, lambda: self._after_commit(step))
        trainer.save_checkpoint(step_key(self._run, step), weights_only=False, storage_options=options)

    def _before_commit(self) -> None:
        """Write, on rank 0, what must be in the store before a checkpoint is committed."""
        if self._services is not None:
            self._services.sync.flush_for_commit()

    def _after_commit(self, step: int) -> None:
        if self._services is not None:
            self._services.meter.note_commit(step)
            self._services.sync.wake()
        prune(self._store, self._run, self._policy.keep, attempt=self._policy.attempt)

    def _finish_if_done(self, trainer: pl.Trainer) -> None:
        """Finish the save under way once it has ended on rank 0."""
        if self._under_way is not None and self._is_done(trainer):
            self._finish(trainer)

    def _is_done(self, trainer: pl.Trainer) -> bool:
        """Return whether the save under way has ended on rank 0."""
        pending = getattr(trainer.strategy.checkpoint_io, "pending", None)
        return self._ranks.any(self._ranks.first and (pending is None or pending.done))

    def _finish(self, trainer: pl.Trainer) -> None:
        """Wait for the save under way; report one that failed, which is tried again later."""
        step, self._under_way = self._under_way, None
        assert step is not None
        io: Any = trainer.strategy.checkpoint_io
        pending = getattr(io, "pending", None)
        try:
            if pending is not None:
                io.wait()
        except SaveFailed as error:
            self._failed(step, error)
            return
        self._succeeded(step, pending.seconds if pending is not None else 0.0)

    def _succeeded(self, step: int, seconds: float) -> None:
        if self._patience.failing:
            self._tell(f"the checkpoint of step {step} was saved: the store works again")
        self._patience.recovered()
        self.last_saved = step
        self.save_seconds = max(self.save_seconds, seconds)
        if self._services is not None:
            self._services.meter.note_save(seconds)
            if self._services.page is not None:
                self._services.page.committed(step)

    def _failed(self, step: int, error: SaveFailed, *, last: bool = False) -> None:
        """Report a failed save and schedule the next try; raise, on all ranks, when saves have failed for too long."""
        # The retry saves the weights as they are then.
        self._under_way = None
        self._soon = False
        wait = self._patience.failed()
        # Steps that are lost with the last save can be trained again; dollars beyond the budget are gone.
        give_up = wait is None or (last and not self._is_affordable())
        if self._ranks.any(self._ranks.first and give_up):
            raise self._gave_up(step, error, "store.patience" if wait is None else "budget.usd") from error
        self._retry_at = time.monotonic() + (wait or 0.0)
        left = format_seconds(max(0.0, self._policy.patience_seconds - self._patience.seconds))
        self._tell(
            f"warning: the checkpoint of step {step} was not saved: {error}\n"
            f"  training continues, and saving is tried again for up to {left} (store.patience)"
        )

    def _is_affordable(self) -> bool:
        """Return whether the budget allows waiting for the last save. Only rank 0's answer counts."""
        return self._services is None or self._policy.budget.can_afford_save(self._services.meter.spending())

    def _gave_up(self, step: int, error: SaveFailed, limit: str) -> StoreError:
        kind = AccessDenied if isinstance(error, SaveDenied) else StoreUnreachable
        last = f"step {self.last_saved} is" if self.last_saved is not None else "checkpoints from before are"
        return kind(
            "save to",
            self._store.url(f"runs/{self._run}/checkpoints"),
            f"no checkpoint could be saved for {format_seconds(self._patience.seconds)} (the limit is {limit}), "
            f"so training stops at step {step}: {error}",
            hint=f"{last} safe; when the store can be written to, the same command resumes from there",
        )

    def _save_and_wait(self, trainer: pl.Trainer, step: int) -> None:
        """Save the last step and wait for it. A failed try is soon repeated, since no training is left to do."""
        if self._under_way is not None:
            self._finish(trainer)
        while True:
            began = time.monotonic()
            try:
                self._start(trainer, step, background=False)
                self._under_way = None
                self._succeeded(step, time.monotonic() - began)
                return
            except SaveFailed as error:
                self._failed(step, error, last=True)
            time.sleep(FINAL_RETRY_SECONDS)

    def evaluated(self, trainer: pl.Trainer, step: int, metrics: Mapping[str, float]) -> None:
        """Record the validation loss with the checkpoint of this step, by which the best checkpoints are kept."""
        saved = step in (self._under_way, self.last_saved)
        if not saved or not trainer.is_global_zero or "val/loss" not in metrics:
            return
        try:
            write_validation(self._store, self._run, step, metrics["val/loss"])
        except SkytrainError as error:
            self._tell(f"warning: the validation loss of step {step} was not recorded with its checkpoint: {error}")

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["lineage"] = dict(self._policy.lineage)
        checkpoint["spend"] = dict(self._services.meter.record()) if self._services is not None else {}

    def on_load_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        check_lineage(checkpoint.get("lineage", {}), self._policy.lineage)


def check_lineage(saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise an error for weights of another model or tokenizer.

    They may have the same shapes and load without an error, and be useless.
    """
    if saved.get("tokenizer") != here.get("tokenizer") and "tokenizer" in saved and "tokenizer" in here:
        raise _other_model(saved, "tokenizer", f"{saved['tokenizer']} there, {here['tokenizer']} here")
    models = [upgrade(ModelConfig, lineage.get("model", {})) for lineage in (saved, here)]
    theirs, ours = (flatten(select(ModelConfig, model, {WEIGHTS})) for model in models)
    for key in theirs:
        if key in ours and theirs[key] != ours[key]:
            raise _other_model(saved, "model", f"{key} is {theirs[key]!r} there, {ours[key]!r} here")


def _other_model(saved: Mapping[str, Any], what: str, difference: str) -> AnotherModel:
    return AnotherModel(
        f"the checkpoint of run {saved.get('run', '?')!r} was made with another {what}: {difference}\n"
        f"  use the {what} settings that it was made with"
    )
