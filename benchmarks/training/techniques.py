"""Each technique for a faster GPT-2 124M step on one GPU: checked against a reference, timed against what it replaces.

python benchmarks/training/techniques.py [products loss embedding steps]      # on a Hopper GPU; all parts where none is named
"""

from __future__ import annotations

import ctypes
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton

from skytrain.config import Config, compose
from skytrain.models import Decoder, Kernels, build_model, fused_loss
from skytrain.models.kernels import cross_entropy, cublaslt, embedding
from skytrain.models.kernels.backend import Launch
from skytrain.models.kernels.cublaslt import Epilogue, Extras, ProductPlan, shape_of
from skytrain.training import make_optimizer
from skytrain.training.graphs import GraphedLoss

TOKENS = 64 * 1024
WIDTH = 768
HIDDEN = 3072
VOCAB = 50257
PADDED = 50304


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def milliseconds(call: Callable[[], object], runs: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    call()
    start.record()
    for _ in range(runs):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / runs


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x.float(), approximate="tanh")


def products() -> None:
    """torch's algorithm against cuBLASLt's others, and with epilogues. The chip is kept busy, so at its power limit."""
    f32 = torch.float32
    none = Epilogue.NONE
    forward = lambda k, m: (random(TOKENS, k), random(m, k).t())
    backward = lambda m, k: (random(TOKENS, m), random(m, k))
    weight = lambda m, k: (random(TOKENS, m).t(), random(TOKENS, k))
    cases = [
        ("qkv", 12, forward(WIDTH, 3 * WIDTH), None, Epilogue.BIAS),
        ("out", 12, forward(WIDTH, WIDTH), None, none),
        ("up", 12, forward(WIDTH, HIDDEN), None, none),
        ("up, gelu", 12, forward(WIDTH, HIDDEN), None, Epilogue.GELU_AUX_BIAS),
        ("down", 12, forward(HIDDEN, WIDTH), None, none),
        ("head", 1, forward(WIDTH, PADDED), None, none),
        ("head dx", 1, backward(PADDED, WIDTH), None, none),
        ("head dW", 1, weight(PADDED, WIDTH), f32, none),
        ("down dx", 12, backward(WIDTH, HIDDEN), None, none),
        ("down dx, dgelu", 12, backward(WIDTH, HIDDEN), None, Epilogue.DGELU),
        ("down dx, dgelu, bias", 12, backward(WIDTH, HIDDEN), None, Epilogue.DGELU_BGRAD),
        ("down dW", 12, weight(WIDTH, HIDDEN), f32, none),
        ("up dx", 12, backward(HIDDEN, WIDTH), None, none),
        ("up dW", 12, weight(HIDDEN, WIDTH), f32, none),
        ("up dW, bias", 12, weight(HIDDEN, WIDTH), f32, Epilogue.BGRAD_X),
        ("out dx", 12, backward(WIDTH, WIDTH), None, none),
        ("out dW", 12, weight(WIDTH, WIDTH), f32, none),
        ("qkv dx", 12, backward(3 * WIDTH, WIDTH), None, none),
        ("qkv dW", 12, weight(3 * WIDTH, WIDTH), f32, none),
        ("qkv dW, bias", 12, weight(3 * WIDTH, WIDTH), f32, Epilogue.BGRAD_X),
    ]
    print(
        f"{'product':22} {'torch':>8} {'first':>8} {'best':>8}  TFLOP/s  of      error     saved by the best, ms a micro-batch"
    )
    saved = 0.0
    for name, count, (x, y), out_dtype, epilogue in cases:
        try:
            saved += one_product(name, count, x, y, out_dtype, epilogue)
        except Exception as problem:
            print(f"{name:22} {type(problem).__name__}: {str(problem)[:150]}", flush=True)
        del x, y
    print(f"saved in all, without epilogues: {saved:.2f} ms a micro-batch")


def one_product(
    name: str, count: int, x: torch.Tensor, y: torch.Tensor, out_dtype: torch.dtype | None, epilogue: Epilogue
) -> float:
    """Prints one line; returns the milliseconds of a micro-batch that the best algorithm saves."""
    kind = out_dtype or torch.bfloat16
    out = torch.full((x.shape[0], y.shape[1]), float("nan"), device="cuda", dtype=kind)
    bias = aux = None
    if epilogue in (Epilogue.BIAS, Epilogue.GELU_AUX_BIAS, Epilogue.DGELU_BGRAD):
        bias = random(y.shape[1])
    elif epilogue == Epilogue.BGRAD_X:
        bias = random(x.shape[0], dtype=kind)
    if epilogue in (Epilogue.GELU_AUX_BIAS, Epilogue.DGELU, Epilogue.DGELU_BGRAD):
        aux = random(*out.shape)
    extras = Extras(bias, aux)
    plan = ProductPlan(shape_of(x, y, kind, epilogue), extras)
    plan.run(x, y, out, extras)
    wrong = product_error(x, y, out, extras, epilogue)

    def by_torch() -> torch.Tensor:
        if epilogue == Epilogue.BIAS:
            return torch.addmm(bias, x, y)
        return torch.mm(x, y, out_dtype=kind) if out_dtype else torch.mm(x, y)

    size = 2 * x.shape[0] * x.shape[1] * y.shape[1]
    runs = max(4, int(12e12 / size))
    ours = lambda choice: milliseconds(lambda: plan.run(x, y, out, extras, choice), runs)
    times = [(ours(choice), choice) for choice in range(len(plan.algorithms))]
    best = [choice for _, choice in sorted(times)[:3]]
    turns = [
        {choice: ours(choice) for choice in {0, *best}} | {"torch": milliseconds(by_torch, runs)} for _ in range(3)
    ]
    middle = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
    winner = min(best, key=lambda choice: middle[choice])
    gain = (middle["torch"] - middle[winner]) * count
    print(
        f"{name:22} {middle['torch']:8.4f} {middle[0]:8.4f} {middle[winner]:8.4f}  {size / middle[winner] / 1e9:6.0f}  {winner:2}/{len(times):2}  {wrong:.1e}  {gain:6.2f}",
        flush=True,
    )
    return gain if "," not in name else 0.0


def product_error(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, extras: Extras, epilogue: Epilogue) -> float:
    """Against float64, on the first rows."""
    rows = slice(0, 256)
    expected = x[rows].double() @ y.double()
    wrong = 0.0
    if epilogue in (Epilogue.BIAS, Epilogue.GELU_AUX_BIAS):
        expected = expected + extras.bias.double()
    if epilogue == Epilogue.GELU_AUX_BIAS:
        wrong = error(extras.aux[rows], expected)
        expected = gelu(expected).double()
    if epilogue in (Epilogue.DGELU, Epilogue.DGELU_BGRAD):
        at = extras.aux[rows].float().requires_grad_()
        (slope,) = torch.autograd.grad(gelu(at).sum(), at)
        expected = expected * slope.double()
    if epilogue == Epilogue.DGELU_BGRAD:
        wrong = error(extras.bias, out.float().sum(0))
    elif epilogue == Epilogue.BGRAD_X:
        wrong = error(extras.bias, x.float().sum(1))
    return max(wrong, error(out[rows], expected))


def loss() -> None:
    logits = random(TOKENS, PADDED)
    targets = torch.randint(0, VOCAB, (TOKENS,), device="cuda")
    targets[5] = -100
    scale = torch.full((), 1.0 / 1024, device="cuda")
    sample = logits[:512].clone()
    expected = torch.nn.functional.cross_entropy(sample[:, :VOCAB].double(), targets[:512], reduction="none")
    gradient = sample[:, :VOCAB].double().softmax(1)
    gradient[torch.arange(512), targets[:512].clamp(min=0)] -= 1
    gradient[5] = 0
    print(f"loss: each byte read and written once at 4.3 TB/s {2 * TOKENS * PADDED * 2 / 4.3e9:.2f} ms")
    compiled = cross_entropy._kernel_in_shared
    for warps, blocks in [(0, 0), *itertools.product((8, 16, 32), (1, 2))]:
        compiled.cache_clear()
        cross_entropy.IN_SHARED = Launch(1, warps, blocks)
        cross_entropy._kernel_in_shared = compiled if warps else lambda columns: None
        rows = sample.clone()
        found = cross_entropy.loss_rows(rows, targets[:512], scale, cross_entropy.LossTerms(VOCAB), True)
        wrong = (
            error(found, expected),
            error(rows[:, :VOCAB], gradient * float(scale)),
            float(rows[:, VOCAB:].abs().max()),
        )
        ms = milliseconds(
            lambda: cross_entropy.loss_rows(logits, targets, scale, cross_entropy.LossTerms(VOCAB), True), 12
        )
        name = f"row in shared memory, {warps} warps, {blocks} blocks" if warps else "Triton, two passes"
        print(f"   {ms:.3f} ms  {name}  errors of loss, gradient, padding {wrong}", flush=True)
    cross_entropy.IN_SHARED = Launch(1, 16, 2)
    compiled.cache_clear()


def embeddings() -> None:
    dout = random(TOKENS, WIDTH)
    common = torch.distributions.Categorical(1.0 / torch.arange(1, VOCAB + 1).float()).sample((64, 1024)).cuda()
    table = torch.zeros(PADDED, WIDTH, device="cuda")
    for name, tokens in (("uniform", torch.randint(0, VOCAB, (64, 1024), device="cuda")), ("like words", common)):

        def by_torch(tokens: torch.Tensor = tokens) -> torch.Tensor:
            wide = dout.view(64, 1024, -1).float()
            return torch.ops.aten.embedding_dense_backward(wide, tokens, PADDED, -1, False)

        embedding.scatter_rows(tokens, dout, table.zero_())
        wrong = error(table, by_torch())
        ms = milliseconds(partial(embedding.scatter_rows, tokens, dout, table), 10)
        zero = milliseconds(table.zero_, 10)
        print(
            f"embedding's gradient, tokens {name}: torch {milliseconds(by_torch, 10):.3f} ms, scatter {ms:.3f} and {zero:.3f} to zero the table, error {wrong:.1e}"
        )


@dataclass(frozen=True)
class Variant:
    switches: dict[str, bool]
    micro_batch: int = 64
    graphed: bool = False


ALL = {"products": True, "epilogue": True}
VARIANTS = {
    "base": Variant({}),
    "+ products": Variant({"products": True}),
    "+ epilogue": Variant(ALL),
    "+ graphs": Variant(ALL, graphed=True),
    "all, 128": Variant(ALL, 128),
    "all, 32": Variant(ALL, 32),
    "all, 32, graphs": Variant(ALL, 32, graphed=True),
    "all, 8": Variant(ALL, 8),
    "all, 8, graphs": Variant(ALL, 8, graphed=True),
    "all again": Variant(ALL),
    "base again": Variant({}),
}


def steps() -> None:
    torch.set_float32_matmul_precision("high")
    config = compose(["model=gpt2-124m"]).config
    model = build_model(config.model, seed=0).cuda()
    tokens = torch.randint(0, VOCAB, (512, 1025), device="cuda")
    truth: list[torch.Tensor] = []
    for name, variant in VARIANTS.items():
        try:
            one_variant(name, variant, config, model, tokens, truth)
        except Exception:
            traceback.print_exc(limit=6, file=sys.stdout)
        for parameter in model.parameters():
            parameter.grad = None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def one_variant(
    name: str, variant: Variant, config: Config, model: Decoder, tokens: torch.Tensor, truth: list[torch.Tensor]
) -> None:
    parameters = list(model.parameters())
    kernels = Kernels(attention="cudnn", **variant.switches)
    compute = lambda x, y: fused_loss(model, x, y, kernels)
    if variant.graphed:
        compute = GraphedLoss(compute, model)
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the same weights for every variant
    batches = tokens.split(variant.micro_batch)

    def accumulate() -> None:
        for batch in batches:
            (compute(batch[:, :-1], batch[:, 1:]) / len(batches)).backward()

    def step() -> None:
        accumulate()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    began = time.perf_counter()
    accumulate()
    gradients = [parameter.grad.clone() for parameter in parameters]
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    truth.extend(gradients if not truth else [])
    worst = max(error(found, expected) for found, expected in zip(gradients, truth, strict=True))
    optimizer.zero_grad()
    step()
    times = []
    power = PowerMeter()
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times)
    print(
        f"{name:18} {524288 / seconds:9,.0f} tokens/s  {seconds * 125:.2f} ms for 64  {power.read(sum(times))}  first {first:.1f} s  worst gradient {worst:.1e}  {torch.cuda.max_memory_allocated() / 1e9:.1f} GB",
        flush=True,
    )
    if name in ("base", "+ products", "+ epilogue"):
        profile(step)


class PowerMeter:
    """The board's own count of energy, through NVML; reads only."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        self._nvml.nvmlInit_v2()
        self._nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device))
        self._began = self._millijoules()

    def _millijoules(self) -> int:
        value = ctypes.c_ulonglong()
        self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device, ctypes.byref(value))
        return value.value

    def read(self, seconds: float) -> str:
        joules = (self._millijoules() - self._began) / 1e3
        megahertz = ctypes.c_uint()
        self._nvml.nvmlDeviceGetClockInfo(self._device, 1, ctypes.byref(megahertz))  # of the multiprocessors
        return f"{joules / seconds:.0f} W {megahertz.value} MHz"


def profile(step: Callable[[], None]) -> None:
    from torch.profiler import ProfilerActivity, profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as trace:
        step()
        torch.cuda.synchronize()
    rows = sorted(((e.self_device_time_total / 8e3, e.count, e.key[:80]) for e in trace.key_averages()), reverse=True)
    print(f"   kernels {sum(row[0] for row in rows):.2f} ms")
    for ms, count, key in rows[:36]:
        print(f"   {ms:8.3f} ms x{count:<5} {key}", flush=True)


if __name__ == "__main__":
    parts = {"products": products, "loss": loss, "embedding": embeddings, "steps": steps}
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, cuBLASLt {cublaslt.cublaslt_available()}"
    )
    for name in sys.argv[1:] or parts:
        began = time.perf_counter()
        parts[name]()
        torch.cuda.empty_cache()
        print(f"-- {name}: {time.perf_counter() - began:.0f} s", flush=True)
