"""A 124M run's loss, predicted from our own runs of 9M to 40M parameters before it is run.

    python benchmarks/training/package_text.py TEXT                                # the text, once, on any machine
    python benchmarks/planning/predict.py small TEXT --out predict_small.json      # on a GPU, a minute
    python benchmarks/planning/predict.py predict predict_small.json --out prediction.json     # anywhere
    python benchmarks/planning/predict.py large TEXT --out predict_large.json      # on a GPU, 40 s, after the prediction
    python benchmarks/planning/predict.py check prediction.json predict_large.json

All runs are `recipe=modern-124m`, 200 steps of 65,536 tokens, each window seen once, in the bare loop of loss_per_dollar.py.
The small ones have its twelve layers and less width; heads of 64 are for widths that 128 does not divide, and their effect
is measured at 256. Muon's rate is the recipe's times the root of 768 / width: its update of a matrix then moves outputs
by the same amount at every width, so the recipe's rate is as right for one as for the other.
The prediction is that of `plan --best`: its law, refitted by the small runs (`LossForecaster`). Beside it stands a plain
curve through them, L(width) = L + c (768 / width)^k, with a prior for k: 0.8, deviation 0.2.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import Config, DecoderConfig, compose
from skytrain.planning import LossForecaster, OwnRun, decoder_size
from skytrain.planning.best import recipe_efficiency
from skytrain.planning.loss_laws import OPEN_RUNS, jacobian, least_squares

LARGE = 768
RATE = 3.6e-3  # the recipe's, at 768
STEPS = 200
NOISE = 0.008  # nats between seeds of 124M on such a text (benchmarks/training/loss_per_dollar_h200.log)
EXPONENT = (0.8, 0.2)
HEADS = 0.02  # prior deviation of what heads of 64 instead of 128 change


@dataclass(frozen=True)
class Shape:
    """A width of the family, the size of its heads, and a seed."""

    width: int
    head: int
    seed: int

    @property
    def words(self) -> list[str]:
        return [
            f"model.width={self.width}",
            f"model.heads={self.width // self.head}",
            f"model.head_size={self.head}",
            f"model.mlp_width={8 * round(self.width / 3)}",
            f"optimizer.lr={RATE * math.sqrt(LARGE / self.width):.4g}",
            "optimizer.embedding_lr=6e-3",
            "trainer.batch_tokens=65536",
            f"trainer.steps={STEPS}",
            "lr_schedule.warmup_steps=20",
        ]


# In the order of importance: what the time does not allow is the last.
SMALL = (
    *(Shape(width, 64 if width % 128 else 128, 1) for width in (384, 256, 128, 320, 192)),
    Shape(256, 64, 1),
    *(Shape(width, 64 if width % 128 else 128, 2) for width in (384, 256, 128, 320, 192)),
    Shape(384, 128, 3),
)


def run_all(shapes: tuple[Shape, ...], options: argparse.Namespace) -> None:
    """Train each shape, and write what is there after each of them."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    import torch
    from loss_per_dollar import Text, ours, train

    began = time.monotonic()
    text = Text.read(options.files[0])
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        longest = max((row["seconds"] for row in rows), default=0.0)
        if time.monotonic() - began + longest > options.seconds:
            print(f"stopped before {shape}: {options.seconds:.0f} s are over")
            break
        started = time.monotonic()
        contender, config = ours(shape.words, shape.seed)
        loss = train(contender, text, shape.seed, STEPS, 1).losses[-1]
        del contender
        torch.cuda.empty_cache()
        size = size_of(config)
        rows.append(
            {
                **asdict(shape),
                "optimizer": {key: value for key, value in asdict(config.optimizer).items() if key != "lr"},
                "rate": config.optimizer.lr,
                "parameters": size.parameters,
                "block_parameters": size.block_matrices,
                "tokens": config.trainer.batch_tokens * STEPS,
                "loss": loss,
                "seconds": round(time.monotonic() - started, 2),
            }
        )
        print(f"{shape}: {size.parameters / 1e6:.1f}M parameters, loss {loss:.4f}", flush=True)
        options.out.write_text(json.dumps({"rows": rows}, indent=1, default=str) + "\n")


def size_of(config: Config) -> Any:
    assert isinstance(config.model, DecoderConfig)
    return decoder_size(config.model)


def curve(state: Any, widths: Any) -> Any:
    return state[0] + np.exp(state[1]) * (LARGE / widths) ** state[2]


def fit(rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Return the curve's constants with the effect of heads of 64, and their covariance."""
    widths = np.array([row["width"] for row in rows], dtype=float)
    narrow = np.array([row["head"] == 64 for row in rows], dtype=float)
    losses = np.array([row["loss"] for row in rows])

    def residuals(state: Any) -> Any:
        missed = (curve(state, widths) + state[3] * narrow - losses) / NOISE
        return np.concatenate([missed, [(state[2] - EXPONENT[0]) / EXPONENT[1], state[3] / HEADS]])

    found = least_squares(residuals, np.array([losses.min() - 0.2, math.log(0.2), EXPONENT[0], 0.0]))
    slope = jacobian(residuals, found)
    return found, np.linalg.inv(slope.T @ slope)


def predicted(rows: list[dict[str, Any]], width: float) -> tuple[float, float]:
    """Return the loss of a model with heads of 128 and this width, and its deviation for one run."""
    state, covariance = fit(rows)
    gradient = jacobian(lambda point: np.atleast_1d(curve(point, width)), state)[0]
    return float(curve(state, width)), math.sqrt(float(gradient @ covariance @ gradient) + NOISE**2)


def predict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the fit, what it says of the widest small models without having seen them, and the prediction."""
    state, _ = fit(rows)
    print(
        f"L(width) = {state[0]:.4f} + {math.exp(state[1]):.4f} (768 / width)^{state[2]:.3f}; heads of 64: {state[3]:+.4f}"
    )
    for row in rows:
        shown = float(curve(state, row["width"])) + state[3] * (row["head"] == 64)
        print(
            f"  {row['width']}, heads of {row['head']}, seed {row['seed']}: {row['loss']:.4f}, curve {shown - row['loss']:+.4f}"
        )
    widest = max(row["width"] for row in rows)
    narrower = [row for row in rows if row["width"] < widest]
    if len({row["width"] for row in narrower}) > 2:
        loss, deviation = predicted(narrower, widest)
        truth = float(np.mean([row["loss"] for row in rows if row["width"] == widest and row["head"] == 128]))
        print(f"without width {widest}: {loss:.4f} +- {deviation:.4f} there, {truth:.4f} measured")
    loss, deviation = predicted(rows, LARGE)
    runs = tuple(
        OwnRun(f"{row['width']}", row["parameters"], row["block_parameters"], row["tokens"], row["loss"])
        for row in rows
    )
    config = compose(["recipe=modern-124m"]).config
    law = LossForecaster(OPEN_RUNS, None, recipe_efficiency(config), runs)
    by_law = law.forecast(size_of(config), rows[0]["tokens"])
    found = {
        "width": LARGE,
        "optimizer": rows[0].get("optimizer"),
        "loss": round(by_law.loss, 4),
        "low": round(by_law.low, 4),
        "high": round(by_law.high, 4),
    }
    print(f"the curve says {loss:.4f} +- {deviation:.4f} for width {LARGE}")
    print(f"predicted for width {LARGE}: {by_law.loss:.4f}, 80%: {by_law.low:.4f} to {by_law.high:.4f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("small", "predict", "large", "check"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0, help="no run is started that may end later")
    options = parser.parse_args()
    if options.part in ("small", "large"):
        return run_all(SMALL if options.part == "small" else (Shape(LARGE, 128, 1),), options)
    found = [json.loads(path.read_text()) for path in options.files]
    if options.part == "predict":
        options.out.write_text(json.dumps(predict(found[0]["rows"]), indent=1) + "\n")
        return None
    prediction, large = found[0], found[1]["rows"][0]
    if prediction["optimizer"] != large["optimizer"]:
        raise SystemExit(f"other settings: {prediction['optimizer']} and {large['optimizer']}")
    error = prediction["loss"] - large["loss"]
    inside = prediction["low"] <= large["loss"] <= prediction["high"]
    print(
        f"predicted {prediction['loss']:.4f}, measured {large['loss']:.4f}: {error:+.4f} nats, {'inside' if inside else 'outside'} 80%"
    )
    return None


if __name__ == "__main__":
    main()
