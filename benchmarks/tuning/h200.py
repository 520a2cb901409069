"""Every strategy for real: a target that is small enough for an exhaustive grid, at the same dollars each.

    python benchmarks/corpus/debian_text.py CORPUS                                    # real text, once
    python benchmarks/tuning/h200.py prepare CORPUS/debian.jsonl store.tar.xz         # 10M tokens, once, on any machine
    python benchmarks/tuning/h200.py truth  store.tar.xz --out truth.json             # on a GPU, minutes
    python benchmarks/tuning/h200.py search store.tar.xz --out search.json            # on a GPU, minutes
    python benchmarks/tuning/h200.py report truth.json search.json                    # the table, anywhere

The target is 6 layers x 256 on 20M tokens, two epochs of real text with a 4k tokenizer. The truth is its loss at ten
rates with two seeds each, and the U fitted to them. Each strategy then runs through the sweep's own driver and ledger,
with trials that are ordinary runs; a trial that another strategy has run before is not run again, but charged as it
was measured. Regret is the fitted U at the answer above its minimum. `--small` tries all of it on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tarfile
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import Config, compose
from skytrain.pipelines.tune import _problem
from skytrain.pipelines.tune_runner import LocalRunner, SweepInterrupted, dry_run
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tuning import (
    HourlyPrice,
    Ledger,
    Observation,
    Priors,
    Problem,
    RungShape,
    SweepSetup,
    SweepStore,
    Trial,
    TrialResult,
    all_strategies,
    find_strategy,
    fit_jointly,
    run_sweep,
    target_shape,
    trial_shapes,
    u_shape,
)

USD_PER_HOUR = 3.6  # a tenth of a cent a second
BUDGETS = (2.0, 4.0)  # search budgets in target runs
RATES = tuple(1e-3 * 2 ** (step / 2) for step in range(-3, 8))  # 3.5e-4 to 1.1e-2
TEXT_BYTES = 40_000_000
HYBRIDS = ("early-stopping+ladder",)
WORDS = (
    "data=jsonl",
    "data.name=debian",
    "data.source.paths=debian.jsonl",
    "tokenizer=bpe-4k",
    "model=gpt2-tiny",
    "model.name=gpt2-6x256",
    "model.layers=6",
    "model.width=256",
    "model.heads=4",
    "model.max_length=256",
    "trainer.sequence_length=256",
    "trainer.batch_tokens=16384",
    "trainer.micro_batch=64",
    "trainer.steps=1220",
    "trainer.validate_tokens=256K",
    "trainer.checkpoint_every=null",
    "trainer.log_every=20",
    "trainer.loggers=[]",
    "lr_schedule.warmup_steps=122",
    "tune.sizes=[6x64,6x128]",
    "tune.horizons=[0.0625,0.125,0.25]",
    "budget.usd=1",
    f"tune.usd_per_hour={USD_PER_HOUR}",
)
SMALL = ("model.layers=1", "model.width=128", "model.heads=2", "trainer.batch_tokens=1024", "trainer.micro_batch=4",
         "trainer.steps=48", "lr_schedule.warmup_steps=5", "trainer.validate_tokens=4K", "tune.sizes=[1x64]",
         "tune.horizons=[0.25]", "tune.shortest=4", "trainer.precision=32-true", "trainer.device=cpu")  # fmt: skip


def configured(root: str, small: bool) -> Config:
    return compose([*WORDS, *(SMALL if small else ()), f"store.root='{root}'"]).config


def prepare_archive(corpus: Path, archive: Path) -> None:
    """The first 40 MB of the text as tokens, in a compressed store."""
    from skytrain.pipelines.prepare import prepare  # needs packages that a GPU machine may lack

    with tempfile.TemporaryDirectory() as scratch:
        written = 0
        with corpus.open() as source, (Path(scratch) / "debian.jsonl").open("w") as target:
            for line in source:
                written += target.write(line)
                if written > TEXT_BYTES:
                    break
        os.chdir(scratch)
        prepared = prepare(configured(f"{scratch}/store", small=False), Silent())
        print(
            f"{prepared.train.tokens:,} tokens to train on, {prepared.validation.tokens if prepared.validation else 0:,} to validate"
        )
        with tarfile.open(archive, "w:xz") as tar:
            for part in ("tokens", "tokenizers"):
                tar.add(f"{scratch}/store/{part}", part)


class Bank:
    """Runs each trial once, and remembers it for the strategies after."""

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self.known: dict[str, TrialResult] = {}

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        if trial.key not in self.known:
            self.known[trial.key] = self._runner.run(len(self.known) + 1, trial, 100.0)
        return self.known[trial.key]


def setting_up(config: Config) -> tuple[Problem, list[RungShape], HourlyPrice]:
    """The problem with measured prices, as `skytrain tune` makes it."""
    price = HourlyPrice(USD_PER_HOUR, config.tune.margin)
    shapes, estimates = trial_shapes(config), {}
    for shape in [*shapes, target_shape(config)]:
        key = f"{shape.config.model.name}-{shape.config.trainer.batch_tokens}"
        if key not in estimates:
            estimates[key] = dry_run(shape.config, Silent())
            print(f"{key}: {asdict(estimates[key])}", flush=True)
    problem, _ = _problem(config, shapes, estimates, price)
    return problem, shapes, price


def save(found: dict[str, Any], out: Path | None) -> None:
    """After every run: a call that is cut off keeps what it has."""
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")


def find_truth(config: Config, small: bool, out: Path | None) -> None:
    store = open_store(config.store)
    runner = LocalRunner("truth", store, [target_shape(config)], HourlyPrice(USD_PER_HOUR, 0.1), Silent())
    rows: list[dict[str, Any]] = []
    for number, (seed, rate) in enumerate(
        [(seed, rate) for seed in (0, 1) for rate in (RATES[::3] if small else RATES)], 1
    ):
        result = runner.run(number, Trial("target", rate, seed), 100.0)
        rows.append({"rate": rate, "seed": seed, "loss": result.loss, "seconds": result.seconds})
        save({"rows": rows}, out)
        print(
            f"truth {number}: rate {rate:.3g} seed {seed} loss {result.loss:.4f} in {result.seconds:.1f} s", flush=True
        )


def play(config: Config, small: bool, out: Path | None) -> None:
    problem, shapes, price = setting_up(config)
    store = open_store(config.store)
    bank = Bank(LocalRunner("search", store, shapes, price, Silent()))
    began = time.monotonic()
    # What a target run costs without the margin, for the budgets.
    run_usd = problem.target.usd / (1 + config.tune.margin) / 1.05
    rows = []
    for budget in BUDGETS[1:] if small else BUDGETS:
        for name in ("ladder", *sorted(set(all_strategies()) - {"ladder"}), *HYBRIDS):
            sweep = SweepStore(store, f"{name.replace('+', '-')}-{budget:g}")
            ledger = Ledger(store, sweep.folder, budget * run_usd)
            setup = SweepSetup(sweep, ledger, problem, find_strategy(name), bank, 0.0)
            try:
                answer = run_sweep(setup)
            except SweepInterrupted:
                raise
            except ValueError as error:  # such as: all of its trials diverged
                print(f"{name} at {budget:g}: {error}", flush=True)
                continue
            history = sweep.history()
            rows.append(
                {"strategy": name, "budget": budget, "trials": len(history), "usd": ledger.spent_usd, "answer": asdict(answer),
                 "history": [[one.trial.key, one.loss if one.finite else None, one.usd] for one in history.values()]}
            )  # fmt: skip
            save({"run_usd": run_usd, "rows": rows, "trials_run": len(bank.known)}, out)
            print(
                f"{time.monotonic() - began:.0f} s: {name} at {budget:g} runs: {len(history)} trials, {answer.rate:.3g}",
                flush=True,
            )


def report(truth: dict[str, Any], search: dict[str, Any]) -> str:
    """The fitted U of the truth, and each strategy's distance from its minimum."""
    rows = list(truth["rows"])
    rates = sorted({row["rate"] for row in rows})
    by_rate = {rate: [row["loss"] for row in rows if row["rate"] == rate] for rate in rates}
    finite = {rate: losses for rate, losses in by_rate.items() if all(math.isfinite(loss) for loss in losses)}
    pairs = [np.ptp(losses) / math.sqrt(2) for losses in finite.values() if len(losses) == 2]
    sigma = float(np.sqrt(np.mean(np.square(pairs))))
    best = min(finite, key=lambda rate: np.mean(finite[rate]))
    target = replace(target_shape(configured("/nowhere", False)).rung(1.0), name="target")
    problem = Problem(
        target,
        (target,),
        rates[0] / 4,
        rates[-1] * 4,
        Priors(lambda rung: math.log(best), offset=1.0),
        max(sigma, 5e-4),
    )
    history = [Observation(Trial("target", row["rate"], row["seed"]), row["loss"], 0.0) for row in rows]
    fit = fit_jointly(problem, history)
    curve = fit.curves[0]
    error = sigma / math.sqrt(len(rows) / 3)  # of the minimum: about a third of the runs lie near it
    lines = [
        f"truth: {len(rows)} runs of {np.mean([row['seconds'] for row in rows]):.1f} s, seed deviation {sigma:.4f} nats"
    ]
    lines += [f"  {rate:.3g}: " + " ".join(f"{loss:.4f}" for loss in by_rate[rate]) for rate in rates]
    lines.append(
        f"fitted optimum {curve.optimum:.3g} ({curve.low:.3g} to {curve.high:.3g}), loss {curve.floor:.4f}, curvature {curve.curvature:.4f}"
    )
    limit = 0.005 + 2 * error
    lines.append(f"limit for ours: 0.005 + two standard errors of {error:.4f} = {limit:.4f} nats")
    lines.append(f"{'':24} {'runs':>5} {'trials':>7} {'dollars':>8} {'rate':>9} {'80% interval':>20} {'regret':>8}")
    for row in search["rows"]:
        answer = row["answer"]
        regret = float(curve.curvature * u_shape(np.array(math.log(answer["rate"] / curve.optimum))))
        span = f"{answer['low']:.2g} to {answer['high']:.2g}" if answer["low"] else "-"
        mark = ""
        if row["strategy"] == "ladder":
            mark = "  within the limit" if regret <= limit else "  OVER the limit"
        lines.append(
            f"{row['strategy']:24} {row['budget']:>5g} {row['trials']:>7} {row['usd']:>8.4f} {answer['rate']:>9.3g} {span:>20} {regret:>8.4f}{mark}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["prepare", "truth", "search", "report"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare_archive(arguments.files[0].absolute(), arguments.files[1].absolute())
        return
    if arguments.part == "report":
        truth, search = (json.loads(path.read_text()) for path in arguments.files)
        print(report(truth, search))
        return
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(arguments.files[0]) as tar:
            tar.extractall(scratch, filter="data")
        config = configured(scratch, arguments.small)
        (find_truth if arguments.part == "truth" else play)(config, arguments.small, arguments.out)


if __name__ == "__main__":
    main()
