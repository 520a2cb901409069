"""Activation checkpointing: what a block saves for its backward pass, and what it recomputes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Recompute = Literal["none", "selective", "full"]

_ATEN = torch.ops.aten
# Expensive operations, whose results are saved. Norms, activations, casts and sums are recomputed.
KEPT = {
    op
    for packet in (
        "mm",
        "addmm",
        "_grouped_mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    for op in [getattr(_ATEN, packet).default]
}
_keeping = True


def run_block(block: Callable[..., Any], recompute: Recompute, *inputs: Any, **named: Any) -> Any:
    """Run a block with activation checkpointing.

    `full` saves only the block's inputs; `selective` also saves the results of matrix products and attention.
    """
    if recompute == "none" or not torch.is_grad_enabled():
        return block(*inputs, **named)
    if recompute == "full":
        return checkpoint(block, *inputs, use_reentrant=False, **named)
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts, **named)


def is_recomputing() -> bool:
    """Return whether this is a block's second run, which is within the backward pass: what it counts was counted already.

    A compiled block has none: it recomputes operations, not code.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Make `selective` recompute everything within this context.

    This is for results that are combined from many partial ones, each as large as the whole.
    """
    global _keeping
    _keeping = False
    try:
        yield
    finally:
        _keeping = True


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if _keeping and op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
