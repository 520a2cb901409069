"""Adapter that makes any Hugging Face causal language model follow the model contract."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ConfigError, HFModelConfig, MissingExtra, SkytrainError
from ..planning import training_flops_per_token
from .agreement import TENSOR_STYLES
from .documents import document_positions
from .loss import LossSettings, head_loss, matmul_parameters, token_loss
from .recompute import Recompute
from .safetensors_header import read_headers
from .sources import find_description, find_weights

SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# Names that architectures use for the number of experts, and for the number of experts active per token.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
ADAPTER = "adapter_config.json"
CHECKED_TOKENS = 3  # tokens per document in the trial batches of the checks below


class HFCausalLM(nn.Module):
    """A transformers model (`model`) with Skytrain's forward, loss and FLOP count."""

    def __init__(self, config: HFModelConfig, model: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.loss_settings = LossSettings()

    def forward(
        self,
        tokens_bt: Tensor,
        *,
        targets_bt: Tensor | None = None,
        document_starts_bt: Tensor | None = None,
    ) -> Tensor:
        """Return the logits, or the loss if targets are given."""
        inputs = _inputs(tokens_bt, document_starts_bt)
        if targets_bt is None:
            return self.model(**inputs).logits
        if self.loss_settings.chunk_tokens is None:
            return self._whole_loss(inputs, targets_bt)
        body, head = self._body_and_head()
        return head_loss(head, body(**inputs).last_hidden_state, targets_bt, self.loss_settings, self.training)

    def loss(self, tokens_bt: Tensor, targets_bt: Tensor, document_starts_bt: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy in nats; in training, plus the router loss and the terms of `loss_settings`.

        Calls the module itself, so that its forward hooks run (FSDP gathers the weights in them).
        """
        return self(tokens_bt, targets_bt=targets_bt, document_starts_bt=document_starts_bt)

    def _whole_loss(self, inputs: dict[str, Any], targets_bt: Tensor) -> Tensor:
        z_loss = self.loss_settings.z_loss if self.training else 0.0
        weight = self.router_loss_weight if self.training else 0.0
        if not weight:
            return token_loss(self.model(**inputs).logits, targets_bt, z_loss)
        # transformers computes the router loss only if `output_router_logits` is set, which is off by default.
        output = self.model(**inputs, output_router_logits=True)
        return token_loss(output.logits, targets_bt, z_loss) + weight * output.aux_loss

    @property
    def router_loss_weight(self) -> float:
        """`router_aux_loss_coef` of a mixture-of-experts model; 0 for a model without a router loss."""
        return float(getattr(self.model, "router_aux_loss_coef", None) or 0.0)

    def _body_and_head(self) -> tuple[nn.Module, nn.Module]:
        theirs: Any = self.model
        return theirs.base_model, theirs.get_output_embeddings()

    @torch.no_grad()
    def check_chunks(self) -> None:
        """Raise ConfigError if the loss cannot be computed in chunks.

        Chunks need logits that are exactly the output layer applied to the last hidden state, and no router loss.
        """
        tokens = torch.arange(CHECKED_TOKENS)[None]
        problem = None
        body, head = self._body_and_head()
        if self.router_loss_weight:
            problem = "adds the loss of its routers, which only a pass over the whole model gives"
        else:
            with _without_dropout(self):
                whole = self(tokens)
                hidden = body(input_ids=tokens, use_cache=False).last_hidden_state
                if head is None or not _close(whole, head(hidden)):
                    problem = "does more to its logits than its output layer does"
        if problem:
            raise ConfigError(
                "trainer.loss_chunk_tokens",
                f"{self.config.name} {problem}",
                hint="try trainer.loss_chunk_tokens=null",
            )

    @torch.no_grad()
    def check_documents(self) -> None:
        """Raise ConfigError if attention crosses from one document into the next.

        Not every transformers model uses the positions it is given.
        """
        document = torch.arange(CHECKED_TOKENS)[None]
        twice = torch.cat([document, document], dim=1)
        with _without_dropout(self):
            both = self(twice, document_starts_bt=twice == 0)
            alone = self(document)
        if not _close(both[:, CHECKED_TOKENS:], alone):
            raise ConfigError(
                "loader.separate_documents",
                f"{self.config.name} does not keep documents apart by their positions",
                hint="try loader.separate_documents=false, or the built-in decoder",
            )

    def save_memory(self, recompute: Recompute, settings: LossSettings) -> None:
        """Set what blocks recompute in the backward pass, and how the loss is computed."""
        if recompute == "full":
            theirs: Any = self.model
            theirs.gradient_checkpointing_enable({"use_reentrant": False})
        self.loss_settings = settings
        if settings.chunk_tokens:
            self.check_chunks()

    @property
    def tensor_plan(self) -> dict[str, str] | None:
        """Return transformers' plan in our words; None if there is none, or if it uses a style that we do not have."""
        theirs: dict[str, str] = getattr(self.model, "tp_plan", None) or {}
        known = set(theirs.values()) <= set(TENSOR_STYLES)
        return {f"model.{name}": TENSOR_STYLES[word] for name, word in theirs.items()} if theirs and known else None

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the training FLOPs per token, counting only the experts that are active for a token.

        Attention is counted if the transformers configuration has its shape under the usual names.
        """
        theirs: Any = self.model.config
        layers = getattr(theirs, "num_hidden_layers", 0)
        heads = getattr(theirs, "num_attention_heads", 0)
        size = getattr(theirs, "head_dim", None) or (theirs.hidden_size // heads if heads else 0)
        products = matmul_parameters(self.model) - idle_expert_parameters(self.model)
        return training_flops_per_token(products, heads, size, [sequence_length] * layers)


def _inputs(tokens_bt: Tensor, document_starts_bt: Tensor | None) -> dict[str, Any]:
    if document_starts_bt is None:
        return {"input_ids": tokens_bt, "use_cache": False}
    # transformers builds a mask that separates documents from positions that restart at 0; windows are respected.
    _, places_bt = document_positions(document_starts_bt)
    return {"input_ids": tokens_bt, "position_ids": places_bt, "use_cache": False}


def idle_expert_parameters(model: nn.Module) -> int:
    """Count the expert weights that are inactive for a token; 0 for a model without experts."""
    experts, active = (_first_of(model.config, words) for words in (EXPERTS, ACTIVE_EXPERTS))
    if not experts or not active:
        return 0
    weights = [
        parameter
        for name, parameter in model.named_parameters()
        # Most architectures stack the experts into one tensor; others have a list of modules.
        if parameter.ndim >= 2 and ("experts" in name.split(".") or (parameter.ndim == 3 and len(parameter) == experts))
    ]
    return sum(parameter.numel() for parameter in weights) * (experts - min(active, experts)) // experts


def _first_of(config: Any, words: tuple[str, ...]) -> int:
    found = (getattr(config, word, None) for word in words)
    return next((value for value in found if isinstance(value, int)), 0)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off within this context, for trial batches whose results are compared."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _fetched(config: HFModelConfig, pretrained: bool) -> str:
    """Return the folder of the model, with what is read of a repository: transformers itself would fetch whatever is in it.

    A repository whose code is trusted keeps its name, since that code may read any of its files.
    """
    name = config.name
    if "://" not in name and not Path(name).expanduser().is_dir():
        if config.trust_remote_code:
            return name
        name = name if config.revision is None else f"{name}@{config.revision}"
    try:
        return str(find_weights(name) if pretrained else find_description(name))
    except SkytrainError as error:
        problem, _, hint = str(error).partition("\n  ")
        raise ConfigError(
            "model.name", f"{config.name!r} is not a causal language model that can be read here: {problem}", hint=hint
        ) from None


def _refuse_adapter(folder: Path) -> None:
    """Refuse a folder with an adapter: where peft is installed, transformers would add it, and peft imports what it names."""
    if (folder / ADAPTER).exists():
        raise ConfigError(
            "model.name",
            f"{folder} has an adapter of PEFT ({ADAPTER}), which is not read",
            hint="merge it into the weights first (peft: merge_and_unload, save_pretrained), or remove it",
        )


def _refuse_named_kernels(theirs: Any, name: str) -> None:
    """Refuse a config.json whose attention is a repository of the hub: transformers would fetch and run its code."""
    for kernel in _named_implementations(theirs):
        if "/" in kernel:
            raise ConfigError(
                "model.name",
                f"the config.json of {name!r} names code of the hub for its attention, {kernel!r:.80}",
                hint="remove attn_implementation there, or set model.trust_remote_code=true if you trust it",
            )


def _named_implementations(part: Any, *, named: bool = False) -> Iterator[str]:
    """Yield what a configuration names as implementations, also in those of its parts and layers, at any depth."""
    if isinstance(part, str):
        if named:
            yield part
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _named_implementations(each, named=named)
    else:
        values = part if isinstance(part, dict) else vars(part) if hasattr(part, "model_type") else {}
        for key, value in values.items():
            yield from _named_implementations(value, named=named or "_implementation" in str(key))


def build_hf(config: HFModelConfig, seed: int, start_weights: bool) -> HFCausalLM:
    """Build the model in float32, with new weights from the seed or with its pretrained weights.

    Pretrained weights are loaded only if the configuration asks for them and `start_weights` is set.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError:
        raise MissingExtra("transformers", "export") from None
    pretrained = config.weights == "pretrained" and start_weights
    name = _fetched(config, pretrained)
    if pretrained and Path(name).is_dir():
        read_headers(Path(name))  # refuses pickles, and files that are missing or truncated
        _refuse_adapter(Path(name))
    where: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        theirs = AutoConfig.from_pretrained(name, **where)
        if not config.trust_remote_code:
            _refuse_named_kernels(theirs, config.name)
        _check_length(theirs, config)
        if config.weights == "random":
            theirs.vocab_size = config.vocab_size
        _drop_special_tokens(theirs)
        if pretrained:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                name, config=theirs, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **where
            )
            model, report = loaded
            _check_complete(config.name, report["missing_keys"])
            model.train()  # as a new model is; transformers returns one for inference, without dropout and recomputation
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(
                    theirs, dtype=torch.float32, trust_remote_code=config.trust_remote_code
                )
    except ConfigError:
        raise
    except Exception as error:  # arbitrary model code ran, possibly remote: it can raise anything
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            "model.name",
            f"{config.name!r} is not a causal language model that transformers can build here: {first}",
            hint="a folder with a config.json, or OWNER/NAME on the hub",
        ) from error
    if model.config.vocab_size < config.vocab_size:
        raise ConfigError(
            "model.vocab_size",
            f"{config.vocab_size} is more than the {model.config.vocab_size} tokens of {config.name}'s own weights",
            hint="model.weights=random makes a table of any size",
        )
    if config.weights == "random":
        # The id of its padding token is an ordinary token of our tokenizer, whose row would otherwise get no gradient.
        embeddings: Any = model.get_input_embeddings()
        embeddings.padding_idx = None
    return HFCausalLM(config, model)


def _check_complete(name: str, missing: Collection[str]) -> None:
    """Raise ConfigError for weights without some of the model's parameters, to which transformers gives random values."""
    if missing:
        first = ", ".join(sorted(missing)[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigError(
            "model.name",
            f"the weights of {name} lack parameters of a causal language model: {first}{more}",
            hint="give the weights of a model that was trained to predict the next token",
        )


def _drop_special_tokens(theirs: Any) -> None:
    """Unset special token ids outside the vocabulary, which transformers' embedding rejects."""
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
