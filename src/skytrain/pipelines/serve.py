"""Serve: a run, step, folder or merged model in, an OpenAI-compatible endpoint out, here or on a rented machine."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..aws import PREVIEW_NOTE, is_preview
from ..config import SkytrainError, StoreConfig, compose, has_layers, skytrain_cache_folder
from ..export import SUMS, read_sums
from ..models import find_weights, is_pretrained, place_of
from ..planning import decoder_size
from ..runs import Reporter, load_run
from ..serving import ServedModel, open_served
from ..storage import NotFound, Store, open_store, read_text
from ..targets import ServeJob, ServeRequest, check_serve_options, find_serve_target

if TYPE_CHECKING:
    from ..export import Dtype

REMOTE = ("s3://", "file://")


def serve(job: ServeJob, reporter: Reporter) -> int:
    """Check the target, find or export the model, verify it, and let the target serve it; return the exit code."""
    check_serve_options(job.request)
    target = find_serve_target(job.request.target)
    dtype = target.check(job)  # before an export, which may take minutes
    model = preview_model(job, reporter) if is_preview(job.config.cloud) else served_model(job, dtype, reporter)
    return target.serve(job, model, reporter)


def preview_model(job: ServeJob, reporter: Reporter) -> ServedModel:
    """Return the model of a dry run without an account: its sizes are a run's of this computer, or the settings'."""
    reporter.note(PREVIEW_NOTE)
    source = job.source
    if source is not None and Path(source).expanduser().is_dir():
        folder = Path(source).expanduser()
        return open_served(folder, job.request.name or folder.resolve().name)
    config = job.config
    here = compose([word for word in job.composed.overrides if not word.startswith(("cloud", "store"))], job.folders)
    model: Mapping[str, Any] = {}
    try:
        record = load_run(open_store(here.config.store), (source or "").partition("@")[0])
        model, parameters = record.config["model"], record.parameters
    except SkytrainError:
        if not has_layers(config.model):
            raise SkytrainError("there is no such model here\n  add the recipe that it was trained with") from None
        model, parameters = asdict(config.model), decoder_size(config.model).parameters
        reporter.note(
            f"{source or 'the model'} is not here: {model['name']} of the settings stands for it; recipe=NAME chooses another"
        )
    sizes = {
        "hidden_size": model["width"], "num_attention_heads": model["heads"], "num_hidden_layers": model["layers"],
        "num_key_value_heads": model["kv_heads"], "head_dim": model["head_size"], "intermediate_size": model["mlp_width"],
        "vocab_size": model["vocab_size"], "max_position_embeddings": model["max_length"],
    }  # fmt: skip
    return ServedModel(
        folder=Path(),
        name=job.request.name or config.serve.name or source or str(model["name"]),
        sha256="0" * 64,
        verified=False,
        chat=False,
        parameters=parameters,
        config=sizes,
    )


def served_model(job: ServeJob, dtype: Dtype, reporter: Reporter) -> ServedModel:
    """Return the verified folder of what the request names; a run is exported in `dtype`."""
    folder, name = _folder_of(job, dtype, reporter)
    given = job.request.name or job.config.serve.name
    name = given or re.sub(r"[^\w.@/-]+", "-", name)

    def verified() -> ServedModel:
        return open_served(folder, name, lambda done, total: reporter.progress("verify", done, total, "bytes"))

    try:
        model = verified()
    except SkytrainError as error:
        if not folder.is_relative_to(_cache()):
            raise
        reporter.note(f"{str(error).partition(chr(10))[0]}; it is made again")
        shutil.rmtree(folder)
        _folder_of(job, dtype, reporter)
        model = verified()
    if not model.verified:
        reporter.note(f"{folder} has no {SUMS}, as exports of Skytrain have: its sizes were checked, not its hashes")
    return model


def _folder_of(job: ServeJob, dtype: Dtype, reporter: Reporter) -> tuple[Path, str]:
    """Return the folder to serve and the model's name. What was exported or fetched for this is in the cache."""
    source = job.source
    if source is not None and source.startswith(REMOTE) and "/runs/" not in source:
        return _fetched(job, source, reporter), source.rstrip("/").rpartition("/")[2]
    if source is not None and is_pretrained(source):
        folder = find_weights(place_of(open_store(job.config.store), source))
        return folder, folder.resolve().name if Path(source).expanduser().is_dir() else source
    return _exported(job, dtype, reporter)


def _exported(job: ServeJob, dtype: Dtype, reporter: Reporter) -> tuple[Path, str]:
    """Export a checkpoint once; the folder's name has the hash of whose it is and what it holds."""
    from ..checkpoints import choose_checkpoint, choose_commit, read_marker  # these load torch; a folder needs none
    from .export import ExportRequest, export

    store = open_store(job.config.store)
    record, step = choose_checkpoint(store, job.source)
    label = f"{record.name}@{step}"
    manifest = read_marker(store, choose_commit(store, record.name, str(step))).manifest_sha256
    # Machines of a run may give its checkpoint the marker of another run's, whose name may differ in letters left out here.
    digest = hashlib.sha256(f"{store.url(record.name)} {manifest}".encode()).hexdigest()
    folder = _cache() / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', record.name)}-{step}-{dtype}-{digest[:16]}"
    if (folder / "config.json").is_file():
        reporter.note(f"{label}: exported before, {folder}")
        return folder, label
    reporter.note(f"{label}: exporting to {folder}")
    try:
        export(job.config, ExportRequest(label, folder, "hf", dtype), reporter)
    except SkytrainError:
        if not (folder / "config.json").is_file():  # unless another process has exported it meanwhile
            raise
    return folder, label


def fetch_model(job: ServeJob, folder: Path, reporter: Reporter) -> ServedModel:
    """Copy an exported folder of a store, or of a mounted file system, to `folder`, and compare it with its hashes."""
    source = job.source
    if source is None:
        raise SkytrainError(
            "--fetch needs the URL or the path of an exported model\n  s3://bucket/project/exports/NAME"
        )
    if source.startswith(REMOTE):
        _fetched(job, source, reporter, folder)
    elif not Path(source).is_dir():
        raise SkytrainError(f"{source}: neither s3://... nor a folder\n  skytrain export writes one")
    else:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    name = job.request.name or source.rstrip("/").rpartition("/")[2]
    model = open_served(folder, name, lambda done, total: reporter.progress("verify", done, total, "bytes"))
    if not model.verified:
        raise SkytrainError(f"{source} has no {SUMS}: what was copied cannot be verified\n  skytrain export writes it")
    return model


def _fetched(job: ServeJob, source: str, reporter: Reporter, to: Path | None = None) -> Path:
    """Download an exported folder of a store once; every file is compared with its hash."""
    root, _, key = source.rstrip("/").rpartition("/")
    given = job.config.store
    store: Store = open_store(StoreConfig(root, given.sse, given.kms_key, given.patience))
    try:
        text = read_text(store, f"{key}/{SUMS}", remedy="export the model again")
    except NotFound:
        raise SkytrainError(
            f"{source} has no {SUMS}: it is not a folder that `skytrain serve` or `export` wrote"
        ) from None
    sums = read_sums(text, f"{source}/{SUMS}")
    # Another store's model may have this name; so may what else is in the cache, such as the keys of certificates.
    folder = to or _cache() / f"{key}-{hashlib.sha256(f'{root}/{key}'.encode()).hexdigest()[:16]}"
    stats = {each.key: each.size for each in store.list(key)}
    total = sum(stats.values())
    done = 0.0

    def advanced(_: str, size: float) -> None:
        nonlocal done
        done += size
        reporter.progress("download", done, total, "bytes")

    folder.mkdir(parents=True, exist_ok=True)
    _drop_others(folder, sums)
    (folder / SUMS).write_text(text, encoding="utf-8")
    for name, sha256 in sums.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != stats.get(f"{key}/{name}"):
            store.download(f"{key}/{name}", path, sha256, advanced)
    return folder


def _drop_others(folder: Path, sums: Mapping[str, str]) -> None:
    """Remove files of another model with the same name: two of one architecture have files of equal sizes."""
    path = folder / SUMS
    known = read_sums(path.read_text(encoding="utf-8", errors="replace"), str(path)) if path.is_file() else {}
    for name, sha256 in sums.items():
        if known.get(name) != sha256:
            (folder / name).unlink(missing_ok=True)
    for name in known.keys() - sums.keys():
        (folder / name).unlink(missing_ok=True)


def _cache() -> Path:
    return skytrain_cache_folder() / "serving"


__all__ = ["ServeJob", "ServeRequest", "fetch_model", "serve", "served_model"]
