"""The base of file sources: each file is a piece that can be read, skipped or reported as broken separately."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..documents import BadRecord, Document
from ..files import WHOLE, FileSpan, InputFile, UnreadableFile, find_files

Record = TypeVar("Record", bound="Document | BadRecord | None")

# How the ids of documents from a data set's own validation files begin: an id decides to which split a document belongs.
VALIDATION_FILE = "validation-file:"


class FileSource(ABC):
    """A source whose pieces are files; `documents_in` reads one of them.

    A data set may have files of its own for validation, which come first: a target of training tokens does not cut them
    off, and a document that is in both splits is kept in validation.
    """

    @abstractmethod
    def pieces(self) -> list[InputFile]: ...

    def validation_pieces(self) -> list[InputFile]:
        """Return those of the pieces whose documents are the validation split."""
        return []

    @abstractmethod
    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]: ...

    def fingerprint(self) -> dict[str, Any]:
        held_out = [file.name for file in self.validation_pieces()]
        files = [file.fingerprint() for file in self.pieces()]
        return {"files": files, **({"validation_files": held_out} if held_out else {})}

    def documents(self) -> Iterator[Document | BadRecord]:
        for file in self.pieces():
            yield from self.read(file)

    def read(self, file: InputFile) -> Iterator[Document | BadRecord]:
        """Yield the file's documents; if it is broken, those before the damage and then one bad record."""
        try:
            yield from self._marked(file, self.documents_in(file))
        except UnreadableFile as error:
            yield BadRecord("file", str(error))

    def _marked(self, file: InputFile, records: Iterator[Record]) -> Iterator[Record]:
        """Yield the records of a file; documents of a validation file get ids that say so."""
        if all(file.url != held_out.url for held_out in self.validation_pieces()):
            yield from records
            return
        for record in records:
            yield replace(record, id=VALIDATION_FILE + record.id) if isinstance(record, Document) else record


def held_out_first(held_out: Sequence[InputFile], files: Sequence[InputFile]) -> list[InputFile]:
    """Return all files, each once, those of the validation split first."""
    urls = {file.url for file in held_out}
    return [*held_out, *(file for file in files if file.url not in urls)]


class SpannedSource(FileSource):
    """Files that can be read from several places, whose documents are numbered by line, row or position."""

    @abstractmethod
    def spans(self, file: InputFile, size: int) -> list[FileSpan]:
        """Return consecutive spans of about `size` bytes; only one if the file must be read from its start."""

    @abstractmethod
    def records_in(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        """Yield one item for each line, row or position of a span, None if it has no document; `before` precede it."""

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        return (record for record in self.records_in(file, WHOLE, 0) if record is not None)

    def read_span(self, file: InputFile, span: FileSpan, before: int) -> Iterator[Document | BadRecord | None]:
        """Yield the items of a span; if the file is broken, those before the damage and then one bad record."""
        try:
            yield from self._marked(file, self.records_in(file, span, before))
        except UnreadableFile as error:
            yield BadRecord("file", str(error))


@dataclass(frozen=True)
class UserFiles(FileSource):
    """The user's files, by path or glob, in a folder or s3://; `validation_paths` names those of the validation split."""

    paths: str | Sequence[str]
    validation_paths: str | Sequence[str] | None = field(default=None, kw_only=True)

    def pieces(self) -> list[InputFile]:
        return held_out_first(self.validation_pieces(), find_files(self.paths))

    def validation_pieces(self) -> list[InputFile]:
        return find_files(self.validation_paths, "data.source.validation_paths") if self.validation_paths else []
