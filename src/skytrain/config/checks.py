"""Checks across several settings, made before any work starts; each error names the keys and their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .batches import batch_sizes, total_steps
from .capabilities import COMBINATION_RULES, Setup, check_setup
from .errors import ConfigError, nearest
from .mesh import assumed_mesh, check_degrees, nearest_divisor
from .schema import Config, DecoderConfig, ExpertsConfig, LatentConfig, has_layers
from .tasks import check_task_names

EXPERT_MULTIPLE = (
    8  # of the sizes of experts' matrices: rows of grouped products begin at multiples of 16 bytes, in bf16 too
)
COMMAND_LINE = "command line"  # the origin of settings that were typed
LOGGERS = ("tensorboard", "wandb", "cloudwatch")  # by name; any other is a class


class Fail(Protocol):
    def __call__(self, key: str, problem: str, hint: str | None = None) -> ConfigError: ...


def check(config: Config, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for the first rule that the configuration breaks."""

    def fail(key: str, problem: str, hint: str | None = None) -> ConfigError:
        return ConfigError(key, problem, origin=origins.get(key), hint=hint)

    if has_layers(config.model):
        check_decoder(config.model, origins)
    check_degrees(config.parallel)
    check_setup(Setup(config, assumed_mesh(config.parallel)), COMBINATION_RULES, origins)
    _check_sizes(config, fail)
    _check_length_of_run(config, fail)
    _check_warmup(config, origins, fail)
    for logger in config.trainer.loggers:
        if logger not in LOGGERS and "." not in logger:
            guess = nearest(logger, LOGGERS)
            raise fail(
                "trainer.loggers",
                f"{logger!r}: no such logger",
                f"{f'did you mean {guess}? ' if guess else ''}{', '.join(LOGGERS)}, or package.module.Class",
            )
    check_task_names(config.evaluation)
    near = config.data.near_dedup
    if near.permutations is not None and near.permutations < near.bands * near.rows:
        raise fail(
            "data.near_dedup.permutations",
            f"{near.permutations} is less than {near.bands} bands x {near.rows} rows = {near.bands * near.rows}",
            "set fewer bands or rows, or data.near_dedup.permutations=null",
        )
    if config.store.kms_key and config.store.sse != "kms":
        raise fail("store.kms_key", "is only used with store.sse=kms")


def _check_sizes(config: Config, fail: Fail) -> None:
    """Check that sequence length, vocabulary and batch sizes are consistent."""
    model = config.model
    trainer = config.trainer
    if trainer.sequence_length > model.max_length:
        raise fail(
            "trainer.sequence_length",
            f"{trainer.sequence_length} is longer than the model's {model.max_length} positions (model.max_length)",
            f"set trainer.sequence_length={model.max_length} or a larger model.max_length",
        )
    if model.vocab_size < config.tokenizer.vocab_size:
        own = has_layers(model) and model.weights is not None
        raise fail(
            "model.vocab_size",
            f"{model.vocab_size} is smaller than the {config.tokenizer.vocab_size} tokens of tokenizer {config.tokenizer.name}",
            "choose the tokenizer that the weights were trained with (model=hf-weights does), "
            "or enlarge the embedding first: resize_token_embeddings of transformers"
            if own
            else f"set model.vocab_size={config.tokenizer.vocab_size}",
        )
    _check_batches(config, fail)


def _check_batches(config: Config, fail: Fail) -> None:
    """Check that micro-batches divide the batch of every step, and that the phases of a schedule follow each other."""
    trainer = config.trainer
    micro_tokens = trainer.sequence_length * (trainer.micro_batch or 1)  # `auto` divides any batch
    phases = {f"trainer.batch_schedule[{number}]": phase for number, phase in enumerate(trainer.batch_schedule)}
    sizes = {f"{key}.batch_tokens": phase.batch_tokens for key, phase in phases.items()}
    for key, size in {**sizes, "trainer.batch_tokens": trainer.batch_tokens}.items():
        if size % micro_tokens:
            near = max(1, round(size / micro_tokens)) * micro_tokens
            raise fail(
                key,
                f"{size} is not a multiple of {micro_tokens} (trainer.micro_batch {trainer.micro_batch or 'auto'} x trainer.sequence_length {trainer.sequence_length})",
                f"try {near}, or a smaller trainer.micro_batch" if key in sizes else f"try trainer.batch_tokens={near}",
            )
    before = 0
    for key, phase in phases.items():
        if phase.until_tokens <= before:
            raise fail(
                f"{key}.until_tokens",
                f"{phase.until_tokens} is not after {before}, where the phase before it ends",
                "phases are in their order, and each ends at so many tokens from the start of the run",
            )
        before = phase.until_tokens


def _check_length_of_run(config: Config, fail: Fail) -> None:
    trainer = config.trainer
    if (trainer.steps is None) == (trainer.tokens is None):
        problem = (
            "neither is given" if trainer.steps is None else f"both are given ({trainer.steps} and {trainer.tokens})"
        )
        raise fail(
            "trainer.steps",
            f"give trainer.steps or trainer.tokens: {problem}",
            "leave one of them out" if trainer.steps else "add trainer.steps=N or trainer.tokens=N",
        )
    first = batch_sizes(trainer).at(0)
    if trainer.tokens is not None and trainer.tokens < first:
        key = "trainer.batch_schedule" if trainer.batch_schedule else "trainer.batch_tokens"
        raise fail(
            "trainer.tokens",
            f"{trainer.tokens} is less than one step of {key}={first}"
            if key == "trainer.batch_tokens"
            else f"{trainer.tokens} is less than the first step of {key}, which has {first}",
            f"try trainer.tokens={first} or a smaller {key}",
        )


def _check_warmup(config: Config, origins: Mapping[str, str], fail: Fail) -> None:
    """Refuse a warm-up that was typed and is longer than the run; a recipe's is shortened for a short run."""
    warmup = config.lr_schedule.warmup_steps
    steps = total_steps(config)
    if warmup > steps and origins.get("lr_schedule.warmup_steps") == COMMAND_LINE:
        raise fail(
            "lr_schedule.warmup_steps",
            f"{warmup} is more than the run's {steps} steps: it would end before its learning rate is reached",
            f"try lr_schedule.warmup_steps={max(1, steps // 10)}, or leave it out: a recipe's is shortened for a short run",
        )


def check_decoder(model: DecoderConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError if the decoder's settings are inconsistent."""

    def fail(key: str, problem: str, hint: str | None = None) -> ConfigError:
        return ConfigError(key, problem, origin=(origins or {}).get(key), hint=hint)

    if model.latent is None and model.head_size is None and model.width % model.heads:
        near = nearest_divisor(model.width, model.heads)
        raise fail(
            "model.heads", f"{model.heads} heads do not divide the width {model.width}", f"try model.heads={near}"
        )
    if model.kv_heads is not None and model.heads % model.kv_heads:
        near = nearest_divisor(model.heads, model.kv_heads)
        raise fail(
            "model.kv_heads",
            f"{model.kv_heads} key-value heads do not divide the {model.heads} heads",
            f"try model.kv_heads={near}",
        )
    if model.experts is not None:
        _check_experts(model, model.experts, fail)
    if model.latent is not None:
        _check_latent(model, model.latent, fail)
    if model.activation != "silu" and model.activation_gain != 1.0:
        raise fail("model.activation_gain", f"{model.activation_gain} is only used with model.activation=silu")
    if model.activation_clamp is not None and not model.gated_mlp:
        raise fail("model.activation_clamp", f"{model.activation_clamp} is only used with model.gated_mlp=true")
    if not model.pre_norms and not model.post_norms:
        raise fail("model.post_norms", "must be true with model.pre_norms=false: a block needs norms")
    needs = {"standard": (), "mup": ("base_width",), "completep": ("base_width", "base_layers")}[model.parametrization]
    for name in needs:
        if getattr(model, name) is None:
            size = {"base_width": "width", "base_layers": "depth"}[name]
            raise fail(
                f"model.{name}",
                f"must be given with model.parametrization={model.parametrization}",
                f"the {size} at which the learning rate was tuned",
            )
    if model.positions == "rope" and model.rope_theta is None:
        raise fail("model.rope_theta", "must be given with model.positions=rope", "Llama 2 uses 10000")
    if model.positions == "rope" and model.rotary_width % 2:
        key = "model.head_size" if model.latent is None else "model.latent.rope_size"
        raise fail(key, f"{model.rotary_width} is odd; rotary positions turn pairs")


def _check_latent(model: DecoderConfig, latent: LatentConfig, fail: Fail) -> None:
    unknown = {
        "model.kv_heads": model.groups != model.heads,
        "model.head_size": model.head_size is not None,
        "model.qk_norm": model.qk_norm,
        "model.bias": model.bias != "none",
        "model.sinks": model.sinks,
        "model.positions": model.positions != "rope",
    }
    key = next((key for key, there in unknown.items() if there), None)
    if key is not None:
        value = getattr(model, key.removeprefix("model."))
        instead = {"model.kv_heads": "null", "model.head_size": "null", "model.bias": "none", "model.positions": "rope"}
        raise fail(key, f"{value} does not go with latent attention", f"try {key}={instead.get(key, 'false')}")
    if latent.value_size > model.head_width:
        raise fail(
            "model.latent.value_size",
            f"{latent.value_size} is more than the {model.head_width} of a key (plain_size + rope_size)",
            f"try model.latent.value_size={model.head_width}",
        )


def _check_experts(model: DecoderConfig, experts: ExpertsConfig, fail: Fail) -> None:
    if experts.per_token > experts.count:
        raise fail(
            "model.experts.per_token",
            f"{experts.per_token} experts for each token, but there are {experts.count}",
            f"try model.experts.per_token={experts.count} or a larger model.experts.count",
        )
    if experts.dense_layers >= model.layers:
        raise fail(
            "model.experts.dense_layers",
            f"{experts.dense_layers} of the {model.layers} layers are dense, so none has experts",
            f"try model.experts.dense_layers={model.layers - 1}, or model.experts=null for a dense model",
        )
    if experts.count % experts.groups:
        near = nearest_divisor(experts.count, experts.groups)
        raise fail(
            "model.experts.groups",
            f"{experts.groups} groups do not divide the {experts.count} experts",
            f"try model.experts.groups={near}",
        )
    if experts.groups_per_token > experts.groups:
        raise fail(
            "model.experts.groups_per_token",
            f"{experts.groups_per_token} groups for each token, but there are {experts.groups}",
            f"try model.experts.groups_per_token={experts.groups}",
        )
    reached = experts.count // experts.groups * experts.groups_per_token
    if experts.per_token > reached:
        raise fail(
            "model.experts.per_token",
            f"{experts.per_token} experts for each token, but its groups have {reached}",
            f"try model.experts.per_token={reached} or a larger model.experts.groups_per_token",
        )
    for key, size in {"model.width": model.width, "model.experts.width": experts.width}.items():
        if size % EXPERT_MULTIPLE:
            below = size // EXPERT_MULTIPLE * EXPERT_MULTIPLE
            fits = " or ".join(f"{key}={each}" for each in (below, below + EXPERT_MULTIPLE) if each)
            raise fail(
                key, f"{size}: grouped products of experts take multiples of {EXPERT_MULTIPLE} only", f"try {fits}"
            )
    if experts.bias_rate and not experts.bias:
        raise fail("model.experts.bias_rate", "is only used with model.experts.bias=true")
    if not model.gated_mlp:
        raise fail("model.gated_mlp", "experts are gated MLPs", "try model=mixtral-tiny or model.experts=null")
