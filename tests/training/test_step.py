"""The functions that `training/step.py` names for a step are called, in that order, in every mode."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import pytest
from benchmarks.parallel.cases import DECODER, MODELS, SEQUENCES, SIZE
from benchmarks.parallel.equivalence import batches
from benchmarks.parallel.processes import run_ranks

from skytrain.runs import Silent
from skytrain.training.step import STEPS, Mode, StepPart

WORLD: dict[Mode, tuple[int, tuple[str, ...]]] = {
    "one device": (1, ("parallel=single",)),
    "ddp": (2, ("parallel=ddp",)),
    "mesh": (2, ("parallel=fsdp",)),
    "pipeline": (2, ("parallel=pp", "parallel.pipeline_micro_batches=2")),
    "deepspeed": (2, ("parallel=deepspeed-zero1",)),
}
MICRO_BATCH, STEPS_TRAINED = 2, 3


def record(mode: Mode) -> tuple[list[str], int]:
    """Train a few steps; return the parts of the last one in the order in which they ended, and its micro-batches."""
    from torch.utils.data import DataLoader

    from skytrain.config import compose
    from skytrain.jobs import Ranks
    from skytrain.runs import Meter
    from skytrain.storage import open_store
    from skytrain.training import make_module, make_trainer, outline, plan_training
    from skytrain.training.callbacks import StepLog, StepSize

    world_size, overrides = WORLD[mode]
    config = compose(
        [
            *(*MODELS["gpt2"], *DECODER, *SIZE, *overrides),
            f"trainer.micro_batch={MICRO_BATCH}",
            f"trainer.steps={STEPS_TRAINED}",
            "trainer.validate_every=null",
            "trainer.precision=32-true",
        ]
    ).config
    plan = plan_training(config, Ranks.from_environment() if world_size > 1 else Ranks())
    seen: list[str] = []
    for part in parts_of(mode):
        setattr(part.owner, part.function, recorded(part, getattr(part.owner, part.function), seen))
    size = StepSize(batches=plan.batches)
    log = StepLog(Silent(), lambda step, record: None, Meter([], None), size, every=1)
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [log], [])
    module = make_module(config, plan, outline(config), lambda text: None)
    rows = [
        batch.take(slice(at, at + plan.micro_batch))
        for batch in batches(257)
        for at in range(0, SEQUENCES, plan.micro_batch)
    ]
    trainer.fit(module, DataLoader(rows, batch_size=None))  # type: ignore[arg-type]
    ends = [index for index, name in enumerate(seen) if name == "metrics"]
    assert len(ends) == STEPS_TRAINED
    return seen[ends[-2] + 1 : ends[-1] + 1], plan.micro_batches


def recorded(part: StepPart, function: Any, seen: list[str]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if part.name != "schedule" or seen[-1:] != ["schedule"]:  # it is asked once for each group of parameters
            seen.append(part.name)
        return found

    return call


def parts_of(mode: Mode) -> list[StepPart]:
    return [*STEPS[mode].micro_batch, *STEPS[mode].update]


@pytest.mark.parametrize("mode", WORLD)
def test_a_step_calls_what_its_page_names_in_that_order(mode: Mode):
    world_size, _ = WORLD[mode]
    ranks = run_ranks(world_size, record, mode) if world_size > 1 else [in_a_process_of_its_own(mode)]
    order = STEPS[mode]
    for seen, micro_batches in ranks:
        expected = [part.name for _ in range(micro_batches) for part in order.micro_batch]
        if mode == "deepspeed":  # its optimizer step is called for every micro-batch, and acts on the last
            optimizer = "clipping, optimizer"
            seen = [name for index, name in enumerate(seen) if name != optimizer or seen[index - 1] == "guard"]
        assert seen == [*expected, *(part.name for part in order.update)]
        assert micro_batches > 1 or mode == "pipeline"


def in_a_process_of_its_own(mode: Mode) -> tuple[list[str], int]:
    """What is recorded is replaced for good."""
    return run_ranks(1, record, mode)[0]


def test_every_mode_has_a_step():
    assert set(WORLD) == set(STEPS)
