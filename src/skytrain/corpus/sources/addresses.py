"""Data sets published as lists of URLs, such as Dolma: the lists are on the hub, the files on another server."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from ...config import ConfigError, SkytrainError, plural
from ...storage import StoreError
from ..documents import BadRecord, Document
from ..files import FileSpan, InputFile, UnreadableFile, byte_spans, find_files
from .base import SpannedSource
from .hub import LOCAL_FILES, HubDataset
from .jsonl import json_records
from .records import RecordKeys

ASKED_AT_ONCE = 16
# How long to keep trying: a failure before the first byte loses nothing, a later one may lose hours of work.
FIND_SECONDS = 5.0
READ_SECONDS = 60.0


@dataclass(frozen=True)
class AddressLists(SpannedSource):
    """JSON lines (.gz, .zst) at the addresses in `lists`, one per line, streamed from their servers.

    `lists` are globs in the hub's data set `repo`, or the user's files if there is none. `only` selects addresses by glob.
    """

    lists: str | Sequence[str]
    repo: str | None = None
    revision: str = "main"
    only: str | Sequence[str] = "*"
    text_key: str = "text"
    id_key: str | None = None
    endpoint: str | None = None
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fingerprint(self) -> dict[str, Any]:
        commit = {"repo": self.repo, "commit": self._hub.commit} if self.repo else {}
        return {**commit, "files": [{"name": f.name, "size": f.size, "etag": f.etag} for f in self.pieces()]}

    def pieces(self) -> list[InputFile]:
        if "pieces" not in self._cache:
            with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
                self._cache["pieces"] = list(pool.map(_ask, self._addresses()))
        return cast("list[InputFile]", self._cache["pieces"])

    def spans(self, file: InputFile, size: int) -> list[FileSpan]:
        return byte_spans(file, size)

    def records_in(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        bare = file.name.removesuffix(".gz").removesuffix(".zst")
        if not bare.endswith((".json", ".jsonl")):
            raise UnreadableFile(f"{file.url}: only .json and .jsonl can be read, plain or as .gz or .zst")
        return json_records(file, RecordKeys(self.text_key, self.id_key, self.repo or "addresses"), span, before)

    @property
    def _hub(self) -> HubDataset:
        if "hub" not in self._cache:
            assert self.repo is not None
            self._cache["hub"] = HubDataset(
                repo=self.repo, files=self.lists, revision=self.revision, endpoint=self.endpoint
            )
        return cast(HubDataset, self._cache["hub"])

    def _addresses(self) -> list[str]:
        """Return the selected addresses, sorted and each once, so that the order of the lists has no effect."""
        listed_addresses: set[str] = set()
        for listed in self._hub.pieces() if self.repo else find_files(self.lists, "data.source.lists"):
            with listed.open() as stream:
                listed_addresses.update(line.strip() for line in stream.read().decode().splitlines())
        listed_addresses.discard("")
        wrong = [address for address in listed_addresses if not address.startswith(("https://", "http://"))]
        if wrong:
            raise SkytrainError(f"data.source.lists: {wrong[0]!r} is not an address\n  each line is one https://...")
        globs = [self.only] if isinstance(self.only, str) else list(self.only)
        chosen = sorted({address for glob in globs for address in fnmatch.filter(listed_addresses, glob)})
        if not chosen:
            raise ConfigError(
                "data.source.only",
                f"none of {plural(len(listed_addresses), 'address', 'addresses')} matches {', '.join(globs)}",
            )
        return chosen


@lru_cache
def _server(root: str, patience_seconds: float) -> Any:
    from ...storage import Retry, WebFiles

    return WebFiles(root, Retry(patience_seconds))


def _ask(address: str) -> InputFile:
    parts = urlsplit(address)
    root = f"{parts.scheme}://{parts.netloc}"
    key = unquote(parts.path).lstrip("/")
    try:
        stat = _server(root, FIND_SECONDS).stat(key)
    except StoreError as error:
        hint = f"check this machine's network and the address, or {LOCAL_FILES}"
        raise StoreError("find", address, error.problem, hint=hint, tried_seconds=error.tried_seconds) from None
    if stat is None:
        raise SkytrainError(
            f"{address}: there is no such file (from data.source.lists)\n  data.source.only leaves it out"
        )
    return InputFile(
        name=f"{parts.netloc}/{key}",
        url=address,
        size=stat.size,
        store=_server(root, READ_SECONDS),
        key=key,
        etag=stat.etag,
    )
