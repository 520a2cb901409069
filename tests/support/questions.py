"""Made records in the format of each task, with the odd characters that real ones have."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = (
    "the a river stone engine café naïve 東京 slowly and then [header] [title] under bright lamp's Mr. however, "
    "measured twice, cut once; 3.14 m² over-all “quoted” e.g. (roughly) it's didn't @home #1 Ångström emoji🙂 fine"
)
WORDS = TEXT.split()


def words(random: random.Random, fewest: int, most: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(random.randint(fewest, most)))


def hellaswag(random: random.Random) -> dict[str, Any]:
    a, b = words(random, 3, 20), random.choice(["", words(random, 1, 6)])
    return {
        "ind": random.randrange(10**6),
        "activity_label": words(random, 1, 3),
        "ctx_a": a,
        "ctx_b": b,
        "ctx": f"{a} {b}".strip(),
        "endings": [words(random, 1, 12) + "." for _ in range(4)],
        "label": str(random.randrange(4)),
    }


def piqa(random: random.Random) -> dict[str, Any]:
    sentences = {name: words(random, 2, 12) for name in ("goal", "sol1", "sol2")}
    return {**sentences, "label": random.randrange(2)}


def arc(random: random.Random) -> dict[str, Any]:
    names = random.choice([list("ABCD"), list("1234"), list("ABC"), list("ABCDE")])
    choices = {"text": [words(random, 1, 8) for _ in names], "label": names}
    return {"id": "x", "question": words(random, 3, 15) + "?", "choices": choices, "answerKey": random.choice(names)}


def openbookqa(random: random.Random) -> dict[str, Any]:
    record = arc(random)
    return {**record, "question_stem": record.pop("question")}


def winogrande(random: random.Random) -> dict[str, Any]:
    sentence = f"{words(random, 2, 10)} _ {words(random, 1, 10)}."
    options = {name: words(random, 1, 3) for name in ("option1", "option2")}
    return {"sentence": sentence, **options, "answer": random.choice("12")}


def sciq(random: random.Random) -> dict[str, Any]:
    choices = {name: words(random, 1, 4) for name in ("distractor1", "distractor2", "distractor3", "correct_answer")}
    support = random.choice(["", " " + words(random, 5, 25)])
    return {"question": words(random, 3, 12) + "?", "support": support, **choices}


def lambada(random: random.Random) -> dict[str, Any]:
    return {"text": f"{words(random, 5, 40)} {random.choice(['lamp', 'river', 'engine', 'naïve'])}"}


def wikitext(random: random.Random) -> dict[str, Any]:
    middle = (
        f" = {words(random, 1, 3)} = \n {words(random, 10, 120)} @-@ {words(random, 3, 9)} ( {words(random, 1, 3)} ) . "
    )
    return {"page": f"{middle}\n {words(random, 5, 60)} @,@ 000 's s ' N \n"}


MAKERS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "hellaswag": hellaswag,
    "piqa": piqa,
    "arc-easy": arc,
    "arc-challenge": arc,
    "winogrande": winogrande,
    "openbookqa": openbookqa,
    "sciq": sciq,
    "lambada": lambada,
    "wikitext": wikitext,
}


def write_records(folder: Path, task: str, count: int, seed: int = 0) -> Path:
    made = random.Random(f"{task} {seed}")
    path = folder / f"{task}.jsonl"
    lines = [json.dumps(MAKERS[task](made), ensure_ascii=False) + "\n" for _ in range(count)]
    path.write_text("".join(lines), encoding="utf-8")
    return path
