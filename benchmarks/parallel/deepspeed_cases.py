"""DeepSpeed's cases of the equivalence table, and how their gradients are read."""

from __future__ import annotations

from typing import Any

OFFLOAD_LOSS = 2e-4  # DeepSpeed's AdamW for the CPU rounds otherwise than torch's
# By name: processes, settings, model, whether the tests leave it to `make test-slow`.
CASES: dict[str, tuple[int, tuple[str, ...], str, bool]] = {
    "deepspeed-zero1 x2, gpt2": (2, ("parallel=deepspeed-zero1",), "gpt2", False),
    "deepspeed-zero2 x2, gpt2": (2, ("parallel=deepspeed-zero2",), "gpt2", False),
    "deepspeed-zero3 x2, gpt2": (2, ("parallel=deepspeed-zero3",), "gpt2", False),
    "deepspeed-zero3-offload x2, gpt2": (2, ("parallel=deepspeed-zero3-offload",), "gpt2", True),
    "deepspeed-zero2 x2 with offload, gpt2": (
        2,
        ("parallel=deepspeed-zero2", "parallel.cpu_offload=true"),
        "gpt2",
        True,
    ),
    "deepspeed-zero1 x2, llama": (2, ("parallel=deepspeed-zero1",), "llama", True),
    "deepspeed-zero2 x2, llama": (2, ("parallel=deepspeed-zero2",), "llama", True),
    "deepspeed-zero3 x2, llama": (2, ("parallel=deepspeed-zero3",), "llama", True),
    "deepspeed-zero3-offload x2, llama": (2, ("parallel=deepspeed-zero3-offload",), "llama", True),
    "deepspeed-zero1 x2, bf16": (2, ("parallel=deepspeed-zero1",), "gpt2", True),
    "deepspeed-zero2 x2, bf16": (2, ("parallel=deepspeed-zero2",), "gpt2", True),
    "deepspeed-zero3 x2, bf16": (2, ("parallel=deepspeed-zero3",), "gpt2", True),
    "deepspeed-zero1 x4, gpt2": (4, ("parallel=deepspeed-zero1",), "gpt2", True),
    "deepspeed-zero2 x4, gpt2": (4, ("parallel=deepspeed-zero2",), "gpt2", True),
    "deepspeed-zero3 x4, gpt2": (4, ("parallel=deepspeed-zero3",), "gpt2", True),
}


def whole_gradient(parameter: Any) -> Any:
    """Before the step, from all ranks."""
    from deepspeed.utils import safe_get_full_grad

    return safe_get_full_grad(parameter)
