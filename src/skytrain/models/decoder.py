"""The decoder: one class for every family; its configuration decides the parts. Single-device code that knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import DecoderConfig, SkytrainError
from ..planning import decoder_flops_per_token
from .attention import Attention, KVCache
from .branches import Branches, branching_documents
from .documents import Documents, documents_of, make_documents
from .loss import LossSettings, head_loss
from .norm import make_norm
from .parametrization import multipliers
from .places import Places
from .recompute import Recompute, run_block
from .rope import Rotation, rotation, rotation_at, stable_length

# A parameter's value by its name and shape, as a whole tensor on the CPU.
InitialValues = Callable[[str, torch.Size], Tensor]


class Embedding(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.padded_vocab, config.width)
        self.positions = nn.Embedding(config.max_length, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_bt: Tensor, start: int = 0, places_bt: Tensor | None = None) -> Tensor:
        """Tokens from position `start` on, or each at the place given."""
        check_tokens(tokens_bt, self.config, start)
        x_btd = self.tokens(tokens_bt)
        if self.config.scale_embedding:
            # Gemma's own code rounds the factor to the embedding's dtype.
            x_btd = x_btd * torch.tensor(self.config.width**0.5, dtype=x_btd.dtype, device=x_btd.device)
        if self.positions is not None and places_bt is not None:
            x_btd = x_btd + self.positions(places_bt)
        elif self.positions is not None:
            x_btd = x_btd + self.positions.weight[start : start + tokens_bt.size(1)]
        return self.dropout(x_btd)


class MLP(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.width
        hidden = config.hidden_width
        bias = config.bias == "all"
        self.activation = config.activation
        self.gate = nn.Linear(width, hidden, bias=bias) if config.gated_mlp else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def activate(self, x: Tensor) -> Tensor:
        return F.silu(x) if self.activation == "silu" else F.gelu(x, approximate="tanh")

    def forward(self, x_btd: Tensor) -> Tensor:
        up = self.up(x_btd)
        return self.down(self.activate(up) if self.gate is None else self.activate(self.gate(x_btd)) * up)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    `post_norms` normalizes what is added, too; without `pre_norms` only that is normalized.
    """

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config, config.width) if config.pre_norms else None
        self.attention = Attention(config, layer)
        self.mlp_norm = make_norm(config, config.width) if config.pre_norms else None
        self.mlp = MLP(config)
        self.attention_post_norm = make_norm(config, config.width) if config.post_norms else None
        self.mlp_post_norm = make_norm(config, config.width) if config.post_norms else None
        self.dropout = nn.Dropout(config.dropout)
        self.scale = multipliers(config).residual

    def forward(
        self,
        x_btd: Tensor,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        added = self.attention(_apply(self.attention_norm, x_btd), rotation, cache, documents)
        x_btd = self.add(x_btd, _apply(self.attention_post_norm, added))
        added = self.mlp(_apply(self.mlp_norm, x_btd))
        return self.add(x_btd, _apply(self.mlp_post_norm, added))

    def add(self, x_btd: Tensor, added: Tensor) -> Tensor:
        added = self.dropout(added)
        return x_btd + (added if self.scale == 1.0 else added * self.scale)


def _apply(norm: nn.Module | None, x_btd: Tensor) -> Tensor:
    return x_btd if norm is None else norm(x_btd)


class Head(nn.Module):
    """The last norm and the projection to logits. Padding of the vocabulary is -inf: it is never predicted and costs no loss."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        self.softcap = config.logit_softcap
        self.scale = multipliers(config).logits
        self.norm = make_norm(config, config.width)
        self.projection = nn.Linear(config.width, config.padded_vocab, bias=False)

    def forward(self, x_btd: Tensor) -> Tensor:
        x_btd = self.norm(x_btd)
        logits_btv = self.projection(x_btd if self.scale == 1.0 else x_btd * self.scale)
        if self.softcap is not None:
            logits_btv = torch.tanh(logits_btv / self.softcap) * self.softcap
        if logits_btv.size(-1) > self.vocab_size:
            rows = torch.arange(logits_btv.size(-1), device=logits_btv.device)
            # In place: the logits are the largest tensor of a small model, and a second copy of them would be too.
            logits_btv += torch.where(rows < self.vocab_size, 0.0, float("-inf")).to(logits_btv.dtype)
        return logits_btv


class Decoder(nn.Module):
    """Embedding, blocks by number, head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleDict({str(layer): Block(config, layer) for layer in range(config.layers)})
        self.head = Head(config)
        self.recompute: Recompute = "none"
        self.loss_settings = LossSettings()
        self.separator: int | None = None  # the token that begins a document, where documents are kept apart
        # For a model on the meta device: what its parameters are set to once they are allocated.
        self.initial_values: InitialValues | None = None
        self.places: Places | None = None  # where batches hold a part of each sequence; None: the whole
        self.tie()

    def tie(self) -> None:
        """Makes a tied head read the embedding; again after anything that gave the two separate storage."""
        if self.config.tied_head:
            self.head.projection.weight = self.embedding.tokens.weight

    def forward(
        self,
        tokens_bt: Tensor,
        cache: KVCache | None = None,
        *,
        targets_bt: Tensor | None = None,
        branches: Branches | None = None,
    ) -> Tensor:
        """Logits (B, T, padded vocabulary), or the loss where there are targets.

        With a cache the tokens continue those that it holds. With `branches` the rows hold texts that share prefixes,
        and the logits (N, padded vocabulary) are those of the positions that it asks for.
        """
        if branches is not None:
            return self.head(self.stream(tokens_bt, branches=branches).flatten(0, 1)[branches.asked_n])
        if targets_bt is not None:
            return head_loss(self.head, self.stream(tokens_bt), targets_bt, self.loss_settings, self.training)
        return self.head(self.stream(tokens_bt, cache))

    def stream(self, tokens_bt: Tensor, cache: KVCache | None = None, *, branches: Branches | None = None) -> Tensor:
        """What the head reads: the residual stream after the last block."""
        start = cache.length if cache else 0
        length = tokens_bt.size(1)
        documents: Documents | None = None
        places_bt: Tensor | None = None
        if branches is not None:
            documents = self._branching(branches)
            places_bt = branches.places_bt
        elif self.separator is not None and cache is None:
            tokens_bt, ids_bt, places_bt = documents_of(tokens_bt, self.separator)
            documents = self.documents(ids_bt)
        if self.places is not None and cache is None:
            length = self.places.length
            places_bt = self.places.tensor(tokens_bt.device)[None]
        x_btd = self.embedding(tokens_bt, start, places_bt)
        turn = rotation(self.config, start, length, tokens_bt.device) if self.config.positions == "rope" else None
        if turn is not None and places_bt is not None:
            turn = rotation_at(turn, places_bt)
        for block in self.blocks.values():
            x_btd = run_block(block, self.recompute, x_btd, turn, cache, documents)
        if cache is not None:
            cache.length += length
        return x_btd

    def documents(self, ids_bt: Tensor) -> Documents:
        """What the layers need to stay within documents."""
        return make_documents(ids_bt, self._windows(), self.config.head_width)

    def _branching(self, branches: Branches) -> Documents:
        return branching_documents(branches, self._windows(), self.config.head_width)

    def _windows(self) -> list[int | None]:
        return [self.config.window_of(layer) for layer in range(self.config.layers)]

    @property
    def cache_length(self) -> int:
        """The longest sequence for which a cache holds what a pass over the whole would compute."""
        return stable_length(self.config)

    def loss(self, tokens_bt: Tensor, targets_bt: Tensor) -> Tensor:
        """Mean cross-entropy in nats over the real vocabulary, in float32; in training with what `loss_settings` adds.

        By a call of the model itself: what is wrapped around it (FSDP gathers weights there) sees all of the work.
        """
        return self(tokens_bt, targets_bt=targets_bt)

    def flops_per_token(self, sequence_length: int) -> int:
        """Forward and backward, counted as MFU counts them."""
        return decoder_flops_per_token(self.config, sequence_length)


def check_tokens(tokens_bt: Tensor, config: DecoderConfig, start: int = 0) -> None:
    """Raise where a batch does not fit the model."""
    end = start + tokens_bt.size(1)
    if end > config.max_length:
        raise SkytrainError(
            f"a sequence of {end} tokens is longer than the {config.max_length} positions of model {config.name} (model.max_length)"
        )
    # On an accelerator this would stop the host at each step; there the shards' own check and the loss (inf for a target
    # in the padding) stand in.
    if tokens_bt.device.type == "cpu" and not torch.compiler.is_compiling() and tokens_bt.numel():
        low = int(tokens_bt.min())
        high = int(tokens_bt.max())
        if low < 0 or high >= config.vocab_size:
            raise SkytrainError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {config.vocab_size} of model {config.name}"
            )
