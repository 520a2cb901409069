"""Every strategy for real: targets that are small enough for an exhaustive grid, at the same dollars each.

    python benchmarks/corpus/debian_text.py CORPUS                                    # real text, once
    python benchmarks/tuning/h200.py prepare CORPUS/debian.jsonl store.tar.xz         # 10M tokens, once, on any machine
    python benchmarks/tuning/h200.py grid store.tar.xz --target 4x192 --out h200_4x192.json    # on a GPU, minutes
    python benchmarks/tuning/h200.py grid store.tar.xz --target 2x384 --workers 6 --out h200_2x384.json
    python benchmarks/tuning/h200.py report h200_4x192.json h200_6x256.json --plots docs/images    # anywhere

Trials are ordinary runs of real text with a 4k tokenizer, in one process. Such a run leaves most of a GPU idle, so
`--workers` processes share it: one run of the target is then timed alone, and the seconds of those that shared the GPU
are divided by how much longer the target's took there. `grid` runs the target at eleven rates with
several seeds, and every smaller model and shorter horizon at nine or more rates. `report` then lets each strategy
search through the sweep's own driver and ledger: a trial that it buys is looked up, and charged the seconds that it
took. Regret is the U that is fitted to the target's runs, at the answer, above its minimum. `--small` tries all of it
on a CPU.

4x192, 6x256 and 3x320 were known when the ladder was made as it is now. 2x384 and 8x128 were chosen before any run of them,
and nothing in the ladder changed between their grids and their first report.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import queue
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import Config, compose
from skytrain.report.axes import Plot, PlotLayer
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tuning import (
    HourlyPrice,
    Ledger,
    Observation,
    Problem,
    RungShape,
    StepEstimate,
    SweepStore,
    Trial,
    TrialResult,
)
from skytrain.tuning.driver import SweepSetup, run_sweep
from skytrain.tuning.joint import RungCurve, fit_jointly
from skytrain.tuning.problem import Priors
from skytrain.tuning.setting_up import make_problem
from skytrain.tuning.strategies.registry import all_strategies, find_strategy
from skytrain.tuning.trials import target_shape, trial_shapes

USD_PER_HOUR = 3.6  # a tenth of a cent a second
BUDGETS = (1.0, 2.0, 4.0, 8.0)  # search budgets in target runs
LEAST_RATES = 6  # of a rung that is for sale: one that the time cut off has only its lowest
NEAR = 1.8  # rates whose runs say how well the minimum is known
TEXT_BYTES = 40_000_000
HYBRIDS = ("early-stopping+ladder",)
WORDS = (
    "data=jsonl",
    "data.name=debian",
    "data.source.paths=debian.jsonl",
    "tokenizer=bpe-4k",
    "model=gpt2-tiny",
    "model.max_length=256",
    "trainer.sequence_length=256",
    "trainer.batch_tokens=16384",
    "trainer.micro_batch=64",
    "trainer.validate_tokens=256K",
    "trainer.checkpoint_every=null",
    "trainer.log_every=20",
    "trainer.loggers=[]",
    "budget.usd=1",
    f"tune.usd_per_hour={USD_PER_HOUR}",
)


@dataclass(frozen=True)
class Target:
    """A run to be tuned, with its smaller models and the rates of the grid."""

    words: tuple[str, ...]
    seeds: int
    low: int  # rates are 1e-3 times powers of the square root of two
    high: int


TARGETS = {
    "6x256": Target(
        ("model.name=gpt2-6x256", "model.layers=6", "model.width=256", "model.heads=4", "trainer.steps=1220",
         "lr_schedule.warmup_steps=122", "tune.sizes=[6x64,6x128]", "tune.horizons=[0.0625,0.125,0.25,0.5,1]"),
        2, -3, 7),
    "4x192": Target(
        ("model.name=gpt2-4x192", "model.layers=4", "model.width=192", "model.heads=3", "trainer.steps=800", "seed=7",
         "lr_schedule.warmup_steps=80", "tune.sizes=[4x64,4x128]", "tune.horizons=[0.125,0.25,0.5,1]"),
        3, -3, 7),
    "3x320": Target(
        ("model.name=gpt2-3x320", "model.layers=3", "model.width=320", "model.heads=5", "trainer.steps=600", "seed=23",
         "lr_schedule.warmup_steps=60", "tune.sizes=[3x128,3x192]", "tune.horizons=[0.125,0.25,0.5,1]"),
        3, -3, 7),
    "2x384": Target(
        ("model.name=gpt2-2x384", "model.layers=2", "model.width=384", "model.heads=6", "trainer.steps=1000", "seed=41",
         "lr_schedule.warmup_steps=100", "tune.sizes=[2x128,2x192]", "tune.horizons=[0.125,0.25,0.5,1]"),
        2, -4, 4),
    "8x128": Target(
        ("model.name=gpt2-8x128", "model.layers=8", "model.width=128", "model.heads=2", "trainer.steps=1600", "seed=59",
         "lr_schedule=wsd", "lr_schedule.warmup_steps=160", "tune.sizes=[4x128,8x64]",
         "tune.horizons=[0.125,0.25,0.5,1]"),
        2, -1, 7),
}  # fmt: skip
SMALL = ("model.layers=1", "model.width=128", "model.heads=2", "trainer.batch_tokens=1024", "trainer.micro_batch=4",
         "trainer.steps=16", "lr_schedule.warmup_steps=2", "trainer.validate_tokens=4K", "tune.sizes=[1x64]",
         "tune.horizons=[0.25,1]", "tune.shortest=4", "trainer.precision=32-true", "trainer.device=cpu")  # fmt: skip


def configured(root: str, target: str, small: bool) -> Config:
    words = [*WORDS, *TARGETS[target].words, *(SMALL if small else ())]
    return compose([*words, f"store.root='{root}'"]).config


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
        prepared = prepare(configured(f"{scratch}/store", "6x256", small=False), Silent())
        print(
            f"{prepared.train.tokens:,} tokens to train on, {prepared.validation.tokens if prepared.validation else 0:,} to validate"
        )
        with tarfile.open(archive, "w:xz") as tar:
            for part in ("tokens", "tokenizers"):
                tar.add(f"{scratch}/store/{part}", part)


def rates_of(target: Target, shape: RungShape, config: Config) -> list[float]:
    """Two more low or high rates than at the target are left out for smaller models, whose optima lie higher."""
    low = target.low
    high = target.high
    if shape.config.model != config.model:
        low, high = low + 3, high + 1
    return [float(f"{1e-3 * 2 ** (step / 2):.4g}") for step in range(low, high + 1)]


def jobs_of(config: Config, target: Target, small: bool) -> list[tuple[RungShape, float, int]]:
    """The target with its first two seeds, then rungs from the nearest to the furthest, then further seeds."""
    full = target_shape(config)
    shapes = sorted(trial_shapes(config), key=lambda one: -one.parameters * one.rung(0.0).tokens)
    shapes = [one for one in shapes if not same_run(one, full)]
    pick = slice(None, None, 4) if small else slice(None)
    rates = rates_of(target, full, config)[pick]
    jobs = [(full, rate, seed) for seed in (0, 1) for rate in rates]
    jobs += [(shape, rate, 0) for shape in shapes for rate in rates_of(target, shape, config)[pick]]
    return jobs + [(full, rate, seed) for seed in range(2, target.seeds) for rate in rates]


def same_run(one: RungShape, other: RungShape) -> bool:
    return one.config.model == other.config.model and one.config.trainer.steps == other.config.trainer.steps


def run_grid(config: Config, name: str, small: bool, options: GridOptions) -> None:
    """Run the grid, and write what is there after every run: a call that is cut off keeps what it has."""
    from skytrain.pipelines.tune import dry_run

    began = time.monotonic()
    shapes = [*trial_shapes(config), target_shape(config)]
    workers = start_workers(config, name, small, options.workers) if options.workers > 1 else None
    dry_run(shapes[-1].config, Silent())  # the first run of a process loads the GPU's libraries
    estimates: dict[str, Any] = {}
    for shape in shapes:
        model = shape.config.model.name
        if model not in estimates:
            estimates[model] = asdict(dry_run(shape.config, Silent()))
            print(f"{time.monotonic() - began:.0f} s: {model}: {estimates[model]}", flush=True)
    found: dict[str, Any] = {"target": name, "small": small, "workers": options.workers, "estimates": estimates}
    rows: list[dict[str, Any]] = []

    def keep(number: int, row: dict[str, Any]) -> None:
        rows.append(row)
        if options.out is not None:
            text = json.dumps({**found, "rows": timed_alone(rows)}, indent=None)
            options.out.write_text(text.replace("}, {", "},\n {") + "\n")
        shown = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
        about = f"{row['rung']} {row['rate']:.4g} #{row['seed']}: {shown}, {row['seconds']:.1f} s"
        print(f"{time.monotonic() - began:.0f} s, run {number}: {about}", flush=True)

    jobs = list(enumerate(jobs_of(config, TARGETS[name], small), 1))
    if workers is None:
        grid_runner = GridRunner(config)
        while jobs and time.monotonic() - began + 1.2 * longest(rows) <= options.seconds:
            number, job = jobs.pop(0)
            keep(number, grid_runner.run(number, job))
    else:
        alone = len(rates_of(TARGETS[name], shapes[-1], config)[:: 4 if small else 1]) // 2
        number, job = jobs.pop(alone)  # the middle rate of the target's first seed, which does not diverge
        keep(number, {**GridRunner(config).run(number, job), "alone": True})
        for number, row in workers.rows([number for number, _ in jobs], began + options.seconds):
            keep(number, row)
        jobs = jobs[len(rows) - 1 :]
    if jobs:
        print(f"stopped before run {jobs[0][0]}: {options.seconds:.0f} s are over", flush=True)


@dataclass(frozen=True)
class GridOptions:
    """Where a grid is written, how long it may take, and how many processes share the GPU."""

    out: Path | None
    seconds: float
    workers: int


def longest(rows: list[dict[str, Any]]) -> float:
    return max((row["seconds"] for row in rows), default=0.0)


def timed_alone(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the seconds that they would have taken alone, by the target's run that had the GPU for itself."""
    whole = [row for row in rows if row["rung"] == "target" and row["loss"] is not None]
    alone = [row["seconds"] for row in whole if "alone" in row]
    shared = [row["seconds"] for row in whole if "alone" not in row]
    factor = float(np.mean(shared)) / alone[0] if alone and shared else 1.0
    return [
        row if "alone" in row or not alone else {**row, "seconds": round(row["seconds"] / factor, 3), "shared": row["seconds"]}
        for row in rows
    ]  # fmt: skip


class GridRunner:
    """Runs of a grid in this process."""

    def __init__(self, config: Config) -> None:
        from skytrain.pipelines.tune import LocalRunner

        shapes = [*trial_shapes(config), target_shape(config)]
        sweep = SweepStore(open_store(config.store), "grid")
        self._runner = LocalRunner(sweep, shapes, HourlyPrice(USD_PER_HOUR, 0.1), Silent())

    def run(self, number: int, job: tuple[RungShape, float, int]) -> dict[str, Any]:
        shape, rate, seed = job
        result = self._runner.run(number, Trial(shape.name, rate, seed), 100.0)
        loss = result.loss if result.loss is not None and math.isfinite(result.loss) else None
        return {"rung": shape.name, "rate": rate, "seed": seed, "loss": loss, "seconds": round(result.seconds, 3)}


@dataclass(frozen=True)
class Workers:
    """Processes that share the GPU."""

    processes: list[Any]
    asked: Any  # numbers of runs; None ends a process
    told: Any  # (number, row)

    def rows(self, numbers: list[int], until: float) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield rows as they end. A run is asked for when a process is free, unless it may end too late."""
        seconds: list[dict[str, Any]] = []
        running = 0
        waiting = list(numbers)
        while True:
            while waiting and running < len(self.processes) and time.monotonic() + 1.2 * longest(seconds) <= until:
                self.asked.put(waiting.pop(0))
                running += 1
            if not running:
                break
            number, row = self._next()
            running -= 1
            seconds.append(row)
            yield number, row
        for _ in self.processes:
            self.asked.put(None)
        for process in self.processes:
            process.join(20)

    def _next(self) -> tuple[int, dict[str, Any]]:
        while True:
            try:
                return self.told.get(timeout=5)
            except queue.Empty:
                dead = [process.exitcode for process in self.processes if not process.is_alive()]
                if dead:
                    raise SystemExit(f"a process of the grid ended with exit code {dead[0]}") from None


def start_workers(config: Config, name: str, small: bool, count: int) -> Workers:
    """Start processes that load torch now, and use the GPU from their first run on."""
    processes = multiprocessing.get_context("spawn")
    asked, told = processes.Queue(), processes.Queue()
    arguments = (str(config.store.root), name, small, asked, told)
    started = [processes.Process(target=work, args=arguments, daemon=True) for _ in range(count)]
    for process in started:
        process.start()
    return Workers(started, asked, told)


def work(root: str, name: str, small: bool, asked: Any, told: Any) -> None:
    import skytrain.training  # noqa: F401 - loads torch while the first process measures

    config = configured(root, name, small)
    jobs = dict(enumerate(jobs_of(config, TARGETS[name], small), 1))
    runner = GridRunner(config)
    while (number := asked.get()) is not None:
        told.put((number, runner.run(number, jobs[number])))


class Recorded:
    """Looks trials up in a grid, and charges what they took."""

    def __init__(self, rows: list[dict[str, Any]], price: HourlyPrice) -> None:
        self._price = price
        self._rows = {(row["rung"], row["rate"]): row for row in rows if row["seed"] == 0}

    def run(self, number: int, trial: Trial, limit_usd: float) -> TrialResult:
        row = self._rows[trial.rung, trial.rate]
        loss = math.inf if row["loss"] is None else row["loss"]
        return TrialResult(loss, self._price.charged(row["seconds"]), row["seconds"], {})


def problem_of(found: dict[str, Any], config: Config, price: HourlyPrice) -> tuple[Problem, list[dict[str, Any]]]:
    """The search as `skytrain tune` sets it up, with the rates that the grid has; and the grid's rows by its rungs."""
    full = target_shape(config)
    shapes = trial_shapes(config)
    own = next((one.name for one in shapes if same_run(one, full)), None)
    rows = [{**row, "rung": own if row["rung"] == full.name else row["rung"]} for row in found["rows"]]

    def usd(shape: RungShape) -> tuple[float, float, float]:
        estimate = StepEstimate(**found["estimates"][shape.config.model.name])
        about = (shape.config, shape.parameters, price)
        return estimate.usd(*about), *estimate.probable_usd(*about)

    rungs = []
    for shape in shapes:
        rates = sorted({row["rate"] for row in rows if row["rung"] == shape.name and row["seed"] == 0})
        if len(rates) >= LEAST_RATES:
            rungs.append(replace(shape.rung(*usd(shape)), rates=tuple(rates)))
    return make_problem(config, full.rung(*usd(full)), rungs), rows


def play(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Every strategy at every budget."""
    rows = []
    price = HourlyPrice(USD_PER_HOUR, 0.1)
    with tempfile.TemporaryDirectory() as scratch:
        config = configured(scratch, found["target"], found["small"])
        problem, runs = problem_of(found, config, price)
        run_usd = problem.target.usd / (1 + price.margin)  # as the ledger reserves it; it then costs less
        for budget in BUDGETS:
            for name in ("ladder", *sorted(set(all_strategies()) - {"ladder"}), *HYBRIDS):
                store = open_store(config.store)
                sweep = SweepStore(store, f"{name.replace('+', '-')}-{budget:g}")
                ledger = Ledger(store, sweep.folder, budget * run_usd)
                setup = SweepSetup(
                    sweep=sweep,
                    ledger=ledger,
                    problem=problem,
                    strategy=find_strategy(name),
                    runner=Recorded(runs, price),
                    final_usd=0.0,
                )
                try:
                    answer = run_sweep(setup)
                except ValueError as error:  # such as: the budget buys no trial
                    rows.append({"strategy": name, "budget": budget, "why": str(error).splitlines()[0]})
                    continue
                history = sweep.history()
                rows.append(
                    {"strategy": name, "budget": budget, "trials": len(history), "usd": ledger.spent_usd, "answer": asdict(answer),
                     "history": [[one.trial.key, one.loss if one.finite else None, one.usd] for one in history.values()]}
                )  # fmt: skip
    return rows


def truth_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["rung"] == "target"]


@dataclass(frozen=True)
class Truth:
    """What the target's runs say."""

    by_rate: dict[float, list[float]]
    curve: RungCurve
    sigma: float
    error: float
    seconds: float

    @classmethod
    def of(cls, found: dict[str, Any]) -> Truth:
        rows = [{**row, "loss": math.inf if row["loss"] is None else row["loss"]} for row in truth_rows(found)]
        rates = sorted({row["rate"] for row in rows})
        by_rate = {rate: [row["loss"] for row in rows if row["rate"] == rate] for rate in rates}
        finite = {rate: losses for rate, losses in by_rate.items() if all(map(math.isfinite, losses))}
        best = min(finite, key=lambda rate: float(np.mean(finite[rate])))
        # Seeds scatter more where training is unstable; the minimum's error comes from the runs around it.
        near = [losses for rate, losses in finite.items() if 1 / NEAR < rate / best < NEAR and len(losses) > 1]
        sigma = math.sqrt(float(np.mean([np.var(losses, ddof=1) for losses in near])))
        target = replace(target_shape(configured("/nowhere", found["target"], found["small"])).rung(1.0), name="target")
        priors = Priors(lambda rung: math.log(best), offset=1.0, curvature=0.1, curvature_offset=1.5)
        problem = Problem(
            target=target,
            rungs=(target,),
            lowest=rates[0] / 4,
            highest=rates[-1] * 4,
            priors=priors,
            noise=max(sigma, 5e-4),
        )
        history = [Observation(Trial("target", row["rate"], row["seed"]), row["loss"], 0.0) for row in rows]
        curve = fit_jointly(problem, history).curves[0]
        error = sigma / math.sqrt(sum(map(len, near)))
        return cls(
            by_rate=by_rate,
            curve=curve,
            sigma=sigma,
            error=error,
            seconds=float(np.mean([row["seconds"] for row in rows])),
        )

    @property
    def limit(self) -> float:
        return 0.005 + 2 * self.error

    def regret(self, rate: float) -> float:
        return float(self.curve.loss(np.array(rate)) - self.curve.floor)


def report(found: dict[str, Any], plots: Path | None) -> str:
    """The fitted U of the target, and each strategy's distance from its minimum."""
    truth = Truth.of(found)
    played = play(found)
    curve = truth.curve
    runs = sum(map(len, truth.by_rate.values()))
    lines = [f"{found['target']}: {len(found['rows'])} runs, {runs} of the target, {truth.seconds:.1f} s each"]
    lines += [f"  {rate:.4g}: " + " ".join(f"{loss:.4f}" for loss in losses) for rate, losses in truth.by_rate.items()]
    lines.append(
        f"fitted optimum {curve.optimum:.3g} ({curve.low:.3g} to {curve.high:.3g}), loss {curve.floor:.4f}, curvature {curve.curvature:.3f}"
    )
    lines.append(f"deviation of seeds within a factor of {NEAR} of the best rate: {truth.sigma:.4f} nats")
    lines.append(f"limit for ours: 0.005 + two standard errors of {truth.error:.4f} = {truth.limit:.4f} nats")
    lines.append(f"{'':24} {'runs':>5} {'trials':>7} {'dollars':>8} {'rate':>9} {'80% interval':>20} {'regret':>8}")
    for row in played:
        start = f"{row['strategy']:24} {row['budget']:>5g}"
        if "answer" not in row:
            lines.append(f"{start} {row['why']}")
            continue
        answer = row["answer"]
        regret = truth.regret(answer["rate"])
        span = f"{answer['low']:.2g} to {answer['high']:.2g}" if answer["low"] else "-"
        mark = ""
        if row["strategy"] == "ladder":
            mark = "  within the limit" if regret <= truth.limit else "  OVER the limit"
        lines.append(
            f"{start} {row['trials']:>7} {row['usd']:>8.4f} {answer['rate']:>9.3g} {span:>20} {regret:>8.4f}{mark}"
        )
        if row["strategy"] == "ladder":
            lines += [f"    {key}: {'diverged' if loss is None else f'{loss:.4f}'}" for key, loss, _ in row["history"]]
    if plots is not None:
        draw(found, truth, played, plots)
    return "\n".join(lines)


def draw(found: dict[str, Any], truth: Truth, played: list[dict[str, Any]], folder: Path) -> None:
    """The curves of the target's model, and each strategy's regret over its budget."""
    name = found["target"]
    dots = [(rate, loss) for rate, losses in truth.by_rate.items() for loss in losses if math.isfinite(loss)]
    grid = np.geomspace(min(truth.by_rate), max(truth.by_rate), 60)
    fit = [(float(rate), float(loss)) for rate, loss in zip(grid, truth.curve.loss(grid), strict=True)]
    layers = [PlotLayer("target, all seeds", dots, "dots", 0), PlotLayer("fitted", fit, "dashes", 0)]
    shorter = sorted(
        {row["rung"] for row in found["rows"] if row["rung"].startswith(f"{name}-")},
        key=lambda one: -int(one.rpartition("-")[2]),
    )
    for number, rung in enumerate(shorter, 1):
        points = [
            (row["rate"], row["loss"]) for row in found["rows"] if row["rung"] == rung and row["loss"] is not None
        ]
        layers.append(PlotLayer(f"{rung.rpartition('-')[2]} steps", sorted(points), "line", number))
    plot = Plot(f"{name}: validation loss over the rate", "learning rate", "nats", layers, log_x=True)
    (folder / f"tuning-h200-{name}-losses.svg").write_text(plot.svg())
    layers = []
    for number, strategy in enumerate(
        ("ladder", "literature", "early-stopping", "hyperband", "data-scaling", "model-scaling")
    ):
        rows = [row for row in played if row["strategy"] == strategy and "answer" in row]
        points = [(row["budget"], 1e3 * truth.regret(row["answer"]["rate"])) for row in rows]
        layers.append(PlotLayer(strategy, points, "line", number))
    layers.append(PlotLayer("limit", [(budget, 1e3 * truth.limit) for budget in BUDGETS], "dashes", 6))
    plot = Plot(
        f"{name}: regret over the search's budget",
        "target runs",
        "thousandths of a nat",
        layers,
        log_x=True,
        log_y=True,
    )
    (folder / f"tuning-h200-{name}-regret.svg").write_text(plot.svg())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["prepare", "grid", "report"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--target", choices=sorted(TARGETS), default="4x192")
    parser.add_argument("--seconds", type=float, default=520.0, help="no run is started that may end later")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the GPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plots", type=Path, help="folder for the report's SVG files")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare_archive(arguments.files[0].absolute(), arguments.files[1].absolute())
        return
    if arguments.part == "report":
        print("\n\n".join(report(json.loads(path.read_text()), arguments.plots) for path in arguments.files))
        return
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(arguments.files[0]) as tar:
            tar.extractall(scratch, filter="data")
        config = configured(scratch, arguments.target, arguments.small)
        options = GridOptions(arguments.out, arguments.seconds, arguments.workers)
        run_grid(config, arguments.target, arguments.small, options)


if __name__ == "__main__":
    main()
