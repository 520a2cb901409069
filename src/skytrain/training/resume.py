"""Where a run goes on: at its own newest checkpoint; before it has one, at what it was told to start from, or at nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..checkpoints import (
    Commit,
    choose_commit,
    committed,
    find_commit,
    load_weights,
    newest_whole,
    open_checkpoint,
    read_manifest,
)
from ..config import Config, DecoderConfig, SkytrainError
from ..jobs import Supervision
from ..models import build_model, count_parameters
from ..runs import (
    RunRecord,
    Start,
    claim_attempt,
    config_changes,
    create_run,
    last_metrics,
    load_run,
    new_record,
    other_changes,
    plain,
    record_resume,
    run_name,
    save_run,
)
from ..storage import Store, open_store
from ..tokens import Prepared
from .checkpointing import check_lineage
from .factory import TrainingPlan, device_name, outline


@dataclass(frozen=True)
class Beginning:
    """What is restored before the first step of an attempt."""

    step: int = 0
    key: str | None = None  # a checkpoint's folder, restored whole
    own: bool = False  # that checkpoint is the run's own newest
    weights_key: str | None = None  # a checkpoint's folder whose weights alone are taken
    weights: str | None = None  # another program's folder or file, which holds weights and nothing else
    store_root: str | None = None  # of the store that the checkpoint is in, where that is not the run's own
    label: str = ""
    changes: tuple[str, ...] = ()  # what decides numbers, and was other in the run that the checkpoint is of
    warnings: tuple[str, ...] = ()  # what was lost
    commit: Commit | None = None  # the run's own checkpoint, found whole

    def source(self, store: Store) -> Store:
        return store if self.store_root is None else open_store(self.store_root).patient(store.patience_seconds)


@dataclass(frozen=True)
class Attempt:
    """What the first rank has settled for all of them: which run, which attempt at it, and where it goes on."""

    record: RunRecord
    number: int
    beginning: Beginning
    changes: list[str]  # a line for each setting that differs from what was before

    @property
    def run(self) -> str:
        return self.record.name


def data_hashes(prepared: Sequence[Prepared]) -> dict[str, str]:
    """By split, the hash of its manifest, which holds that of every shard."""
    return {
        each.prefix(manifest.split): hashlib.sha256(manifest.to_bytes()).hexdigest()
        for each in prepared
        for manifest in (each.train, each.validation)
        if manifest
    }


def find_changes(config: Config, store: Store, start: Start, data: Mapping[str, str], allow_changes: bool) -> list[str]:
    """A line for each setting, and each split of the data, that has changed since the run of this name was begun.

    What decides the numbers may not change under a run's name, unless it is allowed.
    """
    name = run_name(config, start)
    if not store.exists(f"runs/{name}/run.json"):
        return []
    record, now = load_run(store, name), plain(config)
    # How the data is found may change: what was found is compared.
    changes = [line for line in config_changes(record.config, now) if not line.startswith("data.version:")]
    changes += [
        f"data: {split}: {record.data.get(split, 'none')[:12]} -> {data.get(split, 'none')[:12]}"
        for split in sorted({*record.data, *data})
        if record.data.get(split) != data.get(split)
    ]
    if start.source and record.started_from != start.label:
        changes.append(f"--from: {record.started_from!r} -> {start.label!r}")
    if changes and not allow_changes:
        lines = "\n".join(f"  {line}" for line in changes)
        raise SkytrainError(
            f"run {name!r} was begun with other settings:\n{lines}\n"
            "  choose another name with run=NAME, leave run out and a name is made, or go on as another training with --allow-changes"
        )
    changed = [*changes, *other_changes(record.config, now)]
    return [f"changed since the run began: {line}" for line in changed]


def open_run(
    config: Config, store: Store, prepared: Sequence[Prepared], model: nn.Module, plan: TrainingPlan, start: Start
) -> RunRecord:
    """The run of this name with its settings and hardware as they are now, or a new one."""
    name = run_name(config, start)
    hardware = {"device": device_name(plan.device), "torch": torch.__version__, "threads": torch.get_num_threads()}
    if store.exists(f"runs/{name}/run.json"):
        record = load_run(store, name)
        return dataclasses.replace(record, config=plain(config), data=data_hashes(prepared), hardware=hardware)
    return new_record(
        config,
        name=name,
        data=data_hashes(prepared),
        tokenizer_id=prepared[0].tokenizer_id,
        parameters=count_parameters(model),
        hardware=hardware,
        started_from=start.label if start.source else None,
    )


def find_beginning(config: Config, store: Store, run: str, start: Start, checked: Beginning | None = None) -> Beginning:
    """The run's own newest checkpoint comes first, so that the same command continues what it began.

    `checked`: what this found before, whose checkpoint need not be verified again.
    """
    own = committed(store, run)
    if own and start.fall_back:
        return _newest_whole(store, own, checked.commit if checked else None)
    if own:
        return Beginning(own[-1].step, own[-1].key, own=True, label=f"step {own[-1].step}")
    if start.source is None:
        return Beginning()
    if Path(start.source).is_file() or (Path(start.source) / "config.json").is_file():
        # A folder of Hugging Face's, or a file of llm.c's: it holds weights and nothing else.
        return Beginning(start.at_step or 0, weights=start.source, label=start.label)
    other, name, step_text = _our_checkpoint(config, store, start.source)
    record = load_run(other, name)
    commit = choose_commit(other, record.name, step_text)
    step, label = commit.step, f"{name}@{commit.step}"
    elsewhere = other.root if other.root != store.root else None
    if start.weights_only:
        return Beginning(start.at_step or 0, weights_key=commit.key, store_root=elsewhere, label=f"{label}, weights")
    if start.at_step is not None:
        raise SkytrainError(
            f"--at-step {start.at_step}: {label} knows its own step, {step}\n  add --weights-only to take its weights to another"
        )
    changes = tuple(f"other than in {label}: {line}" for line in config_changes(record.config, plain(config)))
    return Beginning(step, commit.key, store_root=elsewhere, label=label, changes=changes)


def _newest_whole(store: Store, own: Sequence[Commit], known: Commit | None) -> Beginning:
    commit, damaged = newest_whole(store, own, known)
    step, warnings = commit.step, damaged
    if damaged:
        lost = f"steps {step + 1} to {own[-1].step} are lost, and trained again"
        warnings = [*damaged, f"--fall-back: resuming from step {step}, the newest whole checkpoint; {lost}"]
    return Beginning(step, commit.key, own=True, label=f"step {step}", warnings=tuple(warnings), commit=commit)


def find_lost_metrics(store: Store, run: str, beginning: Beginning, log_every: int) -> list[str]:
    """A line where the metrics up to the checkpoint that is resumed from are not all in the store."""
    expected = beginning.step - beginning.step % log_every
    there = last_metrics(store, run).get("step", 0) if beginning.own and expected else expected
    if there >= expected:
        return []
    return [f"the metrics of steps {there + 1} to {beginning.step} are not in the store: plots have a gap there"]


def check_beginning(config: Config, store: Store, beginning: Beginning, tokenizer_id: str, stop_step: int) -> None:
    """Refuses what could only fail later, before anything is written under the run's name."""
    if not beginning.own and beginning.step >= stop_step:
        raise SkytrainError(
            f"--from {beginning.label}: that is step {beginning.step}, and training ends at step {stop_step}: nothing would be left to train\n"
            "  raise trainer.steps, or take the weights alone to an earlier step: --weights-only --at-step N"
        )
    key = beginning.key or beginning.weights_key
    if key is not None:
        source = beginning.source(store)
        _, manifest = read_manifest(source, find_commit(source, key))
        here = {"tokenizer": tokenizer_id, "model": plain(config.model)}
        check_lineage(manifest.state.get("rest", {}).get("lineage", {}), here)


def fetch_beginning(store: Store, run: str, beginning: Beginning) -> Beginning:
    """A checkpoint of another store is copied beside the run's own, so that the run depends on nothing elsewhere."""
    if beginning.key is None or beginning.store_root is None:
        return beginning
    source, target = beginning.source(store), f"runs/{run}/start"
    # Markers last, as whoever wrote them did.
    stats = sorted(source.list(beginning.key), key=lambda stat: ("COMMITTED" in stat.key, stat.key))
    with tempfile.TemporaryDirectory(prefix="skytrain-start-") as scratch:
        for stat in stats:
            path = Path(scratch) / "file"
            source.download(stat.key, path)
            store.upload(path, target + stat.key.removeprefix(beginning.key))
    return dataclasses.replace(beginning, key=target)


def _our_checkpoint(config: Config, store: Store, source: str) -> tuple[Store, str, str]:
    """The store, the run and the step (or '') of RUN, RUN@STEP, or a path or URL that ends in runs/RUN or runs/RUN@STEP."""
    root, found, name = source.rpartition("/runs/")
    if not found:
        name = source
    elif root != store.root:
        store = open_store(dataclasses.replace(config.store, root=root)).patient(store.patience_seconds)
    run, _, step = name.rstrip("/").partition("@")
    if "/" in run or not run:
        raise SkytrainError(
            f"--from {source}: neither a run here, RUN@STEP, a path to one (.../runs/RUN@STEP), a Hugging Face folder nor an llm.c file"
        )
    return store, run, step


@dataclass(frozen=True)
class ResumeCheck:
    """What has changed since the run began, and where it resumes."""

    changes: list[str]
    beginning: Beginning


def check_resume(
    config: Config, plan: TrainingPlan, store: Store, start: Start, prepared: Sequence[Prepared], allow_changes: bool
) -> ResumeCheck:
    """Nothing is written before all is in order."""
    changes = find_changes(config, store, start, data_hashes(prepared), allow_changes)
    beginning = find_beginning(config, store, run_name(config, start), start)
    check_beginning(config, store, beginning, prepared[0].tokenizer_id, plan.stop_step)
    return ResumeCheck(changes, beginning)


def begin(
    config: Config,
    plan: TrainingPlan,
    store: Store,
    start: Start,
    record: RunRecord,
    check: ResumeCheck,
    allow_changes: bool,
) -> Attempt:
    """Claims the next attempt, and only then finds where to resume: what an older one commits from here on does not count."""
    if not create_run(store, record):
        # It may be there since a moment ago, by another with other settings: their attempt is not to be taken over.
        find_changes(config, store, start, record.data, allow_changes)
    supervision = Supervision.from_environment()
    if supervision is not None:
        supervision.check()
    number = claim_attempt(
        store, record.name, world_size=plan.ranks.world_size, mesh=str(plan.mesh), changes=check.changes
    )
    beginning = find_beginning(config, store, record.name, start, check.beginning)
    record_resume(store, record.name, number, beginning.step)
    save_run(store, record)
    lost = find_lost_metrics(store, record.name, beginning, config.trainer.log_every)
    beginning = dataclasses.replace(beginning, warnings=(*beginning.warnings, *lost))
    changes = [*check.changes, *beginning.changes]
    return Attempt(record, number, fetch_beginning(store, record.name, beginning), changes)


def beginning_model(config: Config, store: Store, beginning: Beginning) -> nn.Module:
    """The model that training starts with; where a whole checkpoint will be restored into it, without weights of its own."""
    if beginning.weights_key is not None:
        model = build_model(config.model, seed=config.seed, start_weights=False)
        load_weights(model, open_checkpoint(beginning.source(store), beginning.weights_key).model)
        return model
    if beginning.weights is None:
        return outline(config, start_weights=beginning.key is None)
    if not isinstance(config.model, DecoderConfig):
        raise SkytrainError(
            f"--from {beginning.weights}: only the built-in decoder reads such files, and model={config.model.name} is not it"
        )
    return build_model(dataclasses.replace(config.model, weights=beginning.weights), seed=config.seed)
