"""The speed of a mixture of experts on one GPU, next to dense models of the same active and of the same total size.

    python benchmarks/training/experts.py [--steps N] [--micro-batch N]      # on a GPU with bf16

Nothing of it has been run on a GPU yet. The goal is at least 60% of the tokens per second of the dense model with the same
active FLOPs. All models are compiled and compute in bf16; the text is random tokens, which a router at its initial weights
spreads almost evenly. A second row of the mixture forces every token onto the same experts: the shapes are the same, so nothing
may be compiled again.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from skytrain.config.composition import compose
from skytrain.models import Router, build_model
from skytrain.planning import decoder_size
from skytrain.training.losses import choose_loss
from skytrain.training.optimizers import make_optimizer

LENGTH = 1024
SHAPE = ["model.layers=12", "model.width=768", "model.heads=6", "model.head_size=128", "model.max_length=1024"]
# 16 experts of 2,112, 4 for each token: about 1B parameters, 300M active. Dense: the same FLOPs in one MLP of 4 x 2,112.
EXPERTS = ["model=qwen3-30b-a3b", "model.vocab_size=50257", "model.kv_heads=6", "model.experts.count=16"]
MODELS = {
    "dense, the same active FLOPs": ["model=modern-124m", "model.mlp_width=8448"],
    "experts": [*EXPERTS, "model.experts.per_token=4", "model.experts.width=2112", "model.mlp_width=2112"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--micro-batch", type=int, default=32)
    options = parser.parse_args()
    rates = {name: measure(name, words, options, collapsed=False) for name, words in MODELS.items()}
    rates["experts, collapsed"] = measure("experts, collapsed", MODELS["experts"], options, collapsed=True)
    dense = rates["dense, the same active FLOPs"]
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} tokens/s, {rate / dense:.0%} of the dense model", flush=True)


def measure(name: str, words: list[str], options: argparse.Namespace, *, collapsed: bool) -> float:
    """Return the median tokens per second of a training step: forward, backward, AdamW."""
    settings = [*words, *SHAPE, "trainer.precision=bf16-mixed", "trainer.device=cuda", "trainer.fused=off"]
    config = compose([*settings, "trainer.compile=true", f"trainer.sequence_length={LENGTH}"]).config
    size = decoder_size(config.model)
    print(f"{name}: {size.parameters:,} parameters, {size.active_parameters:,} active", flush=True)
    model = build_model(config.model, seed=1).cuda()
    if collapsed:
        for module in model.modules():
            if isinstance(module, Router):
                module.weight.data.zero_()  # equal scores: the first experts win
    optimizer = make_optimizer(model, config.optimizer, fused=True)
    chosen = choose_loss(config, "cuda")
    torch._dynamo.config.error_on_recompile = False
    times = []
    for step in range(options.steps):
        if step == 5:
            torch._dynamo.config.error_on_recompile = True  # loads change in each step, shapes do not
        batch = torch.randint(0, 50257, (options.micro_batch, LENGTH + 1), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=not chosen.lowers_precision):
            found = chosen.loss(model, batch[:, :-1], batch[:, 1:], None)
        loss = sum(found) if isinstance(found, tuple) else found
        loss.backward()
        if not collapsed:
            optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return options.micro_batch * LENGTH / statistics.median(times[5:])


if __name__ == "__main__":
    main()
