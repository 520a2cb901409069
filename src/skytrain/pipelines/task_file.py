"""A multiple-choice task as llm.c's evaluation file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..config import Config, SkytrainError, find_tasks
from ..evaluation import encode_items, load_data, load_questions, write_llmc
from ..runs import Reporter
from ..storage import open_store
from ..tokens import open_tokenizer


def write_task_file(config: Config, task: str, out: Path, reporter: Reporter) -> int:
    """Writes the task's items, encoded by the configured tokenizer, to `out`; returns their number."""
    (named,) = find_tasks(dataclasses.replace(config.evaluation, tasks=[task]))
    if named.config.kind != "multiple_choice":
        raise SkytrainError(f"{task} is a task of {named.config.kind}; llm.c's file holds multiple choice")
    store = open_store(config.store)
    tokenizer = open_tokenizer(config.tokenizer, store)
    questions = load_questions(named, load_data(named, store, reporter.note), tokenizer)
    if "harness" not in questions[0].pairs:
        raise SkytrainError(f"{named.data} is such a file already")
    if out.exists():
        raise SkytrainError(f"{out} exists already\n  remove it, or give another --out")
    out.write_bytes(write_llmc(encode_items(questions, tokenizer)))
    return len(questions)
