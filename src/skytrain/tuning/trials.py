"""Trials as ordinary runs: the configuration of a rung, with its own complete schedule.

A trial has the target's data order, betas, clipping and seed. Warm-up and decay keep their shares of the steps: a
run that is cut off inside the target's schedule would rank rates by how fast they warm up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import (
    Config,
    ConfigError,
    DecoderConfig,
    Interval,
    WSDScheduleConfig,
    check_decoder,
    has_layers,
    scaled_parts,
    total_steps,
)
from ..planning import decoder_size
from .problem import Rung, Trial

AXES = ("lr", "weight_decay", "warmup", "batch_tokens")
SIZE = re.compile(r"(\d+)x(\d+)")
DEFAULT_SHARES = (0.25, 0.5)  # widths of smaller models, as shares of the target's
VALIDATIONS = 8  # number of validations during a trial


@dataclass(frozen=True)
class RungShape:
    """A rung before its price is known: a model and a number of steps."""

    name: str
    config: Config  # of a run on this rung, at the configured value of the axis

    @property
    def parameters(self) -> float:
        """Return the parameters of the blocks; a plugged-in model has no smaller versions, so any constant will do."""
        model = self.config.model
        if not has_layers(model):
            return 1e8
        size = decoder_size(model)
        tables = model.vocab_size * model.width * (1 if model.tied_head else 2)
        positions = model.max_length * model.width if model.positions == "learned" else 0
        return float(size.parameters - tables - positions)

    def rung(self, usd: float, steps_usd: float | None = None, around_usd: float = 0.0) -> Rung:
        """Return the rung, with the most that a trial costs, and what its steps and their overhead will probably cost."""
        trainer = self.config.trainer
        model = self.config.model
        layers, width = (model.layers, model.width) if has_layers(model) else (0, 0)
        tokens = total_steps(self.config) * trainer.batch_tokens
        return Rung(
            name=self.name,
            parameters=self.parameters,
            tokens=tokens,
            batch_tokens=trainer.batch_tokens,
            usd=usd,
            layers=layers,
            width=width,
            steps_usd=steps_usd,
            around_usd=around_usd,
        )


def target_shape(config: Config) -> RungShape:
    return RungShape("target", config)


def trial_shapes(config: Config) -> list[RungShape]:
    """Return every smaller model and shorter horizon of the settings, and their combinations."""
    full = total_steps(config)
    if too_short := [one for one in config.tune.steps or [] if one < 1]:
        raise ConfigError(
            "tune.steps", f"{too_short[0]} is not a number of steps", hint="a trial has at least one step"
        )
    if too_long := [one for one in config.tune.steps or [] if one >= full]:
        raise ConfigError(
            "tune.steps",
            f"{too_long[0]} is not below the target's {full} steps",
            hint="tune.horizons=[...,1] has trials at the target's own length",
        )
    steps = config.tune.steps or [round(share * full) for share in config.tune.horizons]
    lengths = sorted({one for one in steps if config.tune.shortest <= one <= full or config.tune.steps})
    if not lengths:
        raise ConfigError(
            "tune.horizons",
            f"{config.tune.horizons} of {full} steps are all below tune.shortest={config.tune.shortest}",
            hint="train the target longer, or set tune.shortest, tune.horizons or tune.steps",
        )
    if config.tune.trunk:
        config = _with_trunk(config, lengths[0])
    models = [*smaller_models(config), config.model]
    shapes = []
    for model in models:
        for length in lengths:
            shapes.append(RungShape(_name(model, length), shortened(replace(config, model=model), length)))
    return shapes


def _with_trunk(config: Config, shortest: int) -> Config:
    """Return the settings with one length of warm-up for all trials, the shortest one's: then a short run is the
    beginning of a long one.
    """
    schedule = config.lr_schedule
    if not isinstance(schedule, WSDScheduleConfig):
        raise ConfigError(
            "tune.trunk",
            f"lr_schedule={schedule.name} has no constant part",
            hint="set lr_schedule=wsd, or leave it out",
        )
    warmup = shortened(replace(config, tune=replace(config.tune, trunk=False)), shortest).lr_schedule.warmup_steps
    return replace(config, lr_schedule=replace(schedule, warmup_steps=warmup))


def decay_start(config: Config) -> int:
    """Return the step after which a warm-up, stay, decay schedule begins to decay."""
    assert isinstance(config.lr_schedule, WSDScheduleConfig)
    steps = total_steps(config)
    return steps - max(1, round(config.lr_schedule.decay_fraction * steps))


def trunk_of(config: Config, others: Mapping[str, Config]) -> str | None:
    """Return `RUN@STEP` of the longest other run that this one continues; None if there is none.

    Two runs that differ only in their length are the same until the shorter one begins to decay, bit for bit: the
    order of the data and every random number depend on the seed and the step.
    """
    run_at = {}
    for run, other in others.items():
        same = replace(other, run=config.run, trainer=config.trainer, budget=config.budget) == config
        if same and decay_start(other) < decay_start(config):
            run_at[decay_start(other)] = run
    return f"{run_at[max(run_at)]}@{max(run_at)}" if run_at else None


def smaller_models(config: Config) -> list[DecoderConfig]:
    """Return the target's model in other sizes, with the same size of heads."""
    target = config.model
    if not has_layers(target):
        if config.tune.sizes:
            raise ConfigError(
                "tune.sizes", "a plugged-in model has one size", hint="leave it out, and tune on horizons"
            )
        return []
    head = target.width_of_head
    if config.tune.sizes is None:
        widths = sorted({max(head, round(share * target.width / head) * head) for share in DEFAULT_SHARES})
        pairs = [(target.layers, width) for width in widths if width < target.width]
    else:
        pairs = [_parse_size(text) for text in config.tune.sizes]
    models = [resized(target, layers, width) for layers, width in pairs]
    for (layers, width), model in zip(pairs, models, strict=True):
        if decoder_size(model).parameters >= decoder_size(target).parameters:
            raise ConfigError(
                "tune.sizes",
                f"{layers}x{width} is not smaller than the target's {target.layers}x{target.width}",
                hint="leave it out: the target's own model is always tried on shorter horizons",
            )
    return models


def resized(model: DecoderConfig, layers: int, width: int) -> DecoderConfig:
    """Return the same family with other depth and width, and heads of the same size."""
    head = model.width_of_head
    if width % head:
        raise ConfigError(
            "tune.sizes",
            f"the width {width} is not a multiple of the heads' {head}",
            hint=f"try {layers}x{max(1, round(width / head)) * head}",
        )
    heads = width // head
    groups = None if model.kv_heads is None else max(1, heads * model.kv_heads // model.heads)
    mlp = None if model.mlp_width is None else max(8, round(model.mlp_width * width / model.width / 8) * 8)
    while groups is not None and heads % groups:
        groups -= 1
    small = replace(
        model,
        name=f"{model.name}-{layers}x{width}",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=groups,
        mlp_width=mlp,
        **scaled_parts(model, width / model.width),
    )
    check_decoder(small)
    return small


def shortened(config: Config, steps: int) -> Config:
    """Return the same run over `steps` steps, with the same shares of warm-up and decay."""
    share = 0 if config.tune.trunk else config.lr_schedule.warmup_steps / total_steps(config)
    kept = config.lr_schedule.warmup_steps if config.tune.trunk else 0
    schedule = replace(config.lr_schedule, warmup_steps=max(1, round(share * steps)) if share else kept)
    return replace(
        config, trainer=replace(config.trainer, steps=steps, tokens=None, stop_at_step=None), lr_schedule=schedule
    )


def at_value(config: Config, value: float) -> Config:
    """Return the configuration with another value of the tuned axis."""
    if config.tune.axis == "lr":
        return _with_optimizer(config, lr=value)
    if config.tune.axis == "weight_decay":
        return _with_optimizer(config, weight_decay=value)
    steps = total_steps(config)
    trainer = config.trainer
    if config.tune.axis == "warmup":
        return replace(config, lr_schedule=replace(config.lr_schedule, warmup_steps=max(1, round(value * steps))))
    unit = trainer.sequence_length * (trainer.micro_batch or 1)
    batch = max(1, round(value / unit)) * unit
    share = config.lr_schedule.warmup_steps / steps
    more = max(1, round(steps * trainer.batch_tokens / batch))
    schedule = replace(config.lr_schedule, warmup_steps=max(1, round(share * more)))
    return replace(config, trainer=replace(trainer, batch_tokens=batch, steps=more, tokens=None), lr_schedule=schedule)


def with_value(config: Config, axis: str, value: float) -> tuple[Config, float]:
    """Return the configuration with another value of an axis, and ln of how far it has moved."""
    named: Any = axis
    turned = replace(config, tune=replace(config.tune, axis=named))
    moved = math.log(value / configured_value(turned))
    return replace(at_value(turned, value), tune=config.tune), moved


def axes_overrides(config: Config, axes: Sequence[str]) -> str:
    """Return the settings of a configuration that these axes have decided."""
    words = {
        "lr": f"optimizer.lr={config.optimizer.lr:.4g}",
        "weight_decay": f"optimizer.weight_decay={config.optimizer.weight_decay:.4g}",
        "warmup": f"lr_schedule.warmup_steps={config.lr_schedule.warmup_steps}",
        "batch_tokens": f"trainer.batch_tokens={config.trainer.batch_tokens} trainer.steps={config.trainer.steps}",
    }
    return " ".join(words[axis] for axis in axes)


def _with_optimizer(config: Config, **changed: float) -> Config:
    optimizer: Any = config.optimizer  # each optimizer has its own dataclass
    return replace(config, optimizer=replace(optimizer, **changed))


def configured_value(config: Config) -> float:
    """Return the configuration's own value of the tuned axis."""
    values = {
        "lr": config.optimizer.lr,
        "weight_decay": config.optimizer.weight_decay,
        "warmup": config.lr_schedule.warmup_steps / total_steps(config),
        "batch_tokens": float(config.trainer.batch_tokens),
    }
    value = values[config.tune.axis]
    if value <= 0:
        keys = {"lr": "optimizer.lr", "weight_decay": "optimizer.weight_decay", "warmup": "lr_schedule.warmup_steps"}
        raise ConfigError(
            keys.get(config.tune.axis, "trainer.batch_tokens"),
            f"is {value:g}, and tune.axis={config.tune.axis} searches around it on a logarithmic axis",
            hint="set it, or tune.expected, to something above zero",
        )
    return value


def value_overrides(config: Config, value: float) -> str:
    """Return the settings that give the target this value of the axis."""
    tuned = at_value(config, value)
    return {
        "lr": f"optimizer.lr={value:.4g}",
        "weight_decay": f"optimizer.weight_decay={value:.4g}",
        "warmup": f"lr_schedule.warmup_steps={tuned.lr_schedule.warmup_steps}",
        "batch_tokens": f"trainer.batch_tokens={tuned.trainer.batch_tokens} trainer.steps={tuned.trainer.steps}",
    }[config.tune.axis]


def trial_config(shape: RungShape, trial: Trial, run: str) -> Config:
    """Return the run of one trial. Its loss is validated a few times along the way, and at its end."""
    config = at_value(shape.config, trial.rate)
    steps = total_steps(config)
    trainer = replace(
        config.trainer,
        validate_every=max(1, steps // VALIDATIONS),
        log_every=max(1, min(config.trainer.log_every, steps // 40)),
        sample_every=None,
        profile=False,
        loggers=[],
        on_anomaly="stop",
        diverged_nats=config.tune.diverged_nats,
    )
    if config.tune.trunk:
        # The step where the decay begins, from which longer trials start. It is past half of the run, so there is only one.
        begins = decay_start(config)
        trainer = replace(trainer, checkpoint_every=Interval(steps=begins), keep_every=begins)
    return replace(config, run=run, seed=config.seed + trial.seed, trainer=trainer)


def _name(model: object, steps: int) -> str:
    size = f"{model.layers}x{model.width}" if has_layers(model) else "model"
    return f"{size}-{steps}"


def _parse_size(text: str) -> tuple[int, int]:
    match = SIZE.fullmatch(text.strip())
    if match is None or not all(map(int, match.groups())):
        raise ConfigError("tune.sizes", f"{text!r} is not LAYERSxWIDTH", hint="such as tune.sizes=[12x192,12x384]")
    return int(match[1]), int(match[2])


def shape_named(shapes: Sequence[RungShape], name: str) -> RungShape:
    return next(one for one in shapes if one.name == name)
