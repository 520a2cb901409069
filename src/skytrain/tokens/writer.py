"""Writes documents into shards: each shard is uploaded when full, the manifest last."""

from __future__ import annotations

import hashlib
from array import array
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from ..config import SkytrainError, format_bytes
from ..storage import ScratchFolder, Store, read_data
from .manifest import Manifest, Shard, TokenizerFacts, find_manifest, manifest_key
from .masks import pack_mask
from .shards import HEADER_BYTES, MAX_SHARD_TOKENS, Split, dtype_for, pack_header, sha256_of_file


class TokenizerLike(Protocol):
    """The tokenizer properties that the writer needs; tokenizers and `TokenizerFacts` have them."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eot(self) -> int: ...


class ShardWriter:
    """A writer of one split under `prefix`.

    Documents are given either all by `add`, which begins each with the end-of-text token, or all by `add_masked`.
    A document is never split: a shard is closed before the document that would exceed `shard_tokens`, and a longer
    document gets its own shard. Tokens are buffered in a local temporary file, so memory does not grow with the shard,
    except for one byte per token where there is a mask.
    """

    def __init__(self, store: Store, prefix: str, split: Split, tokenizer: TokenizerLike, shard_tokens: int) -> None:
        assert 0 < shard_tokens <= MAX_SHARD_TOKENS
        self.store = store
        self.prefix = prefix
        self.split = split
        self.shard_tokens = shard_tokens
        self.tokenizer = TokenizerFacts(tokenizer.name, tokenizer.hash, tokenizer.vocab_size, tokenizer.eot)
        self.dtype = dtype_for(tokenizer.vocab_size)
        self._stored = np.dtype(self.dtype).newbyteorder("<")
        self._begin = np.array([tokenizer.eot], self._stored).tobytes()
        self.text_bytes = 0
        self.shards: list[Shard] = []
        # A finished split is never changed: what we write must match its existing manifest.
        self._finished = find_manifest(store, prefix)
        self._folder = ScratchFolder("skytrain-shard")
        self._room = f"a shard of each split, {format_bytes(shard_tokens * self._stored.itemsize)} at most"
        self._open_shard()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the local file. Without `finish`, the split has no manifest and counts as unfinished."""
        with suppress(OSError):  # from a full disk, which the error that led here has reported
            self._file.close()
        self._folder.remove()

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards) + self._tokens

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards) + len(self._ends)

    def add(self, ids: np.ndarray, text_bytes: int) -> None:
        """Add one document, without its leading end-of-text token; `text_bytes` is its UTF-8 length."""
        assert not self._trained
        self._make_room(ids, len(ids) + 1)
        self._append(ids, self._begin, text_bytes)

    def add_masked(self, ids: np.ndarray, trained: np.ndarray, text_bytes: int) -> None:
        """Add one document as it is, and for each of its tokens whether the loss is computed on it.

        The first token follows from nothing, so it is never trained.
        """
        assert len(ids) == len(trained) > 0
        self._make_room(ids, len(ids))
        self._append(ids, b"", text_bytes)
        self._trained += b"\0" + trained[1:].astype(np.uint8).tobytes()

    def _make_room(self, ids: np.ndarray, length: int) -> None:
        """Check a document, and close the shard if the document would exceed its size."""
        if length > MAX_SHARD_TOKENS:
            raise SkytrainError(
                f"a document of {length:,} tokens does not fit in a shard ({MAX_SHARD_TOKENS:,} at most)\n  split it in the source"
            )
        if len(ids) and (int(ids.max()) >= self.tokenizer.vocab_size or (ids.dtype.kind != "u" and int(ids.min()) < 0)):
            bad = int(ids.max()) if int(ids.max()) >= self.tokenizer.vocab_size else int(ids.min())
            raise SkytrainError(
                f"token id {bad} is outside the vocabulary of {self.tokenizer.vocab_size} tokens of tokenizer {self.tokenizer.name}"
            )
        if self._tokens and self._tokens + length > self.shard_tokens:
            self._close_shard()
            self._open_shard()

    def _append(self, ids: np.ndarray, begin: bytes, text_bytes: int) -> None:
        with self._folder.needing(self._room):
            self._file.write(begin + ids.astype(self._stored, copy=False).tobytes())
        self._tokens += len(ids) + bool(begin)
        self._ends.append(self._tokens)
        self.text_bytes += text_bytes

    def finish(self, made_from: dict[str, Any]) -> Manifest:
        """Upload the last shard, then the manifest, which makes the split visible.

        `made_from` records the provenance; it must not contain timestamps.
        """
        if self._tokens:
            self._close_shard()
        manifest = Manifest(
            split=self.split,
            dtype=self.dtype,
            tokenizer=self.tokenizer,
            tokens=sum(shard.tokens for shard in self.shards),
            documents=sum(shard.documents for shard in self.shards),
            text_bytes=self.text_bytes,
            shards=tuple(self.shards),
            made_from=made_from,
        )
        data = manifest.to_bytes()
        key = manifest_key(self.prefix)
        if not self.store.create(key, data) and read_data(self.store, key) != data:
            raise self._other_content("its manifest.json differs from this work's")
        return manifest

    def _open_shard(self) -> None:
        self._path = self._folder.path / "shard.bin"
        self._file = self._path.open("wb")
        self._file.write(bytes(HEADER_BYTES))
        self._tokens = 0
        self._ends = array("Q")
        self._trained = bytearray()  # one byte per token of the open shard, where there is a mask

    def _close_shard(self) -> None:
        with self._folder.needing(self._room):
            self._file.seek(0)
            self._file.write(pack_header(self.dtype, self._tokens))
            self._file.close()
        name = f"shard-{len(self.shards):05d}"
        index = np.asarray(self._ends, dtype="<u8").tobytes()
        mask = pack_mask(np.frombuffer(bytes(self._trained), np.uint8)) if self._trained else None
        if self._finished is None:
            if mask is not None:
                self.store.write(f"{self.prefix}/{name}.mask", mask)
            sha256 = self.store.upload(self._path, f"{self.prefix}/{name}.bin")
            self.store.write(f"{self.prefix}/{name}.idx", index)
        else:
            sha256 = sha256_of_file(self._path)
        shard = Shard(
            name=name,
            tokens=self._tokens,
            documents=len(self._ends),
            bytes=self._path.stat().st_size,
            sha256=sha256,
            index_sha256=hashlib.sha256(index).hexdigest(),
            mask_sha256=None if mask is None else hashlib.sha256(mask).hexdigest(),
            mask_bytes=None if mask is None else len(mask),
        )
        if self._finished is not None and shard not in self._finished.shards:
            raise self._other_content(f"{name} differs from this work's")
        self.shards.append(shard)
        self._tokens, self._ends, self._trained = 0, array("Q"), bytearray()
        self._path.unlink()

    def _other_content(self, what: str) -> SkytrainError:
        return SkytrainError(
            f"{self.store.url(self.prefix)} holds a finished split with other content: {what}\n"
            "  the store was left as it is; set data.version to keep both, or delete that folder"
        )
