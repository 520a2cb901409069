"""The decoder: one class for every family; its configuration decides the parts.

Single-device code that knows nothing of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config import DecoderConfig, SkytrainError
from ..planning import decoder_flops_per_token, decoder_size
from .attention import KVCache, make_attention
from .branches import Branches, branching_documents
from .documents import Documents, document_positions, make_documents
from .experts import MixtureOfExperts
from .loss import LossSettings, WithAuxiliary, head_loss, join_auxiliary, split_auxiliary
from .mlp import MLP
from .norm import make_norm
from .parametrization import multipliers
from .recompute import Recompute, run_block
from .rope import Rotation, TokenPositions, rotation, rotation_at, stable_length

# A parameter's value by its name and shape, as a whole tensor on the CPU.
InitialValues = Callable[[str, torch.Size], Tensor]

# For each pattern of module names, how tensor parallelism divides those modules: see parallel/tensor.py. Outside attention
# and MLP each rank holds a part of the sequence, so that norms and dropout are not computed twice.
TensorPlan = dict[str, str]
TENSOR_PLAN: TensorPlan = {
    "embedding.tokens": "vocabulary",
    "embedding": "divide",
    "blocks.*.attention_norm": "sequence",
    "blocks.*.attention": "gather",
    # Rows of qkv are ordered by key-value group, so a contiguous split gives each rank whole groups.
    "blocks.*.attention.qkv": "columns",
    "blocks.*.attention.q_norm": "heads",
    "blocks.*.attention.k_norm": "heads",
    "blocks.*.attention.out": "rows",
    "blocks.*.attention_post_norm": "sequence",
    "blocks.*.mlp_norm": "sequence",
    "blocks.*.mlp": "gather",
    "blocks.*.mlp.gate": "columns",
    "blocks.*.mlp.up": "columns",
    "blocks.*.mlp.down": "rows",
    "blocks.*.mlp_post_norm": "sequence",
    "head.norm": "sequence",
    "head.projection": "logits",
    "blocks.*.attention.sinks": "by heads",
}
# With latent attention each rank compresses its part of the sequence, and the short vectors are gathered.
LATENT_PLAN: TensorPlan = {
    **{name: word for name, word in TENSOR_PLAN.items() if name != "blocks.*.attention"},
    "blocks.*.attention.q_down": "replicated",
    "blocks.*.attention.q_norm": "replicated",
    "blocks.*.attention.q_up": "columns of parts",
    "blocks.*.attention.kv_down": "replicated",
    "blocks.*.attention.kv_norm": "replicated",
    "blocks.*.attention.shared_key": "whole",
    "blocks.*.attention.kv_up": "columns of parts",
}


class Embedding(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = _embedding(config.padded_vocab, config.width)
        self.positions = _embedding(config.max_length, config.width) if config.positions == "learned" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens_bt: Tensor, start: int = 0, places_bt: Tensor | None = None) -> Tensor:
        """Return the embeddings of tokens from position `start` on, or of each token at its given place."""
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


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), with a mixture of experts as the MLP where the layer has one.

    `post_norms` normalizes what is added, too; without `pre_norms` only that is normalized. A block with an auxiliary
    loss sets `has_auxiliary_loss` and returns it together with its output.
    """

    has_auxiliary_loss = False

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        experts = config.experts_of(layer)
        if experts is not None:
            self.has_auxiliary_loss = bool(experts.balance_loss or experts.z_loss)
        self.attention_norm = make_norm(config, config.width) if config.pre_norms else None
        self.attention = make_attention(config, layer)
        self.mlp_norm = make_norm(config, config.width) if config.pre_norms else None
        self.mlp = MLP(config, config.hidden_width) if experts is None else None
        self.mixture = MixtureOfExperts(config, experts) if experts is not None else None
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
    ) -> WithAuxiliary:
        added = self.attention(_apply(self.attention_norm, x_btd), rotation, cache, documents)
        x_btd = self.add(x_btd, _apply(self.attention_post_norm, added))
        hidden: nn.Module | None = self.mlp if self.mixture is None else self.mixture
        assert hidden is not None
        added, auxiliary = split_auxiliary(hidden(_apply(self.mlp_norm, x_btd)))
        return join_auxiliary(self.add(x_btd, _apply(self.mlp_post_norm, added)), auxiliary)

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


def _embedding(rows: int, width: int) -> nn.Embedding:
    """Return a table. On the meta device torch's own initialisation would only cost time: it loads the compiler."""
    weight = torch.empty(rows, width)
    return nn.Embedding.from_pretrained(weight, freeze=False) if weight.is_meta else nn.Embedding(rows, width)


class Decoder(nn.Module):
    """Embedding, blocks by number, head.

    What it offers beyond the contract of any model (`docs/plug-a-model.md`) is asked for by name, never by its class:
    stages, a tensor plan, rows of several texts, compiled blocks, less memory, a count of its parameters.
    """

    tensor_plan: TensorPlan = TENSOR_PLAN
    takes_branches = True
    loss_is_of_logits = True  # cross-entropy and z-loss: a mesh may compute it from logits that it holds in parts

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        if config.latent is not None:
            self.tensor_plan = LATENT_PLAN
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleDict({str(layer): Block(config, layer) for layer in range(config.layers)})
        self.head = Head(config)
        self.recompute: Recompute = "none"
        self.loss_settings = LossSettings()
        # For a model on the meta device: what its parameters are set to once they are allocated.
        self.initial_values: InitialValues | None = None
        self.positions: TokenPositions | None = None  # where batches hold a part of each sequence; None: the whole
        self.tie()

    def tie(self) -> None:
        """Make a tied head read the embedding; call this again after anything that gave the two separate storage."""
        if self.config.tied_head:
            self.head.projection.weight = self.embedding.tokens.weight

    def forward(
        self,
        tokens_bt: Tensor,
        cache: KVCache | None = None,
        *,
        targets_bt: Tensor | None = None,
        document_starts_bt: Tensor | None = None,
        branches: Branches | None = None,
    ) -> WithAuxiliary:
        """Return logits (B, T, padded vocabulary), or the loss where there are targets.

        With a cache the tokens continue those that it holds. With `document_starts_bt`, attention and positions stay
        within documents. With `branches` the rows hold texts that share prefixes, and the logits (N, padded
        vocabulary) are those of the positions that it asks for.
        """
        x_btd, auxiliary = self.stream(tokens_bt, cache, document_starts_bt=document_starts_bt, branches=branches)
        if branches is not None:
            found = self.head(x_btd.flatten(0, 1)[branches.asked_n])
        elif targets_bt is not None:
            found = head_loss(self.head, x_btd, targets_bt, self.loss_settings, self.training)
        else:
            found = self.head(x_btd)
        return join_auxiliary(found, auxiliary)

    def stream(
        self,
        tokens_bt: Tensor,
        cache: KVCache | None = None,
        *,
        document_starts_bt: Tensor | None = None,
        branches: Branches | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after the last block and, in training, the sum of the blocks' auxiliary losses."""
        start, length = (cache.length if cache else 0), tokens_bt.size(1)
        documents: Documents | None = None
        places_bt: Tensor | None = None
        if branches is not None:
            documents, places_bt = self._branching(branches), branches.places_bt
        elif document_starts_bt is not None:
            ids_bt, places_bt = document_positions(document_starts_bt)
            documents = self.documents(ids_bt)
        if self.positions is not None and cache is None:
            length, places_bt = self.positions.length, self.positions.tensor(tokens_bt.device)[None]
        x_btd = self.embedding(tokens_bt, start, places_bt)
        turns = _rotations(self.config, start, length, places_bt, tokens_bt.device)
        auxiliary: Tensor | None = None
        for layer, block in self.blocks.items():
            turn = turns[self.config.rope_of(int(layer))]
            x_btd, own = split_auxiliary(run_block(block, self.recompute, x_btd, turn, cache, documents))
            if own is not None:
                auxiliary = own if auxiliary is None else auxiliary + own
        if cache is not None:
            cache.length += length
        return x_btd, auxiliary if self.training else None

    def stage(self, layers: range, length: int, *, first: bool, last: bool) -> DecoderStage:
        """Return a pipeline stage of these layers, for sequences of `length` tokens."""
        return DecoderStage(self, layers, length, first=first, last=last).train(self.training)

    def compile_blocks(self) -> None:
        """Compile each block, for rows of one shape: worthwhile for many passes."""
        for block in self.blocks.values():
            block.compile(dynamic=False)

    def save_memory(self, recompute: Recompute, settings: LossSettings) -> None:
        """Set what blocks recompute in the backward pass, and how the loss is computed."""
        self.recompute = recompute
        self.loss_settings = settings

    def count_parameters(self) -> int:
        """Count parameters without the padding of the vocabulary, tied weights once."""
        return decoder_size(self.config).parameters

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether a block returns an auxiliary loss."""
        return any(getattr(block, "has_auxiliary_loss", False) for block in self.blocks.values())

    def documents(self, ids_bt: Tensor) -> Documents:
        """Return the masks with which the layers stay within documents."""
        return make_documents(ids_bt, self._windows(), self.config.head_width)

    def _branching(self, branches: Branches) -> Documents:
        return branching_documents(branches, self._windows(), self.config.head_width)

    def _windows(self) -> list[int | None]:
        return [self.config.window_of(layer) for layer in range(self.config.layers)]

    @property
    def cache_length(self) -> int:
        """The longest sequence for which a cache holds what a pass over the whole would compute."""
        return stable_length(self.config)

    def loss(self, tokens_bt: Tensor, targets_bt: Tensor, document_starts_bt: Tensor | None = None) -> WithAuxiliary:
        """Return the mean cross-entropy in nats over the real vocabulary, in float32.

        In training it includes what `loss_settings` adds, and comes with the blocks' auxiliary loss where they have
        one. This calls the model itself: what is wrapped around it (FSDP gathers weights there) sees all of the work.
        """
        return self(tokens_bt, targets_bt=targets_bt, document_starts_bt=document_starts_bt)

    def flops_per_token(self, sequence_length: int) -> int:
        """Return the FLOPs of the forward and the backward pass, counted as MFU counts them."""
        return decoder_flops_per_token(self.config, sequence_length)


class DecoderStage(nn.Module):
    """Consecutive blocks of a decoder, with the embedding in the first stage and the head in the last.

    The first stage takes tokens, the others the output of the previous stage. `length` is the length of the whole
    sequence, which a later stage cannot derive from its input: that may be only a part of the sequence.
    """

    def __init__(self, model: Decoder, layers: range, length: int, *, first: bool, last: bool) -> None:
        super().__init__()
        self.config = model.config
        self.length = length
        self.positions: TokenPositions | None = None  # as in Decoder
        # Copied, so that stages on one device share no parameters: each is wrapped separately.
        self.embedding = copy.deepcopy(model.embedding) if first else None
        self.blocks = nn.ModuleDict({str(layer): copy.deepcopy(model.blocks[str(layer)]) for layer in layers})
        self.head = copy.deepcopy(model.head) if last else None
        # A stage without such blocks still passes on what the stages before it have added up.
        self.passes_auxiliary_loss = model.has_auxiliary_loss

    def forward(self, x: Tensor, auxiliary: Tensor | None = None) -> WithAuxiliary:
        """Return the output and, in training, the sum (1,) of the auxiliary losses so far where blocks have one."""
        places_bt = self.positions.tensor(x.device)[None] if self.positions is not None else None
        if self.embedding is not None:
            x = self.embedding(x, 0, places_bt)
        turns = _rotations(self.config, 0, self.length, places_bt, x.device)
        for layer, block in self.blocks.items():
            x, own = split_auxiliary(block(x, turns[self.config.rope_of(int(layer))]))
            if own is not None:
                auxiliary = own.reshape(1) if auxiliary is None else auxiliary + own
        found = self.head(x) if self.head is not None else x
        if not (self.passes_auxiliary_loss and self.training):
            return found
        return found, x.new_zeros(1, dtype=torch.float32) if auxiliary is None else auxiliary


def stage_layers(layers: int, stages: int) -> list[range]:
    """Assign consecutive layers to each stage, as evenly as possible.

    If the counts differ, the first and last stages get fewer, since they also hold the embedding and the head; with two
    stages more than layers they have nothing else.
    """
    assert 1 <= stages <= layers + 2
    each, more = divmod(layers, stages)
    begin = (stages - more + 1) // 2  # stages with one extra layer are in the middle
    found, start = [], 0
    for stage in range(stages):
        stop = start + each + (begin <= stage < begin + more)
        found.append(range(start, stop))
        start = stop
    return found


def _rotations(
    config: DecoderConfig, start: int, length: int, places_bt: Tensor | None, device: torch.device
) -> dict[str, Rotation | None]:
    """Return the rotary angles of `length` positions from `start` on, or at given places, by `DecoderConfig.rope_of`."""
    turns: dict[str, Rotation | None] = {"none": None}
    if config.positions != "rope":
        return turns
    for kind in ("whole", "window") if config.window_theta is not None else ("whole",):
        turn = rotation(config, start, length, device, window=kind == "window")
        turns[kind] = turn if places_bt is None else rotation_at(turn, places_bt)
    return turns


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
