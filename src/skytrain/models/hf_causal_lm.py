"""Any Hugging Face causal language model behind the model contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..config import ConfigError, HFModelConfig, MissingExtra
from ..planning.flops import training_flops_per_token
from .loss import matmul_parameters


class HFCausalLM(nn.Module):
    """transformers' model as `model`; what is added is our forward, loss-ready logits and FLOPs."""

    def __init__(self, config: HFModelConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.model = model

    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.model(input_ids=tokens_bt, use_cache=False).logits

    def flops_per_token(self, sequence_length: int) -> int:
        """Attention counts where transformers' configuration says its shape in the usual words."""
        theirs: Any = self.model.config
        layers = getattr(theirs, "num_hidden_layers", 0)
        heads = getattr(theirs, "num_attention_heads", 0)
        size = getattr(theirs, "head_dim", None) or (theirs.hidden_size // heads if heads else 0)
        return training_flops_per_token(matmul_parameters(self.model), heads, size, [sequence_length] * layers)


def build_hf(config: HFModelConfig, seed: int, start_weights: bool) -> HFCausalLM:
    """The model in float32: its architecture with new weights from the seed, or its own where the configuration says so."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise MissingExtra("transformers", "export") from None
    where: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        theirs = AutoConfig.from_pretrained(config.name, **where)
        _check_length(theirs, config)
        if config.weights == "pretrained" and start_weights:
            model = AutoModelForCausalLM.from_pretrained(config.name, dtype=torch.float32, **where)
        else:
            if config.weights == "random":
                theirs.vocab_size = config.vocab_size
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(
                    theirs, dtype=torch.float32, trust_remote_code=config.trust_remote_code
                )
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            "model.name",
            f"{config.name!r} is no causal language model that transformers can build here: {first}",
            hint="a folder with a config.json, or OWNER/NAME on the hub",
        ) from error
    if model.config.vocab_size < config.vocab_size:
        raise ConfigError(
            "model.vocab_size",
            f"{config.vocab_size} is more than the {model.config.vocab_size} tokens of {config.name}'s own weights",
            hint="model.weights=random makes a table of any size",
        )
    return HFCausalLM(config, model)


def _check_length(theirs: Any, config: HFModelConfig) -> None:
    longest = getattr(theirs, "max_position_embeddings", None)
    if longest is not None and config.max_length > longest:
        raise ConfigError(
            "model.max_length",
            f"{config.max_length} is longer than the {longest} positions of {config.name}",
            hint=f"try model.max_length={longest}",
        )
