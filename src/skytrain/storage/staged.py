"""Models in a store, as `skytrain models fetch` puts them there: a folder for each commit of a repository of the hub.

    models/<owner>/<name>@<commit>/config.json, model-00001-of-00004.safetensors, ..., manifest.json
    models/<owner>/<name>.refs.json                                         the commit of each branch that was fetched

The manifest is written last: a folder without one is an interrupted fetch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import StoreConfig, build
from .base import Store
from .errors import NotFound, StoreError
from .hub import is_hub_name
from .opening import open_store
from .reading import damaged, read_object, read_typed

FOLDER = "models"
MANIFEST = "manifest.json"
COMMIT = re.compile("[0-9a-f]{40}")
STAGED = re.compile(r"/models/((?:[\w.-]+/)?[\w.-]+)@[0-9a-f]{40}/?$")  # where a staged model is, with its name
BRANCH = "main"  # of a name without @REVISION
FETCH = "fetch the model again"
HURRY_SECONDS = 5.0  # for a look that only saves a download


@dataclass(frozen=True)
class StagedFile:
    """A file of a staged model."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class StagedModel:
    """A model in a store: what it was fetched from, its license, and every file."""

    repository: str
    commit: str
    license: str | None
    files: dict[str, StagedFile]

    @property
    def folder(self) -> str:
        return staged_folder(self.repository, self.commit)

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode()


def staged_folder(repository: str, commit: str) -> str:
    return f"{FOLDER}/{repository}@{commit}"


def find_staged(store: Store, name: str) -> StagedModel | None:
    """Return the model `owner/name[@revision]` in the store, or None.

    A revision is a branch or tag that was fetched by that name, or a commit, of which the first digits suffice.
    """
    repository, _, revision = name.partition("@")
    if not is_hub_name(repository):
        return None
    commit = _refs(store, repository).get(revision or BRANCH)
    if commit is None and re.fullmatch("[0-9a-f]{7,40}", revision):
        parent, _, last = staged_folder(repository, revision).rpartition("/")
        found = [each for each in store.folders(parent) if each.startswith(last)]
        commit = found[0].rpartition("@")[2] if len(found) == 1 else None
    return None if commit is None else read_staged(store, staged_folder(repository, commit))


def read_staged(store: Store, folder: str) -> StagedModel | None:
    """Return what the manifest of a staged model says; None if its fetch has not ended."""
    key = f"{folder}/{MANIFEST}"
    try:
        return read_typed(store, key, StagedModel, remedy=FETCH)
    except NotFound:
        return None


def write_staged(store: Store, model: StagedModel, revision: str) -> None:
    """Make a model whose files are in the store known, by its commit and by the revision that was asked for."""
    store.write(f"{model.folder}/{MANIFEST}", model.to_json())
    refs = {**_refs(store, model.repository), revision: model.commit}
    store.write(_refs_key(model.repository), json.dumps(refs, indent=1, sort_keys=True).encode())


def staged_place(store: Store, name: str) -> str | None:
    """Return where the store has the model `owner/name[@revision]`: a folder, or the URL of one. None if it has not."""
    found = find_staged(store, name)
    return None if found is None else _place(store, found.folder)


def staged_at(store: Store, place: str) -> StagedModel | None:
    """Return the staged model whose folder is at `place`; None if that is elsewhere."""
    _, found, name = place.rpartition(f"/{FOLDER}/")
    folder = f"{FOLDER}/{name}"
    return read_staged(store, folder) if found and name and _place(store, folder) == place else None


def _place(store: Store, folder: str) -> str:
    return str(store.local_path(folder) or store.url(folder))


def locate_model(name: str, store_settings: Mapping[str, Any]) -> str:
    """Return where the store has a model of the hub, or the name itself. A store that cannot be asked has none."""
    if "://" in name or not is_hub_name(name.partition("@")[0]):
        return name
    try:
        settings: StoreConfig = build(StoreConfig, store_settings, "store")
        return staged_place(open_store(replace(settings, patience=HURRY_SECONDS)).hurried(HURRY_SECONDS), name) or name
    except StoreError:
        return name  # whoever needs the store says why


def _refs(store: Store, repository: str) -> dict[str, str]:
    key = _refs_key(repository)
    try:
        refs = read_object(store, key, remedy=FETCH)
    except NotFound:
        return {}
    if not all(COMMIT.fullmatch(str(commit)) for commit in refs.values()):
        raise damaged(store.url(key), "it names something that is not a commit", FETCH)
    return refs


def _refs_key(repository: str) -> str:
    return f"{FOLDER}/{repository}.refs.json"
