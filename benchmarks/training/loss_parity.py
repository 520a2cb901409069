"""The fused path against plain eager bf16 on real text: 300 steps each, and a second seed to say how far apart two runs may be.

python benchmarks/training/loss_parity.py TOKENS.bin       # raw uint16 ids of GPT-2's vocabulary, as nanoGPT writes them
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from skytrain.config.compose import compose
from skytrain.models import build_model
from skytrain.training.optimizers import make_optimizer
from skytrain.training.paths import choose_path
from skytrain.training.schedules import learning_rate

STEPS, BATCH, LENGTH = 300, 32, 1024


def losses(tokens: np.ndarray, seed: int, fused: bool) -> list[float]:
    options = ["trainer.precision=bf16-mixed", "trainer.device=cuda", f"trainer.fused={'on' if fused else 'off'}"]
    config = compose([*options, f"seed={seed}", "lr_schedule.warmup_steps=50", f"trainer.steps={STEPS}"]).config
    model = build_model(config.model, seed=seed).cuda()
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    path = choose_path(config, "cuda")
    windows = (len(tokens) - 1) // LENGTH
    order = (
        np.random.default_rng(0).permutation(STEPS * BATCH) % windows
    )  # the same data whatever the seed of the weights
    found = []
    for step in range(STEPS):
        rows = np.stack(
            [tokens[w * LENGTH : w * LENGTH + LENGTH + 1] for w in order[step * BATCH : (step + 1) * BATCH]]
        )
        batch = torch.from_numpy(rows.astype(np.int64)).cuda()
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.lr * learning_rate(config.lr_schedule, step, STEPS)
        if path.compute_loss:
            loss = path.compute_loss(model, batch[:, :-1], batch[:, 1:])
        else:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model.loss(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found).float().tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens")
    options = parser.parse_args()
    tokens = np.fromfile(options.tokens, dtype=np.uint16)
    eager, other, fused = losses(tokens, 1, False), losses(tokens, 2, False), losses(tokens, 1, True)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(tokens)} tokens of text, {STEPS} steps of {BATCH * LENGTH}"
    )
    print("step   eager   fused   eager, other seed")
    for step in (1, 50, 100, 150, 200, 250, 300):
        print(f"{step:4} {eager[step - 1]:8.4f} {fused[step - 1]:7.4f} {other[step - 1]:7.4f}")
    last = slice(STEPS - 50, STEPS)
    gap = lambda a, b: float(np.mean(np.abs(np.array(a[last]) - np.array(b[last]))))
    print(
        f"mean |difference| over the last 50 steps: fused {gap(eager, fused):.4f}, another seed {gap(eager, other):.4f}"
    )
    print(
        "RESULT "
        + json.dumps({"fused": gap(eager, fused), "seed": gap(eager, other), "last": [eager[-1], fused[-1], other[-1]]})
    )


if __name__ == "__main__":
    main()
