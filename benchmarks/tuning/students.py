"""Small networks that are really trained, at every rate of a grid: a table whose optima nobody chose.

    python benchmarks/tuning/students.py > benchmarks/tuning/tables/students.csv      # three minutes of CPU
    python benchmarks/tuning/replay.py --table benchmarks/tuning/tables/students.csv --every 2 >> benchmarks/tuning/mechanisms.log

A student of two hidden layers learns to name the class that a random teacher would, from inputs whose directions matter
by a power law; every batch is new, and the rate warms up and decays linearly. Families differ in optimizer,
parametrization and task. All rates of a cell are trained side by side on the same batches. Like mechanisms.py, the table
was committed before the ladder was changed, and not played until that was finished.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

INPUTS = 48
CLASSES = 40
WIDTHS = (12, 24, 48, 96)
STEPS = (60, 160, 420, 1100)
BATCH = 48
TESTED = 1536
WARM = 0.08  # share of the steps
BASE_WIDTH = 24
DIVERGED = 99.0
SEED = 37


@dataclass(frozen=True)
class Family:
    name: str
    optimizer: str
    width_free: bool  # muP: hidden rates and the head's output shrink with the width
    spectrum: float
    noise: float  # of the teacher's choice: its logits are divided by it
    top: float  # log2 of the highest rate
    rates: int = 13


FAMILIES = (
    Family(name="student-adam", optimizer="adam", width_free=False, spectrum=0.6, noise=0.7, top=-1.0),
    Family(name="student-mup", optimizer="adam", width_free=True, spectrum=0.9, noise=0.5, top=0.0),
    Family(name="student-momentum", optimizer="momentum", width_free=False, spectrum=0.4, noise=1.0, top=4.0),
    Family(name="student-sign", optimizer="sign", width_free=False, spectrum=0.7, noise=0.6, top=-3.0),
)


def main() -> None:
    print("# Trained by benchmarks/tuning/students.py; n are weights of the student, tokens examples")
    print("family,n,tokens,batch_tokens,lr,loss")
    for number, family in enumerate(FAMILIES):
        draw = task(family, np.random.default_rng([SEED, number]))
        rates = 2.0 ** (family.top - np.arange(family.rates))
        for width in WIDTHS:
            size = width * (INPUTS + width + CLASSES)
            for steps in STEPS:
                rng = np.random.default_rng([SEED, number, width, steps])
                losses = train(family, draw, rates, width, steps, rng)
                for rate, loss in zip(rates, losses, strict=True):
                    print(f"{family.name},{size},{steps * BATCH},{BATCH},{rate:.6g},{loss:.4f}", flush=True)


def task(family: Family, rng: np.random.Generator) -> Callable[[int, np.random.Generator], tuple[Array, Array]]:
    """Return what draws inputs and their classes."""
    scale = np.arange(1, INPUTS + 1) ** -family.spectrum
    scale /= math.sqrt(float((scale**2).mean()))
    hidden = rng.standard_normal((INPUTS, 200)) / math.sqrt(INPUTS)
    head = rng.standard_normal((200, CLASSES)) / math.sqrt(200) * 4
    common = -np.log(np.arange(1, CLASSES + 1))  # classes are as rare as words

    def draw(count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.standard_normal((count, INPUTS)) * scale
        logits = (np.maximum(x @ hidden, 0) @ head + common) / family.noise
        return x.astype(np.float32), np.argmax(logits + rng.gumbel(size=logits.shape), 1)

    return draw


def train(
    family: Family,
    draw: Callable[[int, np.random.Generator], tuple[Array, Array]],
    rates: Array,
    width: int,
    steps: int,
    rng: np.random.Generator,
) -> list[float]:
    """Return the loss on new examples for each rate."""
    wider = width / BASE_WIDTH if family.width_free else 1.0
    shapes = ((INPUTS, width), (width, width), (width, CLASSES))
    each = (1.0, 1 / wider, 1 / wider)  # of the rate
    weights = [
        np.repeat((rng.standard_normal((1, *shape)) * math.sqrt(2 / shape[0])).astype(np.float32), len(rates), 0)
        for shape in shapes
    ]
    weights[2] *= 0.1
    first = [np.zeros_like(one) for one in weights]
    second = [np.zeros_like(one) for one in weights]
    for step in range(steps):
        x, y = draw(BATCH, rng)
        _, gradients = loss_of(weights, x, y)
        now = rates * min(1.0, (step + 1) / max(1.0, WARM * steps)) * (1 - step / steps)
        for number, gradient in enumerate(gradients):
            rate = (now * each[number]).astype(np.float32)[:, None, None]
            if family.optimizer == "momentum":
                first[number] = 0.9 * first[number] + gradient
                weights[number] -= rate * 0.1 * first[number]
            elif family.optimizer == "sign":
                moved = np.sign(0.9 * first[number] + 0.1 * gradient)
                first[number] = 0.98 * first[number] + 0.02 * gradient
                weights[number] -= rate * moved
            else:
                first[number] = 0.9 * first[number] + 0.1 * gradient
                second[number] = 0.97 * second[number] + 0.03 * gradient**2
                mean = first[number] / (1 - 0.9 ** (step + 1))
                size = np.sqrt(second[number] / (1 - 0.97 ** (step + 1))) + 1e-9
                weights[number] -= rate * mean / size
    x, y = draw(TESTED, np.random.default_rng(SEED))
    losses, _ = loss_of(weights, x, y)
    return [float(one) if one < DIVERGED else DIVERGED for one in np.nan_to_num(losses, nan=DIVERGED, posinf=DIVERGED)]


def loss_of(weights: list[Array], x: Array, y: Array) -> tuple[Array, list[Array]]:
    """Return the mean cross-entropy and the gradients, for each rate."""
    with np.errstate(all="ignore"):
        one = np.maximum(x @ weights[0], 0)
        two = np.maximum(one @ weights[1], 0)
        logits = two @ weights[2]
        logits = logits - logits.max(2, keepdims=True)
        share = np.exp(logits)
        total = share.sum(2, keepdims=True)
        places = np.arange(len(y))
        losses = (np.log(total[:, :, 0]) - logits[:, places, y]).mean(1)
        back = share / total
        back[:, places, y] -= 1
        back /= len(y)
        back_two = (back @ weights[2].transpose(0, 2, 1)) * (two > 0)
        back_one = (back_two @ weights[1].transpose(0, 2, 1)) * (one > 0)
        return losses, [x.T @ back_one, one.transpose(0, 2, 1) @ back_two, two.transpose(0, 2, 1) @ back]


if __name__ == "__main__":
    main()
