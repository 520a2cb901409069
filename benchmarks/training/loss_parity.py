"""The fused path against eager bf16 on real text: 300 steps of each with several seeds.

python benchmarks/training/loss_parity.py TOKENS.bin       # raw uint16 ids of GPT-2's vocabulary, as nanoGPT writes them

Two runs of one path with other initial weights say how far apart runs may be; the same seed on both paths says
how far the paths are. Data and its order are the same in all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from skytrain.config import Config, compose
from skytrain.models import build_model
from skytrain.training import choose_loss, learning_rate, make_optimizer

STEPS = 300
BATCH = 32
LENGTH = 1024
LAST = 50
PATHS = {
    "eager": ["trainer.fused=off", "trainer.compile=false"],
    "fused": ["trainer.fused=on"],
    "fused, fp32 residual": ["trainer.fused=on", "trainer.kernels.residual=fp32"],
}


def compose_path(path: str, seed: int) -> Config:
    options = ["trainer.precision=bf16-mixed", "trainer.device=cuda", f"trainer.micro_batch={BATCH}", f"seed={seed}"]
    return compose([*options, *PATHS[path], "lr_schedule.warmup_steps=50", f"trainer.steps={STEPS}"]).config


def losses(tokens: np.ndarray, path: str, seed: int) -> list[float]:
    config = compose_path(path, seed)
    model = build_model(config.model, seed=seed).cuda()
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    chosen = choose_loss(config, "cuda")
    order = np.random.default_rng(0).permutation(STEPS * BATCH) % ((len(tokens) - 1) // LENGTH)
    found = []
    for step in range(STEPS):
        starts = order[step * BATCH : (step + 1) * BATCH] * LENGTH
        rows = np.stack([tokens[start : start + LENGTH + 1] for start in starts])
        batch = torch.from_numpy(rows.astype(np.int64)).cuda()
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.lr * learning_rate(config.lr_schedule, step, STEPS)
        with torch.autocast("cuda", torch.bfloat16, enabled=not chosen.lowers_precision):
            loss = chosen.loss(model, batch[:, :-1], batch[:, 1:], None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found).float().tolist()


def gradient_errors(tokens: np.ndarray) -> None:
    """Of one small batch at the first step, against float32: how much each path rounds."""
    batch = torch.from_numpy(tokens[: 8 * (LENGTH + 1)].astype(np.int64).reshape(8, LENGTH + 1)).cuda()
    x = batch[:, :-1]
    y = batch[:, 1:]
    model = build_model(compose_path("eager", 1).model, seed=1).cuda()

    def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        loss.backward()
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()
        return found

    truth = gradients(model.loss(x, y))
    for path in PATHS:
        chosen = choose_loss(compose_path(path, 1), "cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=not chosen.lowers_precision):
            loss = chosen.loss(model, x, y, None)
        found = gradients(loss)
        errors = {name: float((found[name] - truth[name]).norm() / truth[name].norm()) for name in truth}
        worst = max(errors, key=lambda name: errors[name])
        print(
            f"gradients of {path} against float32: median error {statistics.median(errors.values()):.4f}, worst {errors[worst]:.4f} ({worst})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    tokens = np.fromfile(options.tokens, dtype=np.uint16)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(tokens)} tokens of text, {STEPS} steps of {BATCH * LENGTH}"
    )
    gradient_errors(tokens)
    torch.cuda.empty_cache()
    seeds = range(1, options.seeds + 1)
    runs = [("eager", seed) for seed in seeds] + [("fused", seed) for seed in seeds] + [("fused, fp32 residual", 1)]
    found: dict[tuple[str, int], np.ndarray] = {}
    for path, seed in runs:
        began = time.perf_counter()
        found[path, seed] = np.array(losses(tokens, path, seed))
        at = " ".join(f"{found[path, seed][step - 1]:.4f}" for step in (1, 50, 100, 200, 300))
        print(
            f"{path:21} seed {seed}: {at}  mean of the last {LAST} {found[path, seed][-LAST:].mean():.4f}  ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
    gap = lambda a, b: float(np.abs(a - b)[-LAST:].mean())
    lead = lambda a, b: float((a - b)[-LAST:].mean())
    for path in ("eager", "fused"):
        pairs = [(a, b) for a in seeds for b in seeds if a < b]
        apart = [gap(found[path, a], found[path, b]) for a, b in pairs]
        means = [found[path, seed][-LAST:].mean() for seed in seeds]
        print(
            f"two seeds of {path}: mean |difference| over the last {LAST} steps {', '.join(f'{x:.4f}' for x in apart)}; deviation of their means {statistics.stdev(means):.4f}"
        )
    for path, seed in runs:
        if path != "eager":
            print(
                f"{path} against eager, seed {seed}: mean |difference| {gap(found[path, seed], found['eager', seed]):.4f}, mean difference {lead(found[path, seed], found['eager', seed]):+.4f}"
            )


if __name__ == "__main__":
    main()
