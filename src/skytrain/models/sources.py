"""Where pretrained weights are: a folder in Hugging Face's layout, a repository of its hub, or a file. No torch."""

from __future__ import annotations

from pathlib import Path

from ..config import SkytrainError
from ..storage import Store, is_hub_name, resolve_hub_or_folder, staged_place
from .safetensors_header import PICKLES

CONFIG = "config.json"
DESCRIPTION = (CONFIG, "generation_config.json", "tokenizer*", "special_tokens_map.json", "chat_template*")
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")


def is_pretrained(source: str) -> bool:
    """Return whether `--from` names a folder, its URL or a repository `owner/name`, rather than a run of the store."""
    if "://" in source:
        return "/runs/" not in source
    path = Path(source).expanduser()
    if path.exists():
        # A folder may have the name of a run, and a run of a local store is a folder.
        of_a_model = any(True for pattern in (CONFIG, *WEIGHTS, *PICKLES) for _ in path.glob(pattern))
        return path.is_dir() and (of_a_model or ("/" in source and "/runs/" not in source))
    if source.startswith(("/", "./", "../", "~")):
        # This is a run in another store, .../runs/RUN@STEP, or no folder at all, which whoever opens it reports.
        return "/runs/" not in source
    return source.count("/") == 1 and not source.startswith("runs/") and is_hub_name(source)


def place_of(store: Store, source: str) -> str:
    """Return where the store has the model `source` of the hub; `source` itself if it is here, or not in the store."""
    if "://" in source or Path(source).expanduser().exists() or not is_pretrained(source):
        return source
    return staged_place(store, source) or source


def find_description(source: str) -> Path:
    """Return the folder with the config.json of `source`; of a repository, only small files are downloaded."""
    folder = resolve_hub_or_folder(source, DESCRIPTION)
    if not (folder / CONFIG).is_file():
        raise SkytrainError(
            f"{source} is not a Hugging Face model: it has no {CONFIG}, which names the architecture\n"
            "  give the folder that save_pretrained or `skytrain export` wrote"
        )
    return folder


def find_weights(source: str) -> Path:
    """Return the folder of `source` with its weights, downloaded where it is a repository."""
    if not Path(source).expanduser().is_dir():
        resolve_hub_or_folder(source, (*DESCRIPTION, *WEIGHTS))
    return find_description(source)
