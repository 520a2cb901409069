"""Memory of a served model: weights, the cache of keys and values, and the server's own needs."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import SkytrainError, format_bytes
from .memory import CONTEXT_BYTES, NCCL_BYTES

BATCHED_TOKENS = 8192  # tokens that vLLM computes at once while it reads prompts: its default on GPUs
SAMPLED_ROWS = 256  # sequences whose next token is chosen at once: vLLM's default
SHORTEST = 512  # tokens of context below which serving makes no sense, unless the model has fewer
MOST_GPUS = 8  # in one machine


@dataclass(frozen=True)
class ServedShape:
    """The properties of a served model that determine its memory."""

    weight_bytes: float  # in the type in which they are served
    value_bytes: int  # of one number of the cache and of activations
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    mlp_width: int
    vocab_size: int
    max_length: int

    @property
    def cache_bytes_per_token(self) -> float:
        return 2.0 * self.layers * self.kv_heads * self.head_size * self.value_bytes

    def degrees(self, gpus: int) -> list[int]:
        """Return the numbers of GPUs that may share the model: they divide its heads, with whole key heads on each."""
        return [
            degree
            for degree in (1, 2, 4, 8)
            if degree <= min(gpus, MOST_GPUS)
            and self.heads % degree == 0
            and (self.kv_heads % degree == 0 or degree % self.kv_heads == 0)
        ]


@dataclass(frozen=True)
class ServingFit:
    """A way to serve a model: the GPUs that share it, and the longest sequence that fits."""

    gpus: int
    max_length: int


def serving_bytes(shape: ServedShape, gpus: int, length: int) -> float:
    """Return the memory of each GPU with room for one sequence of `length` tokens; assumed, except for the weights."""
    activations = BATCHED_TOKENS * (4 * shape.width + 2 * shape.mlp_width / gpus) * shape.value_bytes
    logits = SAMPLED_ROWS * shape.vocab_size * 4 * 2
    cache = shape.cache_bytes_per_token * length / min(gpus, shape.kv_heads)
    runtime = CONTEXT_BYTES + (NCCL_BYTES if gpus > 1 else 0)
    return shape.weight_bytes / gpus + activations + logits + cache + runtime


def fit_serving(shape: ServedShape, gpu_bytes: float, gpus: int, length: int | None = None) -> ServingFit | None:
    """Return the fewest of `gpus` GPUs that hold the model, or None. `gpu_bytes` is what the server may take of each.

    Without a `length`, the model's own is cut to what there is room for, but not below 512 tokens.
    """
    for degree in shape.degrees(gpus):
        room = gpu_bytes - serving_bytes(shape, degree, 0)
        tokens = int(room / (shape.cache_bytes_per_token / min(degree, shape.kv_heads)))
        if tokens >= (length or shape.max_length):
            return ServingFit(degree, length or shape.max_length)
        last = degree == shape.degrees(gpus)[-1]
        if last and length is None and tokens >= min(SHORTEST, shape.max_length):
            return ServingFit(degree, tokens // 16 * 16 if tokens >= 16 else tokens)
    return None


def refuse_serving(shape: ServedShape, gpu_bytes: float, gpus: int, length: int | None = None) -> SkytrainError:
    """Return the error that says by how much a model is too large for the GPUs."""
    degree = shape.degrees(gpus)[-1]
    wanted = length or min(SHORTEST, shape.max_length)
    needed = serving_bytes(shape, degree, wanted)
    plural = f"{degree} GPUs need" if degree > 1 else "one GPU needs"
    hint = "serve.max_length=512 needs less; " if length and length > SHORTEST else ""
    return SkytrainError(
        f"the model is too large: {plural} {format_bytes(needed)} each, with {wanted} tokens of context, and vLLM may "
        f"take {format_bytes(gpu_bytes)}: {format_bytes(needed - gpu_bytes)} too much\n"
        f"  {hint}raise serve.gpu_memory, or serve it on a machine with more or larger GPUs"
    )
