"""llm.c's hellaswag_val.bin: multiple-choice items as GPT-2 tokens.

A header of 256 int32 (magic, version, items, bytes of the longest item), then for each item uint16 values: a mark, its
size in bytes, its number, the label, the number of completions, the context and the completions, each after its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...config import SkytrainError
from ...tokens import Tokenizer
from .encoding import TextPair
from .questions import Question

MAGIC = 20240522
VERSION = 1
MARK = 65535
HEADER = 256
GPT2_VOCABULARY = 50257


@dataclass(frozen=True)
class TokenItem:
    """An item of the file."""

    label: int
    context: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]


def read_llmc(name: str, data: bytes) -> list[TokenItem]:
    if len(data) < HEADER * 4 or len(data) % 2:
        raise SkytrainError(f"{name}: not a complete evaluation file of llm.c: it has {len(data)} bytes")
    header = np.frombuffer(data[: HEADER * 4], "<i4")
    if header[0] != MAGIC or header[1] != VERSION:
        raise SkytrainError(f"{name}: not an evaluation file of llm.c: its header is {header[:2].tolist()}")
    body = np.frombuffer(data[HEADER * 4 :], "<u2")
    items = []
    at = 0
    for number in range(int(header[2])):
        mark = body[at : at + 5].tolist()
        if len(mark) < 5 or mark[0] != MARK or mark[2] != number or at + mark[1] // 2 > len(body):
            raise SkytrainError(f"{name}: damaged at item {number} of {int(header[2])}")
        held, at = body[at + 5 : at + mark[1] // 2].tolist(), at + mark[1] // 2
        texts = []
        place = 0
        while place < len(held):
            texts.append(tuple(held[place + 1 : place + 1 + held[place]]))
            place += 1 + held[place]
        # The file ends within an item, its parts do not add up, or a token is not one of GPT-2's.
        sound = place == len(held) and len(texts) == mark[4] + 1 and 0 <= mark[3] < mark[4] and all(texts[1:])
        if not sound or max(map(max, texts[1:])) >= GPT2_VOCABULARY or max(texts[0], default=0) >= GPT2_VOCABULARY:
            raise SkytrainError(f"{name}: damaged at item {number} of {int(header[2])}")
        items.append(TokenItem(mark[3], texts[0], tuple(texts[1:])))
    if at != len(body):
        raise SkytrainError(f"{name}: {len(body) - at} values after the last of {len(items)} items")
    return items


def write_llmc(items: Sequence[TokenItem]) -> bytes:
    parts = []
    longest = 0
    for number, item in enumerate(items):
        texts = [value for text in (item.context, *item.completions) for value in (len(text), *text)]
        size = 2 * (5 + len(texts))
        values = [MARK, size, number, item.label, len(item.completions), *texts]
        if max(values[1:]) > MARK or max(texts) >= MARK:
            raise SkytrainError(
                f"item {number} does not fit llm.c's file of uint16: {size} bytes, tokens up to {max(texts)}"
            )
        parts.append(np.array(values, "<u2").tobytes())
        longest = max(longest, size)
    header = np.zeros(HEADER, "<i4")
    header[:4] = MAGIC, VERSION, len(items), longest
    return b"".join([header.tobytes(), *parts])


def encode_items(questions: Iterable[Question], tokenizer: Tokenizer) -> list[TokenItem]:
    """Encode questions in llm.c's form: context and completions separately."""
    items = []
    for question in questions:
        pairs = question.pairs["completion"]
        texts = [str(pairs[0].context), *(str(pair.continuation) for pair in pairs)]
        context, *completions = (tuple(ids.tolist()) for ids in tokenizer.encode_batch(texts))
        items.append(TokenItem(question.label, context, tuple(completions)))
    return items


def questions_of(name: str, items: Iterable[TokenItem], tokenizer: Tokenizer) -> list[Question]:
    """Return the questions of a file that holds no text, and so can be scored only by llm.c's convention."""
    if tokenizer.vocab_size != GPT2_VOCABULARY:
        raise SkytrainError(
            f"{name} holds GPT-2's tokens, and this model's tokenizer is {tokenizer.name} with {tokenizer.vocab_size} tokens\n"
            "  give the original JSONL instead"
        )
    return [
        Question({"completion": tuple(TextPair(item.context, each) for each in item.completions)}, (), item.label)
        for item in items
    ]
