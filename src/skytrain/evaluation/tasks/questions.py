"""Multiple-choice questions from records: by the fields that a task's file names, or by a data set's own rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...config import SkytrainError, TaskConfig
from .encoding import Convention, TextPair
from .records import as_text

FIELD = re.compile(r"\{([\w.]+)(\|lstrip)?\}")
CONTEXT_NAMES = ("context", "question", "query", "ctx", "prompt")
CHOICE_NAMES = ("choices", "endings", "options")
LABEL_NAMES = ("label", "answer", "gold")
HELLASWAG_ENDINGS = 4


@dataclass(frozen=True)
class Question:
    """The pairs to score by each convention, the texts of the choices, and the index of the right one."""

    pairs: Mapping[Convention, tuple[TextPair, ...]]
    choices: tuple[str, ...]  # for normalization by length; empty where a file holds only tokens
    label: int


def question_of(record: Mapping[str, Any], task: TaskConfig) -> Question:
    """Return the question in a record, or raise `SkytrainError` with what is wrong with it."""
    if task.form == "hellaswag":
        return _hellaswag(record)
    if task.form == "winogrande":
        return _winogrande(record)
    return _by_fields(record, task)


def _by_fields(record: Mapping[str, Any], task: TaskConfig) -> Question:
    record = _plain_question(record)
    choices = _choices(record, task.choices)
    label = _label(record, task, choices)
    context = FIELD.sub(lambda match: _filled(record, match), task.context)
    pairs = tuple(TextPair(context, f" {choice}") for choice in choices)
    return Question({"harness": pairs, "completion": pairs}, choices, label)


def _hellaswag(record: Mapping[str, Any]) -> Question:
    """Return a HellaSwag question: lm-evaluation-harness rewrites the texts, llm.c takes them as they are."""
    endings = _texts(_field(record, "endings"), "endings")
    if len(endings) != HELLASWAG_ENDINGS:
        raise SkytrainError(f"has {len(endings)} endings; HellaSwag has {HELLASWAG_ENDINGS}")
    label = _index(_field(record, "label"), endings)
    if "ctx_a" in record:
        a = as_text(_field(record, "ctx_a"), "ctx_a")
        b = as_text(record.get("ctx_b") or "", "ctx_b")
        activity = as_text(_field(record, "activity_label"), "activity_label")
        query = tidy_hellaswag(f"{activity}: {a} {b.capitalize()}")
        ctx = as_text(record.get("ctx") or f"{a} {b}".strip(), "ctx")
    else:  # a file of the completion form has the whole context only
        ctx = as_text(_field(record, "ctx"), "ctx")
        query = tidy_hellaswag(ctx)
    tidy = tuple(tidy_hellaswag(ending) for ending in endings)
    _check_not_empty(tidy)
    return Question(
        {
            "harness": tuple(TextPair(query, f" {ending}") for ending in tidy),
            "completion": tuple(TextPair(ctx, f" {ending}") for ending in endings),
        },
        tidy,
        label,
    )


def tidy_hellaswag(text: str) -> str:
    """Clean a text as the harness does: WikiHow's marks become sentence ends or nothing, and double spaces single."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _winogrande(record: Mapping[str, Any]) -> Question:
    """Return a question of two contexts, each with one option in the gap, that the rest of the sentence continues."""
    sentence = as_text(_field(record, "sentence"), "sentence")
    before, gap, rest = sentence.partition("_")
    if not gap or not rest.strip():
        raise SkytrainError(f"sentence {sentence!r} has no gap (_) with text after it")
    options = tuple(as_text(_field(record, name), name) for name in ("option1", "option2"))
    answer = str(_field(record, "answer"))
    if answer not in ("1", "2"):
        raise SkytrainError(f"answer is {answer!r}; it must be 1 or 2")
    pairs = tuple(TextPair(before + option, f" {rest.strip()}") for option in options)
    return Question(
        {"harness": pairs, "completion": pairs}, tuple(before + option for option in options), int(answer) - 1
    )


def _plain_question(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Flatten a record of ARC or OpenBookQA, which AI2 publishes with stem and choices nested under `question`."""
    question = record.get("question")
    if not isinstance(question, Mapping) or "stem" not in question:
        return record
    listed = question["choices"]
    choices = {name: [choice[name] for choice in listed] for name in ("text", "label")}
    return {**record, "question": question["stem"], "question_stem": question["stem"], "choices": choices}


def _choices(record: Mapping[str, Any], fields: Sequence[str]) -> tuple[str, ...]:
    if len(fields) == 1:
        listed = _field(record, fields[0], CHOICE_NAMES)
        choices = _texts(listed, fields[0])
    else:
        choices = tuple(as_text(_field(record, name), name) for name in fields)
    if len(choices) < 2:
        raise SkytrainError(f"has {len(choices)} choices; at least 2 are needed")
    _check_not_empty(choices)
    return choices


def _check_not_empty(choices: Sequence[str]) -> None:
    empty = [number for number, choice in enumerate(choices) if not choice.strip()]
    if empty:
        raise SkytrainError(f"choice {empty[0]} is empty")


def _label(record: Mapping[str, Any], task: TaskConfig, choices: Sequence[str]) -> int:
    if isinstance(task.label, int):
        return _index(task.label, choices)
    value = _field(record, task.label, LABEL_NAMES)
    if task.label_names is None:
        return _index(value, choices)
    names = [str(name) for name in _field(record, task.label_names)]
    name = str(value).strip()
    if name not in names:
        raise SkytrainError(f"{task.label} is {name!r}, which is none of {', '.join(names)}")
    return names.index(name)


def _index(value: Any, choices: Sequence[str]) -> int:
    label = _whole_number(value)
    if label is None:
        if value in choices:
            return choices.index(value)
        raise SkytrainError(f"label is {value!r}; it must be a choice or its number, from 0 on")
    if not 0 <= label < len(choices):
        raise SkytrainError(f"label is {label}; there are {len(choices)} choices, numbered from 0")
    return label


def _whole_number(value: Any) -> int | None:
    """Return a value as an integer; None if it is not one: 1.5 and true would become 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if isinstance(value, str) or number == value else None


def _filled(record: Mapping[str, Any], match: re.Match[str]) -> str:
    others = CONTEXT_NAMES if match[1] == "context" else ()
    text = as_text(_field(record, match[1], others), match[1])
    return text.lstrip() if match[2] else text


def _field(record: Mapping[str, Any], path: str, others: Sequence[str] = ()) -> Any:
    """Return the field at a path or, where the path is a default name, at the field's other usual names."""
    for name in (path, *(others if path in others else ())):
        value: Any = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    raise SkytrainError(f"has no {path}")


def _texts(listed: Any, name: str) -> tuple[str, ...]:
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise SkytrainError(f"{name} is {listed!r}; it must be a list of texts")
    return tuple(as_text(each, name) for each in listed)
