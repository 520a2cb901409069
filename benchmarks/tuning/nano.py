"""Real sweeps at nano scale on a CPU: does the interval hold the optimum, and do more trials help?

    python benchmarks/tuning/nano.py run nano.jsonl        # 20 targets and their sweeps, a minute of CPU each
    python benchmarks/tuning/nano.py run part.jsonl --from 8 --most 1 --root FOLDER    # one of them
    python benchmarks/tuning/nano.py report nano.jsonl     # anywhere, in seconds

A case is a text, an optimizer, a model, a budget and a seed. First its target is trained at nine rates, at more if the
best is near the edge, and with a second seed at the five around the best. Then the ladder buys real trials, with the
configured settings of `skytrain tune`: its rungs, its beliefs, and the runs that it would start. Only the prices are
made up, so that a busy machine changes nothing: parameters times tokens, as on a GPU, with 2% of a target's run for each
start. `run` continues where it was stopped, and `--from 20` does other cases than the 20 that are judged. Texts and tokens
are kept in `--root`, so a machine that cannot prepare them can use another one's folder, under the same path.

`report` asks the present code for the answer to the recorded trials, after a part of them too: its regret on the measured
curve, and what it expected that to be.
"""

from __future__ import annotations

import argparse
import json
import math
import pydoc_data
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import Config, DecoderConfig, SkytrainError, compose
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import find_training_data
from skytrain.tuning import HourlyPrice, Observation, Problem, Rung, RungShape, SweepStore, Trial
from skytrain.tuning.problem import Answer, Search
from skytrain.tuning.setting_up import make_problem
from skytrain.tuning.strategies.registry import find_strategy
from skytrain.tuning.trials import target_shape, trial_shapes

TEXT_BYTES = 3_000_000
WORDS = (
    "tokenizer=bytes",
    "trainer.sequence_length=32",
    "trainer.batch_tokens=256",
    "trainer.micro_batch=8",
    "trainer.steps=64",
    "trainer.precision=32-true",
    "trainer.device=cpu",
    "trainer.validate_tokens=8K",
    "trainer.validate_every=null",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[]",
    "lr_schedule=linear",
    "lr_schedule.warmup_steps=8",
    "tune.usd_per_hour=1",
    "budget.usd=1",
    "tune.shortest=16",
)
SMALL = ("model.layers=2", "model.width=64", "model.heads=4", "model.max_length=32")
MODELS = {
    "gpt2": ("model=gpt2-tiny", *SMALL),
    "llama": ("model=llama-micro", *SMALL),
    "gpt2-mup": ("model=gpt2-tiny", *SMALL, "model.parametrization=mup", "model.base_width=32"),
    "llama-completep": (
        "model=llama-micro",
        *SMALL,
        "model.parametrization=completep",
        "model.base_width=32",
        "model.base_layers=2",
    ),
}
KINDS = (  # an optimizer with the models that it trains in turn
    ("adamw", ("gpt2",)),
    ("adamw", ("llama",)),
    ("muon", ("gpt2", "llama")),
    ("lion", ("llama", "gpt2")),
    ("adamw", ("gpt2-mup", "llama-completep")),
)
OPTIMIZERS = {"adamw": (), "muon": ("optimizer=muon",), "lion": ("optimizer=lion",)}
TEXTS = ("python-docs", "library", "topics", "tables")
BUDGETS = (1, 2, 4)  # runs of the target
RATES = {"adamw": 6e-3, "muon": 2e-2, "lion": 1e-3}  # the middle of the rates that the target is trained at
STRIDE = math.log(2) * 0.75
AROUND = 2  # rates on each side of the best that are trained with a second seed
START = 0.02  # price of a start, in runs of the target
SIDE = 4  # rates on each side of the middle
MOST_RATES = 17
PRICE = HourlyPrice(1.0, 0.1)


def case(number: int) -> dict[str, Any]:
    """Return a case. Twenty in a row have every kind with every text once."""
    optimizer, models = KINDS[number % len(KINDS)]
    return {
        "optimizer": optimizer,
        "model": models[number // len(KINDS) % len(models)],
        "text": TEXTS[number % len(TEXTS)],
        "runs": BUDGETS[number % len(BUDGETS)],
        "seed": number,
    }


def configured(case: dict[str, Any], root: Path) -> Config:
    if case["text"] == "python-docs":
        data: tuple[str, ...] = ("data=python-docs",)
    else:
        data = ("data=jsonl", f"data.name={case['text']}", f"data.source.paths='{root}/{case['text']}.jsonl'")
    words = [*data, *WORDS, *MODELS[case["model"]], *OPTIMIZERS[case["optimizer"]]]
    return compose(
        [*words, f"seed={case['seed']}", f"tune.name=nano-{case['seed']}", f"store.root='{root}/store'"]
    ).config


def write_texts(root: Path) -> None:
    """Write the texts as JSON lines, one file a line, up to the limit."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = {
        "library": sorted(library.glob("*.py")),
        "topics": sorted(Path(next(iter(pydoc_data.__path__))).glob("topics.py")),
        "tables": sorted((library / "encodings").glob("*.py")),
    }
    for name, paths in files.items():
        written = 0
        with (root / f"{name}.jsonl").open("w") as target:
            for path in paths:
                text = path.read_text(errors="ignore").replace("\\n", "\n")
                for part in (text[start : start + 20_000] for start in range(0, len(text), 20_000)):
                    written += target.write(json.dumps({"text": part}) + "\n")
                if written > TEXT_BYTES:
                    break


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def prepare_once(config: Config) -> None:
    try:
        find_training_data(open_store(config.store), config)
    except SkytrainError:
        from skytrain.pipelines.prepare import prepare  # needs packages that a GPU machine may lack

        prepare(config, Silent())


def run(out: Path, cases: list[dict[str, Any]], kept: Path | None) -> None:
    done = [one["case"] for one in read(out)]
    with tempfile.TemporaryDirectory() as scratch:
        root = kept or Path(scratch)
        if not (root / "topics.jsonl").exists():
            root.mkdir(parents=True, exist_ok=True)
            write_texts(root)
        for one in [one for one in cases if one not in done]:
            began = time.process_time()
            config = configured(one, root)
            prepare_once(config)
            record: dict[str, Any] = {"case": one, "truth": measure_truth(one, config)}
            answer, history = sweep(one, config)
            record["answer"] = asdict(answer)  # of the code that chose the trials
            record["trials"] = [
                {"rung": seen.trial.rung, "rate": seen.trial.rate, "usd": round(seen.usd, 5)}
                | {"loss": seen.loss if seen.finite else None, "diverged": seen.diverged}
                for seen in history
            ]
            with out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{one}: {len(history)} trials, {time.process_time() - began:.0f} s", file=sys.stderr, flush=True)


class Trainer:
    """Runs of one case, as `skytrain tune` starts them."""

    def __init__(self, name: str, config: Config, shapes: Sequence[RungShape]) -> None:
        from skytrain.pipelines.tune import LocalRunner

        self._runner = LocalRunner(SweepStore(open_store(config.store), name), shapes, PRICE, Silent())
        self._number = 0

    def loss(self, trial: Trial) -> float:
        self._number += 1
        loss = self._runner.run(self._number, trial, 1e3).loss
        return math.inf if loss is None else loss


def measure_truth(one: dict[str, Any], config: Config) -> list[dict[str, Any]]:
    """Return the target's losses at all rates."""
    shape = target_shape(config)
    trainer = Trainer(f"truth-{one['seed']}", config, [shape])
    truth: list[dict[str, Any]] = []

    def train(step: int, seed: int) -> None:
        rate = float(f"{RATES[one['optimizer']] * math.exp(step * STRIDE):.4g}")
        loss = trainer.loss(Trial(shape.name, rate, 1000 * (seed + 1) + one["seed"]))
        truth.append({"rate": rate, "seed": seed, "loss": loss if math.isfinite(loss) else None})

    steps = list(range(-SIDE, SIDE + 1))
    for step in steps:
        train(step, 0)
    while len(steps) < MOST_RATES:
        best = int(np.argmin(mean_losses(truth)[1]))
        if AROUND <= best < len(steps) - AROUND:
            break
        steps = [steps[0] - 1, *steps] if best < AROUND else [*steps, steps[-1] + 1]
        train(steps[0] if best < AROUND else steps[-1], 0)
    best = int(np.argmin(mean_losses(truth)[1]))
    for step in steps[max(0, best - AROUND) : best + AROUND + 1]:
        train(step, 1)
    return truth


def problem_of(config: Config) -> Problem:
    """Return the search of `skytrain tune`, at the made-up prices."""

    def priced(shape: RungShape) -> Rung:
        model = shape.config.model
        assert isinstance(model, DecoderConfig)
        weight = shape.parameters + model.vocab_size * model.width
        return shape.rung(weight * shape.rung(1.0).tokens)

    target = priced(target_shape(config))
    rungs = [replace(one, usd=one.usd / target.usd + START) for one in map(priced, trial_shapes(config))]
    return make_problem(config, replace(target, usd=1.0), rungs)


def sweep(one: dict[str, Any], config: Config) -> tuple[Answer, list[Observation]]:
    """Return what the ladder answers for the case's dollars, and its trials."""
    problem = problem_of(config)
    strategy = find_strategy("ladder")
    trainer = Trainer(f"sweep-{one['seed']}", config, trial_shapes(config))
    history: list[Observation] = []
    left = float(one["runs"])
    while (trial := strategy.propose(Search(problem, tuple(history), left, one["runs"]))) is not None:
        usd = problem.rung(trial.rung).usd
        history.append(Observation(trial, trainer.loss(trial), usd))
        left -= usd
    return strategy.answer(Search(problem, tuple(history), left, one["runs"])), history


def mean_losses(truth: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ln of the rates and their mean losses."""
    by_rate: dict[float, list[float]] = {}
    for row in truth:
        by_rate.setdefault(row["rate"], []).append(99.0 if row["loss"] is None else row["loss"])
    return np.log(sorted(by_rate)), np.array([float(np.mean(by_rate[rate])) for rate in sorted(by_rate)])


def curve_of(record: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return ln of the rates, their mean losses, and ln of the minimum of the cubic around the best."""
    x, y = mean_losses(record["truth"])
    best = int(np.argmin(y))
    near = (abs(x - x[best]) < 1.3) & (y < y.min() + 1)
    curve = np.polynomial.Polynomial.fit(x[near], y[near], min(3, int(near.sum()) - 1))
    grid = np.linspace(x[near].min(), x[near].max(), 400)
    return x, y, float(grid[int(np.argmin(curve(grid)))])


def report(records: list[dict[str, Any]]) -> str:
    """Return each sweep's interval and truth, and the regret by how many of its trials were known."""
    lines = [f"{'case':44} {'trials':>6} {'answer':>9} {'80% interval':>20} {'optimum':>9} {'held':>5} {'regret':>8}"]
    held = []
    by_share: dict[float, list[tuple[float, float]]] = {}
    for record in records:
        case = record["case"]
        x, y, optimum = curve_of(record)
        along = answers_along(record)
        answer = along[-1][1]
        inside = answer["low"] <= math.exp(optimum) <= answer["high"]
        held.append(inside)

        def regret(rate: float, x: np.ndarray = x, y: np.ndarray = y) -> float:
            return float(np.interp(math.log(rate), x, np.minimum(y, y.min() + 1)) - y.min())

        name = f"{case['seed']} {case['optimizer']} {case['model']} {case['text']}, {case['runs']} runs"
        span = f"{answer['low']:.2g} to {answer['high']:.2g}"
        lines.append(
            f"{name:44} {len(record['trials']):>6} {answer['rate']:>9.3g} {span:>20} {math.exp(optimum):>9.3g} "
            f"{'yes' if inside else 'no':>5} {regret(answer['rate']):>8.4f}"
        )
        for share, found in along:
            by_share.setdefault(share, []).append((regret(found["rate"]), found["regret_nats"] or 0.0))
    lines.append(f"the interval holds the optimum in {sum(held)} of {len(held)}")
    lines.append("share of the trials known: mean regret with its standard error, and what was expected")
    for share, pairs in sorted(by_share.items()):
        found = np.array(pairs)
        error = found[:, 0].std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
        lines.append(f"  {share:4.0%}: {found[:, 0].mean():.4f} +- {error:.4f}, expected {found[:, 1].mean():.4f}")
    return "\n".join(lines)


def answers_along(record: dict[str, Any], problem: Problem | None = None) -> list[tuple[float, dict[str, Any]]]:
    """Return what the ladder answers after none, a quarter, half, three quarters and all of the trials."""
    problem = problem or problem_of(configured(record["case"], Path("/nowhere")))
    history = [
        Observation(
            Trial(one["rung"], one["rate"]),
            one["loss"] if one["loss"] is not None else (math.inf if one["diverged"] else math.nan),
            one["usd"],
        )
        for one in record["trials"]
    ]
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        known = tuple(history[: round(share * len(history))])
        found.append((share, asdict(find_strategy("ladder").answer(Search(problem, known, 0.0, 1.0)))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("run", "report"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first case")
    parser.add_argument("--most", type=int, default=20, help="number of cases")
    parser.add_argument("--root", type=Path, help="folder of texts and tokens; a temporary one if none is named")
    arguments = parser.parse_args()
    if arguments.part == "run":
        numbers = range(arguments.first, arguments.first + arguments.most)
        run(arguments.file.absolute(), [case(number) for number in numbers], arguments.root)
    else:
        print(report(read(arguments.file)))


if __name__ == "__main__":
    main()
