"""From rows of conversations to tokenized documents, with an account of every row that was truncated or dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np

from ..config import SkytrainError, plural
from .chat import BadChat, ChatTemplate, ChatTokenizer, LossOn, Rendered, TokenizedChat, encode_chats, truncate
from .chat_files import ChatFiles, ChatRow
from .tokenizing import TokenizedSlice

ROWS_AT_ONCE = 256
REMEDIES = {
    "template": "give another one with data.source.template=FILE, or variables with data.source.template_arguments",
    "not a prefix": "mark the assistant's part in the template with {% generation %} ... {% endgeneration %} and name "
    "the file in data.source.template, or train on everything with data.source.loss_on=all",
    "not a token boundary": "let the template end what comes before an answer with a special token or a line feed, "
    "or train on everything with data.source.loss_on=all",
    "missing column": "name the columns: data.source.messages_key, or data.source.prompt_key and response_key",
    "no assistant turn": "each row needs a message whose role is assistant, or data.source.response_key",
    "special token in a message": "remove it from the text",
    "too long": "train with a longer trainer.sequence_length, or set data.source.too_long=truncate",
    "empty content": "remove these messages",
    "content is not text": "make each message's content one string: of a list of parts, join their texts",
    "not Unicode": "write characters above U+FFFF whole, or as both halves of their surrogate pair",
    "messages": 'a row is {"messages": [{"role": "user", "content": "..."}, ...]}',
    "not JSON": "one JSON object a line",
}


@dataclass
class ChatReport:
    """The number of rows, and what became of them."""

    max_tokens: int
    rows: int = 0
    kept: int = 0
    truncated: int = 0
    trained_tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # number of rows by reason
    examples: dict[str, str] = field(default_factory=dict)  # the first row by reason

    def drop(self, row: ChatRow, bad: BadChat) -> None:
        self.dropped[bad.reason] = self.dropped.get(bad.reason, 0) + 1
        self.examples.setdefault(bad.reason, f"{row.where}: {bad.detail}")

    def keep(self, chat: TokenizedChat) -> None:
        self.kept += 1
        self.truncated += chat.truncated
        self.trained_tokens += int(chat.trained[1:].sum())

    def table(self) -> list[tuple[str, str]]:
        rows = [
            ("read", plural(self.rows, "row")),
            ("kept", f"{plural(self.kept, 'row')}, {plural(self.trained_tokens, 'trained token')}"),
            ("truncated", f"{plural(self.truncated, 'row')}, to {self.max_tokens} tokens"),
        ]
        for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1]):
            rows.append((f"dropped: {reason}", f"{plural(count, 'row')}, first {self.examples[reason]}"))
        return rows

    def summary(self) -> dict[str, Any]:
        """Return the counts for the manifest, without examples, whose paths hold on one machine only."""
        return {
            "rows": self.rows,
            "kept": self.kept,
            "truncated": self.truncated,
            "max_tokens": self.max_tokens,
            "trained_tokens": self.trained_tokens,
            "dropped": self.dropped,
        }

    def check(self, paths: Any) -> None:
        """Raise if no row is left."""
        if self.kept:
            return
        if not self.rows:
            raise SkytrainError(f"data.source.paths: {paths} holds no rows")
        reason = max(self.dropped, key=self.dropped.__getitem__)
        others = ", ".join(f"{count} for {name!r}" for name, count in self.dropped.items() if name != reason)
        raise SkytrainError(
            f"none of {plural(self.rows, 'row')} can be used: {self.dropped[reason]} for {reason!r}"
            f"{f', {others}' if others else ''}\n  {self.examples[reason]}\n  {REMEDIES[reason]}"
        )


@dataclass(frozen=True)
class ChatRows:
    """The rows of a source as tokens of one tokenizer. `stop_at_bad` raises for the first row that cannot be used."""

    source: ChatFiles
    tokenizer: ChatTokenizer
    template: ChatTemplate
    report: ChatReport
    stop_at_bad: bool = False

    @classmethod
    def of(cls, source: ChatFiles, tokenizer: Any, stop_at_bad: bool = False) -> ChatRows:
        template = source.template_for(tokenizer)
        return cls(
            source=source,
            tokenizer=tokenizer,
            template=template,
            report=ChatReport(max_tokens=source.max_tokens),
            stop_at_bad=stop_at_bad,
        )

    def slices(self) -> Iterator[TokenizedSlice]:
        rows = self.source.chats()
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            first = self.report.kept
            kept = list(self._tokenized(batch))
            if kept:
                chats = [chat for _, chat in kept]
                yield TokenizedSlice(
                    part=0,
                    first=first,
                    ids=[row.id for row, _ in kept],
                    tokens=np.concatenate([chat.ids for chat in chats]),
                    ends=np.cumsum([len(chat.ids) for chat in chats], dtype=np.int64),
                    text_bytes=np.array([chat.text_bytes for chat in chats], np.int64),
                    trained=np.concatenate([chat.trained for chat in chats]),
                )
        self.report.check(self.source.paths)

    def _tokenized(self, batch: list[ChatRow]) -> Iterator[tuple[ChatRow, TokenizedChat]]:
        rendered: list[tuple[ChatRow, Rendered]] = []
        for row in batch:
            self.report.rows += 1
            try:
                if isinstance(row.messages, BadChat):
                    raise row.messages
                rendered.append((row, self.template.render(row.messages, cast(LossOn, self.source.loss_on))))
            except BadChat as bad:
                self._drop(row, bad)
        encoded = encode_chats(self.tokenizer, [chat for _, chat in rendered])
        for (row, _), chat in zip(rendered, encoded, strict=True):
            try:
                if isinstance(chat, BadChat):
                    raise chat
                fitted = self._fit(chat)
            except BadChat as bad:
                self._drop(row, bad)
                continue
            self.report.keep(fitted)
            yield row, fitted

    def _fit(self, chat: TokenizedChat) -> TokenizedChat:
        most = self.source.max_tokens
        if len(chat.ids) <= most:
            return chat
        if self.source.too_long == "drop":
            raise BadChat("too long", f"{len(chat.ids)} tokens, more than data.source.max_tokens={most}")
        return truncate(chat, most)

    def _drop(self, row: ChatRow, bad: BadChat) -> None:
        if self.stop_at_bad:
            raise SkytrainError(
                f"{row.where}: {bad.reason}: {bad.detail}\n  {REMEDIES[bad.reason]}\n"
                "  or leave such rows out: data.bad_records=skip"
            )
        self.report.drop(row, bad)
