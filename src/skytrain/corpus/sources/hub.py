"""Data sets on the Hugging Face hub, streamed from one commit: a branch is resolved before anything is read."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any, cast

from ...config import ConfigError, MissingExtra, SkytrainError
from ...storage import StoreError, hub_http_error
from ..documents import BadRecord, Document
from ..files import READ_BYTES, FileSpan, InputFile, buffered_ranges, byte_spans, find_files
from .base import SpannedSource, held_out_first
from .jsonl import json_records
from .records import RecordKeys
from .tables import parquet_records, row_group_spans
from .text import text_records, text_spans

KINDS = {"parquet": (".parquet",), "json": (".jsonl", ".json"), "text": (".txt",)}
LOCAL_FILES = "name local files: data=jsonl (or parquet, text) data.source.paths='FOLDER/*'"


@dataclass(frozen=True)
class HubFile(InputFile):
    """A file of a data set at a commit."""

    repo: str = ""
    revision: str = ""
    blob: str = ""
    endpoint: str | None = None

    def fingerprint(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "blob": self.blob}

    def _raw(self) -> IO[bytes]:
        from huggingface_hub import HfFileSystem

        path = f"datasets/{self.repo}/{self.name}"
        with reaching_hub("open", self.url):
            file = HfFileSystem(endpoint=self.endpoint).open(path, "rb", block_size=READ_BYTES, revision=self.revision)

        def read_range(start: int, length: int) -> bytes:
            with reaching_hub("read", self.url):
                file.seek(start)
                return cast(bytes, file.read(length))

        return buffered_ranges(read_range, self.size)


@dataclass(frozen=True)
class HubDataset(SpannedSource):
    """A data set on the hub. `files` are globs in the repository: .parquet, .jsonl, .json (.gz, .zst) and .txt.

    `components` selects documents by the value at `component_key`: a list keeps the named components, a mapping keeps a
    share of each, by the hash of the id. `paths` are the same files where they were downloaded to, in a folder or s3://:
    they are read in place of the hub's, as the data set is otherwise. `validation_files` are globs, too: the data set's own
    validation split.
    """

    repo: str
    files: str | Sequence[str]
    revision: str = "main"
    text_key: str = "text"
    id_key: str | None = None
    separator: str | None = None
    component_key: str | None = None
    components: Sequence[str] | Mapping[str, float] | None = None
    endpoint: str | None = None
    paths: str | Sequence[str] | None = None
    validation_files: str | Sequence[str] | None = None
    _cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.components is not None and self.component_key is None:
            raise ConfigError("data.source.components", f"{self.repo} has no components to choose from")
        for name, share in self.shares.items():
            if not 0 <= share <= 1:
                raise ConfigError(
                    f"data.source.components.{name}",
                    f"{share} is not a share between 0 and 1",
                    hint="to see text more than once, mix data sets in the loader",
                )

    @property
    def shares(self) -> dict[str, float]:
        if isinstance(self.components, Mapping):
            return {str(name): float(share) for name, share in self.components.items()}
        return dict.fromkeys(self.components or [], 1.0)

    def fingerprint(self) -> dict[str, Any]:
        return (
            super().fingerprint() if self.paths else {"repo": self.repo, "commit": self.commit, **super().fingerprint()}
        )

    @property
    def commit(self) -> str:
        if "commit" not in self._cache:
            self._cache["commit"] = self._ask(lambda hub: hub.dataset_info(self.repo, revision=self.revision).sha)
        return cast(str, self._cache["commit"])

    def pieces(self) -> list[InputFile]:
        return held_out_first(self.validation_pieces(), self._files())

    def _files(self) -> list[InputFile]:
        if "pieces" not in self._cache:
            self._cache["pieces"] = find_files(self.paths) if self.paths else self._find(self.files, "files")
        return cast("list[InputFile]", self._cache["pieces"])

    def validation_pieces(self) -> list[InputFile]:
        if not self.validation_files:
            return []
        if "validation" not in self._cache:
            self._cache["validation"] = self._find_validation(self.validation_files)
        return cast("list[InputFile]", self._cache["validation"])

    def _find_validation(self, globs: str | Sequence[str]) -> list[InputFile]:
        """Return the validation files; of files that were downloaded, those whose names are as in the repository."""
        if not self.paths:
            return self._find(globs, "validation_files")
        names = [glob.rpartition("/")[2] for glob in ([globs] if isinstance(globs, str) else globs)]
        local = self._files()
        found = [file for file in local if any(fnmatch.fnmatch(file.url.rpartition("/")[2], name) for name in names)]
        if not found or len(found) == len(local):
            raise ConfigError(
                "data.source.validation_files",
                f"{len(found)} of the {len(local)} files in data.source.paths are named like {', '.join(names)}",
                hint="name the files of both splits in data.source.paths, or hold a share out: "
                "data.source.validation_files=null data.validation_fraction=0.005",
            )
        return found

    def spans(self, file: InputFile, size: int) -> list[FileSpan]:
        kind = _kind(file)
        if kind == "parquet":
            return row_group_spans(file, size)
        return text_spans(file, self.separator, size) if kind == "text" else byte_spans(file, size)

    def records_in(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        for record in self._read(file, span, before):
            chosen = self.components is None or not isinstance(record, Document) or self._chosen(record)
            yield record if chosen else None

    def _read(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        keys = RecordKeys(self.text_key, self.id_key, self.repo)
        kind = _kind(file)
        if kind == "parquet":
            return parquet_records(file, keys, span, before)
        if kind == "json":
            return json_records(file, keys, span, before)
        return (
            replace(record, source=self.repo) if isinstance(record, Document) else record
            for record in text_records(file, self.separator, span, before)
        )

    def _chosen(self, document: Document) -> bool:
        value: Any = document.meta
        for name in cast(str, self.component_key).split("."):
            value = value.get(name) if isinstance(value, dict) else None
        share = self.shares.get(str(value), 0.0)
        # Training and validation are split by other bytes of the hash, so the two choices are independent.
        return int.from_bytes(hashlib.sha256(document.id.encode()).digest()[8:16], "big") < share * 2**64

    def _find(self, wanted: str | Sequence[str], setting: str) -> list[InputFile]:
        globs = [wanted] if isinstance(wanted, str) else list(wanted)
        tree = self._ask(
            lambda hub: list(hub.list_repo_tree(self.repo, recursive=True, revision=self.commit, repo_type="dataset"))
        )
        sizes = {entry.path: entry for entry in tree if hasattr(entry, "size")}
        paths = sorted({path for glob in globs for path in fnmatch.filter(sizes, glob)})
        if not paths:
            raise ConfigError(
                f"data.source.{setting}",
                f"{self.repo} at {self.commit[:12]} has no file that matches {', '.join(globs)}",
            )
        return [
            HubFile(
                name=path,
                url=f"hf://datasets/{self.repo}@{self.commit[:12]}/{path}",
                size=sizes[path].size,
                repo=self.repo,
                revision=self.commit,
                blob=sizes[path].blob_id,
                endpoint=self.endpoint,
            )
            for path in paths
        ]

    def _ask(self, question: Any) -> Any:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise MissingExtra("huggingface_hub", "data") from None
        with reaching_hub("find", f"hf://datasets/{self.repo}@{self.revision}"):
            return question(HfApi(endpoint=self.endpoint))


def _kind(file: InputFile) -> str:
    bare = file.name.removesuffix(".gz").removesuffix(".zst")
    for kind, endings in KINDS.items():
        if bare.endswith(endings):
            return kind
    raise SkytrainError(f"{file.url}: only .parquet, .jsonl, .json and .txt can be read")


@contextmanager
def reaching_hub(operation: str, url: str) -> Iterator[None]:
    """Convert the hub's errors to StoreError: an OSError would be mistaken for a damaged file, which may be skipped."""
    try:
        yield
    except (hub_http_error(), OSError) as error:
        problem = str(error).strip().partition("\n")[0] or type(error).__name__
        raise StoreError(operation, url, problem, hint=_fix(error)) from None


def _fix(error: BaseException) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, OfflineModeIsEnabled):
        return f"unset HF_HUB_OFFLINE, or {LOCAL_FILES}"
    if status in (401, 403):
        return "set HF_TOKEN to a token that may read this data set, and accept its terms on the hub if it is gated"
    if status == 404:
        return "correct data.source.repo or data.source.revision; a private data set needs HF_TOKEN"
    return f"check this machine's network and run it again, or {LOCAL_FILES}"
