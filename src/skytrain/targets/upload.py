"""An exported model on its way to the machines that serve it: a folder of the store, with its hashes."""

from __future__ import annotations

import re

from ..config import format_bytes
from ..export import SUMS, hash_file
from ..runs import Reporter
from ..serving import ServedModel
from ..storage import Store


def plain_name(name: str) -> str:
    """Return a model's name as a part of other names."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")


def model_key(name: str, sha256: str) -> str:
    """Return where a model is in the store: a folder named by its content."""
    return f"exports/{plain_name(name)}-{sha256[:12]}"


def upload_model(store: Store, model: ServedModel, key: str, reporter: Reporter) -> None:
    """Copy the folder to the store, its hashes last. One that is there is not copied again."""
    if store.exists(f"{key}/{SUMS}"):
        return
    paths = sorted(path for path in model.folder.rglob("*") if path.is_file() and path.name != SUMS)
    total = sum(path.stat().st_size for path in paths)
    done = 0.0
    lines = []

    def advanced(_: str, size: float) -> None:
        nonlocal done
        done += size
        reporter.progress("upload", done, total, f"{format_bytes(done)} of {format_bytes(total)}")

    for path in paths:
        name = path.relative_to(model.folder).as_posix()
        lines.append(f"{store.upload(path, f'{key}/{name}', advanced, hash_file(path))}  {name}\n")
    store.write(f"{key}/{SUMS}", "".join(lines).encode())
