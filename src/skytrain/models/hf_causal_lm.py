"""Any Hugging Face causal language model behind the model contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..config import ConfigError, HFModelConfig, MissingExtra
from ..planning import training_flops_per_token
from .documents import documents_of
from .loss import LossSettings, head_loss, matmul_parameters, token_loss

SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# How architectures call the number of their experts, and of those that a token goes through.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
CHECKED_TOKENS = 3  # of each of two documents, by which a model is tried


class HFCausalLM(nn.Module):
    """transformers' model as `model`; what is added is our forward, our loss and FLOPs."""

    def __init__(self, config: HFModelConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.loss_settings = LossSettings()
        self.separator: int | None = None  # the token that begins a document, where documents are kept apart

    def forward(self, tokens_bt: Tensor, *, targets_bt: Tensor | None = None) -> Tensor:
        """Logits, or the loss where there are targets."""
        inputs = self._inputs(tokens_bt)
        if targets_bt is None:
            return self.model(**inputs).logits
        if self.loss_settings.chunk_tokens is None:
            return self._whole_loss(inputs, targets_bt)
        body, head = self._body_and_head()
        return head_loss(head, body(**inputs).last_hidden_state, targets_bt, self.loss_settings, self.training)

    def loss(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """Mean cross-entropy in nats; in training with the routers' loss and what `loss_settings` adds.

        By a call of the model itself: what is wrapped around it (FSDP gathers weights there) sees all of the work.
        """
        return self(tokens_bt, targets_bt=targets_bt)

    def _whole_loss(self, inputs: dict[str, Any], targets_bt: Tensor) -> Tensor:
        z_loss = self.loss_settings.z_loss if self.training else 0.0
        weight = self.router_loss_weight if self.training else 0.0
        if not weight:
            return token_loss(self.model(**inputs).logits, targets_bt, z_loss)
        # transformers adds it where `output_router_logits` is set, which inference leaves off; training always wants it.
        output = self.model(**inputs, output_router_logits=True)
        return token_loss(output.logits, targets_bt, z_loss) + weight * output.aux_loss

    @property
    def router_loss_weight(self) -> float:
        """`router_aux_loss_coef` of a mixture of experts; 0 for a model without a routers' loss."""
        return float(getattr(self.model, "router_aux_loss_coef", None) or 0.0)

    def _inputs(self, tokens_bt: Tensor) -> dict[str, Any]:
        if self.separator is None:
            return {"input_ids": tokens_bt, "use_cache": False}
        # From positions that begin anew transformers makes a mask that keeps documents apart, windows included.
        tokens_bt, _, places_bt = documents_of(tokens_bt, self.separator)
        return {"input_ids": tokens_bt, "position_ids": places_bt, "use_cache": False}

    def _body_and_head(self) -> tuple[nn.Module, nn.Module]:
        theirs: Any = self.model
        return theirs.base_model, theirs.get_output_embeddings()

    @torch.no_grad()
    def check_chunks(self) -> None:
        """Raise where the loss is more than that of what the output layer makes of the body's result."""
        tokens, problem = torch.arange(CHECKED_TOKENS)[None], None
        body, head = self._body_and_head()
        if self.router_loss_weight:
            problem = "adds the loss of its routers, which only a pass over the whole model gives"
        elif head is None or not _close(self(tokens), head(body(input_ids=tokens, use_cache=False).last_hidden_state)):
            problem = "does more to its logits than its output layer does"
        if problem:
            raise ConfigError(
                "trainer.loss_chunk_tokens",
                f"{self.config.name} {problem}",
                hint="try trainer.loss_chunk_tokens=null",
            )

    @torch.no_grad()
    def check_documents(self) -> None:
        """Raise where the second of two documents sees the first: not every model of transformers takes positions."""
        assert self.separator is not None
        document = torch.arange(CHECKED_TOKENS)[None]
        document[:, 0] = self.separator
        both = self(torch.cat([document, document], dim=1))
        if not _close(both[:, CHECKED_TOKENS:], self(document)):
            raise ConfigError(
                "loader.separate_documents",
                f"{self.config.name} does not keep documents apart by their positions",
                hint="try loader.separate_documents=false, or the built-in decoder",
            )

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


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4)


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
