"""Downstream tasks: which are scored and when, and what a task's own file says."""

from __future__ import annotations

from typing import Literal

from .declare import EXECUTION, setting, settings
from .kinds import Positive


@settings
class EvaluationConfig:
    """Tasks that are scored during training and by `skytrain evaluate`."""

    tasks: list[str] = setting(
        EXECUTION,
        "Tasks by name (hellaswag), or files: a task's YAML, multiple-choice JSONL, or text. See docs/evaluation.md.",
    )
    every: Positive | None = setting(
        EXECUTION, "Steps between evaluations in training, which ends with one, too; null: never during training."
    )
    limit: Positive | None = setting(EXECUTION, "Score this many items of each task, always the same; null: all.")
    folder: str | None = setting(EXECUTION, "Folder with tasks of your own: NAME.yaml, or NAME.jsonl.")
    data: dict[str, str] = setting(
        EXECUTION, "Where a task's data is, by the task's name: a file, a folder or a URL of the store; else the hub."
    )


@settings
class TaskConfig:
    """A task's YAML file. Names of fields are of the data's records; `a.b` is the field b of the field a."""

    kind: Literal["multiple_choice", "cloze", "language_modelling"] = setting(EXECUTION, "What is scored.")
    form: Literal["fields", "hellaswag", "winogrande"] = setting(
        EXECUTION, "How a record becomes a question; `fields`: by the settings below."
    )
    context: str = setting(EXECUTION, "Text before the choices; {name} is a field, {name|lstrip} the same stripped.")
    choices: list[str] = setting(EXECUTION, "The field that lists the choices, or one field for each choice.")
    label: str | int = setting(EXECUTION, "The field that has the right choice, or its number.")
    label_names: str | None = setting(EXECUTION, "The field with the choices' names, where the label is one of them.")
    text: str = setting(EXECUTION, "The field that has the text, for cloze and language modelling.")
    domain: str | None = setting(EXECUTION, "The field by which losses are also reported.")
    detokenize: Literal["none", "wikitext"] = setting(
        EXECUTION, "Undo a data set's own tokenization before a text is scored."
    )
    data: str | None = setting(EXECUTION, "Where the data is, from the folder of this file.")
    repo: str | None = setting(EXECUTION, "The data set on the Hugging Face hub.")
    files: str | None = setting(EXECUTION, "The files of that repository; * matches.")
    revision: str = setting(EXECUTION, "Its branch, tag or commit.")
    items: Positive | None = setting(EXECUTION, "Items of the whole task, for `skytrain plan`.")
    item_tokens: Positive = setting(EXECUTION, "Mean tokens that an item costs, for `skytrain plan`.")
