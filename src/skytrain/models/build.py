"""Build a model from its configuration: the built-in decoder, a Hugging Face model or a user's class."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from torch import nn

from ..config import (
    ConfigError,
    CustomModelConfig,
    HFModelConfig,
    ModelConfig,
    check_decoder,
    has_layers,
    load_class,
    make,
)
from .decoder import Decoder
from .hf_causal_lm import build_hf
from .initialise import initialise
from .weights import initial_values, load_weights


def build_model(config: ModelConfig, seed: int, *, start_weights: bool = True) -> nn.Module:
    """Build the model on the CPU in float32, with its initial weights.

    With `start_weights=False`, `model.weights` is not read: the caller loads a checkpoint afterwards.
    """
    if has_layers(config):
        check_decoder(config)
        with torch.device("meta"):
            model = Decoder(config)
        if config.weights is not None and start_weights:
            load_weights(model, config.weights)
        else:
            initialise(model, seed)
        return model
    if isinstance(config, HFModelConfig):
        return build_hf(config, seed, start_weights)
    assert isinstance(config, CustomModelConfig)
    return _build_custom(config, seed)


def outline_model(config: ModelConfig, seed: int, *, start_weights: bool = True) -> nn.Module:
    """Build the model on the meta device, with the `initial_values` of its parameters: no process then holds it whole.

    A model that cannot be made so is built on the CPU, as by `build_model`.
    """
    if has_layers(config) and not (start_weights and config.weights and Path(config.weights).is_file()):
        check_decoder(config)
        with torch.device("meta"):
            model = Decoder(config)
        model.initial_values = initial_values(config, seed, start_weights=start_weights)
        return model
    return build_model(config, seed, start_weights=start_weights)


def count_parameters(model: nn.Module) -> int:
    """Count parameters as `skytrain models` and Hugging Face do: tied weights once, without vocabulary padding."""
    own = getattr(model, "count_parameters", None)
    return own() if callable(own) else sum(parameter.numel() for parameter in model.parameters())


def _build_custom(config: CustomModelConfig, seed: int) -> nn.Module:
    given = {"vocab_size": config.vocab_size, "max_length": config.max_length}
    target = load_class(config.target, "model.target")
    if not isinstance(target, type) or not issubclass(target, nn.Module):
        raise _broken(config, "is not a torch.nn.Module")
    parameters = inspect.signature(target).parameters
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in given:
        if name not in parameters and not free:
            raise ConfigError(
                "model.target",
                f"{config.target} does not take {name}",
                hint=f"add {name} to the arguments of its __init__",
            )
        if name in config.args:
            raise ConfigError(
                f"model.args.{name}", "is set by the model itself", hint=f"set model.{name}={config.args[name]}"
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(config.target, config.args, key="model.args", **given)
    _check_contract(model, config)
    return model


def _broken(config: CustomModelConfig, problem: str) -> ConfigError:
    return ConfigError(
        "model.target", f"{config.target} {problem}", hint="the contract: forward(tokens_bt) -> logits_btv"
    )


def _check_contract(model: nn.Module, config: CustomModelConfig) -> None:
    """Raise ConfigError if a custom model cannot be trained; runs it on two tokens."""
    if not hasattr(model, "config"):
        model.config = config  # type: ignore[assignment]  # torch types attributes as tensors or modules
    elif getattr(model.config, "max_length", None) is None or getattr(model.config, "vocab_size", None) is None:
        raise _broken(config, "has a `config` without vocab_size and max_length")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise _broken(config, "has no parameters to train")
    was_training = model.training
    tokens = torch.zeros(1, min(2, config.max_length), dtype=torch.long)
    try:
        with torch.no_grad():
            logits = model.eval()(tokens)
    except (TypeError, RuntimeError, IndexError, ValueError) as error:
        raise _broken(config, f"fails on a batch of shape {tuple(tokens.shape)}: {error}") from error
    finally:
        model.train(was_training)
    if not isinstance(logits, torch.Tensor):
        raise _broken(config, f"returns a {type(logits).__name__}, not a tensor of logits")
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape or logits.size(-1) < config.vocab_size:
        raise _broken(
            config, f"returns logits of shape {tuple(logits.shape)}, not {(*tokens.shape, config.vocab_size)} or wider"
        )
