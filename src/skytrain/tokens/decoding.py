"""Text from tokens as they are generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Tokens of the prompt to keep: whether a space belongs before the first new token depends on what is before it.
CONTEXT_TOKENS = 8
HELD_TOKENS = 4  # no character has more bytes, so one that is still incomplete after these never will be complete
REPLACEMENT = "\ufffd"  # how a decoder shows the bytes of an incomplete character


class StreamDecoder:
    """A decoder that returns the text of each new token, whole characters only.

    Decoders drop a leading space or join bytes of several tokens, so a token by itself has no text: each is decoded
    together with those before it, and what is new is returned.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = _end_of(context, decode)
        self._shown = len(self._ids)  # the tokens whose text was returned

    def add(self, token: int) -> str:
        """Return the text that this token completes; empty until a character is whole."""
        self._ids.append(token)
        if self._text().endswith(REPLACEMENT) and len(self._ids) - self._shown < HELD_TOKENS:
            return ""
        return self.end()

    def end(self) -> str:
        """Return the text of tokens that are still held back."""
        text = self._text()[len(self._decode(self._ids[: self._shown])) :]
        self._ids = self._ids[self._shown :] or self._ids
        self._shown = len(self._ids)
        return text

    def _text(self) -> str:
        return self._decode(self._ids)


def _end_of(context: Sequence[int], decode: Callable[[list[int]], str]) -> list[int]:
    """Return the last tokens of a prompt, from the beginning of a character on."""
    for first in range(max(0, len(context) - CONTEXT_TOKENS), max(-1, len(context) - CONTEXT_TOKENS - HELD_TOKENS), -1):
        if REPLACEMENT not in decode(list(context[first:])):
            return list(context[first:])
    return list(context[-CONTEXT_TOKENS:])
