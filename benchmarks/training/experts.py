"""The speed of a mixture of experts on one GPU, next to the dense model with the same active FLOPs.

    python benchmarks/training/experts.py [products] [speed] [compiled] [profile]      # on a Hopper GPU; all but `compiled` by default
    python benchmarks/training/experts.py speed --device cpu model.layers=2 trainer.batch_tokens=1024 ...    # a check that it runs

The goal is at least 60% of the tokens per second of the dense model. A step is 131,072 random tokens, which a router at its
initial weights spreads almost evenly, with AdamW. A second row of the mixture sends every token to the same experts: twelve of
sixteen then have no rows, and must get gradients of zero. `products` times the grouped products next to one product of the same
FLOPs, `compiled` runs the mixture through torch.compile and fails if different loads compile anything again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skytrain.config import Config, compose
from skytrain.models import Router, build_model, split_auxiliary
from skytrain.planning import decoder_flops_per_token, decoder_size
from skytrain.training import choose_loss, make_optimizer

LENGTH = 1024
STEP_TOKENS = 131072
SHAPE = ["model.layers=12", "model.width=768", "model.heads=6", "model.head_size=128", "model.max_length=1024"]
# 16 experts of 2,112, 4 for each token: about 1B parameters, 300M active. Dense: the same FLOPs in one MLP of 4 x 2,112.
EXPERTS = ["model=qwen3-30b-a3b", "model.vocab_size=50257", "model.kv_heads=6", "model.tied_head=true"]
MODELS = {
    "dense": ["model=modern-124m", "model.mlp_width=8448"],
    "experts": [*EXPERTS, "model.experts.count=16", "model.experts.per_token=4", "model.experts.width=2112", "model.mlp_width=2112"],
}  # fmt: skip
FUSED = ["trainer.fused=auto", "trainer.cuda_graphs=off"]
COMPILED = ["trainer.fused=off", "trainer.compile=true"]


@dataclass
class Step:
    """A training step over `STEP_TOKENS` tokens: forward, backward, clipping, AdamW."""

    config: Config
    model: nn.Module
    path: str
    run: Callable[[], Tensor]

    @property
    def routers(self) -> list[Router]:
        return [module for module in self.model.modules() if isinstance(module, Router)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts, and settings of both models")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--micro-batch", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_intermixed_args()
    parts = [word for word in options.words if "=" not in word] or ["products", "speed", "profile"]
    options.words = [word for word in options.words if "=" in word]
    if options.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if "products" in parts:
        products()
    if "speed" in parts:
        speed(options, profiled="profile" in parts)
    if "compiled" in parts:
        found = measure("experts, torch.compile", step_of("experts", options, COMPILED), options)
        print(f"experts, torch.compile: {found:,.0f} tokens/s", flush=True)


def speed(options: argparse.Namespace, *, profiled: bool) -> None:
    rates = {}
    for name in MODELS:
        step = step_of(name, options, FUSED)
        rates[name] = measure(name, step, options)
        if profiled:
            profile(name, step)
        if name == "experts":
            rates["experts, collapsed"] = collapsed(step, options)
        del step
        empty(options)
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} tokens/s, {rate / rates['dense']:.1%} of the dense model", flush=True)


def step_of(name: str, options: argparse.Namespace, path_words: list[str]) -> Step:
    words = [*MODELS[name], *SHAPE, "trainer.precision=bf16-mixed", f"trainer.device={options.device}", *path_words]
    sizes = [f"trainer.sequence_length={LENGTH}", f"trainer.micro_batch={options.micro_batch}", f"trainer.batch_tokens={STEP_TOKENS}"]  # fmt: skip
    kept = [word for word in options.words if name == "experts" or not word.startswith("model.experts")]
    config = compose([*words, *sizes, *kept]).config
    model = build_model(config.model, seed=1).to(options.device)
    optimizer = make_optimizer(model, config.optimizer, fused=options.device == "cuda")
    path = choose_loss(config, options.device)
    length, micro_batch = config.trainer.sequence_length, options.micro_batch
    count = max(1, config.trainer.batch_tokens // (length * micro_batch))

    def run() -> Tensor:
        total = torch.zeros((), device=options.device)
        for _ in range(count):
            rows = torch.randint(0, config.model.vocab_size, (micro_batch, length + 1), device=options.device)
            with torch.autocast(options.device, torch.bfloat16, enabled=not path.lowers_precision):
                loss, auxiliary = split_auxiliary(path.loss(model, rows[:, :-1], rows[:, 1:], None))
            ((loss if auxiliary is None else loss + auxiliary) / count).backward()
            total += loss.detach() / count
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    size = decoder_size(config.model)
    flops = decoder_flops_per_token(config.model, length)
    print(
        f"{name}: {size.parameters:,} parameters, {size.active_parameters:,} active, {flops / 1e9:.3f} GFLOP a token; {path.label}",
        flush=True,
    )
    return Step(config, model, path.kind, run)


def measure(name: str, step: Step, options: argparse.Namespace) -> float:
    """Return the median tokens per second. From the fourth step on nothing may be compiled, and the host may not wait."""
    began = time.perf_counter()
    for _ in range(3):
        loss = step.run()
    first = float(loss)
    ready = time.perf_counter() - began
    torch._dynamo.config.error_on_recompile = step.path == "compiled"
    if options.device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            step.run()
        except RuntimeError as problem:
            print(f"{name}: THE HOST WAITS: {str(problem)[:200]}", flush=True)
        torch.cuda.set_sync_debug_mode("default")
    times = []
    for _ in range(options.steps):
        began = time.perf_counter()
        last = float(step.run())  # waits for the device
        times.append(time.perf_counter() - began)
    torch._dynamo.config.error_on_recompile = False
    tokens = step.config.trainer.batch_tokens
    loads = [load for router in step.routers if (load := router.take_load()) is not None]
    busiest = max((float(load.max() / load.double().mean()) for load in loads), default=1.0)
    memory = torch.cuda.max_memory_allocated() / 1e9 if options.device == "cuda" else 0.0
    print(
        f"{name}: {statistics.median(times) * 1e3:.1f} ms a step ({min(times) * 1e3:.1f}-{max(times) * 1e3:.1f}), loss {first:.3f} "
        f"-> {last:.3f}, busiest expert {busiest:.2f}x the mean, {memory:.1f} GB, ready after {ready:.1f} s",
        flush=True,
    )
    return tokens / statistics.median(times)


def collapsed(step: Step, options: argparse.Namespace) -> float:
    """Return the tokens per second where all tokens go to the same experts. The others must get gradients of zero."""
    for router in step.routers:
        router.weight.requires_grad_(False).zero_()  # equal scores: the same experts win
    rate = measure("experts, collapsed", step, options)
    seen = {}
    mixture = next(module for module in step.model.modules() if hasattr(module, "run_experts"))
    mixture.experts.up.weight.register_post_accumulate_grad_hook(lambda weight: seen.update(gradient=weight.grad.clone()))  # type: ignore[union-attr]  # fmt: skip
    step.run()
    norms = seen["gradient"].flatten(1).norm(dim=1)
    idle = int((norms == 0).sum())
    print(f"experts without rows: {idle} of {len(norms)}, all gradients finite: {bool(norms.isfinite().all())}", flush=True)  # fmt: skip
    return rate


def products() -> None:
    """Print the rates of an experts' layer's products over 65,536 tokens, and of one product with the same FLOPs."""
    import triton.testing

    rows, width, hidden, experts, each = 65536, 768, 2112, 16, 4
    ends = (torch.arange(1, experts + 1, device="cuda") * (rows * each // experts)).int()
    x = torch.randn(rows * each, width, device="cuda", dtype=torch.bfloat16)
    pre = torch.randn(rows * each, 2 * hidden, device="cuda", dtype=torch.bfloat16)
    out = torch.randn(rows * each, hidden, device="cuda", dtype=torch.bfloat16)
    both = torch.randn(experts, 2 * hidden, width, device="cuda", dtype=torch.bfloat16)
    down = torch.randn(experts, width, hidden, device="cuda", dtype=torch.bfloat16)
    one = torch.randn(each * 2 * hidden, width, device="cuda", dtype=torch.bfloat16)
    large = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    calls = {
        "gate and up": (lambda: F.grouped_mm(x, both.mT, offs=ends), 2 * rows * each * width * 2 * hidden),
        "down": (lambda: F.grouped_mm(out, down.mT, offs=ends), 2 * rows * each * width * hidden),
        "d hidden": (lambda: F.grouped_mm(x, down, offs=ends), 2 * rows * each * width * hidden),
        "d rows": (lambda: F.grouped_mm(pre, both, offs=ends), 2 * rows * each * width * 2 * hidden),
        "d gate and up": (lambda: F.grouped_mm(pre.t(), x, offs=ends), 2 * rows * each * width * 2 * hidden),
        "d down": (lambda: F.grouped_mm(x.t(), out, offs=ends), 2 * rows * each * width * hidden),
        "dense gate and up": (lambda: x[:rows] @ one.t(), 2 * rows * each * width * 2 * hidden),
        "8192 x 8192 x 8192": (lambda: large @ large, 2 * 8192**3),
    }
    for name, (call, flops) in calls.items():
        ms = triton.testing.do_bench(call, warmup=20, rep=60, return_mode="median")
        print(f"   {name}: {ms:.3f} ms, {flops / ms / 1e9:.0f} TFLOP/s", flush=True)


def profile(name: str, step: Step) -> None:
    from torch.profiler import ProfilerActivity, profile as trace

    with trace(activities=[ProfilerActivity.CUDA]) as seen:
        step.run()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / 1e3
    print(f"{name}: kernels of a step: {total:.1f} ms")
    for row in rows[:34]:
        print(f"   {row.self_device_time_total / 1e3:8.3f} ms x{row.count:<4} {row.key[:110]}", flush=True)


def empty(options: argparse.Namespace) -> None:
    if options.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
