"""Checkpoints: list, verify, prune and convert what a run has saved."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..checkpoints import (
    NATIVE,
    CheckpointError,
    Commit,
    Keep,
    Pruned,
    choose_commit,
    committed,
    find_run,
    prune,
    read_manifest,
    read_marker,
    read_validation,
    step_key,
    verify as verify_commit,
)
from ..config import Config, SkytrainError
from ..export import follow_umask
from ..runs import Reporter, RunRecord, load_run, save_run
from ..storage import Store, open_store

Format = Literal["skytrain", "safetensors", "hf", "llm.c"]


@dataclass(frozen=True)
class Listed:
    """A checkpoint in a list. If its marker cannot be read, `problem` says why; only step and attempt are known."""

    step: int
    attempt: int
    bytes: int | None = None
    committed_at: str | None = None
    validation_loss: float | None = None
    problem: str | None = None


def list_checkpoints(config: Config, run: str | None) -> tuple[str, list[Listed]]:
    """Return the run's name and its checkpoints, oldest first. Only markers are read."""
    store = open_store(config.store)
    record = find_run(store, run)
    return record.name, [_listed(store, commit) for commit in committed(store, record.name)]


def _listed(store: Store, commit: Commit) -> Listed:
    try:
        marker = read_marker(store, commit)
        loss = read_validation(store, commit)
    except CheckpointError as error:
        return Listed(commit.step, commit.attempt, problem=str(error).splitlines()[0])
    return Listed(
        step=commit.step,
        attempt=commit.attempt,
        bytes=marker.bytes,
        committed_at=marker.committed_at,
        validation_loss=loss,
    )


@dataclass(frozen=True)
class Verified:
    run: str
    step: int
    bytes: int  # that were committed; 0 where the marker cannot be read
    problems: list[str]


def verify(config: Config, source: str | None, reporter: Reporter) -> list[Verified]:
    """Compare every byte of RUN@STEP, or of all checkpoints of RUN, with its hash."""
    store = open_store(config.store)
    record, chosen = _choose(store, source)
    results = []
    for commit in chosen:
        size = _listed(store, commit).bytes or 0
        done = 0.0

        def advance(amount: float, stage: str = f"step {commit.step}", total: float = size) -> None:
            nonlocal done
            done += amount
            reporter.progress(stage, min(done, total), total, "bytes")

        results.append(Verified(record.name, commit.step, size, verify_commit(store, commit, advance)))
    return results


def prune_checkpoints(config: Config, run: str, keep: Keep, *, dry_run: bool) -> Pruned:
    store = open_store(config.store)
    return prune(store, load_run(store, run).name, keep, dry_run=dry_run)


def convert(config: Config, source: str, to: Format, target: str | None, *, with_optimizer: bool) -> str:
    """Write RUN@STEP in another format; return the path or URL of the result."""
    store = open_store(config.store)
    record, chosen = _choose(store, source)
    commit = chosen[-1]
    if to == "skytrain":
        return _from_deepspeed(store, record, commit, newest=committed(store, record.name)[-1], target=target)
    if target is None:
        raise SkytrainError(f"--to {to}: name the file or folder to write after {source}")
    if to == "safetensors":
        return _safetensors(store, commit, Path(target), with_optimizer)
    from .export import ExportRequest, export

    # In float32: a conversion keeps every bit of the checkpoint's weights.
    export(config, ExportRequest(f"{record.name}@{commit.step}", Path(target), to, dtype="fp32"))
    return target


def _choose(store: Store, source: str | None) -> tuple[RunRecord, list[Commit]]:
    """Return the run, and the checkpoint of the given step or all checkpoints."""
    name, _, step = (source or "").partition("@")
    record = find_run(store, name or None)
    chosen = choose_commit(store, record.name, step)
    return record, [chosen] if step else committed(store, record.name)


def _from_deepspeed(store: Store, record: RunRecord, commit: Commit, newest: Commit, target: str | None) -> str:
    from ..checkpoints import convert_deepspeed, convert_newest

    if read_manifest(store, commit)[1].kind == NATIVE:
        raise SkytrainError(
            f"{record.name}@{commit.step} is in Skytrain's own format already: every mode resumes from it\n"
            "  for other tools: --to safetensors, --to hf or --to llm.c"
        )
    if target is None:
        if commit != newest:
            raise SkytrainError(
                f"{record.name}@{commit.step} is not the run's newest checkpoint, {newest.step}\n"
                "  name a new run to convert it to"
            )
        convert_newest(store, record.name)
        return store.url(commit.key)
    if "/" in target or store.exists(f"runs/{target}/run.json"):
        raise SkytrainError(f"{target!r} cannot be the new run: the name is taken, or it is not a valid name")
    save_run(store, dataclasses.replace(record, name=target, step=commit.step))
    convert_deepspeed(store, commit.key, step_key(target, commit.step))
    return store.url(step_key(target, commit.step))


def _safetensors(store: Store, commit: Commit, target: Path, with_optimizer: bool) -> str:
    from safetensors.torch import save_file

    from ..checkpoints import open_checkpoint, open_weights

    if target.exists():
        raise CheckpointError(f"{target} exists already and is not overwritten")
    saved = open_checkpoint(store, commit.key) if with_optimizer else open_weights(store, commit.key)
    tensors = saved.weights.read()
    if with_optimizer:
        tensors |= {f"optimizer/{name}": tensor for name, tensor in saved.tensors.below("optimizer/").read().items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target, metadata={"format": "pt"})
    follow_umask(target)
    return str(target)
