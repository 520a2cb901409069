"""Coordinate check: how much a few optimizer steps change a model's activations, over widths and over depths.

    python benchmarks/models/coordinate_check.py     writes docs/images/coordinate-check.svg and its log beside this file

In a parametrization that transfers, the change does not depend on the size: the slope of log(change) over
log(size) is near 0.
"""

from __future__ import annotations

import dataclasses
import math
import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from skytrain.config import DecoderConfig
from skytrain.models import Decoder, build_model, update_scales
from skytrain.models.sizes import size_config

BASE_WIDTH = 32
BASE_LAYERS = 2
HEAD = 16
VOCABULARY = 256
LENGTH = 32
BATCH = 8
RATE = 4e-3
STEPS = 8
WIDTHS = (32, 64, 128, 256)
DEPTHS = (2, 4, 8, 16)
KINDS = ("standard", "mup", "completep")
SEEDS = 2


def model_at(kind: str, axis: str, size: int, seed: int) -> Decoder:
    width = size if axis == "width" else BASE_WIDTH
    config: DecoderConfig = dataclasses.replace(
        size_config("gpt2-tiny"), width=width, heads=width // HEAD, layers=size if axis == "depth" else BASE_LAYERS,
        vocab_size=VOCABULARY, max_length=LENGTH, parametrization=kind, base_width=BASE_WIDTH, base_layers=BASE_LAYERS,
    )  # fmt: skip
    model = build_model(config, seed)
    assert isinstance(model, Decoder)
    return model


def activations(model: Decoder, tokens_bt: Tensor, targets_bt: Tensor) -> dict[str, Tensor]:
    """The residual stream after the last block, before its norm, and the logits of the targets.

    Of the targets only: the other logits begin as noise that falls with the width, whatever the steps do.
    """
    kept: dict[str, Tensor] = {}
    handle = model.head.register_forward_pre_hook(lambda _, inputs: kept.update(stream=inputs[0].detach()))
    with torch.no_grad():
        kept["logits"] = model(tokens_bt).gather(-1, targets_bt[..., None])
    handle.remove()
    return kept


def change(kind: str, axis: str, size: int, seed: int, steps: int) -> dict[str, float]:
    """Mean absolute change of each activation after `steps` steps of Adam on one batch."""
    model = model_at(kind, axis, size, seed)
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH), generator=generator)
    groups = []
    for name, parameter in model.named_parameters():
        scales = update_scales(model.config, name, matrix=parameter.ndim > 1)
        groups.append({"params": [parameter], "lr": RATE * scales.lr, "eps": 1e-12 * scales.eps})
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.95))
    before = activations(model, tokens, targets)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    after = activations(model, tokens, targets)
    return {name: float((after[name] - before[name]).abs().mean()) for name in after}


def curve(kind: str, axis: str, sizes: tuple[int, ...], steps: int) -> dict[str, list[float]]:
    runs = [[change(kind, axis, size, seed, steps) for seed in range(SEEDS)] for size in sizes]
    return {name: [sum(run[name] for run in each) / SEEDS for each in runs] for name in runs[0][0]}


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Return the slope of a straight line through log(value) over log(size)."""
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in values]
    mx = sum(x) / len(x)
    my = sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def growth(kind: str, axis: str, sizes: tuple[int, ...], steps: int) -> dict[str, float]:
    return {name: slope(sizes, values) for name, values in curve(kind, axis, sizes, steps).items()}


if __name__ == "__main__":
    from coordinate_plot import draw

    lines = [f"Adam, rate {RATE}, {STEPS} steps, {SEEDS} seeds, torch {torch.__version__}, {platform.machine()}"]
    panels = []
    for axis, sizes in (("width", WIDTHS), ("depth", DEPTHS)):
        curves = {kind: curve(kind, axis, sizes, STEPS) for kind in KINDS}
        for what in ("logits", "stream"):
            panels.append((f"{what}, over {axis}", sizes, {kind: curves[kind][what] for kind in KINDS}))
            for kind in KINDS:
                numbers = " ".join(f"{value:.3f}" for value in curves[kind][what])
                lines.append(f"{what:7} {axis:6} {kind:10} slope {slope(sizes, curves[kind][what]):+.2f}  {numbers}")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    Path(__file__).with_suffix(".log").write_text(text, encoding="utf-8")
    draw(panels, Path(__file__).parents[2] / "docs" / "images" / "coordinate-check.svg")
