"""Converts a row or a JSON object to a document."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from ...config import nearest
from ..documents import BadRecord, Document


class RecordKeys(NamedTuple):
    """The keys of a record's text and id, and the source that its documents name."""

    text: str
    id: str | None
    source: str


def record_to_document(record: dict[str, Any], where: str, name: str, keys: RecordKeys) -> Document | BadRecord:
    """Return the document of a record; keys other than those of its text and id become meta.

    `where` names the record in an error; `name` is the document's id if there is no key for ids.
    """
    text_key, id_key, source = keys
    is_null = text_key in record and record[text_key] is None
    text = record.pop(text_key, None)
    if is_null:
        return BadRecord("text", f"{where}: {text_key!r} is null")
    if not isinstance(text, str):
        guess = nearest(text_key, record)
        hint = (
            f"did you mean {shlex.quote(f'data.source.text_key={guess}')}?"
            if guess
            else f"its keys: {', '.join(record)}"
        )
        return BadRecord("text", f"{where}: {text_key!r} is not text\n  {hint}")
    if not _is_unicode(text):
        return BadRecord("encoding", f"{where}: {text_key!r} has half of a surrogate pair, which is not Unicode text")
    if id_key is None:
        return Document(name, text, source, record)
    id_ = record.pop(id_key, None)
    if id_ is None or not _is_unicode(str(id_)):
        return BadRecord("id", f"{where}: no {id_key!r} (data.source.id_key)\n  its keys: {', '.join(record)}")
    return Document(str(id_), text, source, record)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell "\ud800", UTF-8 cannot
        return False
    return True
