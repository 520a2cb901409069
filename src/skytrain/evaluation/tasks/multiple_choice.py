"""Multiple choice: the model chooses the continuation that it finds likeliest, by both conventions in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...config import SkytrainError
from ..continuations import Continuation, ContinuationScores
from ..scorer import Scorer
from ..scoring import Progress, score_continuations
from .encoding import Convention, PairEncoder
from .measures import Measure, TaskResult, accuracy
from .questions import Question

# The convention of each scoring, and what the summed log-probability is divided by.
SCORINGS: Mapping[str, tuple[Convention, str]] = {
    "completion_acc": ("completion", "none"),
    "completion_acc_norm": ("completion", "tokens"),
    "harness_acc": ("harness", "none"),
    "harness_acc_norm": ("harness", "characters"),
    "harness_acc_bytes": ("harness", "bytes"),
}


@dataclass(frozen=True)
class ChoiceRequests:
    """What to compute, and where the scores of each question are."""

    groups: list[list[Continuation]]
    places: dict[tuple[int, Convention], np.ndarray]
    lengths: np.ndarray  # the scored tokens of each continuation
    truncated: int


class MultipleChoiceItems:
    """Questions of a task. `available` is their number before a limit."""

    def __init__(self, task: str, questions: Sequence[Question], indices: np.ndarray, available: int) -> None:
        self.task = task
        self.available = available
        self._questions = questions
        self._indices = indices

    @property
    def count(self) -> int:
        return len(self._questions)

    def score(self, model: Scorer, requests: ChoiceRequests, progress: Progress | None = None) -> TaskResult:
        scores = score_continuations(model, requests.groups, progress)
        places = requests.places
        chosen = {
            scoring: np.array([self._choose(number, requests, scores, scoring) for number in range(self.count)])
            for scoring, (convention, _) in SCORINGS.items()
            if self._questions and convention in self._questions[0].pairs
        }
        labels = np.array([question.label for question in self._questions])
        measures: dict[str, Measure] = {scoring: accuracy(found == labels) for scoring, found in chosen.items()}
        answers = [self._answer(number, places, scores, chosen) for number in range(self.count)]
        return TaskResult(
            task=self.task,
            measures=measures,
            items=self.count,
            available=self.available,
            truncated=requests.truncated,
            answers=answers,
            chance=self._chance(),
        )

    def _chance(self) -> float:
        """Return the expected score of a guesser; questions may have different numbers of choices."""
        return float(np.mean([1 / len(next(iter(question.pairs.values()))) for question in self._questions]))

    def encode(self, encoder: PairEncoder) -> ChoiceRequests:
        """Encode the questions; what two conventions share is computed once."""
        encoded: dict[Convention, list[Continuation]] = {}
        for convention in dict.fromkeys(name for question in self._questions for name in question.pairs):
            pairs = [
                (int(item), pair)
                for item, question in zip(self._indices, self._questions, strict=True)
                for pair in question.pairs.get(convention, ())
            ]
            encoded[convention] = encoder.encode(pairs, convention)
        taken = dict.fromkeys(encoded, 0)
        groups: list[list[Continuation]] = []
        places: dict[tuple[int, Convention], np.ndarray] = {}
        count = 0
        for number, question in enumerate(self._questions):
            known: dict[Continuation, int] = {}
            for convention, pairs_of in question.pairs.items():
                first = taken[convention]
                mine = encoded[convention][first : first + len(pairs_of)]
                taken[convention] += len(pairs_of)
                new = [each for each in dict.fromkeys(mine) if each not in known]
                known.update((each, count + place) for place, each in enumerate(new))
                count += len(new)
                groups += [new] if new else []
                places[number, convention] = np.array([known[each] for each in mine])
        lengths = np.array([each.scored for group in groups for each in group])
        return ChoiceRequests(groups, places, lengths, len(encoder.truncated))

    def _choose(self, number: int, requests: ChoiceRequests, scores: ContinuationScores, scoring: str) -> int:
        convention, norm = SCORINGS[scoring]
        where = requests.places[number, convention]
        question = self._questions[number]
        sums = scores.log_probs[where]
        if norm == "tokens":
            sums = sums / requests.lengths[where]
        elif norm == "characters":
            sums = sums / np.array([float(len(choice)) for choice in question.choices])
        elif norm == "bytes":
            sums = sums / np.array([float(len(choice.encode())) for choice in question.choices])
        return int(np.argmax(sums))

    def _answer(
        self,
        number: int,
        places: Mapping[tuple[int, Convention], np.ndarray],
        scores: ContinuationScores,
        chosen: Mapping[str, np.ndarray],
    ) -> dict[str, object]:
        question = self._questions[number]
        return {
            "item": int(self._indices[number]),
            "label": question.label,
            "chosen": {scoring: int(answers[number]) for scoring, answers in chosen.items()},
            "log_probs": {name: scores.log_probs[places[number, name]].tolist() for name in question.pairs},
        }


def check_conventions(questions: Sequence[Question]) -> None:
    """Raise if files of text and of tokens are mixed: they are scored by different conventions."""
    if len({tuple(question.pairs) for question in questions}) > 1:
        raise SkytrainError("a task's files are all text, or all llm.c's tokens")
