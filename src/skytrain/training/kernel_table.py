"""The time of a step on a GPU by group of kernels, with the lower bound that the hardware sets for each group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..config import DecoderConfig
from ..planning import Gpu, decoder_flops_per_token

# A kernel belongs to the first group that has a word in its name; words are in lower case.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # GELU in the epilogue of a matrix product has no separate kernel, and then no group.
    ("attention", ("flash", "sdpa", "fmha", "attention", "compute_dot_do_o", "convert_dq", "cudnn")),
    ("matrix products", ("nvjet", "gemm", "cutlass", "xmma", "splitk", "cublas")),
    ("loss", ("loss_rows", "nll_loss", "softmax", "cross_entropy")),
    ("gelu", ("gelu", "tanh")),
    ("norm", ("norm_forward", "norm_backward", "layer_norm", "rms_norm", "native_layer_norm")),
    ("optimizer", ("adam", "multi_tensor", "lpnorm", "foreach")),
)


@dataclass(frozen=True)
class GroupTime:
    name: str
    milliseconds: float  # in one optimizer step
    limit_milliseconds: float | None  # at the GPU's peak rate or bandwidth; None where there is no formula


def profile_groups(step: Callable[[], Any]) -> dict[str, float]:
    """Return the milliseconds that one call of `step` spends in each group; `step` must have run before."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        step()
        torch.cuda.synchronize()
    totals = {name: 0.0 for name, _ in GROUPS} | {"other": 0.0}
    for event in trace.key_averages():
        key = event.key.lower()
        group = next((name for name, words in GROUPS if any(word in key for word in words)), "other")
        totals[group] += event.self_device_time_total / 1e3
    return totals


def group_table(
    times: dict[str, float], model: DecoderConfig, gpu: Gpu, tokens: int, sequence_length: int
) -> list[GroupTime]:
    """Return the times with their limits: FLOPs over the dense bf16 peak, or bytes over the memory bandwidth."""
    limits = _limits(model, gpu, tokens, sequence_length)
    return [
        GroupTime(name, milliseconds, limits.get(name))
        for name, milliseconds in sorted(times.items(), key=lambda item: -item[1])
        if milliseconds
    ]


def _limits(model: DecoderConfig, gpu: Gpu, tokens: int, length: int) -> dict[str, float]:
    if gpu.peak_flops is None:
        return {}
    attention_flops = 12 * model.layers * model.heads * model.head_width * length / 2  # causal: half of the square
    all_flops = decoder_flops_per_token(model, length)
    product_flops = all_flops - 2 * attention_flops
    ms_per_flop = 1e3 / gpu.peak_flops
    ms_per_byte = 1e3 / gpu.memory_bytes_per_s
    parameters = product_flops / 6
    norms = 2 * model.layers + 1
    return {
        "matrix products": product_flops * tokens * ms_per_flop,
        "attention": attention_flops * tokens * ms_per_flop,
        # logits in bf16: read once, their gradient written once
        "loss": 4 * model.padded_vocab * tokens * ms_per_byte,
        # forward one read, one write; backward two reads, one write
        "gelu": 5 * 2 * model.layers * model.hidden_width * tokens * ms_per_byte,
        # forward two reads, two writes; backward three reads, one write
        "norm": 8 * 2 * norms * model.width * tokens * ms_per_byte,
        # weight, gradient and two moments read, three written, in float32; the norm reads gradients once more
        "optimizer": 8 * 4 * parameters * ms_per_byte,
    }
