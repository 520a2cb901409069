"""The fused path of modern decoders on a GPU: its numbers, the launch shapes of its kernels, its speed next to GPT-2's.

python benchmarks/training/modern.py [parity shapes speed profile]      # on a Hopper GPU; all parts where none is named
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import triton.testing

from skytrain.config import Config
from skytrain.config.composition import compose
from skytrain.models import build_model
from skytrain.models.kernels import rms_norm, rotary, swiglu
from skytrain.models.kernels.attention import causal_attention
from skytrain.models.kernels.backend import Launch
from skytrain.training.losses import choose_loss
from skytrain.training.optimizers import make_optimizer

ROWS = 64 * 1024
WIDTH = 768
HIDDEN = 2048
LENGTH = 1024
VOCAB = 50257
RECIPES = {
    "gpt2-124m, AdamW": ["recipe=gpt2-124m-openwebtext"],
    "modern-124m, AdamW": ["recipe=modern-124m", "optimizer=adamw"],
    "modern-124m, Muon": ["recipe=modern-124m"],
    "modern-124m, Muon, torch.compile": ["recipe=modern-124m", "trainer.fused=off", "trainer.compile=true"],
}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def parity() -> None:
    """Print how far loss and gradients of one small batch are from float32, by shape and attention kernel."""
    shapes = {
        "modern-124m": ["model=modern-124m", "model.layers=3"],
        "grouped heads": ["model=modern-124m", "model.layers=3", "model.kv_heads=2"],
        "llama-3.2-1b, 2 layers": ["model=llama-3.2-1b", "model.layers=2"],
        "qwen2.5-0.5b, 2 layers": ["model=qwen2.5-0.5b", "model.layers=2"],
    }
    for (name, words), attention in itertools.product(shapes.items(), ("cudnn", "flash")):
        settings = [
            *words,
            "trainer.precision=bf16-mixed",
            "trainer.device=cuda",
            f"trainer.kernels.attention={attention}",
        ]
        paths = {"fused": ["trainer.fused=on", "trainer.cuda_graphs=off"], "eager autocast": ["trainer.fused=off"]}
        configs = {path: compose([*settings, *more]).config for path, more in paths.items()}
        model = build_model(configs["fused"].model, seed=1).cuda()
        batch = torch.randint(0, VOCAB, (4, LENGTH + 1), device="cuda")

        def gradients(loss: torch.Tensor, model: torch.nn.Module = model) -> tuple[float, dict[str, torch.Tensor]]:
            loss.backward()
            found = {key: value.grad for key, value in model.named_parameters()}
            model.zero_grad()
            return float(loss), found

        truth, expected = gradients(model.loss(batch[:, :-1], batch[:, 1:]))
        for path, config in configs.items():
            chosen = choose_loss(config, "cuda")
            try:
                with torch.autocast("cuda", torch.bfloat16, enabled=not chosen.lowers_precision):
                    loss = chosen.loss(model, batch[:, :-1], batch[:, 1:], None)
                value, found = gradients(loss)
            except RuntimeError as problem:
                print(f"{name}, {path}, {attention}: {str(problem)[:200]}", flush=True)
                continue
            errors = {key: error(found[key], expected[key]) for key in expected}
            worst = max(errors, key=lambda key: errors[key])
            print(
                f"{name}, {path}, {attention if path == 'fused' else 'torch'}: loss {value - truth:+.1e}, gradients: "
                f"median error {statistics.median(errors.values()):.4f}, worst {errors[worst]:.4f} ({worst})",
                flush=True,
            )


def best(name: str, gigabytes: float, times: dict[str, Callable[[], object]], set_shape: Callable[..., None]) -> None:
    """Time a kernel in each launch shape, print the fastest and the slowest, and keep the fastest."""
    found: list[tuple[float, str]] = []
    call = times["call"]
    for shape in times["shapes"]:  # type: ignore[union-attr]
        set_shape(*shape)
        try:
            found.append((triton.testing.do_bench(call, warmup=5, rep=20, return_mode="median"), shape))
        except Exception as problem:
            print(f"   {shape}: {type(problem).__name__} {str(problem)[:80]}")
    found.sort()
    set_shape(*found[0][1])
    print(f"{name}: {gigabytes:.2f} GB, at 4.3 TB/s {gigabytes / 4.3:.3f} ms; tile, warps, ...")
    for ms, shape in found[:3] + found[-1:]:
        print(f"   {ms:.3f} ms  {gigabytes / ms:.2f} TB/s  {shape}", flush=True)


def shapes() -> None:
    """Print the fastest launch shapes of the kernels."""
    x, branch, dy, dsum = (random(ROWS, WIDTH) for _ in range(4))
    gain = torch.ones(WIDTH, device="cuda")

    def set_rms_forward(*shape: int) -> None:
        rms_norm.FORWARD = Launch(*shape)

    def set_rms_backward(*shape: int) -> None:
        rms_norm.BACKWARD = Launch(*shape)

    forward = lambda: rms_norm.AddRMSNorm.apply(x, branch, gain, 1e-6, x.dtype)
    tiles = [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (8, 8)]
    best("rms norm forward", 4 * ROWS * WIDTH * 2 / 1e9, {"call": forward, "shapes": tiles}, set_rms_forward)
    leaves = [each.detach().requires_grad_() for each in (x, branch, gain)]
    summed, y = rms_norm.AddRMSNorm.apply(*leaves, 1e-6, x.dtype)
    backward = lambda: torch.autograd.grad((summed, y), leaves, (dsum, dy), retain_graph=True)
    tiles = [
        (4, 4, 4, 2),
        (4, 4, 8, 1),
        (2, 4, 8, 2),
        (2, 4, 8, 3),
        (4, 8, 4, 2),
        (4, 8, 4, 3),
        (1, 2, 16, 3),
        (1, 4, 8, 3),
        (2, 2, 8, 2),
    ]
    best("rms norm backward", 4 * ROWS * WIDTH * 2 / 1e9, {"call": backward, "shapes": tiles}, set_rms_backward)

    pre, dhidden = random(ROWS, 2 * HIDDEN), random(ROWS, HIDDEN)

    def set_swiglu(tile: int, warps: int, strip: int) -> None:
        swiglu.FORWARD = swiglu.BACKWARD = Launch(tile, warps)
        swiglu.STRIP = strip

    tiles = [
        (4, 4, 512),
        (2, 4, 512),
        (1, 4, 1024),
        (2, 4, 1024),
        (1, 4, 2048),
        (4, 4, 256),
        (8, 4, 256),
        (1, 8, 2048),
        (4, 8, 512),
    ]
    best(
        "swiglu forward", 3 * ROWS * HIDDEN * 2 / 1e9, {"call": lambda: swiglu.swiglu(pre), "shapes": tiles}, set_swiglu
    )
    backward = lambda: swiglu.swiglu_gradient(dhidden, pre)
    best("swiglu backward", 5 * ROWS * HIDDEN * 2 / 1e9, {"call": backward, "shapes": tiles}, set_swiglu)

    packed, gains = random(ROWS, 3 * WIDTH), torch.ones(2, 128, device="cuda")
    turn = rotary.Turn(torch.ones(LENGTH, 128, device="cuda"), torch.ones(LENGTH, 128, device="cuda"), LENGTH)

    def set_turn_forward(*shape: int) -> None:
        rotary.FORWARD = Launch(*shape)

    def set_turn_backward(*shape: int) -> None:
        rotary.BACKWARD = Launch(*shape)

    forward = lambda: rotary.turn_heads(packed, gains[0], gains[1], 1e-6, turn, 6)
    tiles = [(32, 4), (16, 4), (8, 2), (16, 2), (64, 8), (64, 4), (8, 4), (16, 8), (32, 8)]
    best("norm and turn forward", 4 * ROWS * WIDTH * 2 / 1e9, {"call": forward, "shapes": tiles}, set_turn_forward)
    leaves = [packed.detach().requires_grad_(), *(each.clone().requires_grad_() for each in gains)]
    parts = rotary.turn_heads(*leaves, 1e-6, turn, 6)
    dparts = [random(ROWS, 6, 128) for _ in range(3)]
    backward = lambda: torch.autograd.grad(parts, leaves, dparts, retain_graph=True)
    tiles = [
        (8, 2, 32),
        (16, 4, 16),
        (16, 4, 32),
        (8, 4, 32),
        (16, 2, 32),
        (4, 1, 64),
        (8, 1, 64),
        (32, 4, 16),
        (8, 2, 64),
    ]
    best("norm and turn backward", 8 * ROWS * WIDTH * 2 / 1e9, {"call": backward, "shapes": tiles}, set_turn_backward)

    for heads, size in ((12, 64), (6, 128)):
        q, k, v = (random(64, LENGTH, heads, size).requires_grad_() for _ in range(3))
        out = causal_attention(q, k, v, size**-0.5, "cudnn")
        dout = random(64, LENGTH, heads, size)
        times = [
            triton.testing.do_bench(call, warmup=10, rep=40, return_mode="median")
            for call in (
                lambda q=q, k=k, v=v, size=size: causal_attention(q, k, v, size**-0.5, "cudnn"),
                lambda out=out, q=q, k=k, v=v, dout=dout: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True),
            )
        ]
        print(
            f"cuDNN attention, {heads} heads of {size}: forward {times[0]:.3f} ms, backward {times[1]:.3f} ms",
            flush=True,
        )


def step_of(config: Config, micro_batch: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return one optimizer step over 2**17 tokens, and the optimizer's part of it."""
    model = build_model(config.model, seed=1).cuda()
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    path = choose_loss(config, "cuda")
    batch = torch.randint(0, VOCAB, (micro_batch, LENGTH + 1), device="cuda")

    def step() -> None:
        for _ in range(128 // micro_batch):
            with torch.autocast("cuda", torch.bfloat16, enabled=not path.lowers_precision):
                loss = path.loss(model, batch[:, :-1], batch[:, 1:], None)
            (loss * (micro_batch / 128)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def update() -> None:
        optimizer.step()

    for _ in range(3):
        step()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return step, update


def seconds(call: Callable[[], None], runs: int) -> float:
    found = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def config_of(words: list[str], micro_batch: int) -> Config:
    settings = ["trainer.precision=bf16-mixed", "trainer.device=cuda", f"trainer.micro_batch={micro_batch}"]
    return compose([*words, *settings, "trainer.batch_tokens=131072"]).config


def speed(names: tuple[str, ...] = tuple(RECIPES)[:3]) -> None:
    for name, micro_batch in itertools.product(names, (64, 128)):
        began = time.perf_counter()
        step, update = step_of(config_of(RECIPES[name], micro_batch), micro_batch)
        first = time.perf_counter() - began
        updating = seconds(update, 8)
        whole = seconds(step, 12)
        print(
            f"{name}, micro-batch {micro_batch}: {131072 / whole:,.0f} tokens/s, {whole * 1e3:.1f} ms for 131,072 tokens, of them "
            f"optimizer {updating * 1e3:.1f} ms ({updating / whole:.1%}); {torch.cuda.max_memory_allocated() / 1e9:.1f} GB, "
            f"ready after {first:.1f} s",
            flush=True,
        )
        del step, update
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def profile() -> None:
    """Print the kernels of one step of modern-124m with Muon."""
    from torch.profiler import ProfilerActivity, profile as trace

    step, _ = step_of(config_of(RECIPES["modern-124m, Muon"], 64), 64)
    step()
    torch.cuda.synchronize()
    with trace(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / 1e3
    print(f"kernels of a step of 131,072 tokens: {total:.1f} ms")
    for row in rows[:32]:
        print(f"   {row.self_device_time_total / 1e3:8.3f} ms x{row.count:<4} {row.key[:110]}")


PARTS = {
    "parity": parity,
    "shapes": shapes,
    "speed": speed,
    "profile": profile,
    "compiled": partial(speed, (tuple(RECIPES)[3],)),
}


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for part in sys.argv[1:] or ("parity", "shapes", "speed", "profile"):
        PARTS[part]()
