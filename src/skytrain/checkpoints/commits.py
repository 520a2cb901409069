"""Which checkpoints exist: folders with a valid marker.

    runs/<run>/checkpoints/step-000001000/3.7/rank-00000.bin   written by attempt 3 in its 7th save
    runs/<run>/checkpoints/step-000001000/3.7/manifest.json    sizes, hashes, state
    runs/<run>/checkpoints/step-000001000/COMMITTED.3          created last; holds the manifest's hash
    runs/<run>/checkpoints/step-000001000/validation.json      the loss, if one was measured at that step

No key is written twice, so two attempts at one run cannot overwrite each other's files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from ..config import build
from ..runs import (
    Fence,
    RunRecord,
    Superseded,
    attempt_numbers,
    check_newest,
    list_runs,
    load_run,
    now,
    read_failure,
    read_fence,
    read_metrics,
)
from ..storage import (
    MANIFEST_BYTES,
    DamagedRecord,
    NotFound,
    ObjectError,
    Stat,
    Store,
    data_of,
    is_number,
    is_time,
    read_object,
    read_whole,
)
from .errors import (
    ANOTHER,
    USE_ANOTHER,
    CheckpointError,
    DamagedCheckpoint,
    SaveFailed,
    TakenOver,
    damage_of_checkpoint,
)
from .manifest import FORMAT, CheckpointManifest, check_format, parse_manifest

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
VALIDATION = "validation.json"
SHA256 = re.compile("[0-9a-f]{64}")
SAVE = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")  # the folder of a save's files
_MARKER = re.compile(r"(?P<folder>.*)/COMMITTED\.(?P<attempt>\d+)")
_STEP = re.compile(r"runs/(?P<run>[^/]+)/checkpoints/step-(?P<step>\d+)")


@dataclass(frozen=True)
class Marker:
    """The contents of COMMITTED: enough to list a checkpoint without opening it."""

    format: int
    step: int
    attempt: int
    folder: str  # the folder of its files, within the step's folder
    manifest_sha256: str
    bytes: int
    committed_at: str


@dataclass(frozen=True)
class Commit:
    """A committed checkpoint."""

    key: str  # the step's folder
    step: int
    attempt: int

    @property
    def marker_key(self) -> str:
        return marker_key(self.key, self.attempt)


def step_key(run: str, step: int) -> str:
    return f"{_folder(run)}step-{step:09d}"


def marker_key(key: str, attempt: int) -> str:
    return f"{key}/COMMITTED.{attempt}"


def committed(store: Store, run: str) -> list[Commit]:
    """Return the run's checkpoints in order of step, one for each step."""
    return _valid_commits(store.list(_folder(run)), read_fence(store, run))


def has_trained(store: Store, run: str) -> bool:
    """Return whether a step of the run was trained, or may be at this moment.

    A run whose attempts all failed before their first step has nothing that other settings would contradict.
    """
    attempts = attempt_numbers(store, run)
    failed = attempts and all(read_failure(store, run, number) is not None for number in attempts)
    return not failed or bool(committed(store, run)) or bool(read_metrics(store, run))


def committed_steps(store: Store, run: str) -> list[int]:
    """Return the steps with a committed checkpoint, in order."""
    return [commit.step for commit in committed(store, run)]


def find_run(store: Store, name: str | None) -> RunRecord:
    """Return the named run, or the newest that has a checkpoint."""
    if name:
        return load_run(store, name)
    records = list_runs(store)
    for record in records:
        try:
            if committed(store, record.name):
                return record
        except (DamagedRecord, ObjectError) as error:  # whoever can write to one run must not hide the others
            log.warning("warning: run %r is left out: %s", record.name, error)
    raise CheckpointError(
        f"no run in {store.root} has a committed checkpoint yet: {', '.join(record.name for record in records)}\n"
        "  `skytrain status` shows their state"
    )


def choose_commit(store: Store, run: str, step: str) -> Commit:
    """Return the run's checkpoint of a step, given as the user typed it; the newest if `step` is empty."""
    commits = committed(store, run)
    if not commits:
        raise CheckpointError(f"run {run!r} has no committed checkpoint yet")
    chosen = [commit for commit in commits if str(commit.step) == step] if step else commits
    if not chosen:
        steps = ", ".join(str(commit.step) for commit in commits)
        raise CheckpointError(f"run {run!r} has no checkpoint at step {step!r}\n  it has {steps}")
    return chosen[-1]


def find_commit(store: Store, key: str) -> Commit:
    """Return the checkpoint in the folder `key`: a step of a run, or any other folder."""
    step = _STEP.fullmatch(key)
    fence = read_fence(store, step["run"]) if step else Fence({})
    commits = _valid_commits(store.list(key), fence)
    if not commits:
        raise CheckpointError(
            f"{store.url(key)} is not a committed checkpoint\n"
            "  it may be half-written or being deleted: `skytrain checkpoints list` shows the committed ones"
        )
    return commits[-1]


def _folder(run: str) -> str:
    return f"runs/{run}/checkpoints/"


def _valid_commits(stats: Iterable[Stat], fence: Fence) -> list[Commit]:
    """Return the newest attempt's commit in each folder, without those that a later attempt has discarded."""
    newest: dict[str, Commit] = {}
    for key, attempt in _markers(stats):
        step = int(key.rpartition("-")[2]) if _STEP.fullmatch(key) else 0
        if fence.admits(attempt, step) and (key not in newest or attempt > newest[key].attempt):
            newest[key] = Commit(key, step, attempt)
    return sorted(newest.values(), key=lambda commit: (commit.step, commit.key))


def _markers(stats: Iterable[Stat]) -> Iterator[tuple[str, int]]:
    for stat in stats:
        marker = _MARKER.fullmatch(stat.key)
        if marker:
            yield marker["folder"], int(marker["attempt"])


def read_marker(store: Store, commit: Commit) -> Marker:
    url = store.url(commit.marker_key)
    try:
        with damage_of_checkpoint():
            fields = read_object(store, commit.marker_key, remedy=ANOTHER)
            check_format(fields.get("format"), url)
            with data_of(url, ANOTHER):
                marker: Marker = build(Marker, fields)
                if not is_time(marker.committed_at) or not SHA256.fullmatch(marker.manifest_sha256):
                    raise ValueError("it has no time or hash")
                if not SAVE.fullmatch(marker.folder):
                    raise ValueError(f"{marker.folder!r:.60} is not the folder of a save")
    except NotFound:
        raise CheckpointError(f"{store.url(commit.key)} was deleted while it was being read") from None
    return marker


def read_manifest(store: Store, commit: Commit) -> tuple[str, CheckpointManifest]:
    """Return the key of the folder with the checkpoint's files, and its manifest."""
    marker = read_marker(store, commit)
    folder = f"{commit.key}/{marker.folder}"
    url = store.url(f"{folder}/{MANIFEST}")
    try:
        with damage_of_checkpoint():
            data = read_whole(store, f"{folder}/{MANIFEST}", MANIFEST_BYTES, ANOTHER)
    except NotFound:
        raise DamagedCheckpoint(f"{url} is missing, so this checkpoint cannot be read{USE_ANOTHER}") from None
    if hashlib.sha256(data).hexdigest() != marker.manifest_sha256:
        raise DamagedCheckpoint(f"{url} was altered after the checkpoint was committed{USE_ANOTHER}")
    return folder, parse_manifest(data, url)


def save_folder(attempt: int, number: int) -> str:
    """Return the folder of a save's files, within the step's. `number` counts an attempt's saves, even failed ones."""
    return f"{attempt}.{number}"


def commit(store: Store, key: str, attempt: int, folder: str, manifest: CheckpointManifest) -> Commit:
    """Commit what was written; raises TakenOver if a newer attempt has taken over the run."""
    run = _STEP.fullmatch(key)
    if run:
        _must_be_newest(store, run["run"], attempt)
    sizes = {stat.key: stat.size for stat in store.list(f"{key}/{folder}")}
    for name, file in manifest.files.items():
        if sizes.get(f"{key}/{folder}/{name}") != file.bytes:
            raise SaveFailed(
                f"{store.url(f'{key}/{folder}/{name}')} is incomplete, so the checkpoint was not committed"
            )
    data = manifest.to_bytes()
    store.write(f"{key}/{folder}/{MANIFEST}", data)
    marker = Marker(
        format=FORMAT,
        step=int(run["step"]) if run else 0,
        attempt=attempt,
        folder=folder,
        manifest_sha256=hashlib.sha256(data).hexdigest(),
        bytes=manifest.total_bytes,
        committed_at=now(),
    )
    # An earlier save of this attempt may be committed already, if the store's response was lost. It is just as good.
    store.create(marker_key(key, attempt), json.dumps(asdict(marker)).encode())
    if run:
        # An attempt that claims the run from now on sees the marker; one that claimed it before may have missed it.
        _must_be_newest(store, run["run"], attempt)
    return Commit(key, marker.step, attempt)


def _must_be_newest(store: Store, run: str, attempt: int) -> None:
    try:
        check_newest(store, run, attempt)
    except Superseded as error:
        raise TakenOver(str(error)) from error


def write_validation(store: Store, run: str, step: int, loss: float) -> None:
    store.write(f"{step_key(run, step)}/{VALIDATION}", json.dumps({"val/loss": loss}).encode())


def read_validation(store: Store, commit: Commit) -> float | None:
    try:
        with damage_of_checkpoint():
            return float(
                read_object(store, f"{commit.key}/{VALIDATION}", {"val/loss": is_number}, remedy="delete it")[
                    "val/loss"
                ]
            )
    except NotFound:
        return None
