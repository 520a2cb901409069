"""Exports to Hugging Face: a folder that AutoModelForCausalLM and AutoTokenizer load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..config import SkytrainError
from ..models import MAX_FILE_BYTES, Decoder, HFCausalLM, count_parameters, save_hf_folder
from ..storage import data_of, read_file_object
from ..tokens import Tokenizer
from .card import ModelFacts, TrainingFacts, model_card
from .folder import new_folder
from .sums import write_sums

Dtype = Literal["bf16", "fp16", "fp32"]
DTYPES: dict[Dtype, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class HFExport:
    """The options of an exported folder."""

    dtype: Dtype = "bf16"
    training: TrainingFacts | None = None  # for the model card
    max_file_bytes: int = MAX_FILE_BYTES
    merged: str | None = None  # for the model card: what a merged model was made of
    files: Mapping[str, bytes] = field(default_factory=dict)  # to add to the folder


def export_hf(model: nn.Module, tokenizer: Tokenizer, folder: str | Path, how: HFExport | None = None) -> Path:
    """Write the model, its tokenizer, a model card and hashes to a new folder, which appears only when complete."""
    how = how or HFExport()
    if not isinstance(model, Decoder | HFCausalLM):
        raise SkytrainError(
            f"{type(model).__name__} is a custom model; only the built-in decoder and model=hf can be exported to Hugging Face"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise SkytrainError(
            f"tokenizer {tokenizer.name} has {tokenizer.vocab_size} tokens, model {model.config.name} only {model.config.vocab_size}"
        )
    target = Path(folder)
    ids = tokenizer.token_ids
    with new_folder(target) as draft:
        if isinstance(model, Decoder):
            save_hf_folder(
                model,
                draft,
                eot=ids["eos_token_id"],
                bos=ids["bos_token_id"],
                dtype=DTYPES[how.dtype],
                max_file_bytes=how.max_file_bytes,
            )
        else:
            _save_transformers(model, draft, how)
        stops = sorted(tokenizer.stop_ids)
        generation = {**ids, "eos_token_id": stops if len(stops) > 1 else stops[0]}
        (draft / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(draft)
        card = model_card(_facts(model, draft), how.training, how.merged)
        (draft / "README.md").write_text(card, encoding="utf-8")
        for name, data in how.files.items():
            (draft / name).write_bytes(data)
        write_sums(draft)
    return target


def read_dtype(folder: Path) -> str:
    """Return the type of an exported folder's weights: bf16, fp16 or fp32, or any other as config.json spells it."""
    path = folder / "config.json"
    remedy = f"remove {folder}"
    try:
        with data_of(str(path), remedy):
            written = str(read_file_object(path, remedy=remedy)["dtype"])
    except OSError as error:
        raise SkytrainError(f"{path} cannot be read: {error}\n  {remedy}") from None
    return next((name for name, dtype in DTYPES.items() if str(dtype) == f"torch.{written}"), written)


def _save_transformers(model: HFCausalLM, folder: Path, how: HFExport) -> None:
    theirs: Any = model.model
    dtype = DTYPES[how.dtype]
    # Cast in a copy: the model stays as it was.
    weights = {
        name: value.to(dtype) if value.is_floating_point() else value for name, value in theirs.state_dict().items()
    }
    theirs.save_pretrained(folder, state_dict=weights, max_shard_size=how.max_file_bytes)
    path = folder / "config.json"
    config = read_file_object(path)
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _facts(model: Decoder | HFCausalLM, folder: Path) -> ModelFacts:
    written = read_file_object(folder / "config.json")
    return ModelFacts(
        name=model.config.name.rstrip("/").rpartition("/")[2],
        family=written["model_type"],
        parameters=count_parameters(model),
        max_length=model.config.max_length,
        dtype=written["dtype"],
    )
