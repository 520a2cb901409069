"""Conversion of settings into a problem: the price, beliefs about the tuned value, and the rungs with their cost."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..aws import Ec2Instance
from ..config import RESULT, Config, ConfigError, flatten, has_layers, select, total_steps
from ..runs import machine_price, plain
from .earlier import EarlierSweep, with_earlier
from .laws import axis_shapes, centred_law, combined_law, priors_around, priors_for, width_free_priors
from .ledger import HourlyPrice
from .problem import Priors, Problem, Rung
from .trials import AXES, configured_value, target_shape, trial_shapes

# where nothing else is set
LOWEST_RATE = 1e-7
HIGHEST_RATE = 0.5
HIGHEST_WARMUP = 0.9
WHERE = ("name", "axes", "host", "parallel", "machines")  # settings that only decide where and how fast a sweep runs
NEWER = {"trunk": False, "earlier": False}  # settings that sweeps of earlier versions lack, with their value then
MOST_NAME = 100  # limit on the characters of a sweep's name
RANGE = 1024.0  # factor between the expected value and the lowest or highest allowed: a guard, not a belief
# Other settings move the loss less than the rate does, and nobody has published laws for them.
OTHER_AXES: dict[str, Any] = {
    "offset": 0.8,
    "curvature": 0.006,
    "curvature_offset": 1.0,
}


def sweep_price(config: Config, instance: Ec2Instance | None) -> HourlyPrice:
    """Return the machine's price, from the settings or the catalogue; raise ConfigError if there is none."""
    usd = config.tune.usd_per_hour
    key = "tune.usd_per_hour" if usd is not None else "budget.usd_per_hour"
    usd = machine_price(config.budget, instance) if usd is None else usd
    if usd is None:
        raise ConfigError("tune.usd_per_hour", "the price of this machine is unknown", hint="set it, such as 1.50")
    if usd == 0:
        raise ConfigError(key, "is 0, and a search without a price has no limit", hint="set what an hour costs")
    if config.budget.usd is None:
        raise ConfigError(
            "budget.usd", "is not set", hint="the dollars for search and final run, such as budget.usd=20"
        )
    return HourlyPrice(usd, config.tune.margin)


def make_problem(config: Config, target: Rung, rungs: Sequence[Rung], earlier: Sequence[EarlierSweep] = ()) -> Problem:
    """Return the search that the settings describe, after these earlier sweeps."""
    priors = with_earlier(beliefs(config, target), target, earlier)
    rungs = tuple(sorted(rungs, key=lambda rung: rung.usd))
    problem = Problem(
        target=target,
        rungs=rungs,
        lowest=1e-12,
        highest=1e12,
        priors=priors,
        noise=config.tune.noise,
        seed=config.seed,
        trials_per_rung=config.tune.trials_per_rung,
    )
    if config.tune.expected is not None:
        problem = problem.around(config.tune.expected)
    expected = [problem.expected_rate(rung) for rung in (target, *rungs)]
    least, most = sensible_range(config, rungs)
    lowest = config.tune.lowest or max(min(expected) / RANGE, least)
    highest = config.tune.highest or min(max(expected) * RANGE, most)
    least, most = config.tune.lowest or least, config.tune.highest or most
    if least >= most:
        raise ConfigError("tune.lowest", f"{least:g} is not below tune.highest={most:g}")
    start = config.tune.expected
    if start is not None and not least <= start <= most:
        raise ConfigError(
            "tune.expected",
            f"{start:g} is not a value that {config.tune.axis} can have: from {least:g} to {most:g}",
            hint="leave it out, or set tune.lowest and tune.highest around it",
        )
    if lowest >= highest:
        raise ConfigError("tune.lowest", f"{lowest:g} is not below tune.highest={highest:g}")
    return replace(problem, lowest=lowest, highest=highest)


def sensible_range(config: Config, rungs: Sequence[Rung]) -> tuple[float, float]:
    """Return the values of the axis beyond which another value is the same run, or has no meaning."""
    trainer = config.trainer
    longest = max((rung.tokens for rung in rungs), default=math.inf)
    if config.tune.axis == "lr":
        return LOWEST_RATE, HIGHEST_RATE
    if config.tune.axis == "warmup":
        return trainer.batch_tokens / longest, HIGHEST_WARMUP  # at least one step
    if config.tune.axis == "batch_tokens":
        unit = trainer.sequence_length * (trainer.micro_batch or 1)
        return float(unit), max(2.0 * unit, longest / config.tune.shortest)
    return 0.0, math.inf


def check_range(config: Config) -> None:
    """Raise ConfigError for meaningless trials and limits, before anything is measured."""
    steps = total_steps(config)
    if config.trainer.batch_schedule:
        raise ConfigError(
            "trainer.batch_schedule",
            "shorter trials would never leave its first phases",
            hint="tune with trainer.batch_schedule=[], and train with the schedule and the rate that was found",
        )
    if config.tune.final_from_step >= steps:
        raise ConfigError("tune.final_from_step", f"{config.tune.final_from_step} is not below the run's {steps} steps")
    if config.lr_schedule.warmup_steps >= steps:
        raise ConfigError(
            "lr_schedule.warmup_steps",
            f"{config.lr_schedule.warmup_steps} is not below the run's {steps} steps: no trial would leave its warm-up",
            hint="shorten the warm-up, or train longer",
        )
    make_problem(config, target_shape(config).rung(1.0), [shape.rung(1.0) for shape in trial_shapes(config)])


def check_axes(config: Config) -> list[str]:
    """Return the axes that are tuned in turn; raise ConfigError for those that cannot be."""
    axes = config.tune.axes or []
    if not axes:
        return []
    if config.tune.machines > 1:
        raise ConfigError("tune.axes", "several axes can only be tuned by one machine", hint="leave out tune.machines")
    if len(set(axes)) != len(axes):
        raise ConfigError("tune.axes", f"{axes} names one twice")
    if unknown := [axis for axis in axes if axis not in AXES]:
        raise ConfigError("tune.axes", f"{unknown[0]!r} cannot be tuned", hint=f"one of {', '.join(AXES)}")
    for name in ("expected", "lowest", "highest"):
        if getattr(config.tune, name) is not None:
            raise ConfigError(
                f"tune.{name}", "is a value of one axis, and tune.axes names several", hint="leave it out"
            )
    return axes


def beliefs(config: Config, target: Rung) -> Priors:
    """Return published laws for the rate of AdamW on a decoder; for anything else the configured value, with wide
    priors.
    """
    if config.tune.axis != "lr":
        value = config.tune.expected or configured_value(config)
        shapes = axis_shapes(config.tune.axis, target, math.log(value))
        return replace(Priors(law=centred_law(target, value), shapes=shapes), **OTHER_AXES)
    model = config.model
    if config.optimizer.name != "adamw" or not has_layers(model):
        return priors_around(target, configured_value(config))
    if model.parametrization != "standard":
        return width_free_priors(target)
    return priors_for(target, combined_law(target))


def sweep_spec(config: Config, tokenizer_id: str) -> dict[str, Any]:
    """Return what the answers of a sweep depend on; the same name with a different spec is refused."""
    tune = {key: value for key, value in _question(config).items() if not key.startswith("usd")}
    return {"target": _target(config), "tokenizer": tokenizer_id, "tune": tune}


def sweep_name(config: Config) -> str:
    if config.tune.name:
        return _checked_name(config.tune.name)
    text = json.dumps([_target(config), _question(config)], sort_keys=True)
    model = config.model.name.rstrip("/").rpartition("/")[2]
    return f"{model}-{config.data.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _checked_name(name: str) -> str:
    """Return the name, which is also part of the names of trials, machines and the final run, and is typed in commands."""
    better = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:MOST_NAME] or "NAME"
    if better != name:
        raise ConfigError(
            "tune.name",
            f"{name!r} cannot name a sweep: letters, digits, '.', '_', '+' and '-', {MOST_NAME} at most",
            hint=f"try tune.name={better}",
        )
    return name


def _question(config: Config) -> dict[str, Any]:
    """Return the settings of the search, without those of where it runs."""
    settings = {key: value for key, value in plain(config.tune).items() if key not in WHERE}
    return {key: value for key, value in settings.items() if key not in NEWER or value != NEWER[key]}


def _target(config: Config) -> Mapping[str, Any]:
    return flatten(select(type(config), plain(config), RESULT))
