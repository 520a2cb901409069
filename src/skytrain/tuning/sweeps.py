"""A sweep in the store: `sweeps/<name>/` with its specification, decisions, finished trials, ledger and answer.

A decision is written before its trial starts, and a trial when it ends, both by conditional create. So the same
command finds what was decided, continues a trial that has not ended, and never pays for one twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..config import SkytrainError, flatten, nearest
from ..runs import read_object
from ..storage import Store
from .ledger import Entry
from .problem import Answer, Observation, Trial


@dataclass(frozen=True)
class Decision:
    """A trial that was decided on: its number, what it may cost and why it was chosen."""

    number: int
    trial: Trial
    usd: float
    why: str


class SweepStore:
    """Reads and writes one sweep's folder."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.folder = f"sweeps/{name}"

    @property
    def url(self) -> str:
        return self.store.url(self.folder)

    def exists(self) -> bool:
        return self.store.exists(f"{self.folder}/spec.json")

    def open(self, spec: Mapping[str, Any]) -> None:
        """Creates the sweep, or checks that it is the one that exists. Raises SkytrainError with the differences."""
        text = json.dumps(spec, indent=1, sort_keys=True)
        if self.store.create(f"{self.folder}/spec.json", text.encode()):
            return
        before, now = flatten(self.spec()), flatten(json.loads(text))
        changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        if changed:
            lines = [f"{key}: {before.get(key)!r} -> {now.get(key)!r}" for key in changed[:8]]
            more = [f"and {len(changed) - 8} more"] if len(changed) > 8 else []
            raise SkytrainError(
                "\n  ".join(
                    [
                        f"sweep {self.name!r} exists with another specification, and its trials answer another question:",
                        *lines,
                        *more,
                        "choose another tune.name, or repeat the command that started it",
                    ]
                )
            )

    def spec(self) -> dict[str, Any]:
        return read_object(self.store, f"{self.folder}/spec.json")

    def decisions(self) -> list[Decision]:
        found = [read_object(self.store, key) for key in self._keys("decisions")]
        return [Decision(one["number"], Trial(**one["trial"]), one["usd"], one["why"]) for one in found]

    def decide(self, decision: Decision) -> None:
        key = f"{self.folder}/decisions/{decision.number:03d}.json"
        if not self.store.create(key, _json(asdict(decision))):
            raise SkytrainError(
                f"another process has decided trial {decision.number} of sweep {self.name!r}\n"
                "  one process works on a sweep at a time; wait for the other, or choose another tune.name"
            )

    def history(self) -> dict[int, Observation]:
        """The finished trials by number."""
        found = {int(key.rpartition("/")[2][:3]): read_object(self.store, key) for key in self._keys("trials")}
        return {number: _observation(fields) for number, fields in sorted(found.items())}

    def finish(self, number: int, observation: Observation) -> None:
        loss = observation.loss if observation.finite else {True: "diverged", False: "stopped"}[observation.diverged]
        fields = asdict(observation) | {"loss": loss}
        self.store.create(f"{self.folder}/trials/{number:03d}.json", _json(fields))

    def save(self, name: str, fields: Mapping[str, Any]) -> None:
        """Writes another object of the sweep, such as its answer; the newest counts."""
        self.store.write(f"{self.folder}/{name}.json", _json(fields))

    def load(self, name: str) -> dict[str, Any] | None:
        key = f"{self.folder}/{name}.json"
        return read_object(self.store, key) if self.store.exists(key) else None

    def save_answer(self, answer: Answer) -> None:
        self.save("answer", asdict(answer))

    def answer(self) -> Answer | None:
        found = self.load("answer")
        return Answer(**{**found, "warnings": tuple(found["warnings"])}) if found else None

    def entries(self) -> list[Entry]:
        """The lines of the ledger."""
        return [Entry(**read_object(self.store, key)) for key in self._keys("ledger")]

    def _keys(self, part: str) -> list[str]:
        return [stat.key for stat in self.store.list(f"{self.folder}/{part}/")]


def find_sweep(store: Store, name: str) -> SweepStore:
    """An existing sweep, or SkytrainError with the nearest name."""
    sweep = SweepStore(store, name)
    if sweep.exists():
        return sweep
    names = store.folders("sweeps")
    guess = nearest(name, names)
    hint = f"did you mean {guess}?" if guess else f"sweeps: {', '.join(names) or 'none'}"
    raise SkytrainError(f"{store.url('sweeps')} has no sweep {name!r}\n  {hint}")


def _observation(fields: Mapping[str, Any]) -> Observation:
    loss = {"diverged": math.inf, "stopped": math.nan}.get(fields["loss"], fields["loss"])
    return Observation(Trial(**fields["trial"]), loss, fields["usd"], fields["seconds"], fields["extra"])


def _json(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode()
