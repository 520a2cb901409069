"""A 124M run's loss, predicted from our own runs of 9M to 40M parameters before it is run.

    python benchmarks/training/package_text.py TEXT --tokens 16M                   # the text, once, on any machine
    python benchmarks/planning/predict.py small TEXT --out small.json              # on a GPU, two minutes
    python benchmarks/planning/predict.py predict small.json --out prediction.json # anywhere
    python benchmarks/planning/predict.py large TEXT --out large.json              # on a GPU, 30 s, after the prediction
    python benchmarks/planning/predict.py check prediction.json large.json

`--tiny` runs the same on a CPU in some minutes, with models of a hundredth of the size.

All runs are `recipe=modern-124m` on the same windows of the same text, each seen once, in the bare loop of
loss_per_dollar.py: 320 steps of 32,768 tokens. What was decided before any of them:

- Only the width changes: twelve layers and heads of 128 as the large model has them, so 1, 2 and 3 heads. Heads of 64
  were worse by a tenth of a nat at such lengths, and are not used again.
- All rates are the recipe's times the root of 768 / width. Muon's update of a matrix then moves outputs by as much at
  every width. The table that is embedding and head at once has no such rule: as an embedding its rate should not
  depend on the width, as a head it should be as 1 / width; the root is between both.
- Runs differ in their seed by 0.01 nats and more, so each width has several. The narrow ones say how the loss falls,
  the widest where it stands, so the widest is run most often.
- The curve is L(width) = L + c (768 / width)^k. Corrections of a finite width are of order 1 / width (Bordelon and Pehlevan
  2023, arXiv 2304.03408); the law of `plan --best` has 0.66, blocks to the power of -0.33. So k has a prior of
  0.9, deviation 0.3. The narrower a model is, the more it may miss the curve, apart from its seed.
- The prediction is that of the curve. What the law of `plan --best` says after the same runs is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from skytrain.config import Config, DecoderConfig, compose
from skytrain.planning import LossForecaster, OwnRun, decoder_size, recipe_efficiency
from skytrain.planning.loss_laws import OPEN_RUNS, Z80, jacobian, least_squares

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

RATE = 3.6e-3  # the recipe's, for a width of 768
EMBEDDING_RATE = 6e-3
RATE_WIDTH = 768
SEED_NATS = 0.011  # between seeds of 124M on such a text, from five runs (benchmarks/training/loss_per_dollar_h200.log)
SEED_RUNS = 6  # as many degrees of freedom as that figure counts for
EXPONENT = (0.9, 0.3)
MISFIT_NATS = 0.01  # of half the large width around the curve, without seeds; a narrower one's grows as 1 / width


@dataclass(frozen=True)
class Family:
    """Models that differ in their width only, and how each of them is trained."""

    layers: int
    head: int
    large: int
    small: tuple[
        tuple[int, int], ...
    ]  # width and seed, in the order of importance: what the time does not allow is the last
    length: int
    batch_tokens: int
    steps: int
    words: tuple[str, ...] = ()

    def settings(self, width: int) -> list[str]:
        rate = math.sqrt(RATE_WIDTH / width)
        return [
            f"model.layers={self.layers}",
            f"model.width={width}",
            f"model.heads={width // self.head}",
            f"model.head_size={self.head}",
            f"model.mlp_width={8 * round(width / 3)}",
            f"optimizer.lr={RATE * rate:.4g}",
            f"optimizer.embedding_lr={EMBEDDING_RATE * rate:.4g}",
            f"trainer.batch_tokens={self.batch_tokens}",
            f"trainer.micro_batch={self.batch_tokens // self.length}",
            f"trainer.steps={self.steps}",
            f"lr_schedule.warmup_steps={self.steps // 10}",
            *self.words,
        ]


# Three seeds of the two narrow models, and the widest as often as the time allows.
H200 = Family(
    layers=12,
    head=128,
    large=768,
    small=(
        *((width, seed) for seed in (1, 2, 3) for width in (384, 256, 128)),
        *((384, seed) for seed in (4, 5, 6)),
    ),
    length=1024,
    batch_tokens=32768,
    steps=320,
)
TINY = Family(
    layers=2,
    head=16,
    large=96,
    small=((48, 1), (32, 1), (16, 1), (48, 2), (32, 2), (16, 2)),
    length=128,
    batch_tokens=1024,
    steps=60,
    words=("trainer.sequence_length=128", "trainer.precision=32-true", "tokenizer=bytes", "model.vocab_size=1024"),
)


def run_all(family: Family, runs: Sequence[tuple[int, int]], options: argparse.Namespace) -> None:
    """Train each model, and write what is there after each of them."""
    import loss_per_dollar
    import torch

    began = time.monotonic()
    torch.set_float32_matmul_precision("high")
    text = loss_per_dollar.Text.read(options.files[0])
    if options.tiny:
        loss_per_dollar.LENGTH = family.length
        loss_per_dollar.VALIDATION_WINDOWS = 64
        for tokens in (text.train, text.validation):
            tokens.clamp_(max=1023)
    rows: list[dict[str, Any]] = []
    longest: dict[int, float] = {}
    for width, seed in runs:
        if time.monotonic() - began + longest.get(width, 0.0) > options.seconds:
            print(f"left out for time: width {width}, seed {seed}")
            continue
        started = time.monotonic()
        contender, config = loss_per_dollar.ours(family.settings(width), seed)
        run = loss_per_dollar.train(contender, text, seed, family.steps, 4)
        del contender
        if loss_per_dollar.DEVICE == "cuda":
            torch.cuda.empty_cache()
        longest[width] = time.monotonic() - started
        size = size_of(config)
        rows.append(
            {
                "width": width,
                "seed": seed,
                "settings": family.settings(width),
                "recipe": {"optimizer": asdict(config.optimizer), "lr_schedule": asdict(config.lr_schedule)},
                "parameters": size.parameters,
                "block_parameters": size.block_matrices,
                "tokens": config.trainer.batch_tokens * family.steps,
                "loss": run.losses[-1],
                "curve": dict(zip(run.steps, run.losses, strict=True)),
                "seconds": round(longest[width], 2),
            }
        )
        print(
            f"width {width}, seed {seed}: {size.parameters / 1e6:.1f}M parameters, loss {run.losses[-1]:.4f}, {longest[width]:.1f} s",
            flush=True,
        )
        options.out.write_text(json.dumps({"rows": rows}, indent=1, default=str) + "\n")


def size_of(config: Config) -> Any:
    assert isinstance(config.model, DecoderConfig)
    return decoder_size(config.model)


def by_width(rows: list[dict[str, Any]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["width"], []).append(row["loss"])
    return dict(sorted(found.items(), reverse=True))


def seed_deviation(losses: dict[int, list[float]]) -> float:
    """Return the deviation of one run around the mean of its width: what was known of it, and what these runs say."""
    squares = sum((loss - mean(same)) ** 2 for same in losses.values() for loss in same)
    freedom = sum(len(same) - 1 for same in losses.values())
    return math.sqrt((SEED_RUNS * SEED_NATS**2 + squares) / (SEED_RUNS + freedom))


@dataclass(frozen=True)
class Curve:
    """L(width) = L + c (large / width)^k through the means of some widths."""

    large: int
    losses: dict[int, list[float]]

    def at(self, state: Any, widths: Any) -> Any:
        return state[0] + np.exp(state[1]) * (self.large / np.asarray(widths, dtype=float)) ** state[2]

    def fit(self) -> tuple[Any, Any]:
        """Return L, ln c and k, and their covariance."""
        widths = np.array(list(self.losses), dtype=float)
        means = np.array([mean(same) for same in self.losses.values()])
        counts = np.array([len(same) for same in self.losses.values()])
        misfit = MISFIT_NATS * self.large / 2 / widths
        deviations = np.sqrt(seed_deviation(self.losses) ** 2 / counts + misfit**2)

        def residuals(state: Any) -> Any:
            return np.append((self.at(state, widths) - means) / deviations, (state[2] - EXPONENT[0]) / EXPONENT[1])

        found = least_squares(residuals, np.array([means.min() - 0.1, math.log(0.1), EXPONENT[0]]))
        slope = jacobian(residuals, found)
        return found, np.linalg.inv(slope.T @ slope)

    def predict(self, width: int) -> tuple[float, float]:
        """Return the loss of this width, and the deviation of one run from it."""
        state, covariance = self.fit()
        gradient = jacobian(lambda point: np.atleast_1d(self.at(point, width)), state)[0]
        own = seed_deviation(self.losses) ** 2 + (MISFIT_NATS * self.large / 2 / width) ** 2
        return float(self.at(state, width)), math.sqrt(float(gradient @ covariance @ gradient) + own)


def predict(family: Family, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the fit, what the narrower models say of the widest small one, and the prediction."""
    losses = by_width(rows)
    curve = Curve(family.large, losses)
    state, _ = curve.fit()
    print(f"L(width) = {state[0]:.4f} + {math.exp(state[1]):.4f} ({family.large} / width)^{state[2]:.3f}")
    for width, same in losses.items():
        missed = float(curve.at(state, width)) - mean(same)
        print(
            f"  width {width}: {mean(same):.4f} over {len(same)} seeds ({min(same):.4f} to {max(same):.4f}), curve {missed:+.4f}"
        )
    print(f"a seed's deviation: {seed_deviation(losses):.4f}")
    widest = max(losses)
    narrower = {width: same for width, same in losses.items() if width < widest}
    if len(narrower) > 1:
        loss, deviation = Curve(family.large, narrower).predict(widest)
        print(f"without width {widest}: {loss:.4f} +- {deviation:.4f} there, {mean(losses[widest]):.4f} measured")
    loss, deviation = curve.predict(family.large)
    law = of_the_law(family, rows)
    print(f"the law of plan --best after these runs: {law.loss:.4f}, 80%: {law.low:.4f} to {law.high:.4f}")
    low, high = loss - Z80 * deviation, loss + Z80 * deviation
    print(f"predicted for width {family.large}: {loss:.4f}, 80%: {low:.4f} to {high:.4f}")
    return {
        "width": family.large,
        "settings": family.settings(family.large),
        "loss": round(loss, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "law": round(law.loss, 4),
    }


def of_the_law(family: Family, rows: list[dict[str, Any]]) -> Any:
    """Return what `plan --best` expects of the large model after these runs: its law, refitted by each width's mean."""
    runs = tuple(
        OwnRun(
            name=f"{width}",
            parameters=first["parameters"],
            block_parameters=first["block_parameters"],
            tokens=first["tokens"],
            loss=mean(same),
        )
        for width, same in by_width(rows).items()
        for first in [next(row for row in rows if row["width"] == width)]
    )
    config = compose(["recipe=modern-124m", *family.settings(family.large)]).config
    return LossForecaster(OPEN_RUNS, None, recipe_efficiency(config), runs).forecast(size_of(config), rows[0]["tokens"])


def check(prediction: dict[str, Any], large: dict[str, Any]) -> None:
    if prediction["settings"] != large["settings"]:
        raise SystemExit(f"other settings: {prediction['settings']} and {large['settings']}")
    error = prediction["loss"] - large["loss"]
    inside = prediction["low"] <= large["loss"] <= prediction["high"]
    print(
        f"predicted {prediction['loss']:.4f}, measured {large['loss']:.4f}: {error:+.4f} nats, {'inside' if inside else 'outside'} 80%"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("small", "predict", "large", "check"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=140.0, help="no run is started that may end later")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    family = TINY if options.tiny else H200
    if options.part in ("small", "large"):
        return run_all(family, family.small if options.part == "small" else ((family.large, 1),), options)
    found = [json.loads(path.read_text()) for path in options.files]
    if options.part == "predict":
        options.out.write_text(json.dumps(predict(family, found[0]["rows"]), indent=1) + "\n")
        return None
    return check(found[0], found[1]["rows"][0])


if __name__ == "__main__":
    main()
