"""The model: the built-in decoder, a user's class, or any causal model of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard

from .declare import EXECUTION, NUMBERS, WEIGHTS, setting, settings
from .kinds import Fraction, Layers, NonNegative, Positive, PositiveFloat, Whole


@settings
class LinearRope:
    """Positions divided by `factor`."""

    kind: Literal["linear"] = setting(NUMBERS, "The kind of scaling.")
    factor: PositiveFloat = setting(NUMBERS, "By how much the context is extended.")


@settings
class DynamicRope:
    """NTK scaling that grows with the sequence once it is longer than the original length."""

    kind: Literal["dynamic"] = setting(NUMBERS, "The kind of scaling.")
    factor: PositiveFloat = setting(NUMBERS, "By how much the context is extended.")
    original_length: Positive = setting(NUMBERS, "Positions that the model was first trained with.")


@settings
class Llama3Rope:
    """Slow frequencies divided by `factor`, fast ones kept, a smooth step between."""

    kind: Literal["llama3"] = setting(NUMBERS, "The kind of scaling.")
    factor: PositiveFloat = setting(NUMBERS, "By how much the context is extended.")
    low_freq_factor: PositiveFloat = setting(
        NUMBERS, "Wavelengths longer than original_length / low_freq_factor are divided by the factor."
    )
    high_freq_factor: PositiveFloat = setting(
        NUMBERS, "Wavelengths shorter than original_length / high_freq_factor are kept."
    )
    original_length: Positive = setting(NUMBERS, "Positions that the model was first trained with.")


@settings
class YarnRope:
    """YaRN: interpolates below `beta_slow` turns over the original length, extrapolates above `beta_fast`."""

    kind: Literal["yarn"] = setting(NUMBERS, "The kind of scaling.")
    factor: PositiveFloat = setting(NUMBERS, "By how much the context is extended.")
    beta_fast: PositiveFloat = setting(NUMBERS, "Dimensions with more turns over the original length are kept.")
    beta_slow: PositiveFloat = setting(
        NUMBERS, "Dimensions with fewer turns over the original length are divided by the factor."
    )
    original_length: Positive = setting(NUMBERS, "Positions that the model was first trained with.")


@settings
class YarnCustomRope:
    """YaRN with a factor of its own on cos and sin, and a ramp that may end between dimensions (gpt-oss, DeepSeek-V3)."""

    kind: Literal["yarn_custom"] = setting(NUMBERS, "The kind of scaling.")
    factor: PositiveFloat = setting(NUMBERS, "By how much the context is extended.")
    beta_fast: PositiveFloat = setting(NUMBERS, "Dimensions with more turns over the original length are kept.")
    beta_slow: PositiveFloat = setting(
        NUMBERS, "Dimensions with fewer turns over the original length are divided by the factor."
    )
    original_length: Positive = setting(NUMBERS, "Positions that the model was first trained with.")
    magnitude: PositiveFloat = setting(NUMBERS, "Factor of cos and sin; YaRN's own is 0.1 ln(factor) + 1.")
    truncate: bool = setting(NUMBERS, "Round both ends of the ramp outwards to whole dimensions, as YaRN does.")


RopeScaling = LinearRope | DynamicRope | Llama3Rope | YarnRope | YarnCustomRope


@settings
class LatentConfig:
    """Multi-head latent attention (DeepSeek-V2 and V3): keys and values, and queries, come from narrow projections."""

    rank: Positive = setting(WEIGHTS, "Size of a token's compressed keys and values, which generation keeps of it.")
    query_rank: Positive | None = setting(WEIGHTS, "Size of the compressed queries; null: they are not compressed.")
    plain_size: Positive = setting(WEIGHTS, "Size of the part of a head without positions.")
    rope_size: Positive = setting(WEIGHTS, "Size of the rotary part of a head, whose key all heads share.")
    value_size: Positive = setting(WEIGHTS, "Size of a head's values.")
    interleaved: bool = setting(
        WEIGHTS, "Rotary pairs are neighbours, as in DeepSeek's weights; false: half a head apart."
    )


@settings
class ExpertsConfig:
    """A mixture of experts in place of the MLP: a router sends each token through a few of many small MLPs."""

    count: Positive = setting(WEIGHTS, "Experts of a layer.")
    per_token: Positive = setting(WEIGHTS, "Experts that each token goes through.")
    width: Positive = setting(WEIGHTS, "Hidden size of one expert.")
    shared_width: Positive | None = setting(
        WEIGHTS, "Hidden size of the shared expert, which every token goes through; null: there is none."
    )
    dense_layers: Whole = setting(WEIGHTS, "Layers, from the first, that have an MLP instead of experts.")
    scores: Literal["softmax", "sigmoid"] = setting(WEIGHTS, "How the router turns logits into scores.")
    normalize: bool = setting(WEIGHTS, "Divide the scores of a token's experts by their sum.")
    scale: PositiveFloat = setting(WEIGHTS, "Factor of the scores, by which the experts' outputs are multiplied.")
    groups: Positive = setting(WEIGHTS, "Groups of experts; a token's experts are in `groups_per_token` of them.")
    groups_per_token: Positive = setting(WEIGHTS, "Groups that a token's experts are chosen from.")
    bias: bool = setting(
        WEIGHTS, "Choose experts by score plus a bias of each expert, which `bias_rate` moves to balance the load."
    )
    bias_rate: NonNegative = setting(
        NUMBERS, "How far a step moves an expert's bias, down or up, where its load in the batch is not the mean."
    )
    balance_loss: NonNegative = setting(NUMBERS, "Weight of the loss for uneven load within each sequence; 0: none.")
    z_loss: NonNegative = setting(NUMBERS, "Weight of the squared log of the router's softmax sum; 0: none.")


if TYPE_CHECKING:
    Family = str
else:
    # Each family of the built-in decoder has a file with the settings that its sizes share: groups/model/_FAMILY.yaml.
    _FILES = (Path(__file__).parent.parent / "groups" / "model").glob("_[!_]*.yaml")
    Family = Literal[tuple(sorted(path.stem.removeprefix("_") for path in _FILES))]


@dataclass(frozen=True)
class ModelOffers:
    """What a kind of model offers beyond the contract of any model. Rules and plans ask for it, not for its class."""

    layers: bool = False  # their number, widths and heads are settings: plans, meshes and kernels can count on them
    stages: bool = False  # it can be cut into pipeline stages
    sequences: bool = False  # ranks may each hold a part of a sequence
    recomputes: frozenset[str] = frozenset()  # the kinds of activation checkpointing that it does itself


@settings
class DecoderConfig:
    """The built-in decoder.

    `family` names the Hugging Face architecture it reads and writes; the other fields decide the arithmetic.
    """

    facts: ClassVar = ModelOffers(layers=True, stages=True, sequences=True, recomputes=frozenset({"selective", "full"}))

    name: str = setting(EXECUTION, "A label, for tables and the names of runs.")
    family: Family = setting(WEIGHTS, "The Hugging Face architecture that the weights are read from and written to.")
    layers: Layers = setting(WEIGHTS, "Transformer blocks.")
    width: Positive = setting(WEIGHTS, "Size of the residual stream.")
    heads: Positive = setting(WEIGHTS, "Attention heads.")
    kv_heads: Positive | None = setting(WEIGHTS, "Heads of keys and values; null: as many as `heads`.")
    head_size: Positive | None = setting(WEIGHTS, "Size of one head; null: width / heads.")
    mlp_width: Positive | None = setting(WEIGHTS, "Hidden size of the MLP; null: 4 x width.")
    vocab_size: Positive = setting(WEIGHTS, "Tokens that the model can predict.")
    pad_vocab_to: Positive = setting(
        NUMBERS, "Round the rows of the embedding up to a multiple of this; padding is never predicted."
    )
    max_length: Positive = setting(
        NUMBERS, "Longest sequence: rows of the position table, or the limit of rotary positions."
    )
    dropout: Fraction = setting(NUMBERS, "Probability of dropping an activation in training.")
    tied_head: bool = setting(WEIGHTS, "Use the token embedding as the head.")
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_plus_one"] = setting(
        WEIGHTS, "The norm; rmsnorm_plus_one stores the gain less one."
    )
    norm_eps: PositiveFloat = setting(NUMBERS, "Added to the variance before its root is taken.")
    post_norms: bool = setting(WEIGHTS, "Also normalize after attention and after the MLP.")
    qk_norm: bool = setting(WEIGHTS, "Normalize queries and keys; `qk_norm_scope` says over what.")
    activation: Literal["gelu_tanh", "silu"] = setting(WEIGHTS, "Activation function of the MLP.")
    gated_mlp: bool = setting(WEIGHTS, "Multiply the activation with a second projection (SwiGLU, GeGLU).")
    bias: Literal["all", "qkv", "none"] = setting(WEIGHTS, "Which linear layers have a bias.")
    positions: Literal["learned", "rope"] = setting(WEIGHTS, "A learned table of positions, or rotary embeddings.")
    rope_theta: PositiveFloat | None = setting(NUMBERS, "Base of the rotary frequencies; needed with positions=rope.")
    rope_scaling: RopeScaling | None = setting(
        NUMBERS, "How rotary positions are extended beyond the length of the first training; null: not."
    )
    window: Positive | None = setting(
        NUMBERS, "Tokens that attention sees, the current one included; null: all before it."
    )
    window_every: Positive = setting(NUMBERS, "1: all layers have the window; 2: every other one, from the first.")
    attention_scale: PositiveFloat | None = setting(WEIGHTS, "Factor of the attention scores; null: head_size ** -0.5.")
    attention_softcap: PositiveFloat | None = setting(NUMBERS, "Soft limit of the attention scores; null: none.")
    logit_softcap: PositiveFloat | None = setting(NUMBERS, "Soft limit of the logits; null: none.")
    scale_embedding: bool = setting(WEIGHTS, "Multiply token embeddings by sqrt(width).")
    weights: str | None = setting(
        NUMBERS,
        "Weights to start from: a Hugging Face folder (also s3://bucket/folder), OWNER/NAME[@REVISION] in the store "
        "(`skytrain models fetch`) or on the hub, or an llm.c file; "
        "null: new weights from the seed.",
    )
    parametrization: Literal["standard", "mup", "completep"] = setting(
        WEIGHTS,
        "How initial weights, learning rates and multipliers follow the size, so that settings tuned at the base size hold here.",
    )
    base_width: Positive | None = setting(WEIGHTS, "Width at which the settings were tuned; for mup and completep.")
    base_layers: Positive | None = setting(WEIGHTS, "Layers at which the settings were tuned; for completep.")

    pre_norms: bool = setting(WEIGHTS, "Normalize the inputs of attention and MLP; false needs `post_norms` (OLMo 2).")
    qk_norm_scope: Literal["head", "projection"] = setting(
        WEIGHTS, "What `qk_norm` normalizes over: each head, or all heads of a token together (OLMo 2)."
    )
    full_every: Positive | None = setting(
        NUMBERS, "Every n-th layer sees all tokens, all others have the window (Gemma 3); null: as `window_every` says."
    )
    window_theta: PositiveFloat | None = setting(
        NUMBERS, "Base of the rotary frequencies, not extended, in layers with a window; null: as in the others."
    )
    rope_except: Positive | None = setting(
        WEIGHTS, "Every n-th layer has no rotary positions (SmolLM3); null: all have them."
    )
    experts: ExpertsConfig | None = setting(WEIGHTS, "A mixture of experts in place of the MLP; null: none.")
    latent: LatentConfig | None = setting(
        WEIGHTS, "Multi-head latent attention instead of grouped queries; null: grouped queries."
    )
    sinks: bool = setting(
        WEIGHTS, "A learned score of each head that attention may go to instead of any token (gpt-oss)."
    )
    activation_clamp: PositiveFloat | None = setting(
        WEIGHTS,
        "Limit the gate from above and the second projection both ways to this, and add 1 to the latter (gpt-oss); null: not.",
    )
    activation_gain: PositiveFloat = setting(
        WEIGHTS, "Factor in the sigmoid of SiLU, x * sigmoid(gain * x): 1, or 1.702 (gpt-oss)."
    )

    @property
    def groups(self) -> int:
        """Return the number of key-value heads; each serves heads / groups query heads."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        """Return the size of a head's queries and keys."""
        if self.latent is not None:
            return self.latent.plain_size + self.latent.rope_size
        return self.head_size or self.width // self.heads

    @property
    def width_of_head(self) -> int:
        """Return the width for which a model of this family has one head: other sizes keep it."""
        return self.head_width if self.latent is None else self.width // self.heads

    @property
    def value_width(self) -> int:
        """Return the size of a head's values."""
        return self.head_width if self.latent is None else self.latent.value_size

    @property
    def rotary_width(self) -> int:
        """Return the size of the part of a head that has rotary positions."""
        return self.head_width if self.latent is None else self.latent.rope_size

    @property
    def hidden_width(self) -> int:
        return self.mlp_width or 4 * self.width

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """Return the experts of this layer; None: it has an MLP."""
        return self.experts if self.experts is not None and layer >= self.experts.dense_layers else None

    def window_of(self, layer: int) -> int | None:
        """Return how many tokens attention sees in this layer; None: all before it."""
        if self.full_every is not None:
            return None if (layer + 1) % self.full_every == 0 else self.window
        return self.window if layer % self.window_every == 0 else None

    def rope_of(self, layer: int) -> Literal["none", "whole", "window"]:
        """Return which rotary positions this layer has: those of layers that see everything, of a window, or none."""
        if self.positions != "rope" or (self.rope_except is not None and (layer + 1) % self.rope_except == 0):
            return "none"
        return "whole" if self.window_theta is None or self.window_of(layer) is None else "window"


def scaled_parts(model: DecoderConfig, factor: float) -> dict[str, Any]:
    """Return the widths of experts and the ranks of latent attention for a model whose width is `factor` times this one's.

    All inputs of matrices then grow alike, as parametrizations assume; numbers of experts and sizes of heads stay.
    """

    def scaled(size: int) -> int:
        return max(8, round(size * factor / 8) * 8)

    experts, latent = model.experts, model.latent
    if experts is not None:
        shared = experts.shared_width and scaled(experts.shared_width)
        experts = replace(experts, width=scaled(experts.width), shared_width=shared)
    if latent is not None:
        query = latent.query_rank and scaled(latent.query_rank)
        latent = replace(latent, rank=scaled(latent.rank), query_rank=query)
    return {"experts": experts, "latent": latent}


@settings
class CustomModelConfig:
    """Any class that follows the model contract; `args` go to it as they are."""

    facts: ClassVar = ModelOffers()

    name: str = setting(EXECUTION, "A label, for tables and the names of runs.")
    family: Literal["custom"] = setting(WEIGHTS, "A class of your own.")
    target: str = setting(WEIGHTS, "Path of the class, such as `my_package.MyModel`.")
    args: dict[str, Any] = setting(NUMBERS, "Arguments of that class.")
    vocab_size: Positive = setting(WEIGHTS, "Tokens that the model can predict.")
    max_length: Positive = setting(NUMBERS, "Longest sequence.")


@settings
class HFModelConfig:
    """Any causal language model that transformers can build."""

    facts: ClassVar = ModelOffers(recomputes=frozenset({"full"}))

    name: str = setting(NUMBERS, "Name on the hub, or a folder.")
    family: Literal["hf"] = setting(WEIGHTS, "Any causal language model of Hugging Face.")
    weights: Literal["random", "pretrained"] = setting(NUMBERS, "Start from random or from the published weights.")
    revision: str | None = setting(NUMBERS, "Revision on the hub; null: the newest.")
    trust_remote_code: bool = setting(EXECUTION, "Allow code that comes with the model to run.")
    vocab_size: Positive = setting(WEIGHTS, "Tokens that the model can predict.")
    max_length: Positive = setting(NUMBERS, "Longest sequence.")


ModelConfig = DecoderConfig | CustomModelConfig | HFModelConfig


def has_layers(model: object) -> TypeGuard[DecoderConfig]:
    """Return whether the layers of a configured model are known, so that plans and meshes can count on their sizes."""
    facts = getattr(model, "facts", None)
    return isinstance(facts, ModelOffers) and facts.layers
