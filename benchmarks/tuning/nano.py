"""Real sweeps at nano scale on a CPU: does the interval hold the optimum, and do more trials help?

    python benchmarks/tuning/nano.py run nano.jsonl        # 20 sweeps, about two minutes each; continues where it was
    python benchmarks/tuning/nano.py report nano.jsonl     # anywhere, in seconds

A case is a text, an optimizer, an architecture and a seed. For each, `skytrain tune`'s own code runs a sweep around the
published laws or the optimizer's usual rate; then the target is trained at nine rates with two seeds each. The text is
Python's documentation, Python's own library, or this project's pages. `report` also asks for the answer after every
trial of each sweep: its regret on the measured curve, and what the sweep expected it to be.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import Config, compose
from skytrain.runs import Silent, boot_clock
from skytrain.storage import open_store
from skytrain.tuning import (
    HourlyPrice,
    Observation,
    Search,
    SweepStore,
    Trial,
    find_strategy,
    make_problem,
    target_shape,
    trial_shapes,
    tune_here,
)

TEXT_BYTES = 3_000_000
STEPS = 160
WORDS = (
    "tokenizer=bytes",
    "trainer.sequence_length=64",
    "trainer.batch_tokens=1024",
    "trainer.micro_batch=16",
    f"trainer.steps={STEPS}",
    "trainer.precision=32-true",
    "trainer.device=cpu",
    "trainer.validate_tokens=16K",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[]",
    "lr_schedule=linear",
    "lr_schedule.warmup_steps=16",
    "tune.usd_per_hour=3.6",  # a tenth of a cent a second
    "tune.final=false",
    "tune.shortest=20",
    "tune.horizons=[0.25,0.5,1]",
    "budget.usd=1.5",
)
ARCHITECTURES = {
    "gpt2": ("model=gpt2-tiny", "model.layers=2", "model.width=64", "model.heads=4", "model.max_length=64"),
    "llama": ("model=llama-micro", "model.layers=2", "model.width=64", "model.heads=4", "model.max_length=64"),
}
OPTIMIZERS = {"adamw": (), "muon": ("optimizer=muon",), "lion": ("optimizer=lion",)}
TEXTS = ("python-docs", "library", "pages")
RATES = {"adamw": 6e-3, "muon": 2e-2, "lion": 1e-3}  # the middle of the rates that the target is trained at
STRIDE = math.log(2) * 0.75
SEEDS = 2


def cases() -> list[dict[str, Any]]:
    """Return 20 cases: every optimizer with every architecture and text, AdamW twice as often as the others."""
    found = []
    for number in range(20):
        optimizer = ("adamw", "muon", "adamw", "lion")[number % 4]
        architecture = ("gpt2", "llama")[(number // 2) % 2]
        text = TEXTS[number % 3]
        found.append({"optimizer": optimizer, "architecture": architecture, "text": text, "seed": number})
    return found


def configured(case: dict[str, Any], root: Path) -> Config:
    if case["text"] == "python-docs":
        data: tuple[str, ...] = ("data=python-docs",)
    else:
        data = ("data=jsonl", f"data.name={case['text']}", f"data.source.paths='{root}/{case['text']}.jsonl'")
    words = [*data, *WORDS, *ARCHITECTURES[case["architecture"]], *OPTIMIZERS[case["optimizer"]]]
    return compose(
        [*words, f"seed={case['seed']}", f"tune.name=nano-{case['seed']}", f"store.root='{root}/store'"]
    ).config


def write_text(name: str, path: Path) -> None:
    """Write one of the texts as JSON lines, one file a line, up to the limit."""
    if name == "library":
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    else:
        root = Path(__file__).parents[2]
        files = sorted([*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("src/skytrain/**/*.py")])
    written = 0
    with path.open("w") as target:
        for file in files:
            written += target.write(json.dumps({"text": file.read_text(errors="ignore")}) + "\n")
            if written > TEXT_BYTES:
                break


def run(out: Path, most: int) -> None:
    from skytrain.pipelines.prepare import prepare
    from skytrain.pipelines.tune import LocalRunner, sweep_tools

    done = [json.loads(line)["case"] for line in out.read_text().splitlines()] if out.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for text in TEXTS[1:]:
            write_text(text, root / f"{text}.jsonl")
        for case in [one for one in cases() if one not in done][:most]:
            began = time.monotonic()
            config = configured(case, root)
            prepare(config, Silent())
            tuned = tune_here(config, Silent(), sweep_tools(), since=boot_clock())
            shape = target_shape(config)
            sweep = SweepStore(open_store(config.store), f"truth-{case['seed']}")
            runner = LocalRunner(sweep, [shape], HourlyPrice(3.6, 0.1), Silent())
            truth = []
            jobs = [(step, seed) for seed in range(SEEDS) for step in range(-4, 5)]
            for number, (step, seed) in enumerate(jobs, 1):
                rate = float(f"{RATES[case['optimizer']] * math.exp(step * STRIDE):.4g}")
                result = runner.run(number, Trial(shape.name, rate, seed + 100), 100.0)
                finite = result.loss is not None and math.isfinite(result.loss)
                truth.append({"rate": rate, "seed": seed, "loss": result.loss if finite else None})
            record = {
                "case": case,
                "answer": asdict(tuned.conclusion.answer),
                "trials": [
                    {"rung": one.trial.rung, "rate": one.trial.rate, "usd": one.usd}
                    | {"loss": one.loss if one.finite else None, "diverged": one.diverged}
                    for one in tuned.history
                ],
                "truth": truth,
            }
            with out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{case}: {time.monotonic() - began:.0f} s, {len(tuned.history)} trials", file=sys.stderr, flush=True)


def curve_of(record: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return ln of the rates, their mean losses, and ln of the minimum of the cubic around the best."""
    by_rate: dict[float, list[float]] = {}
    for row in record["truth"]:
        by_rate.setdefault(row["rate"], []).append(99.0 if row["loss"] is None else row["loss"])
    x = np.log(sorted(by_rate))
    y = np.array([float(np.mean(by_rate[rate])) for rate in sorted(by_rate)])
    best = int(np.argmin(y))
    near = (abs(x - x[best]) < 1.3) & (y < y.min() + 1)
    curve = np.polynomial.Polynomial.fit(x[near], y[near], min(3, int(near.sum()) - 1))
    grid = np.linspace(x[near].min(), x[near].max(), 400)
    return x, y, float(grid[int(np.argmin(curve(grid)))])


def report(records: list[dict[str, Any]]) -> str:
    """Return each sweep's interval and truth, and the regret by how many of its trials were known."""
    lines = [f"{'case':34} {'trials':>6} {'answer':>9} {'80% interval':>20} {'optimum':>9} {'held':>5} {'regret':>8}"]
    held = []
    by_share: dict[float, list[tuple[float, float]]] = {}
    for record in records:
        case = record["case"]
        x, y, optimum = curve_of(record)
        answer = record["answer"]
        inside = answer["low"] <= math.exp(optimum) <= answer["high"]
        held.append(inside)

        def regret(rate: float, x: np.ndarray = x, y: np.ndarray = y) -> float:
            return float(np.interp(math.log(rate), x, np.minimum(y, y.min() + 1)) - y.min())

        name = f"{case['optimizer']} {case['architecture']} {case['text']} {case['seed']}"
        span = f"{answer['low']:.2g} to {answer['high']:.2g}"
        lines.append(
            f"{name:34} {len(record['trials']):>6} {answer['rate']:>9.3g} {span:>20} {math.exp(optimum):>9.3g} "
            f"{'yes' if inside else 'no':>5} {regret(answer['rate']):>8.4f}"
        )
        for share, found in answers_along(record):
            by_share.setdefault(share, []).append((regret(found["rate"]), found["regret_nats"] or 0.0))
    lines.append(f"the interval holds the optimum in {sum(held)} of {len(held)}")
    lines.append("share of the trials known: mean regret with its standard error, and what was expected")
    for share, pairs in sorted(by_share.items()):
        found = np.array(pairs)
        error = found[:, 0].std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
        lines.append(f"  {share:4.0%}: {found[:, 0].mean():.4f} +- {error:.4f}, expected {found[:, 1].mean():.4f}")
    return "\n".join(lines)


def answers_along(record: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Return what the ladder answers after a quarter, half, three quarters and all of the trials."""
    config = configured(record["case"], Path("/nowhere"))
    problem = make_problem(config, target_shape(config).rung(1.0), [one.rung(1.0) for one in trial_shapes(config)])
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
    parser.add_argument("--most", type=int, default=20, help="sweeps of this call")
    arguments = parser.parse_args()
    if arguments.part == "run":
        run(arguments.file.absolute(), arguments.most)
    else:
        print(report([json.loads(line) for line in arguments.file.read_text().splitlines()]))


if __name__ == "__main__":
    main()
