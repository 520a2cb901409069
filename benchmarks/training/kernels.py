"""Times each kernel of the fast path over launch shapes, at GPT-2 124M's sizes, next to the bytes it must move.

python benchmarks/training/kernels.py       # on a GPU; a table of the best shapes for each kernel
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
import triton.testing

from skytrain.models.kernels import cross_entropy, gelu, norm, pack
from skytrain.models.kernels.backend import Launch

ROWS = 64 * 1024
WIDTH = 768
HIDDEN = 3072
HEADS = 12
VOCAB = 50257
PADDED = 50304


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def milliseconds(call) -> float:
    return triton.testing.do_bench(call, warmup=10, rep=40, return_mode="median")


def table(name: str, gigabytes: float, rows: list[tuple[float, str]]) -> list[int]:
    """Prints the best and the worst shapes; returns the numbers of the best."""
    rows.sort()
    print(f"{name}: {gigabytes:.2f} GB, at 4.3 TB/s {gigabytes / 4.3:.3f} ms")
    for ms, shape in rows[:4] + rows[-1:]:
        print(f"   {ms:.3f} ms  {gigabytes / ms:.2f} TB/s  {shape}", flush=True)
    return [int(word) for word in rows[0][1].split() if word.isdigit()]


def attempt(rows: list[tuple[float, str]], shape: str, call) -> None:
    try:
        rows.append((milliseconds(call), shape))
    except Exception as error:
        print(f"   {shape}: {type(error).__name__} {str(error)[:80]}")


def main() -> None:
    x, branch, dy, dsum = (random(ROWS, WIDTH) for _ in range(4))
    gain, shift, bias = (torch.randn(WIDTH, device="cuda") for _ in range(3))
    found: list[tuple[float, str]] = []
    for tile, warps in itertools.product((1, 2, 4, 8), (1, 2, 4, 8)):
        norm.FORWARD = Launch(tile, warps)
        attempt(
            found, f"tile {tile} warps {warps}", lambda: norm.AddNorm.apply(x, branch, bias, gain, shift, 1e-5, x.dtype)
        )
    norm.FORWARD = Launch(*table("norm forward", 4 * ROWS * WIDTH * 2 / 1e9, found))
    leaves = [t.detach().requires_grad_() for t in (x, branch, bias, gain, shift)]
    summed, y = norm.AddNorm.apply(*leaves, 1e-5, x.dtype)
    found = []
    for tile, warps, per, stages in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (4, 8, 16), (1, 2, 3)):
        if not 16 <= tile * 1024 / (warps * 32) <= 64 or per * warps > 32:
            continue
        norm.BACKWARD = Launch(tile, warps, per, stages)
        attempt(
            found,
            f"tile {tile} warps {warps} per SM {per} stages {stages}",
            lambda: torch.autograd.grad((summed, y), leaves, (dsum, dy), retain_graph=True),
        )
    norm.BACKWARD = Launch(*table("norm backward", 4 * ROWS * WIDTH * 2 / 1e9, found))

    h, dh = random(ROWS, HIDDEN), random(ROWS, HIDDEN)
    wide = torch.randn(HIDDEN, device="cuda")
    found = []
    for tile, warps in itertools.product((1024, 2048, 4096, 8192), (4, 8)):
        gelu.FORWARD = Launch(tile, warps)
        attempt(found, f"tile {tile} warps {warps}", lambda: gelu.BiasGelu.apply(h, wide))
    gelu.FORWARD = Launch(*table("gelu forward", 2 * ROWS * HIDDEN * 2 / 1e9, found))
    leaves = [h.detach().requires_grad_(), wide.detach().requires_grad_()]
    y = gelu.BiasGelu.apply(*leaves)
    found = []
    for tile, warps, per, stages, strip in itertools.product(
        (4, 8, 16, 32), (4,), (8, 16, 32), (1, 2, 3), (128, 256, 512)
    ):
        if not 8 <= tile * strip / (warps * 32) <= 32:
            continue
        gelu.BACKWARD = Launch(tile, warps, per, stages)
        gelu.STRIP = strip
        attempt(
            found,
            f"tile {tile} warps {warps} per SM {per} stages {stages} strip {strip}",
            lambda: torch.autograd.grad(y, leaves, dh, retain_graph=True),
        )
    *shape, gelu.STRIP = table("gelu backward", 3 * ROWS * HIDDEN * 2 / 1e9, found)
    gelu.BACKWARD = Launch(*shape)

    dq, dk, dv = (random(64, 1024, HEADS, 64) for _ in range(3))
    found = []
    for tile, warps, per in itertools.product((32, 64, 128), (2, 4, 8), (16, 32, 64)):
        pack.PACK = Launch(tile, warps, per)
        attempt(found, f"tile {tile} warps {warps} per SM {per}", lambda: pack.pack_qkv(dq, dk, dv))
    pack.PACK = Launch(*table("pack", 6 * ROWS * WIDTH * 2 / 1e9, found))

    logits = random(ROWS, PADDED)
    targets = torch.randint(0, VOCAB, (ROWS,), device="cuda")
    losses = torch.empty(ROWS, device="cuda")
    scale = torch.ones((), device="cuda")
    found = []
    for (tile, warps), stages in itertools.product(
        ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16), (8192, 32), (16384, 32)), (1, 2, 3)
    ):
        shape = {"BLOCK": tile, "STAGES": stages, "num_warps": warps}
        kernel = cross_entropy._loss_rows[(ROWS,)]
        call = partial(kernel, logits, targets, losses, scale, PADDED, VOCAB, GRADIENT=True, **shape)
        attempt(found, f"tile {tile} warps {warps} stages {stages}", call)
    tile, warps, stages = table("loss", 2 * ROWS * PADDED * 2 / 1e9, found)
    cross_entropy.ROWS = Launch(tile, warps, stages=stages)


if __name__ == "__main__":
    main()
    torch.cuda.empty_cache()
    from single_gpu import measure

    result = measure("fused: all, cudnn", 64, 8, profile=True)
    print({name: value for name, value in result.items() if name != "kernels"})
    for key, ms, count in result["kernels"][:30]:
        print(f"   {ms:8.3f} ms x{count:<4} {key}")
