"""Cloze and language modelling: how likely the model finds the last word of a text, or the whole text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...config import SkytrainError
from ..continuations import Continuation, rolling_windows
from ..scorer import Scorer
from ..scoring import Progress, score_continuations
from .encoding import PairEncoder, TextPair
from .measures import Measure, TaskResult, accuracy


@dataclass(frozen=True)
class TextItem:
    """A text, the text that is scored where they differ, and the domain that it belongs to."""

    text: str
    scored: str
    domain: str | None = None


@dataclass(frozen=True)
class TextRequests:
    """What to compute, the text that each continuation belongs to, and the tokens of each text."""

    groups: list[list[Continuation]]
    owners: np.ndarray
    tokens: np.ndarray
    truncated: int = 0


class ClozeItems:
    """The last word of each text, after the rest of it: as LAMBADA is scored."""

    def __init__(self, task: str, texts: Sequence[TextItem], indices: np.ndarray, available: int) -> None:
        self.task = task
        self.available = available
        self._texts = texts
        self._indices = indices

    @property
    def count(self) -> int:
        return len(self._texts)

    def encode(self, encoder: PairEncoder) -> TextRequests:
        pairs = []
        for index, item in zip(self._indices, self._texts, strict=True):
            before, _, word = item.scored.rpartition(" ")
            pairs.append((int(index), TextPair(before, f" {word}")))
        continuations = encoder.encode(pairs, "harness")
        tokens = np.array([float(each.scored) for each in continuations])
        return TextRequests([[each] for each in continuations], np.arange(self.count), tokens, len(encoder.truncated))

    def score(self, model: Scorer, requests: TextRequests, progress: Progress | None = None) -> TaskResult:
        scores = score_continuations(model, requests.groups, progress)
        measures = {
            "harness_acc": accuracy(scores.greedy),
            "harness_perplexity": Measure(-scores.log_probs, np.ones(self.count), "exp", higher_is_better=False),
        }
        answers: list[dict[str, object]] = [
            {"item": int(index), "right": bool(right), "log_prob": float(log_prob)}
            for index, right, log_prob in zip(self._indices, scores.greedy, scores.log_probs, strict=True)
        ]
        return TaskResult(
            task=self.task,
            measures=measures,
            items=self.count,
            available=self.available,
            truncated=requests.truncated,
            answers=answers,
        )


class TextItems:
    """Whole texts, each from its beginning: perplexity per word and byte, bits per byte, and loss per token.

    Words and bytes are those of the original text, as lm-evaluation-harness counts them.
    """

    def __init__(self, task: str, texts: Sequence[TextItem], indices: np.ndarray, available: int) -> None:
        self.task = task
        self.available = available
        self._texts = texts
        self._indices = indices

    @property
    def count(self) -> int:
        return len(self._texts)

    def encode(self, encoder: PairEncoder) -> TextRequests:
        windows: list[list[Continuation]] = []
        owners: list[int] = []
        tokens = np.zeros(self.count)
        encoded = encoder.encode_texts([item.scored for item in self._texts])
        for number, (item, ids) in enumerate(zip(self._texts, encoded, strict=True)):
            mine = rolling_windows(ids, encoder.prefix, encoder.window)
            windows += [[each] for each in mine]
            owners += [number] * len(mine)
            tokens[number] = len(ids)
            if not ids:
                raise SkytrainError(f"text {int(self._indices[number])} is empty: {item.text[:40]!r}")
        return TextRequests(windows, np.array(owners), tokens)

    def score(self, model: Scorer, requests: TextRequests, progress: Progress | None = None) -> TaskResult:
        nats = np.zeros(self.count)
        tokens = requests.tokens
        np.add.at(nats, requests.owners, -score_continuations(model, requests.groups, progress).log_probs)
        words = np.array([float(len(re.split(r"\s+", item.text))) for item in self._texts])
        sizes = np.array([float(len(item.text.encode())) for item in self._texts])
        measures = {
            "word_perplexity": Measure(nats, words, "exp", higher_is_better=False),
            "byte_perplexity": Measure(nats, sizes, "exp", higher_is_better=False),
            "bits_per_byte": Measure(nats / math.log(2), sizes, higher_is_better=False),
            "loss": Measure(nats, tokens, higher_is_better=False),
        }
        domains = np.array([item.domain or "" for item in self._texts])
        for domain in dict.fromkeys(item.domain for item in self._texts if item.domain is not None):
            held = domains == domain
            measures[f"{domain}/loss"] = Measure(nats[held], tokens[held], higher_is_better=False)
            bits = Measure(nats[held] / math.log(2), sizes[held], higher_is_better=False)
            measures[f"{domain}/bits_per_byte"] = bits
        answers: list[dict[str, object]] = [
            {"item": int(self._indices[n]), "domain": self._texts[n].domain, "log_prob": float(-nats[n]),
             "tokens": int(tokens[n]), "words": int(words[n]), "bytes": int(sizes[n])}
            for n in range(self.count)
        ]  # fmt: skip
        return TaskResult(
            task=self.task, measures=measures, items=self.count, available=self.available, truncated=0, answers=answers
        )


def undo_wikitext(text: str) -> str:
    """Undo WikiText's tokenization by the rules of lm-evaluation-harness (among them its pattern that never matches)."""
    text = text.replace("s '", "s'")
    text = re.sub(r"/' [0-9]/", r"/'[0-9]/", text)
    for mark in "-,.":
        text = text.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        text = text.replace(f" {mark} ", f"{mark} ")
    for opening, closing in (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'")):
        inside = re.escape(closing)
        pattern = rf"{re.escape(opening)}\s*([^{inside}]*?)\s*{inside}"
        text = re.sub(pattern, lambda match, o=opening, c=closing: f"{o}{match[1]}{c}", text)  # type: ignore[misc]
    text = text.replace("= = = =", "====").replace("= = =", "===").replace("= =", "==")
    text = text.replace(" ° ", "°").replace(" \n", "\n").replace("\n ", "\n")
    return text.replace(" N ", " 1 ").replace(" 's", "'s")
