"""The source of `data=chat`: files of conversations, one a row."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..config import ConfigError, SkytrainError, nearest
from ..corpus import InputFile, find_files
from ..storage import parse_json
from .chat import BadChat, ChatTemplate, ChatTokenizer, Message, chat_template, check_messages

KEY = "data.source"
ROWS_AT_ONCE = 1024
CHOICES = {"loss_on": ("assistant", "all"), "too_long": ("truncate", "drop")}


class ChatRow(NamedTuple):
    id: str  # the same on every machine; decides the split
    where: str  # the row's location, for messages
    messages: list[Message] | BadChat


@dataclass(frozen=True)
class ChatFiles:
    """Conversations: JSON lines (.gz and .zst too) or parquet, by their names.

    A row has a list of `{role, content}` under `messages_key`, or a question and an answer under `prompt_key` and
    `response_key`, with a system prompt under `system_key`. `template` is a file that replaces the tokenizer's own
    chat template; `template_arguments` are variables for it, such as `date_string`.
    """

    paths: str | Sequence[str]
    max_tokens: int
    messages_key: str = "messages"
    prompt_key: str | None = None
    response_key: str | None = None
    system_key: str | None = None
    loss_on: str = "assistant"
    too_long: str = "truncate"
    template: str | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{KEY}.{name}", f"{getattr(self, name)!r} is not a choice", hint=f"one of {', '.join(choices)}"
                )
        if not isinstance(self.max_tokens, int) or self.max_tokens < 2:
            raise ConfigError(f"{KEY}.max_tokens", f"{self.max_tokens!r} is not a number of tokens from 2")
        if (self.prompt_key is None) != (self.response_key is None):
            given, missing = ("prompt_key", "response_key") if self.prompt_key else ("response_key", "prompt_key")
            raise ConfigError(f"{KEY}.{given}", f"needs {KEY}.{missing} too")

    def fingerprint(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"files": [file.fingerprint() for file in self.pieces()]}
        if self.template is not None:
            facts["template"] = hashlib.sha256(self._template_file().encode()).hexdigest()
        return facts

    def pieces(self) -> list[InputFile]:
        return find_files(self.paths)

    def documents(self) -> Iterator[Any]:
        raise SkytrainError("data=chat has conversations and no documents: ask it for chats()")

    def template_for(self, tokenizer: ChatTokenizer) -> ChatTemplate:
        """Return the chat template in effect; raise an error if there is none."""
        if not hasattr(tokenizer, "encode_rendered"):
            raise ConfigError(
                "tokenizer", "has no special tokens for conversations", hint="choose tokenizer=hf tokenizer.name=FOLDER"
            )
        source = tokenizer.chat_template if self.template is None else self._template_file()
        if source is None:
            raise ConfigError(
                f"{KEY}.template",
                "the tokenizer has no chat template",
                hint="name a file with one, or take the tokenizer of the model's instruct version",
            )
        return chat_template(tokenizer, source, self.template_arguments)

    def chats(self) -> Iterator[ChatRow]:
        for file in self.pieces():
            rows = _parquet_rows(file) if file.name.endswith(".parquet") else _json_rows(file)
            for number, where, record in rows:
                yield ChatRow(f"{file.name}:{number}", where, self._messages(record))

    def _messages(self, record: dict[str, Any] | BadChat) -> list[Message] | BadChat:
        try:
            if isinstance(record, BadChat):
                return record
            if self.prompt_key is None or self.response_key is None:
                return check_messages(_column(record, self.messages_key, "messages_key"))
            turns = [("user", self.prompt_key, "prompt_key"), ("assistant", self.response_key, "response_key")]
            if self.system_key is not None and record.get(self.system_key):
                turns.insert(0, ("system", self.system_key, "system_key"))
            return check_messages(
                [{"role": role, "content": _column(record, key, setting)} for role, key, setting in turns]
            )
        except BadChat as bad:
            return bad

    def _template_file(self) -> str:
        assert self.template is not None
        try:
            return Path(self.template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{KEY}.template", f"{self.template!r} cannot be read: {error}") from None


def _column(record: Mapping[str, Any], key: str, setting: str) -> Any:
    if key not in record:
        fits = [name for name, value in record.items() if setting != "messages_key" or isinstance(value, list)]
        guess = nearest(key, fits)
        hint = (
            f"did you mean {shlex.quote(f'{KEY}.{setting}={guess}')}?"
            if guess
            else f"it has {', '.join(map(str, record)) or 'none'}"
        )
        raise BadChat("missing column", f"no {key!r}; {hint}")
    return record[key]


def _json_rows(file: InputFile) -> Iterator[tuple[int, str, dict[str, Any] | BadChat]]:
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, f"{file.url}:{number}", _json_record(line)


def _json_record(line: bytes) -> dict[str, Any] | BadChat:
    try:
        record = parse_json(line.decode("utf-8-sig"))
    except ValueError as error:
        return BadChat("not JSON", str(error))
    return record if isinstance(record, dict) else BadChat("not JSON", f"an object is needed, not {record!r:.40}")


def _parquet_rows(file: InputFile) -> Iterator[tuple[int, str, dict[str, Any] | BadChat]]:
    import pyarrow
    import pyarrow.parquet

    with file.open() as stream:
        try:
            number = 0
            for batch in pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, "r")).iter_batches(ROWS_AT_ONCE):
                for record in batch.to_pylist():
                    yield number, f"{file.url} row {number}", record
                    number += 1
        except (pyarrow.ArrowException, OSError) as error:
            raise SkytrainError(f"{file.url}: not a whole parquet file: {error}") from None


def has_tokens(source: Any) -> bool:
    """Return whether a source gives tokens, and so has no documents to make a corpus of."""
    return hasattr(source, "token_documents") or isinstance(source, ChatFiles)
