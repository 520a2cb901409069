"""Bench of serving: an endpoint and real text in; a table, a plot and JSON out."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..bench import LoadLevel, LoadSettings, run_load
from ..config import SkytrainError
from ..planning import Market, load_catalog
from ..report import load_svg
from ..runs import Reporter
from ..serving import Endpoint
from ..storage import parse_json


@dataclass(frozen=True)
class LoadTest:
    """The settings of a load test."""

    concurrencies: tuple[int, ...]
    requests: int
    max_tokens: int
    prompt_words: int = 128
    prompts: Path | None = None  # text, one prompt a line, or JSON lines with `prompt`; None: Python's documentation
    model: str | None = None
    seed: int = 0
    usd_per_hour: float | None = None
    ignore_eos: bool = True


@dataclass(frozen=True)
class LoadResults:
    """The results of a load test, and where they were written."""

    model: str
    url: str
    test: LoadTest
    levels: list[LoadLevel]

    @property
    def failed(self) -> int:
        return sum(sum(level.errors.values()) for level in self.levels)

    def to_json(self) -> dict[str, Any]:
        rows = []
        for level in self.levels:
            derived = {"tokens_per_s": level.tokens_per_s, "requests_per_s": level.requests_per_s}
            rows.append({**asdict(level), **derived, "usd_per_mtok": level.usd_per_mtok(self.test.usd_per_hour)})
        test = {**asdict(self.test), "prompts": str(self.test.prompts) if self.test.prompts else None}
        return {"model": self.model, "url": self.url, "test": test, "levels": rows}


def bench_serve(endpoint: Endpoint, test: LoadTest, reporter: Reporter) -> LoadResults:
    """Run the sweep. The same seed sends the same prompts in the same order."""
    names = [str(each["id"]) for each in endpoint.models()]
    if not names:
        raise SkytrainError(f"{endpoint.base} has no model")
    if test.model is not None and test.model not in names:
        raise SkytrainError(f"{endpoint.base} has no model {test.model!r}\n  one of {', '.join(names)}")
    name = test.model or names[0]
    prompts = choose_prompts(test)
    settings = LoadSettings(
        model=name,
        concurrencies=test.concurrencies,
        requests=test.requests,
        max_tokens=test.max_tokens,
        seed=test.seed,
        ignore_eos=test.ignore_eos,
    )
    return LoadResults(name, endpoint.base, test, run_load(endpoint, settings, prompts, reporter))


def make_folder(folder: Path) -> None:
    """Make the folder of the results; before the sweep, whose figures would be lost otherwise."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SkytrainError(f"--out {folder}: cannot be written: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise SkytrainError(f"--out {folder}: cannot be written: no permission")


def write_results(results: LoadResults, folder: Path) -> None:
    """Write results.json into a folder that exists, and load.svg where a request succeeded."""
    (folder / "results.json").write_text(json.dumps(results.to_json(), indent=1) + "\n", encoding="utf-8")
    title = f"{results.model}, {results.test.max_tokens} tokens an answer"
    (folder / "load.svg").unlink(missing_ok=True)  # of an earlier sweep
    if svg := load_svg(title, results.levels):
        (folder / "load.svg").write_text(svg, encoding="utf-8")


def instance_price(type_: str, region: str, market: Market) -> float:
    """Return the catalogue's dollars per hour of a machine, in the cheapest zone."""
    catalog = load_catalog()
    catalog.check_region(region)
    catalog.instance(type_)
    price = catalog.price(type_, region, market)
    if price is None:
        raise SkytrainError(f"{type_} is not sold as {market} in {region}\n  `skytrain catalog` lists what is")
    return price.usd_per_hour_min


def choose_prompts(test: LoadTest) -> list[str]:
    """Return as many prompts as the largest number of requests, in an order that the seed decides."""
    wanted = test.requests + max(test.concurrencies)
    prompts = _file_prompts(test.prompts) if test.prompts else _text_prompts(test.prompt_words, wanted)
    order = random.Random(test.seed)
    order.shuffle(prompts)
    return [prompts[number % len(prompts)] for number in range(wanted)]


def _file_prompts(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        prompts = [str(parse_json(line)["prompt"]) if path.suffix == ".jsonl" else line for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkytrainError(
            f"{path}: prompts cannot be read: {error!r}\n  one a line, or JSON lines with `prompt`"
        ) from None
    if not prompts:
        raise SkytrainError(f"{path} has no prompts")
    return prompts


def _text_prompts(words: int, wanted: int) -> list[str]:
    """Return pieces of Python's own documentation; no two begin alike."""
    from ..config import make

    source = make("skytrain.corpus.sources.python_docs.PythonDocs", {}, key="prompts")
    prompts: list[str] = []
    held: list[str] = []
    for document in source.documents():
        held += document.text.split()
        while len(held) >= words:
            prompts.append(" ".join(held[:words]))
            held = held[words:]
        if len(prompts) >= 4 * wanted:  # the seed chooses among them
            break
    if not prompts:
        raise SkytrainError(f"--prompt-words {words}: all of Python's documentation is shorter\n  --prompts FILE")
    return prompts


def load_rows(results: LoadResults) -> list[tuple[str, ...]]:
    """Return the table for people, with times in milliseconds."""
    head = (
        "AT ONCE",
        "REQ/S",
        "TOKENS/S",
        "FIRST TOKEN P50/95/99",
        "BETWEEN P50/95/99",
        "TOTAL P50/95/99 S",
        "ERRORS",
        "$/MTOK",
    )
    return [head, *(_row(level, results.test.usd_per_hour) for level in results.levels)]


def _row(level: LoadLevel, usd_per_hour: float | None) -> tuple[str, ...]:
    def times(values: dict[int, float], scale: float, digits: int) -> str:
        return " / ".join(f"{scale * value:.{digits}f}" for value in values.values()) or "-"

    usd = level.usd_per_mtok(usd_per_hour)
    errors = ", ".join(f"{count} x {kind}" for kind, count in level.errors.items()) or "0"
    return (
        str(level.concurrency),
        f"{level.requests_per_s:.2f}",
        f"{level.tokens_per_s:.1f}",
        times(level.first_token, 1000, 0),
        times(level.between_tokens, 1000, 1),
        times(level.total, 1, 2),
        errors,
        f"{usd:.2f}" if usd is not None else "-",
    )


def parse_concurrencies(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `1,2,4`."""
    try:
        numbers: Sequence[int] = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > 1024:
        raise SkytrainError(f"--concurrency {text}: give numbers from 1 to 1024, such as 1,4,16")
    return tuple(numbers)
