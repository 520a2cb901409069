"""The fused path of modern decoders on a GPU: its numbers, the launch shapes of its kernels, its speed next to GPT-2's.

    python benchmarks/training/modern.py [parity shapes speed profile]                    # on a Hopper GPU; these where none is named
    python benchmarks/training/modern.py [step optimizer documents large cold compiled families]   # the parts that are asked for by name

`step` is a step of 2**19 tokens, `optimizer` Muon's part of steps of several sizes, `documents` the price of masks, `large` Llama
3.2 1B and four layers of 8B at 4,096 tokens against the fastest bf16 product of the same call, `cold` the time from the start of
a process, with no kernel compiled before, to its first step, `families` four layers of each other family, fused and compiled.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
import triton.testing

from skytrain.config import Config, compose
from skytrain.models import Decoder, WithAuxiliary, build_model, split_auxiliary
from skytrain.models.kernels import rms_norm, rotary, swiglu
from skytrain.models.kernels.attention import causal_attention
from skytrain.models.kernels.backend import Launch
from skytrain.models.loss import matmul_parameters
from skytrain.planning import decoder_flops_per_token
from skytrain.training import choose_loss, make_optimizer
from skytrain.training.memory import apply_memory_settings

ROWS = 64 * 1024
WIDTH = 768
HIDDEN = 2048
LENGTH = 1024
VOCAB = 50257
DOCUMENT = 512  # tokens of a document, on average
PEAK = 989e12  # dense bf16 FLOP/s of an H100 or H200
PRODUCTS = ("nvjet", "gemm", "cutlass", "splitKreduce")  # what names of matrix products contain
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
        "modern-124m, z-loss": ["model=modern-124m", "model.layers=3", "trainer.z_loss=1e-2"],
        "olmo 2, 2 layers": ["model=olmo-2-1b", "model.layers=2"],
        "gemma 2, 2 layers": ["model=gemma-2-2b", "model.layers=2", "model.window=300"],
        "smollm 3, 4 layers": ["model=smollm3-3b", "model.layers=4"],
        "mixture": [
            *("model=qwen3-30b-a3b", "model.layers=3", "model.width=768", "model.heads=6", "model.kv_heads=6"),
            *("model.vocab_size=50257", "model.experts.count=16", "model.experts.per_token=4"),
        ],
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
        apply_memory_settings(model, configs["fused"].trainer)  # which has the z-loss
        batch = torch.randint(0, VOCAB, (4, LENGTH + 1), device="cuda")

        def gradients(output: WithAuxiliary, model: torch.nn.Module = model) -> tuple[float, dict[str, torch.Tensor]]:
            loss, auxiliary = split_auxiliary(output)
            (loss if auxiliary is None else loss + auxiliary).backward()
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
    """Return one optimizer step over `trainer.batch_tokens`, and the optimizer's part of it."""
    model = build_model(config.model, seed=1).cuda()
    apply_memory_settings(model, config.trainer)  # which has the z-loss
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    path = choose_loss(config, "cuda")
    length = config.trainer.sequence_length
    batch = torch.randint(0, VOCAB, (micro_batch, length + 1), device="cuda")
    starts = torch.rand(batch[:, :-1].shape, device="cuda") < 1 / DOCUMENT if config.loader.separate_documents else None
    count = config.trainer.batch_tokens // (micro_batch * length)

    def step() -> None:
        for _ in range(count):
            with torch.autocast("cuda", torch.bfloat16, enabled=not path.lowers_precision):
                loss = path.loss(model, batch[:, :-1], batch[:, 1:], starts)
            (loss / count).backward()
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


def config_of(words: list[str], micro_batch: int, batch_tokens: int = 131072) -> Config:
    settings = ["trainer.precision=bf16-mixed", "trainer.device=cuda", f"trainer.micro_batch={micro_batch}"]
    return compose([*words, *settings, f"trainer.batch_tokens={batch_tokens}"]).config


def clear() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


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
        clear()


def kernels_of(call: Callable[[], None]) -> list[tuple[float, int, str]]:
    """Return the milliseconds, the number and the name of each kernel of a call, the longest first."""
    from torch.profiler import ProfilerActivity, profile as trace

    call()
    torch.cuda.synchronize()
    with trace(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    rows = [(row.self_device_time_total / 1e3, row.count, row.key) for row in seen.key_averages()]
    return sorted(rows, reverse=True)


def profile() -> None:
    """Print the kernels of one step of modern-124m with Muon."""
    step, _ = step_of(config_of(RECIPES["modern-124m, Muon"], 64), 64)
    rows = kernels_of(step)
    print(f"kernels of a step of 131,072 tokens: {sum(ms for ms, _, _ in rows):.1f} ms")
    for ms, count, name in rows[:32]:
        print(f"   {ms:8.3f} ms x{count:<4} {name[:110]}")


def large_step() -> None:
    """Print the speed of modern-124m with steps of 2**19 tokens."""
    for micro_batch in (64, 128):
        config = config_of(RECIPES["modern-124m, Muon"], micro_batch, 2**19)
        step, update = step_of(config, micro_batch)
        updating, whole = seconds(update, 8), seconds(step, 5)
        mfu = 2**19 / whole * decoder_flops_per_token(config.model, LENGTH) / PEAK
        print(
            f"modern-124m, Muon, 524,288 tokens a step, micro-batch {micro_batch}: {2**19 / whole:,.0f} tokens/s ({mfu:.1%} MFU), "
            f"optimizer {updating * 1e3:.2f} ms alone ({updating / whole:.2%})",
            flush=True,
        )
        del step, update
        clear()


def optimizer_part() -> None:
    """Print what Muon takes: alone, its kernels only, and as the difference that it makes to steps of AdamW."""
    times: dict[tuple[str, int], float] = {}
    for name, tokens in itertools.product(("modern-124m, AdamW", "modern-124m, Muon"), (32768, 65536, 131072)):
        micro_batch = min(64, tokens // LENGTH)
        step, update = step_of(config_of(RECIPES[name], micro_batch, tokens), micro_batch)
        alone = seconds(update, 12)
        rows = kernels_of(update)
        times[name, tokens] = seconds(step, 16)
        print(
            f"{name}, {tokens:,} tokens a step: {times[name, tokens] * 1e3:.2f} ms a step; the optimizer alone {alone * 1e3:.2f} ms, "
            f"its kernels {sum(ms for ms, _, _ in rows):.2f} ms in {sum(count for _, count, _ in rows)} launches",
            flush=True,
        )
        if "Muon" in name and tokens == 65536:
            for ms, count, kernel in rows[:20]:
                print(f"   {ms:8.3f} ms x{count:<4} {kernel[:110]}")
        del step, update
        clear()
    for tokens in (32768, 65536, 131072):
        adamw, muon = (times[f"modern-124m, {name}", tokens] for name in ("AdamW", "Muon"))
        print(
            f"Muon instead of AdamW, {tokens:,} tokens a step: {(muon - adamw) * 1e3:+.2f} ms, {muon / adamw - 1:+.1%}"
        )


def documents() -> None:
    """Print the speed with and without masks between documents."""
    for name, words in {"without masks": [], "documents apart": ["loader.separate_documents=true"]}.items():
        began = time.perf_counter()
        step, _ = step_of(config_of([*RECIPES["modern-124m, Muon"], *words], 64), 64)
        ready = time.perf_counter() - began
        whole = seconds(step, 10)
        print(f"modern-124m, {name}: {131072 / whole:,.0f} tokens/s, ready after {ready:.1f} s", flush=True)
        if words:
            for ms, count, kernel in kernels_of(step)[:24]:
                print(f"   {ms:8.3f} ms x{count:<4} {kernel[:110]}")
        del step
        clear()


def fastest_product() -> float:
    """Return the FLOP/s of the fastest of a few large bf16 products, each run for half a second so that clocks settle."""
    best_rate = 0.0
    for rows, inner, columns in ((8192, 8192, 8192), (16384, 8192, 8192), (32768, 4096, 14336), (32768, 2048, 8192)):
        x, y = random(rows, inner), random(columns, inner).t()
        for _ in range(3):
            x @ y
        torch.cuda.synchronize()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < 0.5:
            for _ in range(20):
                x @ y
            torch.cuda.synchronize()
            count += 20
        rate = 2 * rows * inner * columns * count / (time.perf_counter() - began)
        print(f"   product {rows} x {inner} x {columns}: {rate / 1e12:.0f} TFLOP/s", flush=True)
        best_rate = max(best_rate, rate)
    return best_rate


def large() -> None:
    """Print steps of Llama 3.2 1B and of four layers of 8B, as shares of the fastest product of this call."""
    top = fastest_product()
    length = 4096
    for name, words, micro_batch in (
        ("llama-3.2-1b", ["model=llama-3.2-1b"], 8),
        ("llama-3.1-8b, 4 layers", ["model=llama-3.1-8b", "model.layers=4"], 4),
    ):
        settings = [f"trainer.sequence_length={length}", f"model.max_length={length}", "optimizer=adamw"]
        config = config_of([*words, *settings], micro_batch, 4 * micro_batch * length)
        began = time.perf_counter()
        step, _ = step_of(config, micro_batch)
        ready = time.perf_counter() - began
        whole = seconds(step, 5)
        tokens = config.trainer.batch_tokens
        rows = kernels_of(step)
        in_products = sum(ms for ms, _, kernel in rows if any(word in kernel for word in PRODUCTS)) / 1e3
        with torch.device("meta"):
            multiplied = 6 * matmul_parameters(Decoder(config.model)) * tokens
        rate = decoder_flops_per_token(config.model, length) * tokens / whole
        print(
            f"{name}, {length} tokens, micro-batch {micro_batch}: {tokens / whole:,.0f} tokens/s, {rate / PEAK:.1%} MFU, "
            f"{rate / top:.1%} of the fastest product ({top / 1e12:.0f} TFLOP/s); products {multiplied / in_products / top:.1%}, "
            f"{in_products / whole:.1%} of the step; {torch.cuda.max_memory_allocated() / 1e9:.0f} GB, ready after {ready:.1f} s",
            flush=True,
        )
        for ms, count, kernel in rows[:22]:
            print(f"   {ms:8.3f} ms x{count:<4} {kernel[:110]}")
        del step
        clear()


def cold() -> None:
    """Print the seconds from the start of a new process to the end of its first step, without any cache of kernels."""
    for name, words in {"modern-124m": [], "documents apart": ["loader.separate_documents=true"]}.items():
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            began = time.perf_counter()
            command = [sys.executable, __file__, "first", *words]
            subprocess.run(command, env={**os.environ, **caches}, check=True, stdout=subprocess.DEVNULL)
            print(f"{name}: first step {time.perf_counter() - began:.1f} s after the start of the process", flush=True)


def first(words: list[str]) -> None:
    config = config_of([*RECIPES["modern-124m, Muon"], *words], 64)
    model = build_model(config.model, seed=1).cuda()
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    batch = torch.randint(0, VOCAB, (64, LENGTH + 1), device="cuda")
    starts = torch.rand(64, LENGTH, device="cuda") < 1 / DOCUMENT if words else None
    choose_loss(config, "cuda").loss(model, batch[:, :-1], batch[:, 1:], starts).backward()
    optimizer.step()
    torch.cuda.synchronize()


FAMILIES = {
    "olmo-2-1b": ["model=olmo-2-1b"],
    "gemma-2-2b": ["model=gemma-2-2b"],
    "gemma-3-1b": ["model=gemma-3-1b"],
    "smollm3-3b": ["model=smollm3-3b"],
    "modern-124m, z-loss": ["model=modern-124m", "trainer.z_loss=1e-4"],
}


def families() -> None:
    """Print the speed of four layers of each family at 2,048 tokens, by the fused kernels and by torch.compile."""
    length, micro_batch = 2048, 8
    for (name, words), path in itertools.product(FAMILIES.items(), ("fused", "compiled")):
        chosen = {"fused": ["trainer.fused=on"], "compiled": ["trainer.fused=off", "trainer.compile=true"]}[path]
        settings = [
            f"trainer.sequence_length={length}",
            f"model.max_length={length}",
            "model.layers=4",
            "optimizer=adamw",
        ]
        config = config_of([*words, *settings, *chosen], micro_batch, 4 * micro_batch * length)
        began = time.perf_counter()
        try:
            step, _ = step_of(config, micro_batch)
            ready = time.perf_counter() - began
            whole = seconds(step, 5)
        except RuntimeError as problem:
            print(f"{name}, {path}: {str(problem)[:300]}", flush=True)
            continue
        rate = config.trainer.batch_tokens / whole
        print(
            f"{name}, 4 layers, {path}: {rate:,.0f} tokens/s, {rate * decoder_flops_per_token(config.model, length) / PEAK:.1%} MFU, "
            f"{torch.cuda.max_memory_allocated() / 1e9:.0f} GB, ready after {ready:.0f} s",
            flush=True,
        )
        del step
        clear()
        torch.compiler.reset()


PARTS = {
    "parity": parity,
    "shapes": shapes,
    "speed": speed,
    "profile": profile,
    "step": large_step,
    "optimizer": optimizer_part,
    "documents": documents,
    "large": large,
    "cold": cold,
    "families": families,
    "compiled": partial(speed, (tuple(RECIPES)[3],)),
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["first"]:
        first(sys.argv[2:])
        raise SystemExit
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for part in sys.argv[1:] or ("parity", "shapes", "speed", "profile"):
        PARTS[part]()
