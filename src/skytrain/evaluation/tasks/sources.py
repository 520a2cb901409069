"""Where a task's data comes from: a path or URL that was given, the store, or the hub, whose files the store keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...config import ConfigError, NamedTask, SkytrainError
from ...corpus import HubDataset
from ...storage import MANIFEST_BYTES, NotFound, Store, StoreError, open_store, read_whole
from .records import read_records

FOLDER = "evaluations"


@dataclass(frozen=True)
class DataFile:
    """The name and the bytes of a file."""

    name: str
    content: bytes


def load_data(task: NamedTask, store: Store, note: Callable[[str], None]) -> list[DataFile]:
    """Return the files of a task. What comes from the hub is kept in the store: the next run needs no network."""
    if task.data is not None:
        return _given(task)
    key = stored_task_key(task)
    try:
        return [DataFile(store.url(key), read_whole(store, key, MANIFEST_BYTES, "delete it: it is fetched again"))]
    except NotFound:
        pass
    if task.config.repo is None:
        raise SkytrainError(f"task {task.name} does not say where its data is\n  set evaluation.data.{task.name}=PATH")
    files = _from_hub(task)
    records = [record for file in files for record in read_records(file.name, file.content)]
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    store.create(key, content)
    note(f"{task.name}: {len(records)} records of {task.config.repo} are now in {store.url(key)}")
    return [DataFile(store.url(key), content)]


def stored_task_key(task: NamedTask) -> str:
    """Return the key of a task's data from the hub in the store."""
    return f"{FOLDER}/{task.name}/{task.config.revision.replace('/', '-')}.jsonl"


def _given(task: NamedTask) -> list[DataFile]:
    assert task.data is not None
    if "://" in task.data:
        root, _, name = task.data.rpartition("/")
        try:
            return [DataFile(task.data, read_whole(open_store(root), name, MANIFEST_BYTES))]
        except StoreError as error:
            raise SkytrainError(f"task {task.name}: {error}\n  correct evaluation.data.{task.name}") from None
    path = Path(task.data).expanduser()
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    else:
        paths = [path] if path.is_file() else []
    if not paths:
        problem = "has no files" if path.is_dir() else "no such file"
        raise SkytrainError(f"task {task.name}: {task.data}: {problem}\n  correct evaluation.data.{task.name}")
    return [DataFile(str(file), file.read_bytes()) for file in paths]


def _from_hub(task: NamedTask) -> list[DataFile]:
    """Return the files at one commit: a branch is resolved before anything is read."""
    config = task.config
    assert config.repo is not None
    data = HubDataset(repo=config.repo, files=config.files or "*", revision=config.revision)
    files = []
    try:
        for piece in data.pieces():
            with piece.open(decompress=False) as file:
                files.append(DataFile(piece.name, file.read()))
    except (StoreError, ConfigError) as error:
        problem = str(error).partition("\n")[0]
        raise SkytrainError(
            f"task {task.name}: {problem}\n"
            f"  without a network, give its file: evaluation.data.{task.name}=PATH (JSONL or parquet of the same fields)"
        ) from None
    return files
