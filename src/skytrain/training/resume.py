"""Where a run resumes: at its own newest checkpoint; before it has one, at what `--from` names, or at step 0."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..checkpoints import (
    Commit,
    choose_commit,
    committed,
    find_commit,
    has_trained,
    load_weights,
    newest_intact,
    open_weights,
    read_manifest,
)
from ..config import EXIT_CODES, Config, SkytrainError, has_layers
from ..models import build_model, is_pretrained, place_of
from ..runs import (
    Start,
    changes_of_run,
    check_not_renamed,
    config_changes,
    last_metrics,
    load_run,
    other_changes,
    other_settings,
    plain,
    recorded_commit,
)
from ..storage import Store, open_store
from ..tokens import Prepared, data_hashes
from .checkpointing import check_lineage
from .context import RunContext
from .factory import outline
from .upcycling import build_upcycled, check_upcycling, dense_model_of, upcycling_note


class LostCheckpoints(SkytrainError):
    """The error of a run whose records show later steps than its newest checkpoint."""

    exit_code = EXIT_CODES["damaged"]


@dataclass(frozen=True)
class ResumePoint:
    """The state that is restored before the first step of an attempt."""

    step: int = 0
    key: str | None = None  # folder of a checkpoint, which is restored whole
    own: bool = False  # that checkpoint is the run's own newest
    weights_key: str | None = None  # folder of a checkpoint of which only the weights are loaded
    upcycled: bool = False  # those are of a dense model, whose MLPs become experts
    weights: str | None = None  # folder or file of another program, which contains weights only
    store_root: str | None = None  # root of the checkpoint's store, where that is not the run's own
    label: str = ""
    changes: tuple[str, ...] = ()  # settings that decide the numbers and differ from the run the checkpoint belongs to
    warnings: tuple[str, ...] = ()  # what was lost
    commit: Commit | None = None  # the run's own checkpoint, verified

    def source(self, store: Store) -> Store:
        """Return the store that the checkpoint is in."""
        return store if self.store_root is None else open_store(self.store_root).patient(store.patience_seconds)


@dataclass(frozen=True)
class ResumeCheck:
    """The changes since the run was created, and the point where it resumes."""

    changes: list[str]
    point: ResumePoint


def check_resume(context: RunContext, sources: Sequence[Prepared]) -> ResumeCheck:
    """Find what has changed and where to resume; raise an error if the run cannot be resumed. Nothing is written."""
    changes = find_changes(context, data_hashes(sources))
    point = find_resume_point(context)
    _check_point(context, point, sources[0].tokenizer_id)
    return ResumeCheck(changes, point)


def find_changes(context: RunContext, data: Mapping[str, str]) -> list[str]:
    """Return a line for each setting, and each split of the data, that has changed since the run was created.

    Settings that decide the numbers may not change within a run, unless the request allows it.
    """
    store = context.store
    name = context.run
    start = context.start
    if not store.exists(f"runs/{name}/run.json"):
        check_not_renamed(store, name)
        return []
    record = load_run(store, name)
    now = plain(context.config)
    if record.merged_from:
        raise SkytrainError(
            f"run {name!r} is a merge of {', '.join(record.merged_from)}, and is not trained itself\n"
            f"  start a run of another name from it: run=NAME --from {name}"
        )
    changes = changes_of_run(record, now, data)
    if start.source and record.started_from != start.label:
        changes.append(f"--from: {record.started_from!r} -> {start.label!r}")
    if changes and not has_trained(store, name):
        return ["no step of this run was trained: it starts anew with these settings"]
    if changes and not context.request.allow_changes:
        raise SkytrainError(other_settings(record, now, changes, may_allow=True))
    changed = [*changes, *other_changes(record.config, now)]
    return [f"changed since the run started: {line}" for line in changed]


def find_resume_point(context: RunContext, checked: ResumePoint | None = None) -> ResumePoint:
    """Return the point where training starts.

    The run's own newest checkpoint comes first, so that the same command resumes what it has started. `checked`
    is an earlier result of this function: its checkpoint is not verified a second time.
    """
    known = recorded_commit(context.store, context.run)  # first: a checkpoint is there before a record says so
    point = _find_point(context, checked)
    return _check_nothing_lost(context, point, *known)


def _check_nothing_lost(context: RunContext, point: ResumePoint, step: int, source: str) -> ResumePoint:
    """Raise an error where a later step was saved than can be resumed from: it would be paid for a second time."""
    if step <= point.step:
        return point
    lost = (
        f"steps {point.step + 1} to {step} were trained and saved ({source}), and that checkpoint is not in the store"
    )
    if context.start.fall_back or context.config.trainer.lost_steps == "retrain":
        return dataclasses.replace(point, warnings=(*point.warnings, f"{lost}: they are trained again"))
    place = context.store.url(f"runs/{context.run}/checkpoints")
    raise LostCheckpoints(
        f"run {context.run!r}: {lost}\n"
        f"  put it back into {place} (a bucket with versions has what was deleted); to pay for these steps again: "
        "trainer.lost_steps=retrain; to start anew: run=NAME"
    )


def _find_point(context: RunContext, checked: ResumePoint | None) -> ResumePoint:
    config = context.config
    store = context.store
    start = context.start
    own = committed(store, context.run)
    if own and start.fall_back:
        return _newest_intact(store, own, checked.commit if checked else None)
    if own:
        return ResumePoint(step=own[-1].step, key=own[-1].key, own=True, label=f"step {own[-1].step}")
    if start.source is None:
        return ResumePoint()
    if Path(start.source).is_file() or is_pretrained(start.source):
        # An llm.c file, a Hugging Face folder or a repository of its hub, which contain weights only.
        return ResumePoint(step=start.at_step or 0, weights=place_of(store, start.source), label=start.label)
    return _point_in_run(config, store, start, start.source)


def _newest_intact(store: Store, own: Sequence[Commit], known: Commit | None) -> ResumePoint:
    commit, damaged = newest_intact(store, own, known)
    step = commit.step
    warnings = damaged
    if damaged:
        lost = f"steps {step + 1} to {own[-1].step} are lost and will be trained again"
        warnings = [*damaged, f"--fall-back: resuming from step {step}, the newest intact checkpoint; {lost}"]
    return ResumePoint(
        step=step, key=commit.key, own=True, label=f"step {step}", warnings=tuple(warnings), commit=commit
    )


def _point_in_run(config: Config, store: Store, start: Start, source: str) -> ResumePoint:
    """Return a checkpoint of another run as the start: the whole of it, or only its weights."""
    other, name, step_text = _parse_source(config, store, source)
    record = load_run(other, name)
    commit = choose_commit(other, record.name, step_text)
    step = commit.step
    label = f"{name}@{commit.step}"
    elsewhere = other.root if other.root != store.root else None
    if has_layers(config.model) and dense_model_of(record.config["model"], config.model) is not None:
        return ResumePoint(
            step=start.at_step or 0,
            weights_key=commit.key,
            upcycled=True,
            store_root=elsewhere,
            label=f"{label}, weights",
            changes=(upcycling_note(config.model, label),),
        )
    if start.weights_only or record.merged_from:  # a merged model has no optimizer state
        return ResumePoint(
            step=start.at_step or 0, weights_key=commit.key, store_root=elsewhere, label=f"{label}, weights"
        )
    if start.at_step is not None:
        raise SkytrainError(
            f"--at-step {start.at_step}: {label} knows its own step, {step}\n"
            "  add --weights-only to load its weights at another step"
        )
    changes = tuple(f"other than in {label}: {line}" for line in config_changes(record.config, plain(config)))
    return ResumePoint(step=step, key=commit.key, store_root=elsewhere, label=label, changes=changes)


def start_label(start: Start, point: ResumePoint) -> str | None:
    """Return what a new run starts from, with the step of the checkpoint; None for new weights."""
    if start.source is None or point.own:
        return None
    if point.weights is not None:
        return start.source
    label = point.label.partition(",")[0]
    return label if point.store_root is None else f"{point.store_root}/runs/{label}"


def _parse_source(config: Config, store: Store, source: str) -> tuple[Store, str, str]:
    """Return the store, the run and the step (or '') that `source` names.

    A source is RUN, RUN@STEP, or a path or URL that ends in runs/RUN or runs/RUN@STEP.
    """
    root, found, name = source.rpartition("/runs/")
    if not found:
        name = source
    elif root != store.root:
        store = open_store(dataclasses.replace(config.store, root=root)).patient(store.patience_seconds)
    run, _, step = name.rstrip("/").partition("@")
    if "/" in run or not run:
        raise SkytrainError(
            f"--from {source}: neither a run here, RUN@STEP, a path to one (.../runs/RUN@STEP), "
            "a Hugging Face folder nor an llm.c file"
        )
    return store, run, step


def _check_point(context: RunContext, point: ResumePoint, tokenizer_id: str) -> None:
    """Raise an error, before anything is written, where resuming from `point` could only fail later."""
    stop_step = context.plan.stop_step
    if not point.own and point.step >= stop_step:
        raise SkytrainError(
            f"--from {point.label}: that is step {point.step}, and training ends at step {stop_step}: "
            "nothing would be left to train\n"
            "  raise trainer.steps, or load only the weights at an earlier step: --weights-only --at-step N"
        )
    key = point.key or point.weights_key
    if key is not None:
        source = point.source(context.store)
        _, manifest = read_manifest(source, find_commit(source, key))
        lineage = manifest.state.get("rest", {}).get("lineage", {})
        model = context.config.model
        if point.upcycled and has_layers(model):
            dense = dense_model_of(lineage["model"], model)
            assert dense is not None
            check_upcycling(dense, model, start_label(context.start, point) or point.label)
            check_lineage({**lineage, "model": {}}, {"tokenizer": tokenizer_id, "model": {}})
        else:
            check_lineage(lineage, {"tokenizer": tokenizer_id, "model": plain(model)})


def find_lost_metrics(store: Store, run: str, point: ResumePoint, log_every: int) -> list[str]:
    """Return a line if metrics of steps before the resume point are missing in the store."""
    expected = point.step - point.step % log_every
    there = last_metrics(store, run).get("step", 0) if point.own and expected else expected
    if there >= expected:
        return []
    return [f"the metrics of steps {there + 1} to {point.step} are not in the store: plots have a gap there"]


def fetch_checkpoint(store: Store, run: str, point: ResumePoint) -> ResumePoint:
    """Copy a checkpoint of another store into the run's folder, so that the run depends on nothing elsewhere."""
    if point.key is None or point.store_root is None:
        return point
    source = point.source(store)
    target = f"runs/{run}/start"
    # Commit markers are copied last, as when the checkpoint was written.
    stats = sorted(source.list(point.key), key=lambda stat: ("COMMITTED" in stat.key, stat.key))
    with tempfile.TemporaryDirectory(prefix="skytrain-start-") as scratch:
        for stat in stats:
            path = Path(scratch) / "file"
            source.download(stat.key, path)
            store.upload(path, target + stat.key.removeprefix(point.key))
    return dataclasses.replace(point, key=target)


def build_start_model(config: Config, store: Store, point: ResumePoint) -> nn.Module:
    """Build the model that training starts with, without weights where a whole checkpoint is restored into it later."""
    if point.upcycled and point.weights_key is not None and has_layers(config.model):
        return build_upcycled(config.model, config.seed, open_weights(point.source(store), point.weights_key).weights)
    if point.weights_key is not None:
        model = build_model(config.model, seed=config.seed, start_weights=False)
        load_weights(model, open_weights(point.source(store), point.weights_key).weights)
        return model
    if point.weights is None:
        return outline(config, start_weights=point.key is None)
    if not has_layers(config.model):
        raise SkytrainError(
            f"--from {point.weights}: only the built-in decoder reads such files, "
            f"and model={config.model.name} is another model"
        )
    started = dataclasses.replace(config.model, weights=point.weights)
    return outline(dataclasses.replace(config, model=started))
