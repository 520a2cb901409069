"""The base of file sources: each file is a piece that can be read, skipped or reported as broken separately."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..documents import BadRecord, Document
from ..files import WHOLE, FileSpan, InputFile, UnreadableFile, find_files


class FileSource(ABC):
    """A source whose pieces are files; `documents_in` reads one of them."""

    @abstractmethod
    def pieces(self) -> list[InputFile]: ...

    @abstractmethod
    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]: ...

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.fingerprint() for file in self.pieces()]}

    def documents(self) -> Iterator[Document | BadRecord]:
        for file in self.pieces():
            yield from self.read(file)

    def read(self, file: InputFile) -> Iterator[Document | BadRecord]:
        """Yield the file's documents; if it is broken, those before the damage and then one bad record."""
        try:
            yield from self.documents_in(file)
        except UnreadableFile as error:
            yield BadRecord("file", str(error))


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
            yield from self.records_in(file, span, before)
        except UnreadableFile as error:
            yield BadRecord("file", str(error))


@dataclass(frozen=True)
class UserFiles(FileSource):
    """The user's files, by path or glob, in a folder or s3://."""

    paths: str | Sequence[str]

    def pieces(self) -> list[InputFile]:
        return find_files(self.paths)
