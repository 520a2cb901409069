"""A smoke run: the first tokens of a run on its own machines, from launch to the end, before the run itself starts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from ...config import Composed, SkytrainError, format_count, parse_count, total_steps
from ...planning import SmokeSettings, smoke_plan
from ...runs import LaunchRecord, launch_starts, run_name
from ...storage import Store
from .launch import PlannedJob, PreparedLaunch

SUFFIX = "-smoke"
START_SECONDS = 180.0  # in which the last act of a smoke run starts the run
POLL_SECONDS = 5.0


def smoke_job(job: PlannedJob, tokens: str, compose: Callable[[Sequence[str]], Composed]) -> PlannedJob:
    """Return the smoke run of a job: its first steps, under a name of its own. `compose` makes its configuration."""
    config = job.composed.config
    if job.plan.job != "train":
        raise SkytrainError("--smoke: only training has a smoke run\n  leave it out")
    try:
        wanted = parse_count(tokens)
    except ValueError as error:
        raise SkytrainError(f"--smoke {tokens}: {error}\n  for example: --smoke 20M") from None
    steps = math.ceil(wanted / config.trainer.batch_tokens)
    whole = min(total_steps(config), config.trainer.stop_at_step or total_steps(config))
    if not 0 < steps < whole:
        raise SkytrainError(
            f"--smoke {tokens}: that is {steps} of the run's {whole} steps\n"
            f"  give fewer tokens than {format_count(whole * config.trainer.batch_tokens)}, and more than 0"
        )
    name = f"{run_name(config)}{SUFFIX}"
    composed = compose([*job.composed.overrides, f"run={name}", f"trainer.stop_at_step={steps}"])
    settings = SmokeSettings(steps, composed.values, composed.overrides)
    return PlannedJob(composed, smoke_plan(job.plan, settings), job.keep_seconds)


def smoke_text(prepared: PreparedLaunch) -> str:
    """What a smoke run costs, for people, before they agree."""
    assert prepared.smoke is not None
    offer = prepared.smoke.plan.choice
    record = prepared.smoke.record
    most = offer.nodes * offer.max_usd_per_hour_each * offer.kill_after_seconds / 3600
    return (
        f"{record.run} first, {offer.cost.hours:.1f} h, ${offer.cost.usd:.2f} (at most ${most:.2f}) in addition; "
        f"{prepared.run} starts only if it ends well"
    )


def wait_for_start(store: Store, record: LaunchRecord, wait: Callable[[float], None] = time.sleep) -> bool:
    """Wait until the machines of a smoke run have started the run that waits for it; False if they do not."""
    for _ in range(math.ceil(START_SECONDS / POLL_SECONDS)):
        starts = launch_starts(store, record)
        if starts is not None:
            return starts
        wait(POLL_SECONDS)
    return False
