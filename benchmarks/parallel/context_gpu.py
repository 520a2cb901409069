"""Context-parallel attention on one GPU: ranks are simulated in turn, through the functions that real ranks call.

    python benchmarks/parallel/context_gpu.py [--out FOLDER] [--length 32768]

Needs the project's `train` dependencies and its `src` on PYTHONPATH; no network; about a minute. Compares
output and gradients of the pieces with attention in float32, beside the error that one call of the same kernel
has in bf16; and times each rank's pieces, forward and backward, beside one call over the whole sequence divided
by the ranks, which is what a rank would take if cutting cost nothing. Ring and all-gather compute the same
pieces; communication is not part of this. Writes FOLDER/context_gpu.json and FOLDER/context_gpu.log. `--device
cpu` tries the script on small shapes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skytrain.parallel.attention_parts import (
    AttentionPart,
    AttentionSettings,
    Kernel,
    Together,
    attend_part,
    attend_part_backward,
)
from skytrain.parallel.context import positions_of, rows_and_keys

RANKS = 4
SHAPES = {
    "32 heads of 128": (32, 32, 128),
    "32 heads of 128, 8 key-value groups": (32, 8, 128),
    "12 heads of 64": (12, 12, 64),
}


class Rank:
    """What one of several ranks holds of whole sequences, and its share of their attention."""

    def __init__(self, rank: int, ranks: int, q: Tensor, kv: Tensor, kernel: Kernel) -> None:
        self.rank = rank
        self.ranks = ranks
        self.settings = AttentionSettings(q.size(3) ** -0.5, kernel)
        self.places = [positions_of("ring", q.size(2), each, ranks).tensor(q.device) for each in range(ranks)]
        self.q = q[:, :, self.places[rank]]
        self.kv = [kv[..., places, :] for places in self.places]  # of every rank, as they would arrive

    @property
    def _others(self) -> list[tuple[int, slice, slice]]:
        length = self.q.size(2)
        turns = [(self.rank - step) % self.ranks for step in range(1, self.ranks)]
        return [(source, *rows_and_keys(self.rank, source, length)) for source in turns]

    def forward(self) -> AttentionPart:
        found = Together(attend_part(self.q, self.kv[self.rank], self.settings, causal=True))
        for source, rows, keys in self._others:
            found.add(rows, attend_part(self.q[:, :, rows], self.kv[source][..., keys, :], self.settings, causal=False))
        return found.part()

    def backward(self, whole: AttentionPart, dout: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The gradient of this rank's queries, and by rank those of the keys and values that it saw."""
        dq, dkv = (
            x.float() for x in attend_part_backward(dout, self.q, self.kv[self.rank], whole, self.settings, causal=True)
        )
        seen = {self.rank: dkv}
        for source, rows, keys in self._others:
            part = AttentionPart(whole.out_bhtq[:, :, rows], whole.log_sum_bht[:, :, rows], whole.rest)
            kv = self.kv[source][..., keys, :]
            dq_part, dkv_part = attend_part_backward(
                dout[:, :, rows], self.q[:, :, rows], kv, part, self.settings, causal=False
            )
            dq[:, :, rows] += dq_part
            seen[source] = torch.zeros_like(dkv)
            seen[source][..., keys, :] = dkv_part.float()
        return dq, seen


def in_pieces(q: Tensor, kv: Tensor, dout: Tensor, ranks: int, kernel: Kernel) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and gradients of queries, and of keys and values, of whole sequences, as the ranks compute them."""
    out = torch.zeros_like(q)
    dq = torch.zeros_like(q)
    dkv = torch.zeros(kv.shape, device=q.device)
    for index in range(ranks):
        rank = Rank(index, ranks, q, kv, kernel)
        mine = rank.places[index]
        whole = rank.forward()
        out[:, :, mine] = whole.out_bhtq
        dq_part, seen = rank.backward(whole, dout[:, :, mine])
        dq[:, :, mine] = dq_part.to(q.dtype)
        for source, part in seen.items():
            dkv[..., rank.places[source], :] += part
    return out, dq, dkv.to(kv.dtype)


def by_heads(q: Tensor, kv: Tensor, dout: Tensor, ranks: int, kernel: Kernel) -> tuple[Tensor, Tensor, Tensor]:
    """The same as Ulysses deals it: whole sequences with a share of the heads."""
    found = [
        in_one(*dealt, kernel)
        for dealt in zip(q.chunk(ranks, 1), kv.chunk(ranks, 2), dout.chunk(ranks, 1), strict=True)
    ]
    out, dq, dkv = zip(*found, strict=True)
    return torch.cat(out, 1), torch.cat(dq, 1), torch.cat(dkv, 2)


def in_one(q: Tensor, kv: Tensor, dout: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor, Tensor]:
    """The same by one call."""
    settings = AttentionSettings(q.size(3) ** -0.5, kernel)
    whole = attend_part(q, kv, settings, causal=True)
    return whole.out_bhtq, *attend_part_backward(dout, q, kv, whole, settings, causal=True)


def tensors(heads: int, groups: int, size: int, length: int, device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    shapes = (1, heads, length, size), (2, 1, groups, length, size), (1, heads, length, size)
    return tuple(torch.randn(shape, generator=made).to(device, dtype) for shape in shapes)


def errors(shape: tuple[int, int, int], length: int, device: str, kernel: Kernel) -> dict[str, list[float]]:
    """Relative to attention in float32: of one call, of the pieces, of the heads dealt out; output, queries, keys and values."""
    q, kv, dout = tensors(*shape, length, device, torch.bfloat16)
    right = in_one(q.float(), kv.float(), dout.float(), "plain")
    ways: dict[str, Callable[[], tuple[Tensor, ...]]] = {
        "one call": lambda: in_one(q, kv, dout, kernel),
        "pieces": lambda: in_pieces(q, kv, dout, RANKS, kernel),
        "heads": lambda: by_heads(q, kv, dout, RANKS, kernel),
    }
    return {
        name: [float((a.float() - b).norm() / b.norm()) for a, b in zip(way(), right, strict=True)]
        for name, way in ways.items()
    }


def milliseconds(work: Callable[[], Any], device: str) -> float:
    """The median of several runs, after one that is not counted."""
    seen = []
    for _ in range(6 if device == "cuda" else 2):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seen.append((time.perf_counter() - began) * 1e3)
    return sorted(seen[1:])[len(seen[1:]) // 2]


def times(shape: tuple[int, int, int], length: int, device: str, kernel: Kernel) -> dict[str, Any]:
    q, kv, dout = tensors(*shape, length, device, torch.bfloat16)
    one = milliseconds(lambda: in_one(q, kv, dout, kernel), device)
    each = []
    for index in range(RANKS):
        rank = Rank(index, RANKS, q, kv, kernel)
        mine = dout[:, :, rank.places[index]]
        each.append(milliseconds(lambda rank=rank, mine=mine: rank.backward(rank.forward(), mine), device))  # type: ignore[misc]
    dealt = [x.chunk(RANKS, dim) for x, dim in ((q, 1), (kv, 2), (dout, 1))]
    heads = milliseconds(lambda: in_one(dealt[0][0], dealt[1][0], dealt[2][0], kernel), device)
    return {"one call / ranks": one / RANKS, "ranks": each, "ulysses rank": heads}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path(__file__).parent)
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--length", type=int, default=32768)
    given = options.parse_args()
    cuda = given.device == "cuda"
    if cuda and not torch.cuda.is_available():
        print("no GPU here: nothing is measured")
        return
    length, checked = (given.length, 4096) if cuda else (512, 128)
    kernels: list[Kernel] = ["cudnn", "flash", "plain"] if cuda else ["cpu", "plain"]
    name = torch.cuda.get_device_name() if cuda else "cpu"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "length": length, "checked": checked}
    lines = [f"torch {torch.__version__}, {name}, bf16, {RANKS} ranks", ""]
    lines += [f"error relative to float32 at {checked} tokens: output, queries, keys and values", ""]
    for title, shape in SHAPES.items():
        for kernel in kernels:
            seen = found[f"error, {title}, {kernel}"] = errors(shape, checked, given.device, kernel)
            said = "; ".join(f"{way} {' '.join(f'{e:.1e}' for e in each)}" for way, each in seen.items())
            lines.append(f"{title}, {kernel}: {said}")
            print(lines[-1], flush=True)
    lines += ["", f"ms, forward and backward of {length} tokens", ""]
    lines += [
        "| shape | kernel | one call / ranks | ring or all-gather, each rank | of one call | ulysses, a rank |",
        "| --- " * 6 + "|",
    ]
    for title, shape in SHAPES.items():
        for kernel in (each for each in kernels if each != "plain"):
            seen_times = found[f"times, {title}, {kernel}"] = times(shape, length, given.device, kernel)
            one = seen_times["one call / ranks"]
            each = seen_times["ranks"]
            row = f"| {title} | {kernel} | {one:.2f} | {' '.join(f'{ms:.2f}' for ms in each)} | {max(each) / one:.2f} | {seen_times['ulysses rank']:.2f} |"
            lines.append(row)
            print(row, flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "context_gpu.json").write_text(json.dumps(found, indent=2))
    (given.out / "context_gpu.log").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
