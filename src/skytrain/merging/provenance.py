"""The provenance of a merged model: what it was made of, how, and by which command."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..storage import DamagedRecord, NotFound, Store, data_of, read_file_object, read_object

MERGE_FILE = "merge.json"


@dataclass(frozen=True)
class MergedFrom:
    """One model of a merge, identified by its content at the time."""

    source: str
    sha256: str  # of a checkpoint's manifest, or of the weights of a folder or file
    weight: float


@dataclass(frozen=True)
class Provenance:
    """The record of how a merged model was made. The same inputs and settings give the same weights."""

    method: str
    inputs: list[MergedFrom]
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    base: MergedFrom | None = None
    ancestor: str | None = None
    notes: list[str] = field(default_factory=list)  # how weights were found, what was forced
    command: list[str] = field(default_factory=list)
    skytrain_version: str = __version__

    @property
    def text(self) -> str:
        """What was merged, and how, in one line."""
        parts = " + ".join(f"{each.weight:.4g} x {each.source}" for each in self.inputs)
        return f"{self.method} of {parts}{f' on {self.base.source}' if self.base else ''}"

    @property
    def identity(self) -> str:
        """A hash of what decides the weights."""
        decides = {**asdict(self), "notes": None, "command": None, "skytrain_version": None, "ancestor": None}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


def provenance_key(run: str) -> str:
    return f"runs/{run}/{MERGE_FILE}"


def read_provenance(store: Store, run: str) -> Provenance | None:
    """Return how a run was merged, or None for one that was trained."""
    key = provenance_key(run)
    try:
        return _parse(read_object(store, key), store.url(key))
    except NotFound:
        return None


def read_folder_provenance(folder: Path) -> Provenance | None:
    """Return how the model of an exported folder was merged, or None for any other folder."""
    path = folder / MERGE_FILE
    try:
        return _parse(read_file_object(path), str(path))
    except (OSError, DamagedRecord):
        return None


def _parse(values: dict[str, Any], where: str) -> Provenance:
    with data_of(where):
        inputs = [MergedFrom(**each) for each in values.pop("inputs")]
        base = values.pop("base")
        return Provenance(inputs=inputs, base=MergedFrom(**base) if base else None, **values)
