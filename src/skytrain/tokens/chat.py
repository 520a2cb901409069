"""Conversations as tokens: rendered by a chat template, with the tokens that the loss is computed on.

Which part of the text is the assistant's comes from the template's `{% generation %}` blocks where it has them.
Otherwise the conversation is rendered up to each of the assistant's turns: what the turn adds is its part. Either way
each boundary is proved to be one between tokens, so that a model sees the same tokens when it generates.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from ..config import MissingExtra, SkytrainError

LossOn = Literal["assistant", "all"]
Message = dict[str, Any]
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTokenizer(Protocol):
    """The tokenizer properties that conversations need."""

    definition: dict[str, Any]

    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_tokens(self) -> dict[str, str]: ...
    def encode_rendered(self, texts: list[str]) -> list[np.ndarray]: ...


class BadChat(Exception):
    """A conversation that cannot be used: the reason, by which such rows are counted, and the details of this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Rendered(NamedTuple):
    text: str
    trained: list[tuple[int, int]]  # spans of characters, in order


class TokenizedChat(NamedTuple):
    ids: np.ndarray
    trained: np.ndarray  # for each token, whether the loss is computed on it
    text_bytes: int
    truncated: bool = False


def check_messages(messages: object) -> list[Message]:
    """Return the messages of a row, or raise BadChat.

    A key that is null is left out, but for the content: parquet gives every message the keys of all others, and
    templates ask whether a message has `tool_calls`.
    """
    if not isinstance(messages, list) or not messages:
        raise BadChat("messages", f"a list of messages is needed, not {_short(messages)}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadChat("messages", f"message {number} is not an object with a role: {_short(message)}")
        content = message.get("content")
        if content is None and message.get("tool_calls"):
            continue
        if content is not None and not isinstance(content, str):
            raise BadChat("content is not text", f"message {number}, of the {message['role']}: {_short(content)}")
        if content is None or not content.strip():
            raise BadChat("empty content", f"message {number}, of the {message['role']}: {_short(content)}")
    if not any(message["role"] == "assistant" for message in messages):
        raise BadChat("no assistant turn", f"roles {', '.join(message['role'] for message in messages)}")
    return [
        {key: value for key, value in message.items() if value is not None or key == "content"} for message in messages
    ]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template in Jinja, with the special tokens and other variables that it is given."""

    source: str
    special_tokens: Mapping[str, str]
    spellings: frozenset[str]  # spellings of all special tokens of the tokenizer
    arguments: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    def prompt(self, messages: Sequence[Message]) -> str:
        """Render a conversation up to where the assistant's next turn begins, or raise BadChat."""
        self._refuse_special(messages)
        return self._text(messages, prompt=True)[0]

    def whole(self, messages: Sequence[Message]) -> str:
        """Render a conversation that has ended, or raise BadChat."""
        return self._text(messages)[0]

    def _refuse_special(self, messages: Sequence[Message]) -> None:
        for message in messages:
            spelling = next((each for each in self.spellings if each in (message.get("content") or "")), None)
            if spelling is not None:
                raise BadChat("special token in a message", f"{spelling!r}, of the {message['role']}")

    def render(self, messages: Sequence[Message], loss_on: LossOn) -> Rendered:
        """Render a conversation, or raise BadChat."""
        self._refuse_special(messages)
        text, spans = self._text(messages, track=loss_on == "assistant")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, which no tokenizer takes
            raise BadChat("not Unicode", f"{text[error.start]!r} in {text[: error.end][-20:]!r}") from None
        if loss_on == "all":
            return Rendered(text, [(0, len(text))])
        if spans is None:
            spans = [
                self._turn(messages, number, text)
                for number, message in enumerate(messages)
                if message["role"] == "assistant"
            ]
        spans = [(start, end) for start, end in spans if end > start]
        if not spans:
            raise BadChat("no assistant turn", "the template renders nothing of the assistant's turn")
        return Rendered(text, spans)

    def _turn(self, messages: Sequence[Message], number: int, text: str) -> tuple[int, int]:
        """Return the span of text that an assistant's turn adds, without whitespace after the token that ends it."""
        after, _ = self._text(messages[: number + 1])
        before = next(
            (
                start
                for prompt in (True, False)
                if text.startswith(start := self._text(messages[:number], prompt=prompt)[0])
            ),
            None,
        )
        if before is None or not text.startswith(after) or not after.startswith(before):
            raise BadChat(
                "not a prefix",
                f"the template renders the conversation up to message {number} in another way than within the whole",
            )
        stripped = after.rstrip()
        ends = len(stripped) > len(before) and any(stripped.endswith(each) for each in self.spellings)
        return len(before), len(stripped) if ends else len(after)

    def _text(
        self, messages: Sequence[Message], *, prompt: bool = False, track: bool = False
    ) -> tuple[str, list[tuple[int, int]] | None]:
        try:
            from transformers.utils.chat_template_utils import render_jinja_template
        except ImportError:
            raise MissingExtra("transformers", "hf") from None
        track = track and GENERATION.search(self.source) is not None
        variables = {**self.special_tokens, **self.arguments}
        try:
            rendered: Any = render_jinja_template(
                conversations=[list(messages)],
                chat_template=self.source,
                return_assistant_tokens_mask=track,
                add_generation_prompt=prompt,
                **variables,
            )
        except Exception as error:  # a template is a program, and can fail in any way
            raise BadChat("template", str(error) or type(error).__name__) from None
        texts, spans = rendered  # one of each per conversation; transformers' annotation names only the first
        return texts[0], spans[0] if track else None


def chat_template(tokenizer: ChatTokenizer, source: str, arguments: Mapping[str, Any]) -> ChatTemplate:
    special = frozenset(token["content"] for token in tokenizer.definition["added_tokens"] if token["special"])
    return ChatTemplate(source, tokenizer.special_tokens, special, arguments)


def render_chat(tokenizer: ChatTokenizer, source: str, messages: Sequence[Message]) -> str:
    """Return a conversation as a template renders it, or raise SkytrainError."""
    try:
        return chat_template(tokenizer, source, {}).whole(messages)
    except BadChat as error:
        raise SkytrainError(f"the chat template cannot render a conversation: {error}") from None


def conversation_tokens(tokenizer: ChatTokenizer, messages: Sequence[Message]) -> list[int]:
    """Return the tokens of a conversation up to where the assistant's next turn begins.

    SkytrainError is raised where the template refuses it, or a message spells a special token.
    """
    assert tokenizer.chat_template is not None, "a base model"
    template = chat_template(tokenizer, tokenizer.chat_template, {})
    try:
        text = template.prompt(messages)
    except BadChat as error:
        raise SkytrainError(f"the conversation cannot be rendered: {error}") from None
    return [int(token) for token in tokenizer.encode_rendered([text])[0]]


def encode_chats(tokenizer: ChatTokenizer, chats: Sequence[Rendered]) -> list[TokenizedChat | BadChat]:
    """Tokenize conversations together, which uses all cores."""
    texts: list[str] = []
    for chat in chats:
        edges = {edge for span in chat.trained for edge in span} - {0, len(chat.text)}
        texts += [chat.text, *(chat.text[:edge] for edge in sorted(edges))]
    encoded = dict(zip(texts, tokenizer.encode_rendered(texts), strict=True))
    return [_tokenized(chat, encoded) for chat in chats]


def _tokenized(chat: Rendered, encoded: Mapping[str, np.ndarray]) -> TokenizedChat | BadChat:
    ids = encoded[chat.text]
    trained = np.zeros(len(ids), dtype=bool)
    for start, end in chat.trained:
        places = []
        for edge in (start, end):
            before = encoded[chat.text[:edge]] if 0 < edge < len(chat.text) else ids[: len(ids) if edge else 0]
            if not np.array_equal(before, ids[: len(before)]):
                around = chat.text[max(0, edge - 20) : edge] + "|" + chat.text[edge : edge + 20]
                return BadChat("not a token boundary", f"a token goes across the edge of the turn at {around!r}")
            places.append(len(before))
        trained[places[0] : places[1]] = True
    return TokenizedChat(ids, trained, len(chat.text.encode()))


def truncate(chat: TokenizedChat, max_tokens: int) -> TokenizedChat:
    """Keep the first tokens of a conversation; raise BadChat if none of them is trained."""
    kept = chat._replace(ids=chat.ids[:max_tokens], trained=chat.trained[:max_tokens], truncated=True)
    if not kept.trained[1:].any():
        raise BadChat("too long", f"{len(chat.ids)} tokens, and none of the assistant's among the first {max_tokens}")
    return kept


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
