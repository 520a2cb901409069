"""Common Crawl: pages as they were fetched (WARC), or the text that Common Crawl extracted from them (WET)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ...config import ConfigError, MissingExtra
from ..documents import BadRecord, Document
from ..files import InputFile, UnreadableFile, check_document_bytes
from .base import UserFiles


@dataclass(frozen=True)
class WebArchive(UserFiles):
    """Web archives (.warc and .wet, plain or as .gz) by path or glob; s3://commoncrawl/... if the account may read it.

    A WARC gives its responses with status 200 and HTML; `main_content` leaves out menus, headers and footers.
    `extraction` is resiliparse, or trafilatura, which FineWeb used: slower, but better at telling text from the rest.
    """

    main_content: bool = True
    extraction: str = "resiliparse"

    def __post_init__(self) -> None:
        if self.extraction not in EXTRACTIONS:
            raise ConfigError(
                "data.source.extraction",
                f"{self.extraction!r} is not a choice",
                hint=f"one of {', '.join(EXTRACTIONS)}",
            )

    def fingerprint(self) -> dict[str, Any]:
        """Return the files, and the versions of the libraries that decode pages and extract their text."""
        libraries = dict.fromkeys([self.extraction, "resiliparse"])
        return {**super().fingerprint(), "extraction": ", ".join(f"{name} {version(name)}" for name in libraries)}

    def documents_in(self, file: InputFile) -> Iterator[Document | BadRecord]:
        try:
            from fastwarc.stream_io import StreamError
            from fastwarc.warc import ArchiveIterator, WarcRecordType
        except ImportError:
            raise MissingExtra("fastwarc", "data") from None
        kinds = WarcRecordType.response | WarcRecordType.conversion
        with file.open(decompress=False) as stream:  # each record is a separate gzip member, which fastwarc handles
            try:
                for record in ArchiveIterator(stream, record_types=kinds, parse_http=True):
                    check_document_bytes(record.content_length)
                    body = record.reader.read()
                    if len(body) < record.content_length:  # fastwarc returns what there is
                        raise EOFError(f"it ends inside record {record.record_id}")
                    text = self._text(record, body)
                    if text is not None:
                        meta = {"url": record.headers.get("WARC-Target-URI"), "date": record.headers.get("WARC-Date")}
                        yield Document(str(record.record_id).strip("<>"), text, "warc", meta)
            except UnreadableFile:
                raise
            except (StreamError, OSError, ValueError, EOFError) as error:
                raise UnreadableFile(f"{file.url}: not a complete WARC file: {error}") from None

    def _text(self, record: Any, body: bytes) -> str | None:
        if record.http_headers is None:  # a conversion record: UTF-8 already
            return body.decode(errors="replace")
        if record.http_headers.status_code != 200 or "html" not in (record.http_content_type or ""):
            return None
        return EXTRACTIONS[self.extraction](_decoded(body, record.http_charset), self.main_content)


def _decoded(body: bytes, charset: str | None) -> str:
    """Decode a page as its server says, or by its bytes if that is not a text encoding: headers can say anything."""
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    if charset:
        try:
            text = str(bytes_to_str(body, charset))
            text.encode()  # some encodings can spell half of a surrogate pair, which is not text
            return text
        except (LookupError, ValueError):
            pass
    return str(bytes_to_str(body, detect_encoding(body)))


def _by_resiliparse(html: str, main_content: bool) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(html, main_content=main_content, links=False, list_bullets=True))


def _by_trafilatura(html: str, main_content: bool) -> str:
    try:
        import trafilatura
    except ImportError:
        raise MissingExtra("trafilatura", "html") from None
    text = trafilatura.extract(
        html, include_comments=False, favor_precision=main_content, favor_recall=not main_content
    )
    return text or ""  # a page without text counts as a short document


EXTRACTIONS = {"resiliparse": _by_resiliparse, "trafilatura": _by_trafilatura}
