"""Export: a trained model in, a folder or file for other tools out, or a repository of the Hugging Face hub."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..checkpoints import LoadedModel, choose_checkpoint, is_model_file, load_model
from ..config import Config, SkytrainError, recorded_batches, recorded_steps
from ..export import Dtype, HFExport, TrainingFacts, check_hub_name, export_hf, export_llmc, push_folder
from ..merging import MERGE_FILE, provenance_key, read_provenance
from ..models import is_pretrained
from ..runs import Reporter, Silent, attempt_numbers, read_attempt, read_metrics
from ..storage import STAGED, DamagedRecord, Store, is_hub_name, open_store, read_file_object, record_of
from ..tokens import find_manifest


@dataclass(frozen=True)
class ExportRequest:
    """The model to export, and its destination."""

    source: str | None = None  # a run, RUN@STEP or a folder; None: the newest run
    out: Path | None = None  # None: only for the hub, a folder that is removed after the upload
    to: Literal["hf", "llm.c", "hub"] = "hf"
    dtype: Dtype | None = None  # None: bf16 in a Hugging Face folder, fp32 in llm.c's file
    repository: str | None = None  # on the hub
    private: bool = True


def export(config: Config, request: ExportRequest, reporter: Reporter | None = None) -> str:
    """Write the model, and push it if the request says so; return a line that says what went where."""
    reporter = reporter or Silent()
    if request.to == "hub":
        return _push(config, request, reporter)
    assert request.out is not None
    store = open_store(config.store)
    loaded = load_model(store, request.source, config.tokenizer)
    if request.to == "hf":
        export_hf(loaded.model, loaded.tokenizer, request.out, _how(store, loaded, request.dtype or "bf16"))
    else:
        export_llmc(loaded.model, request.out, request.dtype or "fp32")
    return f"{loaded.label} -> {request.out}"


def _push(config: Config, request: ExportRequest, reporter: Reporter) -> str:
    """Export to a folder, unless an earlier push has done so, and upload it."""
    assert request.repository is not None
    check_hub_name(request.repository)
    kept = request.out is not None
    store = open_store(config.store)
    folder = request.out or _upload_folder(store, request)
    if (folder / "config.json").is_file():
        reporter.note(f"{folder}: exported before, only uploaded now")
        label = str(folder)
    else:
        loaded = load_model(store, request.source, config.tokenizer)
        label = loaded.label
        export_hf(loaded.model, loaded.tokenizer, folder, _how(store, loaded, request.dtype or "bf16"))
    try:
        address = push_folder(
            folder,
            request.repository,
            private=request.private,
            progress=lambda done, total: reporter.progress("upload", done, total, "bytes"),
        )
    except (SkytrainError, KeyboardInterrupt):
        reporter.note(f"the export is in {folder}: the same command uploads the rest")
        raise
    if not kept:
        shutil.rmtree(folder)
    return f"{label} -> {address}"


def _upload_folder(store: Store, request: ExportRequest) -> Path:
    """Name the folder by what it holds, so that an interrupted push of another step is not taken for this one."""
    if request.source and (is_pretrained(request.source) or is_model_file(request.source)):
        label = request.source
    else:
        record, step = choose_checkpoint(store, request.source)
        label = f"{record.name}-{step}"
    parts = (request.repository or "", label, request.dtype or "bf16")
    return Path("--".join(re.sub(r"[^\w.-]+", "--", word).strip("-.") for word in parts) + ".upload")


def _how(store: Store, loaded: LoadedModel, dtype: Dtype) -> HFExport:
    if loaded.run is not None and loaded.run.merged_from:
        return merged_export(store, loaded.run.name, dtype)
    with record_of(store, f"runs/{loaded.run.name}/run.json" if loaded.run else ""):
        return HFExport(dtype, _training_facts(store, loaded))


def merged_export(store: Store, run: str, dtype: Dtype) -> HFExport:
    """Return how a merged model is written: the folder says what it was made of."""
    made = read_provenance(store, run)
    if made is None:
        raise SkytrainError(f"{store.url(provenance_key(run))} is missing: how {run} was merged is not known")
    return HFExport(dtype, merged=made.text, files={MERGE_FILE: made.to_bytes()})


def _training_facts(store: Store, loaded: LoadedModel) -> TrainingFacts | None:
    """Return what the run's record, metrics and manifests say about the exported step."""
    run = loaded.run
    if run is None:
        return None
    step = int(loaded.label.rpartition("@")[2])
    config: dict[str, Any] = run.config
    trainer = config["trainer"]
    metrics: dict[str, float] = {}
    for record in read_metrics(store, run.name):
        if record["step"] <= step:
            metrics |= record
    return TrainingFacts(
        run=run.name,
        step=step,
        total_steps=recorded_steps(trainer),
        batches=recorded_batches(trainer),
        sequence_length=trainer["sequence_length"],
        optimizer=config["optimizer"]["name"],
        learning_rate=config["optimizer"]["lr"],
        precision=trainer["precision"],
        seed=run.seed,
        data={prefix: _tokens(store, prefix) for prefix in run.data if prefix.endswith("/train")},
        tokenizer=run.tokenizer_id,
        metrics=metrics,
        device=run.hardware.get("device", ""),
        ranks=_ranks(store, run.name),
        train_seconds=run.train_seconds,
        started_from=_base_model(run.started_from or _weights(config["model"])),
    )


def _weights(model: dict[str, Any]) -> str | None:
    """Return the pretrained weights that the model's settings name."""
    if model["family"] == "hf":
        return model["name"] if model["weights"] == "pretrained" else None
    return model.get("weights")


def _base_model(source: str | None) -> str | None:
    """Return the model that training started from by its name on the hub, or by that of its folder; never by a path."""
    if source is None:
        return None
    staged = STAGED.search(source)
    if staged is not None:
        return staged[1]
    try:
        folder = Path(source).expanduser()
    except RuntimeError:  # of a user whom this computer does not have
        return source.rstrip("/").rpartition("/")[2]
    if not folder.is_absolute() and not folder.exists() and "://" not in source:
        return source  # a name on the hub, or a run
    try:
        origin = read_file_object(folder / "config.json").get("_name_or_path")
    except (OSError, DamagedRecord):
        origin = None
    named = isinstance(origin, str) and origin.count("/") == 1 and is_hub_name(origin)
    return str(origin) if named else source.rstrip("/").rpartition("/")[2]


def _ranks(store: Store, run: str) -> int:
    numbers = attempt_numbers(store, run)
    return int(read_attempt(store, run, numbers[-1]).get("world_size", 1)) if numbers else 1


def _tokens(store: Store, prefix: str) -> int | None:
    manifest = find_manifest(store, prefix)
    return manifest.tokens if manifest else None
