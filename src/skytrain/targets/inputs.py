"""What the machines of a job will read: tokens, tokenizer, weights, tasks, checkpoints, sources.

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
from ..checkpoints import check_sizes, committed, has_trained
from ..config import (
    EXIT_CODES,
    INTERRUPTED,
    Config,
    HFModelConfig,
    SkytrainError,
    find_tasks,
    finish_settings,
    has_layers,
    make,
    total_steps,
)
from ..evaluation import stored_task_key
from ..planning import JobKind, expected_loss_text, repetition_text
from ..runs import (
    attempt_numbers,
    changes_of_run,
    check_not_renamed,
    load_run,
    other_settings,
    plain,
    read_outcome,
    recorded_commit,
    run_name,
)
from ..storage import RepositoryKind, Store, asks_for_token, is_hub_name, open_store, record_of, staged_at
from ..tokens import (
    Prepared,
    check_validation,
    data_hashes,
    find_training_data,
    has_tokenizer,
    is_stored,
    missing_files,
    open_mixture,
)
from .base import LaunchRequest, ReadyJob
from .jobs import assumed_text
from .plans import plan_words
from .registry import check_request, find_target, target_of

HERE = "skytrain-store"  # the store of a computer without an account
# The settings that decide which tokens are made, and where. Weights may bring the tokenizer.
OF_PREPARE = ("recipe", "data", "tokenizer", "store", "model.weights", "model.name", "engine")
TRACKER_KEY = "WANDB_API_KEY"
HUB_KEY = "HF_TOKEN"


class MissingInput(SkytrainError):
    """An input of a job that its machines would not find."""

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
    if request.job == "train" and (repeats := repetition_text(ready.config)) is not None:
        ready = replace(ready, notes=(*ready.notes, repeats))
    if request.job == "prepare" and (assumed := assumed_text(ready.config)) is not None:
        ready = replace(ready, notes=(*ready.notes, assumed))
    if is_preview(ready.config.cloud):
        return replace(ready, notes=(*ready.notes, *weights_to_stage(ready.config), PREVIEW_NOTE))
    planned = plan_words(request.plan, request.folders, request.overrides)
    try:
        inputs = find_inputs(ready.config, request.job, [*planned, *request.overrides])
    except SkytrainError as error:
        if not request.dry_run:
            raise
        return replace(ready, notes=(*ready.notes, f"a launch would be refused: {error}"))
    return replace(ready, summary=[*ready.summary, *(("reads", line) for line in inputs)])


def find_inputs(config: Config, job: JobKind, overrides: Sequence[str] = (), *, prepared: bool = True) -> list[str]:
    """Return what a job's machines will read, a line each. Raises MissingInput for the first thing that they would not find.

    `overrides` are the user's, for the command that makes what is missing. What is not `prepared` is not looked for: an
    earlier stage makes the tokens, or the checkpoint.
    """
    store = open_store(config.store)
    if job == "finish":
        trained = [_find_trained(config, store)] if prepared else []
        return [*trained, *_find_tasks(finish_settings(config), store, after_training=True)]
    if job == "prepare":
        return _find_sources(config, store)
    if job not in ("train", "tune"):
        return []
    _check_tracker(config)
    weights = _find_weights(config, store)  # first: they bring the tokenizer, by which tokens are found
    data: dict[str, str] | None = None
    if not prepared:
        lines = []
    elif config.loader.files is None:
        tokens = _find_tokens(config, store, overrides)
        lines = [f"{store.url(tokens[0].folder)}: {tokens[0].train.tokens:,} tokens"]
        data = data_hashes(tokens)
    else:
        lines = [_find_files(config)]
    if job == "train":
        _check_own_run(config, store, data)
    for line in (weights, *_find_tasks(config, store), _find_checkpoint(config, store, job)):
        if line:
            lines.append(line)
    return lines


def _check_tracker(config: Config) -> None:
    """Refuse W&B without its API key on machines that nobody has logged in on: their ranks would end at once."""
    asked = "wandb" in config.trainer.loggers and config.wandb.mode == "online"
    if asked and TRACKER_KEY not in config.cloud.secrets and not _shares_files(config):
        raise MissingInput(
            f"trainer.loggers has wandb, and rented machines have no {TRACKER_KEY}\n"
            f"  name the secret that has it: cloud.secrets.{TRACKER_KEY}=skytrain/wandb (docs/security.md); or wandb.mode=offline"
        )


def _find_tokens(config: Config, store: Store, overrides: Sequence[str]) -> list[Prepared]:
    """Find the data set and those of a mixture."""
    try:
        prepared = find_training_data(store, config)
        mixture = open_mixture(store, config.loader, prepared.tokenizer_id)
    except SkytrainError as error:
        if error.exit_code != 2:  # the store could not be asked
            raise
        problem = str(error).partition("\n")[0]
        raise MissingInput(f"{problem}\n{_how_to_prepare(config, overrides)}") from None
    try:
        check_validation(store, config, prepared)
    except SkytrainError as error:
        raise MissingInput(str(error)) from None
    for each in (prepared, *mixture.values()):
        if missing := missing_files(store, each):
            raise MissingInput(
                f"{store.url(missing[0])}: its manifest names this file, and it is missing or has another size "
                f"({len(missing)} such files)\n  copy them again: skytrain store copy {HERE} {store.root}; "
                f"or delete {store.url(each.folder)}, and{_how_to_prepare(config, overrides)[1:]}"
            )
    if not has_tokenizer(config.tokenizer, store, prepared.tokenizer_id):
        raise MissingInput(
            f"{store.url(f'tokenizers/{prepared.tokenizer_id}')}: there is no such tokenizer, with which the tokens were made\n"
            f"  copy it: skytrain store copy {HERE}/tokenizers {store.root}/tokenizers"
        )
    return [prepared, *mixture.values()]


def _how_to_prepare(config: Config, overrides: Sequence[str]) -> str:
    words = [word for word in overrides if _is_of_prepare(word)]
    if config.tokenizer.kind == "hf":  # it may be that of the model
        words += [word for word in overrides if word.startswith("model=")]
    settings = shlex.join(words)
    if _shares_files(config):
        return f"  prepare them first: skytrain prepare {settings}".rstrip()
    if _reads_this_computer(config):
        make = f"from here: skytrain prepare {settings} cloud=aws"
    else:
        make = " ".join(["there: skytrain launch prepare", *([settings] if settings else []), "cloud=ec2"])
    if "://" not in config.store.root:  # no account is set up, and this is the store of this computer
        return f"  make them {make}"
    return f"  make them {make}\n  or copy those that you have: skytrain store copy {HERE} {config.store.root}"


def _reads_this_computer(config: Config) -> bool:
    """Return whether the source is files of this computer, which `launch prepare` refuses."""
    paths = config.data.source.args.get("paths") or []
    return any("://" not in path for path in ([paths] if isinstance(paths, str) else paths))


def _is_of_prepare(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return any(key == each or key.startswith((f"{each}.", f"{each}/")) for each in OF_PREPARE)


def _find_sources(config: Config, store: Store) -> list[str]:
    """Find what a job that prepares data reads besides the files that its plan has listed."""
    arguments = config.data.source.args
    places = {f"data.source.{name}": arguments.get(name) for name in ("paths", "validation_paths")}
    for setting, given in places.items():
        for place in [given] if isinstance(given, str) else given or []:
            _check_role(config, setting, place)
    if config.data.cleaning.decontaminate.enabled:
        for place in config.data.cleaning.decontaminate.paths:
            _check_readable(config, "data.cleaning.decontaminate.paths", place)
    tokenizer = config.tokenizer
    source = make(config.data.source.target, config.data.source.args, key="data.source")
    if getattr(source, "repo", None) and not arguments.get("paths"):
        _check_open(config, f"data={config.data.name}", source.repo, "dataset")
    if not is_stored(tokenizer, store) and not Path(tokenizer.name).expanduser().exists():
        _check_open(config, f"tokenizer.name={tokenizer.name}", tokenizer.name, "model")
    if not is_stored(tokenizer, store) and Path(tokenizer.name).expanduser().exists() and not _shares_files(config):
        raise MissingInput(
            f"tokenizer.name={tokenizer.name}: a folder of this computer, which rented machines cannot read\n"
            "  put it into the store: skytrain prepare data=synthetic data.source.tokens=10K tokenizer=hf "
            f"tokenizer.name={shlex.quote(tokenizer.name)} cloud=aws; then the same command again"
        )
    return []


def _check_open(config: Config, setting: str, name: str, kind: RepositoryKind) -> None:
    """Raise for a repository of the hub that asks for a token which the machines of a job do not have."""
    if HUB_KEY not in config.cloud.secrets and not _shares_files(config) and asks_for_token(name, kind):
        raise MissingInput(
            f"{setting}: the Hugging Face hub gives {name} to nobody without a token, and rented machines have no {HUB_KEY}\n"
            f"  name the secret that has it: cloud.secrets.{HUB_KEY}=skytrain/hf (docs/security.md)"
        )


def _find_trained(config: Config, store: Store) -> str:
    """Find the checkpoint that is evaluated and exported."""
    run = run_name(config)
    own = committed(store, run)
    if not own:
        raise MissingInput(
            f"run {run}: {store.url(f'runs/{run}/checkpoints')} has no checkpoint to evaluate and export\n"
            "  skytrain status lists the runs of the store; train this one first: skytrain launch train"
        )
    if problems := check_sizes(store, own[-1]):
        raise LostCheckpoint(
            f"run {run}: the checkpoint of step {own[-1].step} is damaged: {problems[0]}\n"
            "  restore the file (a bucket with versions has what was deleted)"
        )
    return f"step {own[-1].step} of {run}"


def _find_files(config: Config) -> str:
    """Find token files of another project."""
    files = config.loader.files
    assert files is not None
    for setting, pattern in (("train", files.train), ("validation", files.validation)):
        if pattern is not None:
            _check_readable(config, f"loader.files.{setting}", pattern)
    return f"{files.train} ({files.format} files)"


def _weights_of(config: Config) -> tuple[str, str] | None:
    """Return the setting that names the weights that training starts from, and where they are."""
    model = config.model
    if isinstance(model, HFModelConfig):
        return "model.name", model.name
    if has_layers(model) and model.weights is not None:
        return "model.weights", model.weights
    return None


def _find_weights(config: Config, store: Store) -> str | None:
    """Find the weights that training starts from."""
    found = _weights_of(config)
    if found is None:
        return None
    setting, place = found
    _check_weights(config, store, setting, place)
    model = config.model
    return f"{place}, {model.weights} weights" if isinstance(model, HFModelConfig) else f"weights of {place}"


def weights_to_stage(config: Config) -> list[str]:
    """Return what a launch will need of the weights, where there is no store yet that could be asked."""
    found = _weights_of(config)
    if found is None or "://" in found[1] or _shares_files(config):
        return []
    setting, place = found
    if Path(place).expanduser().exists():
        how = _how_to_copy(config, setting, place).strip()
    else:
        how = f"skytrain models fetch {shlex.quote(place)} cloud=aws"
    return [f"a launch will need the weights and the tokenizer of {place} in the store: {how}"]


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
        if task.file is not None and not _shares_files(config):
            raise MissingInput(
                f"task {task.name}: {task.file} is a file of this computer, which rented machines cannot read\n"
                f"{_how_to_name(config, task.name, task.file)}"
            )
        if task.data is not None:
            _check_readable(config, f"evaluation.data.{task.name}", task.data)
        elif config.cloud.closed_network and not store.exists(stored_task_key(task)):
            raise MissingInput(
                f"task {task.name}: its data is on the internet, which machines of this closed network cannot reach\n"
                f"  put it into the store from here: skytrain data task {task.name} --out {task.name}.bin cloud=aws"
            )
        lines.append(f"task {task.name}")
    return lines


def _how_to_name(config: Config, task: str, file: str) -> str:
    """Return what lets machines score a task that `file` of this computer describes, or is."""
    if Path(file).suffix == ".yaml":
        return "  score it from here, after training: skytrain evaluate --from RUN with the same evaluation settings"
    return f"{_how_to_copy(config, f'evaluation.data.{task}', file)} evaluation.tasks=[{task}]"


def _check_own_run(config: Config, store: Store, data: dict[str, str] | None) -> None:
    """Raise where a run of this name has other settings, or is done: its machines would boot, and end saying so."""
    run = run_name(config)
    if not store.exists(f"runs/{run}/run.json"):
        check_not_renamed(store, run)
        return
    record = load_run(store, run)
    now = plain(config)
    with record_of(store, f"runs/{run}/run.json"):
        if now["trainer"]["precision"] == "auto":  # a run keeps the one that was decided at its start
            now["trainer"]["precision"] = record.config["trainer"]["precision"]
        changes = changes_of_run(record, now, data)
    if changes and has_trained(store, run):
        raise SkytrainError(other_settings(record, now, changes, may_allow=False))
    steps = total_steps(config)
    stop = min(steps, config.trainer.stop_at_step or steps)
    newest = max((commit.step for commit in committed(store, run)), default=0)
    attempts = attempt_numbers(store, run)
    outcome = read_outcome(store, run, attempts[-1]) if attempts else None
    if newest >= stop and outcome is not None and outcome["outcome"] != INTERRUPTED:
        name = shlex.quote(run)
        finish = f"skytrain finish {name}" if _shares_files(config) else f"skytrain launch finish run={name} cloud=ec2"
        raise SkytrainError(
            f"run {run} is at step {newest} of {stop} already: there is nothing to train\n"
            f"  evaluate, export and report it: {finish}; or choose another name: run=NAME"
        )


def _find_checkpoint(config: Config, store: Store, job: JobKind) -> str | None:
    """Find the checkpoint that the run resumes from; one that was saved and is gone would be paid for a second time."""
    if job != "train":
        return None
    run = run_name(config)
    step, source = recorded_commit(store, run)
    own = committed(store, run)
    newest = own[-1].step if own else 0
    if step > newest and config.trainer.lost_steps != "retrain":
        raise LostCheckpoint(
            f"run {run}: step {step} was saved ({source}), and the newest checkpoint in the store is of step {newest}\n"
            f"  put it back into {store.url(f'runs/{run}/checkpoints')}; to pay for these steps again: "
            "trainer.lost_steps=retrain; to start anew: run=NAME"
        )
    if newest and (problems := check_sizes(store, own[-1])):
        raise LostCheckpoint(
            f"run {run} would resume from step {newest}, whose checkpoint is damaged: {problems[0]}\n"
            "  restore the file (a bucket with versions has what was deleted); to resume from an earlier checkpoint and pay for "
            f"its steps again: delete {store.url(own[-1].key)}, and add trainer.lost_steps=retrain"
        )
    return f"resumes from step {newest}" if newest else None


def _check_readable(config: Config, setting: str, place: str) -> None:
    """Raise unless machines can read this path, URL or name of the hub."""
    if _shares_files(config):
        return
    if "://" in place:
        _check_role(config, setting, place)
        if not _is_there(config, place):
            raise MissingInput(f"{setting}={place}: nothing is there\n  correct {setting}")
        return
    if Path(place).expanduser().exists() or not is_hub_name(place.partition("@")[0]):
        raise MissingInput(
            f"{setting}={place}: a file of this computer, which rented machines cannot read\n{_how_to_copy(config, setting, place)}"
        )
    if config.cloud.closed_network:
        raise MissingInput(
            f"{setting}={place}: on the internet, which machines of this closed network cannot reach\n"
            f"  copy the folder to the store, and set {setting} to its s3:// URL"
        )


def _how_to_copy(config: Config, setting: str, place: str) -> str:
    """Return the command that copies a file, a folder or the folder of a pattern to the bucket, and the setting after it."""
    inputs = f"{config.store.root}/inputs"
    path = Path(place)
    if "*" in path.name:
        folder = path.parent.resolve().name
        return f"  copy them: skytrain store copy {shlex.quote(str(path.parent))} {inputs}/{folder}; then {setting}='{inputs}/{folder}/{path.name}'"
    if path.expanduser().is_dir():
        return f"  copy it: skytrain store copy {shlex.quote(place)} {inputs}/{path.name}; then {setting}={inputs}/{path.name}"
    return f"  copy it: skytrain store copy {shlex.quote(place)} {inputs}; then {setting}={inputs}/{path.name}"


def _check_role(config: Config, setting: str, place: str) -> None:
    """Raise unless the role of the machines may read a bucket, as far as Terraform's base has told which ones it may."""
    allowed = config.cloud.readable_buckets
    if allowed is None or not place.startswith("s3://") or place.startswith(f"{config.store.root}/"):
        return
    bucket = place.removeprefix("s3://").partition("/")[0]
    if bucket not in allowed:
        raise MissingInput(
            f"{setting}={place}: machines may read {', '.join((config.store.root, *(f's3://{name}' for name in allowed)))} only\n"
            f"  add {bucket} to the variable readable_buckets of infra/terraform/base, apply, and skytrain cloud init --force; "
            f"or copy it: skytrain store copy {shlex.quote(place)} {config.store.root}/inputs"
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
