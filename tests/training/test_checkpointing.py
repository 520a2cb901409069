"""When a run saves, and how saves in the background end."""

from __future__ import annotations

import json
import math
import threading
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from skytrain.checkpoints import AnotherModel, Keep, committed_steps, open_checkpoint, step_key
from skytrain.checkpoints.errors import TakenOver
from skytrain.config import Interval, SkytrainError, compose
from skytrain.config.units import parse_interval
from skytrain.jobs import Ranks
from skytrain.planning import Budget, Spending, young_daly_seconds
from skytrain.runs import claim_attempt, record_resume, write_outcome
from skytrain.storage import AccessDenied, StoreError, StoreUnreachable, open_store
from skytrain.storage.folder import FolderStore
from skytrain.training import CausalLM, checkpointing, make_trainer, outline, plan_training
from skytrain.training.checkpointing import (
    Checkpoints,
    SavePolicy,
    check_lineage,
    seconds_between_interruptions,
)
from skytrain.training.random_state import RandomState, random_state, restore_random_state
from skytrain.training.step import Optimization
from tests.support.tiny import ONE_LAYER

# A batch is one micro-batch of two sequences.
SIX_STEPS = (
    *ONE_LAYER,
    "trainer.sequence_length=16",
    "trainer.steps=6",
    "trainer.validate_every=null",
    "lr_schedule=constant",
)
EVERY_SECOND = SavePolicy(every=Interval(steps=2), keep=Keep(last=10))


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(checkpointing, "FIRST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(checkpointing, "FINAL_RETRY_SECONDS", 0.0)


class Watch(pl.Callback):
    """The weights after each step, and something to do there."""

    def __init__(self, at_step: Any = None) -> None:
        self.weights: dict[int, torch.Tensor] = {}
        self._at_step = at_step

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.weights[trainer.global_step] = module.model.embedding.tokens.weight.detach().clone()
        if self._at_step:
            self._at_step(trainer.global_step)


def metered(usd: float) -> Any:
    """The services of an attempt that has cost so much."""
    meter = SimpleNamespace(
        spending=lambda: Spending(usd=usd, usd_per_hour=1.0),
        record=lambda: {"usd": usd},
        note_save=lambda seconds: None,
        note_commit=lambda step: None,
    )
    return SimpleNamespace(
        meter=meter, page=None, sync=SimpleNamespace(flush_for_commit=lambda: None, wake=lambda: None)
    )


def fit(
    store,
    plan: SavePolicy = EVERY_SECOND,
    at_step: Any = None,
    made_here: list[Checkpoints] | None = None,
    services: Any = None,
) -> tuple[Checkpoints, Watch, list[str]]:
    config = compose([*SIX_STEPS]).config
    sizes, said, watch = plan_training(config), [], Watch(at_step)
    saves = Checkpoints(store, "r", Ranks(), plan, said.append, services)
    if made_here is not None:
        made_here.append(saves)
    # What the watch does happens before the save of the same step.
    trainer = make_trainer(config, sizes, store, [watch, RandomState(Ranks()), saves], [])
    made = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 250, (2, 17), generator=made) for _ in range(6)]
    module = CausalLM(outline(config), Optimization(config.optimizer, config.lr_schedule, 6, 1.0))
    trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    return saves, watch, said


def saved_weight(store, step: int) -> torch.Tensor:
    return open_checkpoint(store, step_key("r", step)).model.read()["embedding.tokens.weight"]


def test_saves_come_every_so_many_steps_and_at_the_end(store):
    saves, watch, said = fit(store, SavePolicy(every=Interval(steps=4), keep=Keep(last=10)))
    assert committed_steps(store, "r") == [4, 6]
    assert torch.equal(saved_weight(store, 6), watch.weights[6])
    assert (saves.last_saved, said) == (6, [])
    assert saves.save_seconds > 0


def test_training_goes_on_while_a_save_is_written_and_does_not_get_into_it(store, monkeypatch):
    """The bytes of step 2 are let through only after step 3 has changed the weights."""
    let_through, written = threading.Event(), FolderStore.write_parts
    reached: list[int] = []

    def held(self, key, parts):
        if "step-000000002" in key:
            assert let_through.wait(60)
        written(self, key, parts)

    def at_step(step: int) -> None:
        reached.append(step)
        if step == 3:
            let_through.set()

    monkeypatch.setattr(FolderStore, "write_parts", held)
    _, watch, _ = fit(store, at_step=at_step)
    assert reached == [1, 2, 3, 4, 5, 6]
    assert not torch.equal(watch.weights[2], watch.weights[3])
    assert torch.equal(saved_weight(store, 2), watch.weights[2])


def test_a_save_waits_for_the_one_before_it(store, monkeypatch):
    at_once, most, written = [0], [0], FolderStore.write_parts

    def counted(self, key, parts):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        threading.Event().wait(0.02)
        written(self, key, parts)
        at_once[0] -= 1

    monkeypatch.setattr(FolderStore, "write_parts", counted)
    fit(store, SavePolicy(every=Interval(steps=1), keep=Keep(last=10)))
    assert committed_steps(store, "r") == [1, 2, 3, 4, 5, 6]
    assert most == [1]


def test_a_save_that_is_due_while_the_store_fails_the_one_before_it_is_postponed(store, monkeypatch):
    """The save of step 1 is retried until step 4 is reached, so waiting for it would never get there."""
    works, written = threading.Event(), FolderStore.write_parts

    def retried(self, key, parts):
        if not works.wait(30):
            raise StoreError("write", self.url(key), "training stood still")
        written(self, key, parts)

    monkeypatch.setattr(FolderStore, "write_parts", retried)
    monkeypatch.setattr(FolderStore, "failing", property(lambda self: not works.is_set()), raising=False)
    _, _, said = fit(
        store, SavePolicy(every=Interval(steps=1), keep=Keep(last=10)), lambda step: step == 4 and works.set()
    )
    assert said == []
    assert committed_steps(store, "r") == [1, 4, 5, 6]


def failing(monkeypatch, times: int, kind: type[StoreError] = StoreError) -> None:
    left, written = [times], FolderStore.write_parts

    def fail(self, key, parts):
        left[0] -= 1
        if left[0] >= 0:
            raise kind("write", self.url(key), "No space left on device", hint="make room")
        written(self, key, parts)

    monkeypatch.setattr(FolderStore, "write_parts", fail)


def test_a_save_that_fails_is_said_and_made_up_for_while_training_goes_on(store, monkeypatch):
    failing(monkeypatch, times=1)
    _, watch, said = fit(store)
    assert len(said) == 2
    assert "the checkpoint of step 2 was not saved: " in said[0]
    assert "No space left on device" in said[0] and "training continues" in said[0]
    assert "was saved: the store works again" in said[1]
    assert committed_steps(store, "r")[-1] == 6
    assert torch.equal(saved_weight(store, 6), watch.weights[6])


def test_the_last_save_is_tried_again_before_the_run_ends(store, monkeypatch):
    failing(monkeypatch, times=3)
    _, _, said = fit(store, SavePolicy(every=None, keep=Keep()))
    assert len(said) == 4
    assert committed_steps(store, "r") == [6]


@pytest.mark.parametrize(("kind", "raised"), [(StoreError, StoreUnreachable), (AccessDenied, AccessDenied)])
def test_a_store_that_stays_unwritable_stops_the_run_resumably_when_the_time_is_up(store, monkeypatch, kind, raised):
    failing(monkeypatch, times=1000, kind=kind)
    with pytest.raises(raised, match=r"no checkpoint could be saved for .*No space left(.|\n)*same command resumes"):
        fit(store, SavePolicy(every=Interval(steps=2), keep=Keep(last=10), patience_seconds=0.0))
    assert committed_steps(store, "r") == []


def test_the_last_save_is_not_waited_for_beyond_the_budget(store, monkeypatch):
    failing(monkeypatch, times=1000)
    with pytest.raises(StoreUnreachable, match=r"the limit is budget\.usd"):
        fit(store, SavePolicy(every=None, keep=Keep(), budget=Budget(usd=1.0)), services=metered(1.5))


def test_training_reaches_its_last_step_in_an_outage_however_many_saves_fail(store, monkeypatch):
    reached: list[int] = []
    failing(monkeypatch, times=20)
    _, watch, said = fit(store, SavePolicy(every=Interval(steps=1), keep=Keep(last=10)), reached.append)
    assert reached == [1, 2, 3, 4, 5, 6]
    assert committed_steps(store, "r") == [6]
    assert torch.equal(saved_weight(store, 6), watch.weights[6])
    assert len([line for line in said if "was not saved" in line]) == 20


def test_a_run_that_another_attempt_took_over_stops_at_its_next_save(store):
    attempt = claim_attempt(store, "r")
    record_resume(store, "r", attempt, 0)

    def take_over(step: int) -> None:
        if step == 3:
            while committed_steps(store, "r") != [2]:
                threading.Event().wait(0.01)
            record_resume(store, "r", claim_attempt(store, "r"), 2)

    with pytest.raises(TakenOver, match="attempt 1 on .* has taken over"):  # noqa: RUF043
        fit(store, SavePolicy(every=Interval(steps=2), keep=Keep(last=10), attempt=attempt), take_over)
    assert committed_steps(store, "r") == [2]


def test_what_was_asked_for_is_saved_after_the_step_in_hand(store):
    asked: list[Checkpoints] = []
    fit(
        store,
        SavePolicy(every=None, keep=Keep(last=10)),
        lambda step: asked[0].save_soon() if step == 3 else None,
        asked,
    )
    assert committed_steps(store, "r") == [3, 6]


def test_lineage_and_spend_are_part_of_a_checkpoint(store):
    fit(store, SavePolicy(every=None, keep=Keep(), lineage={"run": "r", "tokenizer": "bytes"}), services=metered(1.5))
    rest = open_checkpoint(store, step_key("r", 6)).rest()
    assert rest["lineage"] == {"run": "r", "tokenizer": "bytes"}
    assert rest["spend"] == {"usd": 1.5}
    assert rest["global_step"] == 6


def test_another_tokenizer_or_model_is_refused_by_name():
    made = {"run": "theirs", "tokenizer": "gpt2", "model": {"width": 64, "heads": 4, "dropout": 0.0}}
    check_lineage(made, dict(made))
    with pytest.raises(AnotherModel, match="another tokenizer: gpt2 there, bytes here"):
        check_lineage(made, {**made, "tokenizer": "bytes"})
    with pytest.raises(AnotherModel, match="another model: heads is 4 there, 8 here"):  # of the same shapes
        check_lineage(made, {**made, "model": {**made["model"], "heads": 8}})
    check_lineage(made, {**made, "model": {**made["model"], "dropout": 0.1}})


def test_the_interval_of_least_loss():
    assert young_daly_seconds(2.0, 3600.0) == pytest.approx(math.sqrt(2 * 2 * 3600))
    assert young_daly_seconds(50.0, 10.0) == 50.0  # never more often than one can be made


def test_auto_saves_first_to_learn_what_a_save_takes(store, monkeypatch):
    assert parse_interval("auto") == Interval() and str(Interval()) == "auto"
    monkeypatch.setattr(checkpointing, "FIRST_SAVE_SECONDS", 0.0)
    saves, _, _ = fit(store, SavePolicy(every=Interval(), keep=Keep(last=10), seconds_between_interruptions=1e9))
    assert committed_steps(store, "r") == [1, 6]
    waits = saves._due_at() - saves._saved_at
    assert waits == pytest.approx(math.sqrt(2 * saves.save_seconds * 1e9))


def test_the_runs_own_interruptions_count_once_there_are_enough(store):
    for number in range(4):
        claim_attempt(store, "r")
        key = f"runs/r/attempts/{number}/attempt.json"
        store.write(key, json.dumps({"started_at": f"2026-01-01T0{number}:00:00+00:00"}).encode())
        if number < 3:
            assert seconds_between_interruptions(store, "r") is None
    assert seconds_between_interruptions(store, "r") == 3600.0
    store.write(key, json.dumps({"started_at": "2025-12-31T00:00:00+00:00"}).encode())  # by a clock that is behind
    assert seconds_between_interruptions(store, "r") is None
    store.write(key, json.dumps({"started_at": "2026-01-01T03:00:00+00:00"}).encode())
    write_outcome(store, "r", 1, "stopped", 5)  # as asked: no interruption
    assert seconds_between_interruptions(store, "r") is None


def test_all_generators_continue_where_they_were():
    import random

    import numpy as np

    def draw() -> tuple[float, float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(())), random.gauss()

    draw()
    state = {name: tensor.clone() for name, tensor in random_state().items()}
    expected = draw()
    draw()
    restore_random_state(state)
    assert draw() == expected


def test_an_error_that_is_no_failed_save_ends_the_run(store, monkeypatch):
    monkeypatch.setattr(FolderStore, "write_parts", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(store)


def test_fewer_than_two_kept_checkpoints_are_refused():
    with pytest.raises(SkytrainError, match="keep_checkpoints"):
        compose(["trainer.keep_checkpoints=1"])
