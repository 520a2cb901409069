"""Export to Hugging Face: a folder that AutoModelForCausalLM and AutoTokenizer load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from torch import nn

from ..config import SkytrainError
from ..models import Decoder, HFCausalLM, save_hf_folder
from ..tokens import Tokenizer
from .folder import new_folder


def export_hf(model: nn.Module, tokenizer: Tokenizer, folder: str | Path) -> Path:
    """Write the model and its tokenizer to a new folder, which appears only once it is complete."""
    if not isinstance(model, Decoder | HFCausalLM):
        raise SkytrainError(
            f"{type(model).__name__} is a model of your own; only the built-in decoder and model=hf have a Hugging Face form"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise SkytrainError(
            f"tokenizer {tokenizer.name} has {tokenizer.vocab_size} tokens, model {model.config.name} only {model.config.vocab_size}"
        )
    target, ids = Path(folder), tokenizer.token_ids
    with new_folder(target) as draft:
        if isinstance(model, Decoder):
            save_hf_folder(model, draft, eot=ids["eos_token_id"], bos=ids["bos_token_id"])
        else:
            cast(Any, model.model).save_pretrained(draft)
        stops = sorted(tokenizer.stop_ids)
        generation = {**ids, "eos_token_id": stops if len(stops) > 1 else stops[0]}
        (draft / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(draft)
    return target
