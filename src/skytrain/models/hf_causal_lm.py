"""Any Hugging Face causal language model behind the model contract."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ..config import ConfigError, HFModelConfig, MissingExtra
from ..planning.flops import training_flops_per_token
from .loss import matmul_parameters, token_loss

SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# How architectures call the number of their experts, and of those that a token goes through.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")


class HFCausalLM(nn.Module):
    """transformers' model as `model`; what is added is our forward, loss-ready logits and FLOPs."""

    def __init__(self, config: HFModelConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.model = model

    @overload
    def forward(self, tokens_bt: Tensor, router_loss: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, tokens_bt: Tensor, router_loss: Literal[True]) -> tuple[Tensor, Tensor]: ...
    def forward(self, tokens_bt: Tensor, router_loss: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits; with `router_loss` also what the routers of a mixture of experts add to the loss, before its weight."""
        if not router_loss:
            return self.model(input_ids=tokens_bt, use_cache=False).logits
        output = self.model(input_ids=tokens_bt, use_cache=False, output_router_logits=True)
        return output.logits, output.aux_loss

    def loss(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """Mean cross-entropy in nats; in training with the routers' loss, weighted as transformers weights it.

        transformers adds it where `output_router_logits` is set, which inference leaves off; training always wants it.
        """
        weight = self.router_loss_weight if self.training else 0.0
        if not weight:
            return token_loss(self(tokens_bt), targets_bt)
        logits_btv, router_loss = self(tokens_bt, router_loss=True)
        return token_loss(logits_btv, targets_bt) + weight * router_loss

    @property
    def router_loss_weight(self) -> float:
        """`router_aux_loss_coef` of a mixture of experts; 0 for a model without a routers' loss."""
        return float(getattr(self.model, "router_aux_loss_coef", None) or 0.0)

    def flops_per_token(self, sequence_length: int) -> int:
        """Of experts, those that a token goes through. Attention counts where transformers' configuration says its shape in the usual words."""
        theirs: Any = self.model.config
        layers = getattr(theirs, "num_hidden_layers", 0)
        heads = getattr(theirs, "num_attention_heads", 0)
        size = getattr(theirs, "head_dim", None) or (theirs.hidden_size // heads if heads else 0)
        products = matmul_parameters(self.model) - idle_expert_parameters(self.model)
        return training_flops_per_token(products, heads, size, [sequence_length] * layers)


def idle_expert_parameters(model: nn.Module) -> int:
    """Weights of experts that a token does not go through; 0 for a model that is no mixture of experts."""
    experts, active = (_first_of(model.config, words) for words in (EXPERTS, ACTIVE_EXPERTS))
    if not experts or not active:
        return 0
    weights = [
        parameter
        for name, parameter in model.named_parameters()
        # Stacked into one tensor in most architectures; a list of modules in others.
        if parameter.ndim >= 2 and ("experts" in name.split(".") or (parameter.ndim == 3 and len(parameter) == experts))
    ]
    return sum(parameter.numel() for parameter in weights) * (experts - min(active, experts)) // experts


def _first_of(config: Any, words: tuple[str, ...]) -> int:
    found = (getattr(config, word, None) for word in words)
    return next((value for value in found if isinstance(value, int)), 0)


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
        if config.weights == "random":
            theirs.vocab_size = config.vocab_size
        _drop_special_tokens(theirs)
        if config.weights == "pretrained" and start_weights:
            model = AutoModelForCausalLM.from_pretrained(config.name, config=theirs, dtype=torch.float32, **where)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(
                    theirs, dtype=torch.float32, trust_remote_code=config.trust_remote_code
                )
    except ConfigError:
        raise
    except Exception as error:  # code of any architecture ran, also a user's own: it fails in any way
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
    if config.weights == "random":
        # Its padding token is an ordinary one to our tokenizer: left as it is, that token's row would get no gradient.
        embeddings: Any = model.get_input_embeddings()
        embeddings.padding_idx = None
    return HFCausalLM(config, model)


def _drop_special_tokens(theirs: Any) -> None:
    """Forgets special tokens beyond the vocabulary, which transformers' embedding takes for an error."""
    for name in SPECIAL_TOKENS:
        ids = getattr(theirs, name, None)
        if ids is not None and max(ids if isinstance(ids, list) else [ids]) >= theirs.vocab_size:
            setattr(theirs, name, None)


def _check_length(theirs: Any, config: HFModelConfig) -> None:
    longest = getattr(theirs, "max_position_embeddings", None)
    if longest is not None and config.max_length > longest:
        raise ConfigError(
            "model.max_length",
            f"{config.max_length} is longer than the {longest} positions of {config.name}",
            hint=f"try model.max_length={longest}",
        )
