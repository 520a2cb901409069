"""Comparison of two sweeps."""

from __future__ import annotations

from ..config import Config, SkytrainError
from ..storage import open_store
from .problem import Observation
from .sweeps import SweepStore, find_sweep


def compare_sweeps(config: Config, first: str, second: str) -> list[tuple[str, ...]]:
    """Return rows of what two sweeps asked, spent and answered."""
    store = open_store(config.store)
    sweeps = [find_sweep(store, name) for name in (first, second)]
    specs = [sweep.spec() for sweep in sweeps]
    if specs[0]["tokenizer"] != specs[1]["tokenizer"]:
        raise SkytrainError(
            f"{first} was measured with tokenizer {specs[0]['tokenizer']}, {second} with {specs[1]['tokenizer']}\n"
            "  losses per token of two tokenizers cannot be compared"
        )
    rows: list[tuple[str, ...]] = [("", first, second)]
    differing = sorted(
        key
        for key in {*specs[0]["target"], *specs[1]["target"]}
        if specs[0]["target"].get(key) != specs[1]["target"].get(key)
    )
    rows += [(key, str(specs[0]["target"].get(key)), str(specs[1]["target"].get(key))) for key in differing]
    rows.append(("strategy", specs[0]["tune"]["strategy"], specs[1]["tune"]["strategy"]))
    columns = [_column(sweep) for sweep in sweeps]
    rows += [(name, columns[0][name], columns[1][name]) for name in columns[0]]
    return rows


def _column(sweep: SweepStore) -> dict[str, str]:
    history = list(sweep.history().values())
    answer = sweep.answer()
    column = {"trials": str(len(history)), "diverged": str(sum(one.diverged for one in history))}
    column["spent"] = f"${_spent(sweep):.4f}"
    column["answer"] = f"{answer.rate:.4g}" if answer else "none yet"
    span = answer is not None and answer.low is not None and answer.high is not None
    column["80% interval"] = f"{answer.low:.3g} to {answer.high:.3g}" if answer and span else "-"
    column["expected regret"] = f"{answer.regret_nats:.4f} nats" if answer and answer.regret_nats is not None else "-"
    column["lowest loss"] = _lowest(history)
    return column


def _spent(sweep: SweepStore) -> float:
    entries = sweep.entries()
    return sum(entry.usd for entry in entries if entry.what != "final")


def _lowest(history: list[Observation]) -> str:
    finite = [one for one in history if one.finite]
    best = min(finite, key=lambda one: one.loss) if finite else None
    return f"{best.loss:.4f} ({best.trial.key})" if best else "-"
