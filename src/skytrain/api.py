"""The Python API: the commands as functions, and a run as an object.

    import skytrain

    base = skytrain.compose("recipe=quickstart", "trainer.steps=100")
    skytrain.prepare(base)
    run = skytrain.train(base, "optimizer.lr=2e-3")
    print(run.metrics()["train/loss"].dropna().iloc[-1], run.generate("Return the"))

Settings are words as on the command line. A function takes words, what `compose` returned, or both: later words win.
Nothing is imported before it is used, so `compose`, `plan` and `load_run` need no torch.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .config import EXIT_CODES, Composed, MissingExtra, SkytrainError, visible
from .runs import Reporter, Silent, Start, boot_clock

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from .checkpoints import Commit
    from .evaluation import LossReport, ModelResults
    from .runs import RunRecord, RunStatus
    from .storage import Store
    from .targets import Planned
    from .tokens import Prepared, TokenDataModule, Tokenizer
    from .training import CausalLM
    from .tuning import TunedSweep

Settings = str | Composed
Market = Literal["spot", "on-demand"]
LAST_LINES = 15  # of a failed job's output, in the error
RESUMABLE = (EXIT_CODES["budget"], EXIT_CODES["interrupted"])


def compose(*settings: Settings, config_dirs: str | Path | Sequence[str | Path] = ()) -> Composed:
    """Return the checked configuration: `.config.trainer.steps`, `.origins` of every value, `.overrides`.

    `config_dirs` is a folder with groups of your own, such as `recipe/mine.yaml`, or several.
    """
    return _compose(settings, [config_dirs] if isinstance(config_dirs, str | Path) else config_dirs)


def prepare(*settings: Settings, quiet: bool = False) -> Prepared:
    """Turn text into token shards in the store, and return what is there now. Finished work is used again."""
    from .pipelines.prepare import prepare as pipeline

    config = _compose(settings).config
    with _Progress(quiet) as reporter:
        return pipeline(config, reporter)


def train(
    *settings: Settings,
    processes: int = 1,
    source: str | None = None,
    weights_only: bool = False,
    at_step: int | None = None,
    allow_changes: bool = False,
    quiet: bool = False,
) -> Run:
    """Train on prepared data, or resume: the same call again continues from the last checkpoint.

    One process is this one; in a script under torchrun every rank calls this. With more `processes` the job runs as
    `skytrain train --processes N` does, and its output is relayed. `source` is what `--from` names, such as `RUN@STEP`.

    A run that was interrupted, or stopped by its budget, is returned: look at its `status()`.
    """
    from .runs import run_name

    if processes < 1:
        raise SkytrainError(f"processes={processes}: must be at least 1")
    composed = _compose(settings, start=source)
    start = Start(source, weights_only, at_step)
    if processes > 1:
        name = run_name(composed.config, start)
        _run_job(composed, start, processes, allow_changes, quiet)
        return load_run(name, composed)
    from .pipelines.train import train as pipeline

    with _Progress(quiet) as reporter:
        trained = pipeline(composed.config, reporter, start, allow_changes=allow_changes, given=composed.given)
        reporter.note(trained.summary())
    return load_run(trained.run, composed)


def plan(
    *settings: Settings,
    instance: str | None = None,
    nodes: int | None = None,
    region: str | None = None,
    market: Market | None = None,
    deadline_hours: float | None = None,
    mesh: str | None = None,
    out: str | Path | None = None,
) -> Planned:
    """Return the offers for a run with hours and dollars, and the cheapest one within `budget.usd` and the deadline.

    `.rows()` is the table of offers, `.choice` the chosen one, `.why` the reason. Raises SkytrainError where no offer
    is within the limits. With `out` the plan is written, for `skytrain launch --plan`. Rents nothing; no network.
    """
    import tempfile

    from .planning import PlanRequest
    from .targets import Trials, compose_plan, plan_run, target_of

    words, folders = _words(settings)
    composed, open_mesh = compose_plan(words, folders, mesh)
    request = PlanRequest(
        budget_usd=composed.config.budget.usd,
        deadline_hours=deadline_hours,
        instance=instance,
        nodes=nodes,
        region=region,
        market=market,
        target=target_of(composed.config).priced,
    )
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, request, Trials(0, 1), Path(out or Path(folder) / "plan.json"))
    if planned.refusal is not None:
        raise planned.refusal
    return planned


def tune(*settings: Settings, quiet: bool = False) -> TunedSweep:
    """Find the learning rate that `budget.usd` buys. The same call again continues the sweep.

    `.conclusion.answer` has the rate with its interval, `.history` the trials, `.final_overrides` the settings of the
    final run.
    """
    from .pipelines.tune import tune as pipeline

    began = boot_clock()  # a notebook may be hours old, and those are not the sweep's
    config = _compose(settings).config
    with _Progress(quiet) as reporter:
        return pipeline(config, reporter, began)


def evaluate(
    source: str | None = None,
    *settings: Settings,
    split: Literal["train", "validation"] = "validation",
    tokens: int | None = None,
    precision: str | None = None,
    quiet: bool = True,
) -> LossReport:
    """Return loss, perplexity and bits per byte of a model on a split.

    `source` is a run, `RUN@STEP`, a folder in Hugging Face's layout or a repository; None is the newest run.
    """
    from .pipelines.evaluate import LossRequest, evaluate as pipeline

    config = _compose(settings).config
    request = LossRequest(source, split, None if tokens is None else str(tokens), precision)
    with _Progress(quiet) as reporter:
        return pipeline(config, request, reporter)[1]


def evaluate_tasks(
    *sources: str, tasks: Sequence[str], settings: Sequence[Settings] = (), quiet: bool = True
) -> list[ModelResults]:
    """Return the results of downstream tasks such as `hellaswag`, one entry for each model."""
    from .pipelines.evaluate import TasksRequest, evaluate_tasks as pipeline

    config = _compose((*settings, f"evaluation.tasks=[{','.join(tasks)}]")).config
    with _Progress(quiet) as reporter:
        return list(pipeline(config, TasksRequest(sources), reporter))


def generate(
    prompt: str,
    source: str | None = None,
    *settings: Settings,
    max_tokens: int = 128,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    precision: str | None = None,
) -> str:
    """Return the text that a model continues the prompt with, without the prompt. The same seed gives the same text."""
    from .evaluation import Sampling
    from .pipelines.generate import generate as pipeline

    config = _compose(settings).config
    sampling = Sampling(temperature, top_k, top_p, seed)
    return "".join(pipeline(config, source, prompt, sampling, max_tokens=max_tokens, precision=precision))


def load_run(name: str | None = None, *settings: Settings) -> Run:
    """Return a run of the store by its name; None is the newest one with a checkpoint.

    The store is a setting: `load_run("my-run", "store=s3", "store.root=s3://bucket/project")`.
    """
    from .checkpoints import find_run
    from .storage import open_store

    composed = _compose(settings)
    store = open_store(composed.config.store)
    return Run(find_run(store, name).name, store, composed)


def list_runs(*settings: Settings) -> list[str]:
    """Return the names of all runs of a store; none where nothing has been trained yet."""
    from .runs import NoRuns, run_names
    from .storage import open_store

    try:
        return list(run_names(open_store(_compose(settings).config.store)))
    except NoRuns:
        return []


@dataclass(frozen=True)
class Run:
    """A run in a store. Everything is read when it is asked for, so it is current while the run trains elsewhere."""

    name: str
    store: Store
    composed: Composed

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.url!r})"

    @property
    def url(self) -> str:
        """Return the address of the run's folder in the store."""
        return self.store.url(f"runs/{self.name}")

    @property
    def record(self) -> RunRecord:
        """Return the run's record: settings, data, code, hardware, lineage."""
        from .runs import load_run as load_record

        return load_record(self.store, self.name)

    def status(self) -> RunStatus:
        """Return state, step, loss, speed, dollars and attempts, as `skytrain status` shows them."""
        from .targets import status

        return status(self.composed.config, self.name)[0]

    def records(self) -> list[dict[str, Any]]:
        """Return every record of metrics in order of step, as plain dictionaries."""
        from .runs import read_metrics

        return read_metrics(self.store, self.name)

    def metrics(self) -> pandas.DataFrame:
        """Return the metrics as a table: a row for each step, a column for each metric, NaN where it was not measured.

        Needs pandas: `pip install 'skytrain[notebook]'`.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "notebook") from None

        rows: dict[int, dict[str, Any]] = {}
        for record in self.records():
            rows.setdefault(record["step"], {}).update(record)
        if not rows:
            return pandas.DataFrame(index=pandas.Index([], name="step", dtype="int64"))
        return pandas.DataFrame(list(rows.values())).set_index("step").sort_index()

    def checkpoints(self) -> list[Commit]:
        """Return the committed checkpoints, the oldest first."""
        from .checkpoints import committed

        return committed(self.store, self.name)

    def checkpoint(self, step: int | None = None) -> Commit:
        """Return the checkpoint of a step, or the newest one: its `step`, its `key` in the store, its `attempt`."""
        from .checkpoints import choose_commit

        return choose_commit(self.store, self.name, "" if step is None else str(step))

    def model(self, step: int | None = None) -> nn.Module:
        """Return the model with the weights of a checkpoint, in float32 on the CPU and in evaluation mode.

        `forward(tokens) -> logits`. What the record names as code must be named by your own settings, too.
        """
        from .checkpoints import load_model

        return load_model(self.store, f"{self.name}@{self.checkpoint(step).step}").model

    def tokenizer(self) -> Tokenizer:
        """Return the run's tokenizer: `encode_prompt(text)` gives ids, `decode(ids)` gives text."""
        from .checkpoints import recorded_tokenizer

        return recorded_tokenizer(self.store, self.record)

    def evaluate(self, step: int | None = None, *, tokens: int | None = None) -> LossReport:
        """Return the loss on the validation split of the data that the run was trained on."""
        return evaluate(self._source(step), self.composed, tokens=tokens)

    def generate(
        self,
        prompt: str,
        step: int | None = None,
        *,
        max_tokens: int = 128,
        temperature: float = 0.8,
        seed: int = 0,
    ) -> str:
        """Return the continuation of a prompt. Another seed gives another text."""
        source = self._source(step)
        return generate(prompt, source, self.composed, max_tokens=max_tokens, temperature=temperature, seed=seed)

    def export(self, folder: str | Path, step: int | None = None) -> Path:
        """Write the model and its tokenizer in Hugging Face's layout, in bf16, to a new folder; return the folder."""
        from .pipelines.export import ExportRequest, export

        export(self.composed.config, ExportRequest(self._source(step), Path(folder)))
        return Path(folder)

    def _source(self, step: int | None) -> str:
        return self.name if step is None else f"{self.name}@{step}"


# For a Lightning Trainer of your own.


def data_module(*settings: Settings) -> TokenDataModule:
    """Return the prepared data as a LightningDataModule, in the order that `train` would use."""
    from .storage import open_store
    from .training import open_data, plan_training

    config = _with_micro_batch(_compose(settings)).config
    return open_data(config, plan_training(config), open_store(config.store))


def lightning_module(*settings: Settings, model: nn.Module | None = None) -> CausalLM:
    """Return the LightningModule with model, loss, optimizer and schedule; `model` replaces the configured one.

    It logs `train/loss` each step, and `val/loss` whenever your Trainer validates.
    """
    from .models import build_model
    from .training import make_module, plan_training, with_precision

    config = with_precision(_with_micro_batch(_compose(settings)).config)
    if config.trainer.ema_decay is not None:
        raise SkytrainError(
            "trainer.ema_decay: `train` saves and evaluates the average of the weights, a Trainer of your own does not\n"
            "  set trainer.ema_decay=null, and add Lightning's own WeightAveraging callback"
        )
    built = build_model(config.model, seed=config.seed) if model is None else model
    module = make_module(config, plan_training(config), built, lambda _: None)
    module.logs = True
    return module


def trainer_options(*settings: Settings, devices: int = 1) -> dict[str, Any]:
    """Return what a `lightning.Trainer` on `devices` devices must be told so that a step is a step of `train`.

    `Trainer(**skytrain.trainer_options(base))`: steps, accumulation, precision, and that the data module splits
    batches over the ranks itself.
    """
    from .training import plan_training, with_precision

    if devices < 1:
        raise SkytrainError(f"devices={devices}: must be a number of devices, at least 1")
    config = with_precision(_with_micro_batch(_compose(settings)).config)
    plan = plan_training(config)
    together = plan.micro_batch * devices
    batches = plan.batches.in_sequences(config.trainer.sequence_length)
    uneven = next((size for size in batches.sizes(plan.total_steps) if size % together), None)
    if uneven is not None:
        raise SkytrainError(
            f"a batch of {uneven} sequences does not divide into micro-batches of {plan.micro_batch} on "
            f"{devices} devices\n  set another trainer.batch_tokens or trainer.micro_batch"
        )
    return {
        "max_steps": plan.stop_step,
        "max_epochs": -1,
        "accumulate_grad_batches": batches.at(0) // together,
        "precision": config.trainer.compute_precision,
        "use_distributed_sampler": False,
        "devices": devices,
        "accelerator": "gpu" if plan.device == "cuda" else "cpu",
    }


def _with_micro_batch(composed: Composed) -> Composed:
    """Check what only `train` resolves."""
    if composed.config.trainer.micro_batch is None:
        raise SkytrainError(
            "trainer.micro_batch=auto is measured by `train`\n  add a number of sequences: trainer.micro_batch=8"
        )
    return composed


def _words(settings: Sequence[Settings], config_dirs: Sequence[str | Path] = ()) -> tuple[list[str], list[Path]]:
    """Return the words of all settings in order, and the folders of groups."""
    words: list[str] = []
    folders = [Path(folder) for folder in config_dirs]
    for each in settings:
        if isinstance(each, Composed):
            words += each.overrides
            folders += [folder for folder in each.config_dirs if folder not in folders]
        elif isinstance(each, str) and "=" in each:
            words.append(each)
        else:
            raise SkytrainError(
                f"{each!r} is not a setting\n  settings are words such as 'trainer.steps=100', or the result of compose()"
            )
    return words, folders


def _compose(
    settings: Sequence[Settings], config_dirs: Sequence[str | Path] = (), start: str | None = None
) -> Composed:
    if len(settings) == 1 and isinstance(settings[0], Composed) and not config_dirs and start is None:
        return settings[0]
    from .pipelines.compose import compose_overrides

    words, folders = _words(settings, config_dirs)
    return compose_overrides(words, folders, start)


class _Progress:
    """The reporter of a call: progress on stderr, or nothing."""

    def __init__(self, quiet: bool) -> None:
        from .report import Console

        self._console = None if quiet else Console()

    def __enter__(self) -> Reporter:
        return self._console or Silent()

    def __exit__(self, *_: object) -> None:
        if self._console is not None:
            self._console.close()


def _run_job(composed: Composed, start: Start, processes: int, allow_changes: bool, quiet: bool) -> None:
    """Run `skytrain train` with several processes; relay its output, since a notebook shows only its own."""
    options = [word for folder in composed.config_dirs for word in ("--config-dir", str(folder))]
    options += [*start.options(), *(["--allow-changes"] if allow_changes else []), "--processes", str(processes)]
    command = [sys.executable, "-m", "skytrain", "train", *composed.overrides, *options]
    last: deque[str] = deque(maxlen=LAST_LINES)
    # A session of its own: an interrupt reaches this process, which passes it on once.
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    assert job.stdout is not None
    while True:
        try:
            for line in job.stdout:
                last.append(line)
                if not quiet:
                    sys.stderr.write(visible(line))
                    sys.stderr.flush()
            code = job.wait()
            break
        except KeyboardInterrupt:
            job.send_signal(signal.SIGINT)
    if code and code not in RESUMABLE:
        raise SkytrainError(f"skytrain train ended with exit code {code}\n{''.join(last).rstrip()}")
