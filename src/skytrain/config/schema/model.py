"""What is trained: the built-in decoder, a class of the user's, or any causal model of Hugging Face's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .kinds import Fraction, Positive, PositiveFloat


@dataclass(frozen=True)
class LinearRope:
    """Positions divided by `factor`."""

    kind: Literal["linear"]
    factor: PositiveFloat


@dataclass(frozen=True)
class DynamicRope:
    """NTK scaling that grows with the sequence once it is longer than the original length."""

    kind: Literal["dynamic"]
    factor: PositiveFloat
    original_length: Positive


@dataclass(frozen=True)
class Llama3Rope:
    """Slow frequencies divided by `factor`, fast ones kept, a smooth step between."""

    kind: Literal["llama3"]
    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original_length: Positive


@dataclass(frozen=True)
class YarnRope:
    """YaRN: interpolates below `beta_slow` turns over the original length, extrapolates above `beta_fast`."""

    kind: Literal["yarn"]
    factor: PositiveFloat
    beta_fast: PositiveFloat
    beta_slow: PositiveFloat
    original_length: Positive


RopeScaling = LinearRope | DynamicRope | Llama3Rope | YarnRope


@dataclass(frozen=True)
class DecoderConfig:
    """The built-in decoder. `family` names the Hugging Face architecture it reads and writes; the other fields decide the arithmetic."""

    name: str
    family: Literal["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "exaone"]
    layers: Positive
    width: Positive
    heads: Positive
    kv_heads: Positive | None  # null: one for each head
    head_size: Positive | None  # null: width / heads
    mlp_width: Positive | None  # null: 4 x width
    vocab_size: Positive
    pad_vocab_to: Positive  # rows of the embedding are rounded up to a multiple of this; padding is never predicted
    max_length: Positive  # rows of the position table, or the longest sequence that rotary positions are asked for
    dropout: Fraction
    tied_head: bool  # the head reads the token embedding
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_plus_one"]  # plus_one: the gain is stored less one
    norm_eps: PositiveFloat
    post_norms: bool  # a norm after attention and after the MLP too
    qk_norm: bool  # queries and keys are normalised by head
    activation: Literal["gelu_tanh", "silu"]
    gated_mlp: bool
    bias: Literal["all", "qkv", "none"]
    positions: Literal["learned", "rope"]
    rope_theta: PositiveFloat | None
    rope_scaling: RopeScaling | None
    window: Positive | None  # tokens that attention sees, itself included; null: all before it
    window_every: Positive  # 1: all layers have the window; 2: every other one, from the first
    attention_scale: PositiveFloat | None  # null: head_size ** -0.5
    attention_softcap: PositiveFloat | None
    logit_softcap: PositiveFloat | None
    scale_embedding: bool  # token embeddings times sqrt(width)
    weights: str | None = None  # a Hugging Face folder or an llm.c file to start from; null: new weights from the seed
    # How initial weights, learning rates and multipliers follow the size, so that what was tuned at the base serves here.
    parametrization: Literal["standard", "mup", "completep"] = "standard"
    base_width: Positive | None = None
    base_layers: Positive | None = None

    @property
    def groups(self) -> int:
        """Key-value heads; each serves heads / groups query heads."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def hidden_width(self) -> int:
        return self.mlp_width or 4 * self.width

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    def window_of(self, layer: int) -> int | None:
        """How far back attention sees in this layer."""
        return self.window if layer % self.window_every == 0 else None


@dataclass(frozen=True)
class CustomModelConfig:
    """Any class that follows the model contract; `args` go to it as they are."""

    name: str
    family: Literal["custom"]
    target: str
    args: dict[str, Any]
    vocab_size: Positive
    max_length: Positive


@dataclass(frozen=True)
class HFModelConfig:
    """Any causal language model that transformers can build."""

    name: str  # on the hub, or a folder
    family: Literal["hf"]
    weights: Literal["random", "pretrained"]
    revision: str | None
    trust_remote_code: bool  # runs code that comes with the model
    vocab_size: Positive
    max_length: Positive


ModelConfig = DecoderConfig | CustomModelConfig | HFModelConfig
