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
    padded_parameters: int  # as memory and checkpoints hold them, with vocabulary padding


@lru_cache(maxsize=256)
def decoder_size(config: DecoderConfig) -> DecoderSize:
    """Count the parameters of a decoder without building it."""
    width = config.width
    head = config.head_width
    mlp = config.hidden_width
    qkv_rows = (config.heads + 2 * config.groups) * head
    attention = width * qkv_rows + config.heads * head * width
    ups = 2 if config.gated_mlp else 1
    matrices = config.layers * attention
    idle = 0  # experts that a token does not go through
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
            vectors += experts.count if experts.bias else 0

    gains = 2 if config.norm == "layernorm" else 1  # and shifts
    norm = width * gains
    block_vectors = norm * (2 * config.pre_norms + 2 * config.post_norms)
    if config.qk_norm:
        block_vectors += gains * head * (2 if config.qk_norm_scope == "head" else config.heads + config.groups)
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
        active_parameters=parameters - idle,
        matmul_parameters=matrices + vocabulary,
        active_matmul_parameters=matrices + vocabulary - idle,
        block_matrices=matrices,
        padded_parameters=parameters + (config.padded_vocab - config.vocab_size) * width * copies,
    )


def training_flops_per_token(
    matmul_parameters: int, heads: int, head_size: int, attended_lengths: Iterable[int]
) -> int:
    """Return forward and backward FLOPs: 6 per matmul weight, plus 12·H·Q·T for the attention of each layer.

    `attended_lengths` has one T per layer: the sequence length, or the attention window if it is shorter. Causal
    masking is not deducted, as in the MFU of PaLM and nanoGPT.
    """
    return 6 * matmul_parameters + 12 * heads * head_size * sum(attended_lengths)


def decoder_flops_per_token(config: DecoderConfig, sequence_length: int) -> int:
    """Return the training FLOPs per token of the built-in decoder at this sequence length."""
    lengths = [min(sequence_length, config.window_of(layer) or sequence_length) for layer in range(config.layers)]
    products = decoder_size(config).active_matmul_parameters
    return training_flops_per_token(products, config.heads, config.head_width, lengths)
