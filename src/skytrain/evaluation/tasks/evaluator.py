"""A downstream task as an evaluator: in the training loop on any mesh, and after it on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ...config import NamedTask, SkytrainError, TaskConfig
from ...storage import Store
from ...tokens import Tokenizer
from ..scorer import Scorer
from ..scoring import Progress
from .encoding import PairEncoder, check_vocabulary, choose_subset
from .llmc import questions_of, read_llmc
from .measures import TaskResult
from .multiple_choice import MultipleChoiceItems, check_conventions
from .questions import Question, question_of
from .records import as_text, read_records
from .sources import DataFile, load_data
from .texts import ClozeItems, TextItem, TextItems, undo_wikitext

Items = MultipleChoiceItems | ClozeItems | TextItems


def _silent(text: str) -> None:
    return


@dataclass(frozen=True)
class TaskSources:
    """Where tasks find their data, and who is told about it."""

    store: Store
    note: Callable[[str], None] = _silent
    # How all ranks get what one of them loads; a single process loads it itself.
    load_once: Callable[[Callable[[], Any]], Any] = lambda load: load()


class TaskEvaluator:
    """An evaluator that scores a task. `result` is what the last run found."""

    def __init__(
        self,
        task: NamedTask,
        tokenizer: Tokenizer,
        sources: TaskSources,
        *,
        limit: int | None = None,
        longest: int | None = None,
    ) -> None:
        """Create the evaluator; `longest` limits the tokens of a text that the model sees to fewer than it could."""
        self.name = task.name
        self._task = task
        self._tokenizer = tokenizer
        self._sources = sources
        self._limit = limit
        self._longest = longest
        self._items: Items | None = None
        self._encoded: tuple[int, Any] | None = None  # the window that the items were encoded for, and the result
        self.result: TaskResult | None = None
        self.progress: Progress | None = None

    def prepare(self) -> None:
        """Load the data. One process fetches what is not in the store yet; then all read it there.

        In training the items are encoded too: one that does not fit the model is an error before the first step.
        """
        self._sources.load_once(lambda: len(load_data(self._task, self._sources.store, self._sources.note)))
        files = load_data(self._task, self._sources.store, self._sources.note)
        self._items = load_items(self._task, files, self._tokenizer, self._limit)
        if self._longest is not None:
            self._encode(self._items, self._longest)

    def run(self, model: Scorer) -> Mapping[str, float]:
        assert self._items is not None, "prepare() comes before run()"
        check_vocabulary(self._tokenizer, model.config.vocab_size)
        requests = self._encode(self._items, min(model.window, self._longest or model.window))
        self.result = self._items.score(model, requests, self.progress)
        return self.result.metrics()

    def _encode(self, items: Items, window: int) -> Any:
        """Return the requests of `items` to a model that sees `window` tokens; kept, since training asks often."""
        if self._encoded is None or self._encoded[0] != window:
            try:
                self._encoded = window, items.encode(PairEncoder(self._tokenizer, window))
            except SkytrainError as error:
                raise SkytrainError(f"task {self.name}: {error}") from None
        return self._encoded[1]


def load_items(task: NamedTask, files: Sequence[DataFile], tokenizer: Tokenizer, limit: int | None) -> Items:
    """Return the items of a task, or the subset of them that `limit` chooses."""
    if task.config.kind == "multiple_choice":
        questions = load_questions(task, files, tokenizer)
        chosen = choose_subset(len(questions), limit)
        return MultipleChoiceItems(task.name, [questions[n] for n in chosen], chosen, len(questions))
    texts = [text for file in files for text in _texts(task, file, several=len(files) > 1)]
    _check_some(task, len(texts))
    chosen = choose_subset(len(texts), limit)
    make = ClozeItems if task.config.kind == "cloze" else TextItems
    return make(task.name, [texts[n] for n in chosen], chosen, len(texts))


def load_questions(task: NamedTask, files: Sequence[DataFile], tokenizer: Tokenizer) -> list[Question]:
    questions: list[Question] = []
    for file in files:
        if file.name.endswith(".bin"):
            questions += questions_of(file.name, read_llmc(file.name, file.content), tokenizer)
            continue
        for number, record in enumerate(read_records(file.name, file.content)):
            try:
                questions.append(question_of(record, task.config))
            except SkytrainError as error:
                raise _bad_record(task, file, number, error) from None
    _check_some(task, len(questions))
    check_conventions(questions)
    return questions


def _texts(task: NamedTask, file: DataFile, several: bool) -> list[TextItem]:
    """Return the texts of a file; of several text files each is a domain, named by its file."""
    config = task.config
    items = []
    for number, record in enumerate(read_records(file.name, file.content)):
        text: Any = record.get(config.text, record.get("text"))
        domain = record.get(config.domain) if config.domain else None
        if several and config.domain is None:
            domain = PurePosixPath(file.name).stem
        try:
            _check_text(text, config, domain)
        except SkytrainError as error:
            raise _bad_record(task, file, number, error) from None
        scored = undo_wikitext(text) if config.detokenize == "wikitext" else text
        items.append(TextItem(text, scored, str(domain) if domain is not None else None))
    return items


def _check_text(text: Any, config: TaskConfig, domain: Any) -> None:
    """Raise `SkytrainError` with what is wrong with a record."""
    if text is None:
        raise SkytrainError(f"has no {config.text}")
    if not as_text(text, config.text).strip():
        raise SkytrainError(f"{config.text} is {text[:40]!r}: empty")
    if config.kind == "cloze":
        before, _, word = text.rpartition(" ")
        if not before.strip() or not word.strip():
            raise SkytrainError(f"{text[-40:]!r} has no last word after others")
    if config.domain is not None and domain is None:
        raise SkytrainError(f"has no {config.domain}")


def _bad_record(task: NamedTask, file: DataFile, number: int, error: SkytrainError) -> SkytrainError:
    return SkytrainError(
        f"task {task.name}: {file.name}, record {number}: {error}\n  correct the file; no item is left out"
    )


def _check_some(task: NamedTask, count: int) -> None:
    if not count:
        raise SkytrainError(f"task {task.name}: its data has no items")
