"""Where a model comes from: the runs and weights that it started from, back to the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..config import SkytrainError
from ..runs import RunRecord, load_run
from ..storage import Store
from .inputs import MergeInput

# A point of a run's history. Weights of other programs have no step.
Ancestor = tuple[str, int | None]


def ancestors(store: Store, source: MergeInput) -> list[Ancestor]:
    """The model itself, what it started from, what that started from, and so on; all parents of a merge."""
    if source.run is None:
        return [(source.label, None)]
    found: list[Ancestor] = []
    waiting = [(source.run, source.step)]
    while waiting:
        record, step = waiting.pop(0)
        if (record.name, step) in found:
            continue
        found.append((record.name, step))
        for name, parent_step in _parents(record):
            parent = _find(store, name)
            if parent is None or parent_step is None:
                found.append((name, None))
            else:
                waiting.append((parent, parent_step))
    return found


def common_ancestor(store: Store, inputs: Sequence[MergeInput]) -> str | None:
    """The nearest point that all models come from, as RUN@STEP or as weights; None where there is none.

    Of several checkpoints of one run, that is the earliest of them.
    """
    histories = [ancestors(store, each) for each in inputs]
    for name, _ in histories[0]:
        steps = [[step for each, step in history if each == name] for history in histories]
        if all(steps):
            known = [step for each in steps for step in each if step is not None]
            return f"{name}@{min(known)}" if known else name
    return None


def _parents(record: RunRecord) -> Iterator[Ancestor]:
    # Older records do not say the step of what they started from.
    start = record.parent or (record.started_from or "").partition(",")[0] or _start_weights(record)
    starts = record.merged_from or ([start] if start else [])
    for start in starts:
        name, _, step = start.partition("@")
        yield (name, int(step)) if step.isdigit() else (start, None)


def _start_weights(record: RunRecord) -> str | None:
    """The pretrained weights that the model's settings name."""
    model = record.config["model"]
    if model["family"] == "hf":
        return str(model["name"]) if model["weights"] == "pretrained" else None
    return model.get("weights")


def _find(store: Store, name: str) -> RunRecord | None:
    if "/" in name or not store.exists(f"runs/{name}/run.json"):
        return None
    try:
        return load_run(store, name)
    except SkytrainError:  # a damaged record has no known ancestors
        return None
