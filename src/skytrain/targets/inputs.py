"""What the machines of a training job will read: tokens, tokenizer, weights, tasks, the checkpoint to resume from.

It is looked for before anything is rented, with the code that training uses. Machines read the store, the hub unless
their network is closed, and nothing of this computer.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from ..aws import PREVIEW_NOTE, is_preview
from ..checkpoints import committed
from ..config import EXIT_CODES, Config, HFModelConfig, SkytrainError, find_tasks, finish_settings, has_layers
from ..evaluation import stored_task_key
from ..planning import JobKind, expected_loss_text, read_plan
from ..runs import recorded_commit, run_name
from ..storage import Store, is_hub_name, open_store, staged_at
from ..tokens import Prepared, find_training_data, open_mixture
from .base import LaunchRequest, ReadyJob
from .registry import check_request, find_target, target_of

HERE = "skytrain-store"  # the store of a computer without an account
OF_PREPARE = ("recipe=", "data=", "data.", "tokenizer=", "tokenizer.")


class MissingInput(SkytrainError):
    """Something that the machines of a job would look for in vain."""

    exit_code = EXIT_CODES["preflight"]


class LostCheckpoint(MissingInput):
    """A checkpoint that the run's records name, and that the store does not have: the exit code is that of the run."""

    exit_code = EXIT_CODES["damaged"]


def prepare_job(request: LaunchRequest) -> ReadyJob:
    """Return a job that has passed every check of its target, and whose machines will find what they read.

    A dry run only says what they would not find.
    """
    clouds = [setting for setting in request.overrides if setting.startswith("cloud")]
    target = find_target(request.compose(clouds).config.cloud.target)
    check_request(target, request)
    ready = target.prepare(request)
    if request.job == "train" and (expected := expected_loss_text(ready.config)) is not None:
        ready = replace(ready, summary=[*ready.summary, ("expects", expected)])
    if is_preview(ready.config.cloud):
        return replace(ready, notes=(*ready.notes, PREVIEW_NOTE))
    planned = read_plan(request.plan).words if request.plan is not None else []
    try:
        inputs = find_inputs(ready.config, request.job, [*planned, *request.overrides])
    except SkytrainError as error:
        if not request.dry_run:
            raise
        return replace(ready, notes=(*ready.notes, f"a launch would be refused: {error}"))
    return replace(ready, summary=[*ready.summary, *(("reads", line) for line in inputs)])


def find_inputs(config: Config, job: JobKind, overrides: Sequence[str] = (), *, prepared: bool = True) -> list[str]:
    """Return what a job's machines will read, a line each. Raises MissingInput for the first thing that they would not find.

    `overrides` are the user's, for the command that makes what is missing. Tokens that are not `prepared` are not
    looked for: an earlier stage makes them.
    """
    if job == "finish":
        return _find_tasks(finish_settings(config), open_store(config.store), after_training=True)
    if job not in ("train", "tune"):
        return []
    store = open_store(config.store)
    weights = _find_weights(config, store)  # first: they bring the tokenizer, by which tokens are found
    if not prepared:
        lines = []
    elif config.loader.files is None:
        tokens = _find_tokens(config, store, overrides)
        lines = [f"{store.url(tokens.folder)}: {tokens.train.tokens:,} tokens"]
    else:
        lines = [_find_files(config)]
    for line in (weights, *_find_tasks(config, store), _find_checkpoint(config, store, job)):
        if line:
            lines.append(line)
    return lines


def _find_tokens(config: Config, store: Store, overrides: Sequence[str]) -> Prepared:
    try:
        prepared = find_training_data(store, config)
        open_mixture(store, config.loader, prepared.tokenizer_id)
    except SkytrainError as error:
        if error.exit_code != 2:  # the store could not be asked
            raise
        problem = str(error).partition("\n")[0]
        words = [word for word in overrides if word.startswith(OF_PREPARE)]
        raise MissingInput(f"{problem}\n{_how_to_prepare(config, words)}") from None
    return prepared


def _how_to_prepare(config: Config, words: Sequence[str]) -> str:
    settings = shlex.join(words)
    if _shares_files(config):
        return f"  prepare them first: skytrain prepare {settings}".rstrip()
    return (
        f"  make them there: skytrain launch prepare {settings} cloud=ec2\n"
        f"  or copy those that you have: skytrain store copy {HERE} {config.store.root}"
    )


def _find_files(config: Config) -> str:
    """Find token files of another project."""
    files = config.loader.files
    assert files is not None
    for setting, pattern in (("train", files.train), ("validation", files.validation)):
        if pattern is not None:
            _check_readable(config, f"loader.files.{setting}", pattern)
    return f"{files.train} ({files.format} files)"


def _find_weights(config: Config, store: Store) -> str | None:
    """Find the weights that training starts from."""
    model = config.model
    if isinstance(model, HFModelConfig):
        _check_weights(config, store, "model.name", model.name)
        return f"{model.name}, {model.weights} weights"
    if has_layers(model) and model.weights is not None:
        _check_weights(config, store, "model.weights", model.weights)
        return f"weights of {model.weights}"
    return None


def _check_weights(config: Config, store: Store, setting: str, place: str) -> None:
    """Raise unless machines will find these weights. They have no token for the hub, so the store must have them."""
    of_the_hub = is_hub_name(place) and not Path(place).expanduser().exists()
    if of_the_hub and not _shares_files(config):
        raise MissingInput(
            f"{setting}={place}: {config.store.root} does not have this model, and machines read it from there\n"
            f"  put it there once: skytrain models fetch {shlex.quote(place)} cloud=aws"
        )
    staged = staged_at(store, place)
    if staged is None:
        return _check_readable(config, setting, place)
    sizes = {stat.key.removeprefix(f"{staged.folder}/"): stat.size for stat in store.list(staged.folder)}
    for name, file in staged.files.items():
        if sizes.get(name) != file.bytes:
            problem = f"has {sizes[name]:,} bytes, not {file.bytes:,}" if name in sizes else "is missing"
            raise MissingInput(
                f"{setting}={place}: {name} {problem}\n  fetch it again: skytrain models fetch {staged.repository} cloud=aws"
            )


def _find_tasks(config: Config, store: Store, *, after_training: bool = False) -> list[str]:
    """Find the data of the tasks that are scored in training, or after it."""
    lines = []
    for task in find_tasks(config.evaluation) if after_training or config.evaluation.every is not None else []:
        if task.data is not None:
            _check_readable(config, f"evaluation.data.{task.name}", task.data)
        elif config.cloud.closed_network and not store.exists(stored_task_key(task)):
            raise MissingInput(
                f"task {task.name}: its data is on the internet, which machines of this closed network cannot reach\n"
                f"  put it into the store from here: skytrain data task {task.name} --out {task.name}.bin cloud=aws"
            )
        lines.append(f"task {task.name}")
    return lines


def _find_checkpoint(config: Config, store: Store, job: JobKind) -> str | None:
    """Find the checkpoint that the run resumes from; one that was saved and is gone would be paid for a second time."""
    if job != "train":
        return None
    run = run_name(config)
    step, source = recorded_commit(store, run)
    newest = max((commit.step for commit in committed(store, run)), default=0)
    if step > newest and config.trainer.lost_steps != "retrain":
        raise LostCheckpoint(
            f"run {run}: step {step} was saved ({source}), and the newest checkpoint in the store is of step {newest}\n"
            f"  put it back into {store.url(f'runs/{run}/checkpoints')}; to pay for these steps again: "
            "trainer.lost_steps=retrain; to start anew: run=NAME"
        )
    return f"resumes from step {newest}" if newest else None


def _check_readable(config: Config, setting: str, place: str) -> None:
    """Raise unless machines can read this path, URL or name of the hub."""
    if _shares_files(config):
        return
    if "://" in place:
        if not _is_there(config, place):
            raise MissingInput(f"{setting}={place}: nothing is there\n  correct {setting}")
        return
    if Path(place).expanduser().exists() or not is_hub_name(place.partition("@")[0]):
        raise MissingInput(
            f"{setting}={place}: a file of this computer, which rented machines cannot read\n"
            f"  copy it: skytrain store copy {shlex.quote(place)} {config.store.root}/inputs/{Path(place).name}; "
            f"then {setting}={config.store.root}/inputs/{Path(place).name}"
        )
    if config.cloud.closed_network:
        raise MissingInput(
            f"{setting}={place}: on the internet, which machines of this closed network cannot reach\n"
            f"  copy the folder to the store, and set {setting} to its s3:// URL"
        )


def _is_there(config: Config, url: str) -> bool:
    """Return whether a URL is that of an object, of a folder with objects, or of objects that match its pattern."""
    root, _, name = url.rstrip("/").rpartition("/")
    store = open_store(replace(config.store, root=root))
    if "*" in name:
        return any(fnmatch(stat.key, name) for stat in store.list())
    return store.exists(name) or bool(store.list(name))


def _shares_files(config: Config) -> bool:
    return target_of(config).shares_files
