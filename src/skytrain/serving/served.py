"""A Hugging Face folder to serve: verified, and with what its server must know."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import SkytrainError
from ..export import SUMS, check_sums, hash_file
from ..models import read_headers
from ..planning import ServedShape
from ..storage import DamagedRecord, read_file_object

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
EXPORT = "export the model again"
TEMPLATE = "chat_template.jinja"
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class ServedModel:
    """A verified folder and what is known about its model."""

    folder: Path
    name: str  # the name that requests give
    sha256: str  # of all its files
    verified: bool  # against the hashes that its export wrote
    chat: bool  # has a chat template
    parameters: int
    config: Mapping[str, Any]  # config.json

    def shape(self, dtype: str) -> ServedShape:
        """Return the sizes that decide how much memory the model takes, served in `dtype`."""
        config = self.config
        width = _number(config, "hidden_size", "n_embd")
        heads = _number(config, "num_attention_heads", "n_head")
        return ServedShape(
            weight_bytes=float(self.parameters * BYTES[dtype]),
            value_bytes=BYTES[dtype],
            layers=_number(config, "num_hidden_layers", "n_layer"),
            heads=heads,
            kv_heads=_given(config, "num_key_value_heads") or heads,
            head_size=_given(config, "head_dim") or width // heads,
            width=width,
            mlp_width=_given(config, "intermediate_size") or _given(config, "n_inner") or 4 * width,
            vocab_size=_number(config, "vocab_size"),
            max_length=_number(config, "max_position_embeddings", "n_positions"),
        )


def open_served(folder: Path, name: str, progress: Progress = lambda done, total: None) -> ServedModel:
    """Open a folder after checking that it is complete. Raises SkytrainError if it is damaged or cannot be served."""
    config = _read_config(folder)
    verified = check_sums(folder, progress)
    tensors = read_headers(folder)
    if not any((folder / each).is_file() for each in TOKENIZERS):
        raise SkytrainError(
            f"{folder} has no tokenizer: none of {', '.join(TOKENIZERS)}\n  export the model again, or save its tokenizer there"
        )
    parameters = sum(math.prod(each.shape) for each in tensors.values())
    model = ServedModel(
        folder=folder,
        name=name,
        sha256=_hash(folder, verified),
        verified=verified,
        chat=_has_template(folder),
        parameters=parameters,
        config=config,
    )
    model.shape("float32")  # raises now if config.json lacks something
    return model


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return read_file_object(path, remedy=EXPORT)
    except FileNotFoundError:
        raise SkytrainError(
            f"{folder} is not a Hugging Face model: it has no config.json\n"
            "  give a run, RUN@STEP, or a folder that save_pretrained or `skytrain export` wrote"
        ) from None
    except OSError as error:
        raise SkytrainError(f"{path} cannot be read: {error}\n  {EXPORT}") from None


def _has_template(folder: Path) -> bool:
    if (folder / TEMPLATE).is_file():
        return True
    try:
        return bool(read_file_object(folder / "tokenizer_config.json").get("chat_template"))
    except (OSError, DamagedRecord):
        return False


def _hash(folder: Path, verified: bool) -> str:
    """Return a hash of the folder's list of hashes, which is computed for a folder of another program."""
    if verified:
        return hash_file(folder / SUMS)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return hashlib.sha256("".join(f"{hash_file(path)}  {path.name}\n" for path in files).encode()).hexdigest()


def _given(config: Mapping[str, Any], name: str) -> int | None:
    """Return a number that config.json may leave out."""
    return None if config.get(name) is None else _number(config, name)


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if type(config.get(name)) is int and config[name] > 0:
            return int(config[name])
    raise SkytrainError(
        f"config.json has no number {names[0]} above 0: it does not describe a decoder that can be served"
    )
