"""The manifest of a split, `manifest.json`. It is written last: a split without one is unfinished."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from ..config import SkytrainError
from ..storage import (
    AGAIN,
    MANIFEST_BYTES,
    NotFound,
    Store,
    data_of,
    is_mapping,
    is_text,
    is_whole,
    parse_object,
    read_whole,
)
from .shards import MAGIC_OF_DTYPE, Split

FORMAT = "skytrain-tokens-1"
NAME = re.compile(r"[\w-]{1,200}")  # of a shard, whose files have an ending more


@dataclass(frozen=True)
class Shard:
    """One pair of files, `<name>.bin` and `<name>.idx`; with `<name>.mask` where the loss is on some tokens only."""

    name: str
    tokens: int
    documents: int
    bytes: int  # size of the .bin, header included
    sha256: str  # hash of the .bin
    index_sha256: str  # hash of the .idx
    mask_sha256: str | None = None  # hash of the .mask, where there is one
    mask_bytes: int | None = None


def shard_fields(shard: Shard) -> dict[str, Any]:
    """Return the fields of a shard, without those of a mask if it has none, so that manifests keep their bytes."""
    return {name: value for name, value in asdict(shard).items() if value is not None}


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer properties that must match between the tokens and their reader."""

    name: str
    hash: str
    vocab_size: int
    eot: int


@dataclass(frozen=True)
class Manifest:
    split: Split
    dtype: str
    tokenizer: TokenizerFacts
    tokens: int  # including end-of-text tokens, one per document
    documents: int
    text_bytes: int  # UTF-8 bytes of the source text, for bits per byte
    shards: tuple[Shard, ...]
    made_from: dict[str, Any]  # provenance: data set, corpus version, recipe hash

    @property
    def masked(self) -> bool:
        """Whether each shard has a loss mask. Its documents then begin with their own first token, not with `eot`."""
        return any(shard.mask_sha256 is not None for shard in self.shards)

    def to_bytes(self) -> bytes:
        """Serialize deterministically: sorted keys, no timestamps."""
        fields = {"format": FORMAT, **asdict(self), "shards": [shard_fields(shard) for shard in self.shards]}
        return (json.dumps(fields, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    def _check(self) -> None:
        """Raise TypeError for fields of another type: whoever may write data decides them, and readers compute with them."""
        texts = [self.split, self.dtype, self.tokenizer.name, self.tokenizer.hash]
        counts = [self.tokens, self.documents, self.text_bytes, self.tokenizer.vocab_size, self.tokenizer.eot]
        for shard in self.shards:
            texts += [shard.name, shard.sha256, shard.index_sha256, shard.mask_sha256 or ""]
            counts += [shard.tokens, shard.documents, shard.bytes, shard.mask_bytes or 0]
        wrong: list[Any] = [text for text in texts if not is_text(text)]
        wrong += [count for count in counts if not is_whole(count) or count < 0]
        wrong += [shard.name for shard in self.shards if not is_text(shard.name) or not NAME.fullmatch(shard.name)]
        if wrong or not is_mapping(self.made_from) or self.dtype not in MAGIC_OF_DTYPE:
            raise TypeError(f"{wrong[0] if wrong else self.dtype!r:.60} cannot be one of its fields")

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Parse a manifest; `where` names the file in error messages."""
        fields = parse_object(data, where, remedy=AGAIN)
        if fields.pop("format", None) != FORMAT:
            raise SkytrainError(f"{where} is not a token manifest of this version ({FORMAT})\n  {AGAIN}")
        with data_of(where, AGAIN):
            fields["tokenizer"] = TokenizerFacts(**fields["tokenizer"])
            fields["shards"] = tuple(Shard(**shard) for shard in fields["shards"])
            manifest = cls(**fields)
            manifest._check()
        return manifest


def manifest_key(prefix: str) -> str:
    return f"{prefix}/manifest.json"


def find_manifest(store: Store, prefix: str) -> Manifest | None:
    """Return the manifest of the finished split under `prefix`, or None if there is none."""
    key = manifest_key(prefix)
    try:
        data = read_whole(store, key, MANIFEST_BYTES, AGAIN)
    except NotFound:
        return None
    return Manifest.from_bytes(data, store.url(key))
