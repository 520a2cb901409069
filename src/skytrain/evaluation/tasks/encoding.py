"""From texts to continuations, by the rules of the two conventions.

`harness` is lm-evaluation-harness's: context and continuation are encoded together, so that a token may span the two.
`completion` is llm.c's: each is encoded on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...config import SkytrainError
from ...tokens import Tokenizer
from ..continuations import Continuation, make_continuation

Convention = Literal["harness", "completion"]


@dataclass(frozen=True)
class TextPair:
    """A context and the text that continues it, as text or, from a file of tokens, as tokens."""

    context: str | tuple[int, ...]
    continuation: str | tuple[int, ...]


class PairEncoder:
    """An encoder of pairs for a model that sees `window` tokens; `truncated` are the items with a context that was cut."""

    def __init__(self, tokenizer: Tokenizer, window: int) -> None:
        self._tokenizer = tokenizer
        self.window = window
        self._known: dict[str, tuple[int, ...]] = {}
        self.prefix = start_token(tokenizer)
        self.truncated: set[int] = set()

    def encode(self, pairs: Sequence[tuple[int, TextPair]], convention: Convention) -> list[Continuation]:
        """Return the continuations of pairs, each given with the number of its item in the data.

        All texts are encoded at once: tokenizers use their threads on batches.
        """
        self._learn(text for _, pair in pairs for text in _texts(pair, convention))
        return [self._encode_pair(item, pair, convention) for item, pair in pairs]

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of whole texts."""
        return [ids.tolist() for ids in self._tokenizer.encode_batch(list(texts))]

    def _encode_pair(self, item: int, pair: TextPair, convention: Convention) -> Continuation:
        context, continuation = self._parts(pair, convention)
        if not continuation:
            raise SkytrainError(f"item {item}: {pair.continuation!r} has no tokens after {str(pair.context)[-40:]!r}")
        try:
            made, cut = make_continuation(context or (self.prefix,), continuation, self.window)
        except SkytrainError as error:
            raise SkytrainError(f"item {item}: {error}: {str(pair.continuation)[:40]!r}") from None
        if cut:
            self.truncated.add(item)
        return made

    def _parts(self, pair: TextPair, convention: Convention) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if isinstance(pair.context, tuple) or isinstance(pair.continuation, tuple):
            assert isinstance(pair.context, tuple) and isinstance(pair.continuation, tuple)
            return pair.context, pair.continuation
        if convention == "completion" or not pair.context:
            return self._known[pair.context], self._known[pair.continuation]
        context, whole = _texts(pair, convention)
        before = self._known[context]
        # The harness does so too, even where the end of the context would be encoded otherwise with what follows.
        return before, self._known[whole][len(before) :]

    def _learn(self, texts: Iterable[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        encoded = self._tokenizer.encode_batch(new) if new else []
        self._known.update((text, tuple(ids.tolist())) for text, ids in zip(new, encoded, strict=True))


def _texts(pair: TextPair, convention: Convention) -> tuple[str, ...]:
    """Return the texts that are encoded for a pair."""
    if isinstance(pair.context, tuple) or isinstance(pair.continuation, tuple):
        return ()
    if convention == "completion" or not pair.context:
        return pair.context, pair.continuation
    bare = pair.context.rstrip()  # spaces at its end belong to the continuation's first word
    return bare, pair.context + pair.continuation


def start_token(tokenizer: Tokenizer) -> int:
    """Return the token before a text without context: the one that begins a text if any, else the end of text."""
    return tokenizer.token_ids.get("bos_token_id", tokenizer.eot)


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.vocab_size > vocab_size:
        raise SkytrainError(
            f"tokenizer {tokenizer.name} has {tokenizer.vocab_size} tokens and the model {vocab_size}: they do not match"
        )


def choose_subset(count: int, limit: int | None) -> np.ndarray:
    """Return the items to score: all, or `limit` of them in their order; a larger limit adds to a smaller one's."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).permutation(count)[:limit])
