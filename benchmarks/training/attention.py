"""The fastest causal attention that can be had on this GPU, forward and backward, by head size, length and grouping.

    python benchmarks/training/attention.py [--peers FOLDER]

Torch's cuDNN and flash kernels; every engine that cuDNN itself offers, each timed, where nvidia-cudnn-frontend can be imported; and
FlashAttention 4 where flash-attn-4 can be (it compiles its kernels when they are first called). FOLDER is prepended to the path of
imports. All see the same 65,536 tokens of random bf16; errors are against float32.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton.testing
from torch import Tensor

from skytrain.models.kernels.attention import attend_backward, attend_forward

TOKENS = 65536
PEAK = 989e12


@dataclass(frozen=True)
class Shape:
    length: int
    heads: int
    groups: int
    size: int

    def flops(self) -> float:
        """Return those of a forward pass, the upper triangle left out."""
        return 2 * TOKENS * self.length * self.heads * self.size

    def draw(self, batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries, keys, values and the output's gradient, (B, T, H, Q)."""
        count = (self.heads, self.groups, self.groups, self.heads)
        q, k, v, dout = (
            torch.randn(batch, self.length, heads, self.size, device="cuda", dtype=torch.bfloat16) for heads in count
        )
        return q, k, v, dout


SHAPES = (
    Shape(1024, 12, 12, 64),
    Shape(1024, 6, 6, 128),
    Shape(4096, 12, 12, 64),
    Shape(4096, 6, 6, 128),
    Shape(8192, 6, 6, 128),
    Shape(4096, 32, 8, 64),
    Shape(4096, 32, 8, 128),
)
Pass = tuple[Callable[[], tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]


def milliseconds(call: Callable[[], object]) -> float:
    return float(triton.testing.do_bench(call, warmup=10, rep=50, return_mode="median"))


def torch_pass(backend: str) -> Callable[[Tensor, Tensor, Tensor, Tensor], Pass]:
    def make(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Pass:
        q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
        scale = q.shape[-1] ** -0.5
        out, saved = attend_forward(q, k, v, scale, backend, True)  # type: ignore[arg-type]
        return (
            lambda: (attend_forward(q, k, v, scale, backend, True)[0].transpose(1, 2),),  # type: ignore[arg-type]
            lambda: tuple(
                x.transpose(1, 2)
                for x in attend_backward(dout, q, k, v, out, saved, scale, backend)  # type: ignore[arg-type]
            ),
        )

    return make


def flash_4(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> Pass:
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd  # type: ignore[import-not-found]

    out, log_sum, *_ = _flash_attn_fwd(q, k, v, causal=True, return_lse=True)
    return (
        lambda: (_flash_attn_fwd(q, k, v, causal=True, return_lse=True)[0],),
        lambda: _flash_attn_bwd(q, k, v, out, dout, log_sum, causal=True)[:3],
    )


def cudnn_engines(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> list[tuple[str, Pass]]:
    """Return every pair of forward and backward plans that cuDNN offers, the n-th of each together."""
    import cudnn  # type: ignore[import-not-found]

    scale = q.shape[-1] ** -0.5
    handle = cudnn.create_handle()
    stats = torch.empty(q.shape[0], q.shape[2], q.shape[1], 1, device="cuda", dtype=torch.float32)
    out = torch.empty_like(q)
    gradients = tuple(torch.empty_like(x) for x in (q, k, v))
    seen = tuple(x.transpose(1, 2) for x in (q, k, v, out, dout))

    def build(graph: object) -> tuple[int, Tensor]:
        graph.validate()  # type: ignore[attr-defined]
        graph.build_operation_graph()  # type: ignore[attr-defined]
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])  # type: ignore[attr-defined]
        graph.check_support()  # type: ignore[attr-defined]
        graph.build_plans(cudnn.build_plan_policy.ALL)  # type: ignore[attr-defined]
        count = graph.get_execution_plan_count()  # type: ignore[attr-defined]
        sizes = [graph.get_workspace_size_plan_at_index(index) for index in range(count)]  # type: ignore[attr-defined]
        return count, torch.empty(max(sizes), device="cuda", dtype=torch.uint8)

    def new_graph() -> object:
        return cudnn.pygraph(
            io_data_type=cudnn.data_type.BFLOAT16,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=handle,
        )

    forward = new_graph()
    inputs = [forward.tensor_like(x) for x in seen[:3]]  # type: ignore[attr-defined]
    o, s = forward.sdpa(  # type: ignore[attr-defined]
        q=inputs[0], k=inputs[1], v=inputs[2], generate_stats=True, attn_scale=scale, use_causal_mask=True
    )
    o.set_output(True).set_dim(list(seen[3].shape)).set_stride(list(seen[3].stride()))
    s.set_output(True).set_data_type(cudnn.data_type.FLOAT).set_dim(list(stats.shape)).set_stride(list(stats.stride()))
    forward_count, forward_space = build(forward)
    forward_pack = {**dict(zip(inputs, seen[:3], strict=True)), o: seen[3], s: stats}

    backward = new_graph()
    names = [backward.tensor_like(x) for x in (*seen[:3], seen[3], seen[4], stats)]  # type: ignore[attr-defined]
    found = backward.sdpa_backward(  # type: ignore[attr-defined]
        q=names[0],
        k=names[1],
        v=names[2],
        o=names[3],
        dO=names[4],
        stats=names[5],
        attn_scale=scale,
        use_causal_mask=True,
    )
    given = tuple(x.transpose(1, 2) for x in gradients)
    for tensor, memory in zip(found, given, strict=True):
        tensor.set_output(True).set_dim(list(memory.shape)).set_stride(list(memory.stride()))
    backward_count, backward_space = build(backward)
    backward_pack = {
        **dict(zip(names, (*seen[:4], seen[4], stats), strict=True)),
        **dict(zip(found, given, strict=True)),
    }

    def run(graph: object, pack: object, space: Tensor, index: int) -> None:
        graph.execute_plan_at_index(pack, space, index, handle=handle)  # type: ignore[attr-defined]

    pairs: list[tuple[str, Pass]] = []
    for index in range(max(forward_count, backward_count)):
        first, second = min(index, forward_count - 1), min(index, backward_count - 1)

        def ahead(first: int = first) -> tuple[Tensor, ...]:
            run(forward, forward_pack, forward_space, first)
            return (out,)

        def back(second: int = second) -> tuple[Tensor, ...]:
            run(backward, backward_pack, backward_space, second)
            return gradients

        pairs.append((f"cuDNN, plans {first} of {forward_count} and {second} of {backward_count}", (ahead, back)))
    return pairs


def truth(q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> list[Tensor]:
    leaves = [x.float().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    gradients = torch.autograd.grad(out, leaves, dout.float().transpose(1, 2))
    return [x.transpose(1, 2) for x in (out, *gradients)]


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def kernels(shape: Shape, batch: int) -> list[tuple[str, Callable[[], list[tuple[str, Pass]]]]]:
    drawn = shape.draw(batch)
    return [
        ("torch's cuDNN", lambda: [("torch's cuDNN", torch_pass("cudnn")(*drawn))]),
        ("torch's flash", lambda: [("torch's flash", torch_pass("flash")(*drawn))]),
        ("cuDNN's plans", lambda: cudnn_engines(*drawn)),
        ("FlashAttention 4", lambda: [("FlashAttention 4", flash_4(*drawn))]),
    ]


def check(shape: Shape) -> None:
    """Print the errors of one sequence's output and gradients."""
    drawn = shape.draw(1)
    expected = truth(*drawn)
    makers = {
        "torch's cuDNN": lambda: torch_pass("cudnn")(*drawn),
        "FlashAttention 4": lambda: flash_4(*drawn),
    }
    for name, make in makers.items():
        try:
            forward, backward = make()
            errors = [error(found, right) for found, right in zip((*forward(), *backward()), expected, strict=True)]
        except Exception as problem:
            print(f"   {name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            continue
        print(f"   {name}: errors of o, dq, dk, dv " + " ".join(f"{each:.1e}" for each in errors), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes, from the first on")
    options = parser.parse_args()
    if options.peers:
        sys.path.insert(0, options.peers)
        sys.path.insert(1, f"{options.peers}/nvidia_cutlass_dsl/dsl_packages")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", flush=True
    )
    failed: set[str] = set()
    for shape in SHAPES[: options.shapes]:
        print(f"T={shape.length}, {shape.heads} heads on {shape.groups} of {shape.size}", flush=True)
        for family, make in kernels(shape, TOKENS // shape.length):
            if family in failed:
                continue
            began = time.perf_counter()
            try:
                for name, (forward, backward) in make():
                    ahead, back = milliseconds(forward), milliseconds(backward)
                    rate = shape.flops() / 1e9
                    print(
                        f"   {name}: forward {ahead:.3f} ms ({rate / ahead:.0f} TFLOP/s), backward {back:.3f} ms "
                        f"({2.5 * rate / back:.0f} TFLOP/s), together {ahead + back:.3f} ms; ready after "
                        f"{time.perf_counter() - began:.0f} s",
                        flush=True,
                    )
            except Exception as problem:
                failed.add(family)
                print(f"   {family}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        if shape.length == 1024:
            check(shape)


if __name__ == "__main__":
    main()
