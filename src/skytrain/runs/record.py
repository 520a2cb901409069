"""The run record (`run.json`), which is kept only in the store."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import platform
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import EXECUTION, RESULT, WEIGHTS, Config, SkytrainError, flatten, nearest, select, upgrade
from ..storage import (
    DamagedRecord,
    NotFound,
    ObjectError,
    Shape,
    Store,
    is_mapping,
    is_number,
    is_of_store,
    is_text,
    is_texts,
    is_time,
    is_whole,
    maybe,
    read_object,
    record_of,
)
from .attempts import now

log = logging.getLogger(__name__)


class NoRuns(SkytrainError):
    """The error of a store without runs."""


@dataclass(frozen=True)
class RunRecord:
    """The record of a run: what was run, on what hardware, with which code and data."""

    name: str
    config: dict[str, Any]
    seed: int
    skytrain_version: str
    code_revision: str | None
    data: dict[str, str]  # prefix of each split and the sha256 of its manifest
    tokenizer_id: str
    parameters: int
    hardware: dict[str, Any]
    started_at: str
    finished_at: str | None = None
    train_seconds: float | None = None
    step: int = 0
    started_from: str | None = None  # the value of --from
    former_names: list[str] = field(default_factory=list)
    parent: str | None = None  # what --from named, with its step: RUN@STEP, a folder or a file
    merged_from: list[str] = field(default_factory=list)  # of a merged model, which was not trained: RUN@STEP, folders


READ_GROUPS = ("model", "tokenizer", "data", "optimizer", "trainer", "loader", "budget")  # without a look at their kind


def _is_settings(value: Any) -> bool:
    return is_mapping(value) and all(is_mapping(value.get(group, {})) for group in READ_GROUPS)


def _is_data(value: Any) -> bool:
    return is_mapping(value) and all(map(is_text, value.values()))


SHAPE: Shape = {
    "name": is_text,
    "config": _is_settings,
    "seed": is_whole,
    "data": _is_data,
    "tokenizer_id": is_text,
    "parameters": is_whole,
    "hardware": is_mapping,
    "started_at": is_time,
    "train_seconds": maybe(is_number),
    "step": maybe(is_whole),
    "started_from": maybe(is_text),
    "former_names": maybe(is_texts),
    "parent": maybe(is_text),
    "merged_from": maybe(is_texts),
}


@dataclass(frozen=True)
class Start:
    """The start of a new run: from scratch, another run's checkpoint, a Hugging Face folder or an llm.c file."""

    source: str | None = None
    weights_only: bool = False  # without optimizer state, schedule and data position
    at_step: int | None = None  # step of the schedule and the data, with weights_only
    fall_back: bool = False  # if the run's newest checkpoint is damaged, resume from the newest intact one

    def __post_init__(self) -> None:
        if self.source is None and (self.weights_only or self.at_step is not None):
            raise SkytrainError(
                "--weights-only and --at-step say how to use what --from names, but --from is not given"
            )

    def options(self) -> list[str]:
        """Return the options of `skytrain train` that say this."""
        options = [] if self.source is None else ["--from", self.source]
        options += ["--weights-only"] if self.weights_only else []
        options += [] if self.at_step is None else ["--at-step", str(self.at_step)]
        return [*options, "--fall-back"] if self.fall_back else options

    @property
    def label(self) -> str:
        parts = [self.source, "weights" if self.weights_only else None]
        return ", ".join(
            [part for part in parts if part] + ([f"at step {self.at_step}"] if self.at_step is not None else [])
        )


def plain(config: Any) -> Any:
    """Convert a configuration to plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a plain configuration that determine the result, by dotted key.

    All others may change between attempts. Among them are the mesh and the micro-batch: changing them only changes
    the order of summation, and with it the rounding.
    """
    return flatten(select(Config, config, RESULT))


MOST_RENAMES = 20  # of one run, that are followed
RUN_NAME_BYTES = 200  # file systems take 255; names of stages and machines are longer than their run's


def check_run_name(name: str) -> None:
    """Raise SkytrainError if the name cannot be a run's folder."""
    if "/" in name or name in {"", ".", ".."}:
        better = name.replace("/", "-").strip(".-") or "NAME"
        raise SkytrainError(f"run: {name!r} cannot be a folder's name\n  try run={better}")
    if not name.isprintable():
        better = "".join(letter if letter.isprintable() else "-" for letter in name)
        raise SkytrainError(f"run: {name!r} has characters that cannot be shown\n  try run={better}")
    if (size := len(name.encode())) > RUN_NAME_BYTES:
        raise SkytrainError(
            f"run: a name of {size} bytes, {name[:20]!r}...\n  a folder's name has at most {RUN_NAME_BYTES} here: choose a shorter one"
        )


def run_name(config: Config, start: Start | None = None) -> str:
    """Return the configured name, or one made of model, data and a hash of all settings that determine the result.

    So the same command resumes the same run, and another learning rate starts a new one.
    """
    if config.run:
        check_run_name(config.run)
        return config.run
    model = config.model.name.rstrip("/").rpartition("/")[2]  # names on the Hugging Face Hub start with the owner
    return f"{model}-{config.data.name}-{result_digest(config, start)}"


def result_digest(config: Config, start: Start | None = None) -> str:
    """Return a short hash of all settings that determine the result, for names of runs."""
    decides = identity(plain(config))
    if start is not None and start.source is not None:
        decides["--from"] = start.label
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]


def config_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line for each changed setting that determines the result."""
    return _differences(identity(before), identity(now))


def changes_of_run(record: RunRecord, config: Mapping[str, Any], data: Mapping[str, str] | None) -> list[str]:
    """Return one line for each setting, and each split of the data, that decides the numbers and is not the run's.

    `data` has the hash of each split; None if it is not known.
    """
    # How the data is found may change: only what was found is compared.
    changes = [line for line in config_changes(record.config, config) if not line.startswith("data.version:")]
    if data is not None:
        changes += [
            f"data: {split}: {record.data.get(split, 'none')[:12]} -> {data.get(split, 'none')[:12]}"
            for split in sorted({*record.data, *data})
            if record.data.get(split) != data.get(split)
        ]
    return changes


def other_settings(record: RunRecord, config: Mapping[str, Any], changes: Iterable[str], *, may_allow: bool) -> str:
    """Return the message for a run that was started with other settings; `may_allow`: the command has --allow-changes."""
    lines = "\n".join(f"  {line}" for line in changes)
    then, here = (select(Config, one, {WEIGHTS}) for one in (record.config, config))
    other = then != here or any(line.strip().startswith("tokenizer.") for line in lines.splitlines())
    if other:
        allow = "; with another model or tokenizer its checkpoints cannot be read"
    else:
        allow = "; --allow-changes resumes this run all the same" if may_allow else ""
    return (
        f"run {record.name!r} was started with other settings:\n{lines}\n"
        f"  choose another name with run=NAME, or leave out `run` to get a new one{allow}"
    )


def other_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line for each changed setting that does not affect the result, except those new in a version."""
    old, new = (flatten(select(Config, config, {EXECUTION})) for config in (before, now))
    old.pop("run", None)  # a resumed run has its name, configured or generated
    return _differences(old, {key: value for key, value in new.items() if key in old})


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    ]


def new_record(
    config: Config,
    *,
    name: str,
    data: dict[str, str],
    tokenizer_id: str,
    parameters: int,
    hardware: dict[str, Any],
) -> RunRecord:
    """Return the record of a run that starts now, with this code on this host."""
    return RunRecord(
        name=name,
        config=plain(config),
        seed=config.seed,
        skytrain_version=__version__,
        code_revision=_code_revision(),
        data=data,
        tokenizer_id=tokenizer_id,
        parameters=parameters,
        hardware={"host": platform.node(), "python": platform.python_version(), **hardware},
        started_at=now(),
    )


def save_run(store: Store, record: RunRecord) -> None:
    store.write(f"runs/{record.name}/run.json", _to_bytes(record))


def create_run(store: Store, record: RunRecord) -> bool:
    """Create a run; False if the name is taken. Of several concurrent callers, exactly one succeeds."""
    return store.create(f"runs/{record.name}/run.json", _to_bytes(record))


def _to_bytes(record: RunRecord) -> bytes:
    return json.dumps(dataclasses.asdict(record), indent=2).encode()


def load_run(store: Store, name: str) -> RunRecord:
    key = f"runs/{name}/run.json"
    try:
        with record_of(store, key):
            record = RunRecord(**read_object(store, key, SHAPE))
            if (
                record.name != name
            ):  # what is read from one run's folder must not be taken for, or written to, another's
                raise ValueError(f"it names another run, {record.name!r:.80}")
            return dataclasses.replace(record, config=upgrade(Config, record.config))
    except NotFound:
        raise SkytrainError(f"no run {name!r} in {store.root}\n  {_instead(store, name)}") from None


def _instead(store: Store, name: str) -> str:
    """Return a hint for an unknown run name: the run that formerly had it, the nearest name, or all names."""
    runs = _names(store)
    if renamed := _renamed_to(store, name):
        return f"it was renamed to {renamed}"
    guess = nearest(name, runs)
    return f"did you mean {guess}?" if guess else f"runs here: {', '.join(runs) or 'none yet'}"


def check_not_renamed(store: Store, name: str) -> None:
    """Raise if `name` is the former name of a run: a new run of that name would silently start at step 0."""
    if renamed := _renamed_to(store, name):
        raise SkytrainError(
            f"no run {name!r} in {store.root}: it was renamed to {renamed}\n"
            f"  resume it with {shlex.quote(f'run={renamed}')}, or choose a name that no run has had"
        )


def note_rename(store: Store, run: str, name: str) -> None:
    """Record below a run's former name what it is called now. Other runs cannot write there, and so claim no name."""
    store.write(_renamed_key(run), json.dumps({"to": name}).encode())


def forget_rename(store: Store, run: str) -> None:
    """Free the name of a run that was renamed."""
    store.delete(_renamed_key(run))


def _renamed_key(run: str) -> str:
    return f"runs/{run}/renamed.json"


def _renamed_to(store: Store, name: str) -> str | None:
    """Return the run that formerly had this name, under its present one; None if there is none, or it was deleted."""
    for _ in range(MOST_RENAMES):
        try:
            name = read_object(store, _renamed_key(name), {"to": is_text})["to"]
            check_run_name(name)  # below its own run, a machine may write what looks like another: RUN/anything
            if store.exists(f"runs/{name}/run.json"):
                return name
        except SkytrainError as error:
            if is_of_store(error):
                raise
            return None
    return None


def _names(store: Store) -> list[str]:
    return [run for run in store.folders("runs/") if has_record(store, run)]


def has_record(store: Store, run: str) -> bool:
    """Return whether there is a record of the run, which may be unreadable."""
    try:
        return store.exists(f"runs/{run}/run.json")
    except ObjectError:
        return True


def run_names(store: Store) -> list[str]:
    """Return the names of all runs in the store, including damaged ones. Raises if there is none."""
    names = _names(store)
    if not names:
        raise NoRuns(f"no run in {store.root} yet\n  start one: skytrain train, or skytrain quickstart")
    return names


def list_runs(store: Store) -> list[RunRecord]:
    """Return the runs with a readable record, newest first. Damaged records are logged."""
    return sorted(_readable(store, run_names(store)), key=lambda record: record.started_at, reverse=True)


def _readable(store: Store, runs: Iterable[str]) -> Iterator[RunRecord]:
    for run in runs:
        try:
            yield load_run(store, run)
        except (DamagedRecord, ObjectError) as error:
            log.warning("warning: run %r is left out: %s", run, error)


def _code_revision() -> str | None:
    """Return the git commit of the running code, or None if it does not run from a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        dirty = subprocess.run(
            ["git", "-C", str(here), "status", "--porcelain"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
