"""Parameters and FLOPs of the built-in decoder in closed form; tests of `models` compare them with the modules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..config import DecoderConfig


@dataclass(frozen=True)
class DecoderSize:
    """Parameter counts of a decoder."""

    parameters: int  # without vocabulary padding, which is neither trained nor exported
    active_parameters: int  # those of them that one token uses: all but the experts that it does not go through
    matmul_parameters: int  # weights of matrix products: a tied head counts, look-up tables, gains and biases do not
    active_matmul_parameters: int  # those of them that one token uses
    block_matrices: int  # those of them that are in the blocks
    expert_parameters: int  # of all experts that tokens are sent to; 0: a dense model
    padded_parameters: int  # as memory and checkpoints hold them, with vocabulary padding


@lru_cache(maxsize=256)
def decoder_size(config: DecoderConfig) -> DecoderSize:
    """Count the parameters of a decoder without building it."""
    width = config.width
    head = config.head_width
    mlp = config.hidden_width
    qkv_rows = (config.heads + 2 * config.groups) * head
    attention = sum(rows * columns for rows, columns in attention_matrices(config))
    ups = 2 if config.gated_mlp else 1
    matrices = config.layers * attention
    idle = 0  # matrices of experts that a token does not go through
    idle_vectors = 0
    routed = 0  # all of them
    vectors = 0
    for layer in range(config.layers):
        experts = config.experts_of(layer)
        if experts is None:
            matrices += (ups + 1) * width * mlp
            vectors += ups * mlp + width if config.bias == "all" else 0
        else:
            each = (ups + 1) * width * experts.width
            matrices += experts.count * (each + width) + (ups + 1) * width * (experts.shared_width or 0)
            idle += (experts.count - experts.per_token) * each
            routed += experts.count * each
            vectors += experts.count if experts.bias else 0
            if config.bias == "all":
                each = ups * experts.width + width
                vectors += experts.count * (each + 1)  # and the router's
                vectors += ups * experts.shared_width + width if experts.shared_width else 0
                idle_vectors += (experts.count - experts.per_token) * each
                routed += experts.count * each

    gains = 2 if config.norm == "layernorm" else 1  # and shifts
    norm = width * gains
    block_vectors = norm * (2 * config.pre_norms + 2 * config.post_norms)
    if config.qk_norm:
        block_vectors += gains * head * (2 if config.qk_norm_scope == "head" else config.heads + config.groups)
    if config.latent is not None:
        block_vectors += gains * (config.latent.rank + (config.latent.query_rank or 0))
    if config.sinks:
        block_vectors += config.heads
    if config.bias != "none":
        block_vectors += qkv_rows
    if config.bias == "all":
        block_vectors += width
    vectors += config.layers * block_vectors

    vocabulary = config.vocab_size * width
    positions = config.max_length * width if config.positions == "learned" else 0
    copies = 1 if config.tied_head else 2
    parameters = matrices + vectors + vocabulary * copies + positions + norm
    return DecoderSize(
        parameters=parameters,
        active_parameters=parameters - idle - idle_vectors,
        matmul_parameters=matrices + vocabulary,
        active_matmul_parameters=matrices + vocabulary - idle,
        block_matrices=matrices,
        expert_parameters=routed,
        padded_parameters=parameters + (config.padded_vocab - config.vocab_size) * width * copies,
    )


def attention_matrices(config: DecoderConfig) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of the products of an attention layer, in their order."""
    queries = config.heads * config.head_width
    latent = config.latent
    if latent is None:
        return [(config.width, queries + 2 * config.groups * config.head_width), (queries, config.width)]
    compressed = [(config.width, latent.query_rank), (latent.query_rank, queries)] if latent.query_rank else None
    return [
        *(compressed or [(config.width, queries)]),
        (config.width, latent.rank + latent.rope_size),
        (latent.rank, config.heads * (latent.plain_size + latent.value_size)),
        (config.heads * latent.value_size, config.width),
    ]


def training_flops_per_token(
    matmul_parameters: int, heads: int, head_size: float, attended_lengths: Iterable[int]
) -> int:
    """Return forward and backward FLOPs: 6 per matmul weight, plus 12·H·Q·T for the attention of each layer.

    `head_size` is the mean of keys and values where they differ. `attended_lengths` has one T per layer: the sequence
    length, or the attention window if it is shorter. Causal masking is not deducted, as in the MFU of PaLM and
    nanoGPT.
    """
    return 6 * matmul_parameters + round(12 * heads * head_size) * sum(attended_lengths)


def decoder_flops_per_token(config: DecoderConfig, sequence_length: int) -> int:
    """Return the training FLOPs per token of the built-in decoder at this sequence length."""
    lengths = [min(sequence_length, config.window_of(layer) or sequence_length) for layer in range(config.layers)]
    products = decoder_size(config).active_matmul_parameters
    return training_flops_per_token(products, config.heads, (config.head_width + config.value_width) / 2, lengths)
