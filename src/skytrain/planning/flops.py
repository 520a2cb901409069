"""Parameters and FLOPs of the built-in decoder in closed form; tests of `models` compare them with the modules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..config import DecoderConfig


@dataclass(frozen=True)
class DecoderSize:
    """Parameter counts of a decoder."""

    parameters: int  # without vocabulary padding, which is neither trained nor exported
    matmul_parameters: int  # weights of matrix products: a tied head counts, look-up tables, gains and biases do not
    block_matrices: int  # those of them that are in the blocks
    padded_parameters: int  # as memory and checkpoints hold them, with vocabulary padding


def decoder_size(config: DecoderConfig) -> DecoderSize:
    """Count the parameters of a decoder without building it."""
    width = config.width
    head = config.head_width
    mlp = config.hidden_width
    qkv_rows = (config.heads + 2 * config.groups) * head
    attention = width * qkv_rows + config.heads * head * width
    ups = 2 if config.gated_mlp else 1
    matrices = attention + (ups + 1) * width * mlp

    gains = 2 if config.norm == "layernorm" else 1  # and shifts
    norm = width * gains
    vectors = norm * (2 * config.pre_norms + 2 * config.post_norms)
    if config.qk_norm:
        vectors += gains * head * (2 if config.qk_norm_scope == "head" else config.heads + config.groups)
    if config.bias != "none":
        vectors += qkv_rows
    if config.bias == "all":
        vectors += width + ups * mlp + width

    vocabulary = config.vocab_size * width
    positions = config.max_length * width if config.positions == "learned" else 0
    copies = 1 if config.tied_head else 2
    parameters = config.layers * (matrices + vectors) + vocabulary * copies + positions + norm
    return DecoderSize(
        parameters=parameters,
        matmul_parameters=config.layers * matrices + vocabulary,
        block_matrices=config.layers * matrices,
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
    return training_flops_per_token(decoder_size(config).matmul_parameters, config.heads, config.head_width, lengths)
