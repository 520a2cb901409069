"""The files of a Hugging Face tokenizer: which they are, what identifies them, and what can be read without transformers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import SkytrainError
from ..storage import MANIFEST_BYTES, parse_object, read_file, resolve_hub_or_folder

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
# Everything that transformers, vLLM and converters read; stored and exported byte for byte.
FILES = (
    TOKENIZER_FILE,
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    TEMPLATE_FILE,
    "chat_template.json",
)
MAX_VOCABULARY = 1 << 28  # tables of all tokens are made, and must not fill the memory
TEMPLATES = "additional_chat_templates"  # named templates, one .jinja file each
SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
# `config.json` decides which class transformers uses, and `generation_config.json` lists tokens that end a text.
HUB_PATTERNS = (*FILES, f"{TEMPLATES}/*.jinja", "config.json", "generation_config.json")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer by name, and the folder that they were read from."""

    folder: Path
    content: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """Return a hash of the names and bytes of all files."""
        digest = hashlib.sha256()
        for name, data in sorted(self.content.items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        return digest.hexdigest()

    def parsed(self, name: str) -> dict[str, Any]:
        """Return a JSON file as a mapping; empty if there is none."""
        return parse_object(self.content.get(name, b"{}"), str(self.folder / name), remedy="download it again")

    @cached_property
    def vocab_size(self) -> int:
        """Return the largest id plus one: ids may have gaps, and added tokens may lie anywhere."""
        tokenizer = self.parsed(TOKENIZER_FILE)
        vocabulary = tokenizer.get("model", {}).get("vocab") or {}
        # A Unigram model lists its pieces in the order of their ids.
        model_ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = [int(token["id"]) for token in tokenizer.get("added_tokens", [])]
        added += map(int, self.parsed(CONFIG_FILE).get("added_tokens_decoder", {}))
        added += map(int, self.parsed("added_tokens.json").values())
        if not model_ids:
            raise SkytrainError(
                f"{self.folder / TOKENIZER_FILE} has no vocabulary (model.vocab)\n"
                "  give the folder of a Hugging Face tokenizer, as save_pretrained writes it"
            )
        largest = max([*model_ids, *added])
        if largest >= MAX_VOCABULARY:
            raise SkytrainError(f"{self.folder / TOKENIZER_FILE} has a token {largest}, more than any vocabulary has")
        return largest + 1


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the files of a fast tokenizer; raise an error for a folder that has none, or only a slow one."""
    content = {name: read_file(folder / name, MANIFEST_BYTES) for name in FILES if (folder / name).is_file()}
    for path in sorted((folder / TEMPLATES).glob("*.jinja")):
        content[f"{TEMPLATES}/{path.name}"] = read_file(path)
    if TOKENIZER_FILE in content:
        return TokenizerFiles(folder, content)
    slow = [name for name in SLOW_FILES if (folder / name).is_file()]
    if slow:
        raise SkytrainError(
            f"{folder} has only a slow tokenizer ({', '.join(slow)}) and no {TOKENIZER_FILE}\n"
            "  convert it once: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), then give NEW_FOLDER"
        )
    raise SkytrainError(
        f"{folder} has no {TOKENIZER_FILE}\n  give the folder of a Hugging Face tokenizer, or its name on the hub"
    )


def has_tokenizer_files(folder: Path) -> bool:
    """Return whether the folder has a tokenizer, also if it is a slow one, which cannot be used."""
    return any((folder / name).is_file() for name in (TOKENIZER_FILE, *SLOW_FILES))


def is_tokenizer_file(name: str) -> bool:
    """Return whether a tokenizer that is stored or exported may have a file of this name."""
    folder, _, last = name.rpartition("/")
    return name in FILES or (folder == TEMPLATES and last.endswith(".jinja"))


def find_tokenizer_files(name: str) -> TokenizerFiles:
    """Read the files of a tokenizer in a folder or on the hub."""
    return read_tokenizer_files(resolve_hub_or_folder(name, HUB_PATTERNS))


def slug_of(name: str) -> str:
    """Return the readable part of a tokenizer's id: the last part of a path or of a hub name."""
    last = name.partition("@")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", last).strip("-.") or "tokenizer"


def tokenizer_id(name: str, files: TokenizerFiles, text_may_be_special: bool) -> str:
    """Return the id of a tokenizer in the store. Its last part is the same wherever the files are."""
    digest = hashlib.sha256(f"{files.digest} {text_may_be_special}".encode()).hexdigest()
    return f"{slug_of(name)}-{digest[:12]}"
