"""A sweep in the store: `sweeps/<name>/` with its specification, decisions, finished trials, ledger and answer.

A decision is written before its trial starts, and a trial when it ends, both by conditional create. So the same
command finds what was decided, continues a trial that has not ended, and never pays for one twice. Several workers
may share a sweep: the one that creates the object of a number has decided it, and any other decides again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import SkytrainError, build, flatten, nearest
from ..storage import Store, is_amount, is_clock, maybe, read_object, record_of
from .ledger import FINAL, Entry, read_entry
from .problem import Answer, Observation, Trial

TRIAL_NAME = re.compile(r"\d{3}(-\d{3,6})?")  # of a decision, or of a claim with its turn


@dataclass(frozen=True)
class Decision:
    """A trial that was decided on: its number, what it may cost and why it was chosen."""

    number: int
    trial: Trial
    usd: float
    why: str
    limit_usd: float | None = None  # the most that the trial may cost in all; null in sweeps of earlier versions
    worker: str = ""  # the worker that decided it, and runs it first
    at: float = 0.0  # time of the decision, by the clock of the worker's machine

    @property
    def most_usd(self) -> float:
        return self.usd if self.limit_usd is None else self.limit_usd


@dataclass(frozen=True)
class Claim:
    """The worker that runs a trial, and since when by its machine's clock."""

    number: int
    turn: int  # 1 for the worker that decided it
    worker: str
    at: float
    earlier_usd: float = 0.0  # what those before had recorded as the trial's cost


@dataclass(frozen=True)
class SweepState:
    """A sweep as one worker read it: a trial whose result it missed counts as running."""

    decisions: Sequence[Decision]
    claims: Sequence[Claim]
    history: Mapping[int, Observation]

    @property
    def running(self) -> list[Decision]:
        """Return the trials that were decided and have no result."""
        return [one for one in self.decisions if one.number not in self.history]

    def claim_of(self, number: int) -> Claim:
        """Return the newest claim of a trial."""
        return [one for one in self.claims if one.number == number][-1]

    @property
    def observed(self) -> list[Observation]:
        return [self.history[number] for number in sorted(self.history)]

    def with_decision(self, decision: Decision) -> SweepState:
        claim = Claim(decision.number, 1, decision.worker, decision.at)
        return SweepState([*self.decisions, decision], [*self.claims, claim], self.history)


class SweepStore:
    """One sweep's folder in the store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.folder = f"sweeps/{name}"
        self._read: dict[str, dict[str, Any]] = {}  # decisions, claims and trials never change

    @property
    def url(self) -> str:
        return self.store.url(self.folder)

    def exists(self) -> bool:
        return self.store.exists(f"{self.folder}/spec.json")

    def open(self, spec: Mapping[str, Any], *, idle: bool = False) -> None:
        """Create the sweep, or check that it is the one that exists. Raise SkytrainError with the differences.

        A sweep that was refused before its first trial starts anew, unless a worker is active (`idle` is false).
        """
        text = json.dumps(spec, indent=1, sort_keys=True)
        if self.store.create(f"{self.folder}/spec.json", text.encode()):
            return
        before = flatten(self.spec())
        now = flatten(json.loads(text))
        changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        if changed and idle and not self._keys("decisions") and self.answer() is None:
            # Estimates and the reserve belong to the other target. What measuring them cost stays in the ledger.
            for name in ("estimates", "earlier", f"ledger/{FINAL}"):
                self.store.delete(f"{self.folder}/{name}.json")
            self.save("spec", json.loads(text))
        elif changed:
            lines = [f"{key}: {before.get(key)!r} -> {now.get(key)!r}" for key in changed[:8]]
            more = [f"and {len(changed) - 8} more"] if len(changed) > 8 else []
            raise SkytrainError(
                "\n  ".join(
                    [
                        f"sweep {self.name!r} exists with a different specification, and its trials answer a different question:",
                        *lines,
                        *more,
                        "choose another tune.name, or repeat the command that started it",
                    ]
                )
            )

    def spec(self) -> dict[str, Any]:
        return read_object(self.store, f"{self.folder}/spec.json")

    def decisions(self) -> list[Decision]:
        return [self._decision(key) for key in self._keys("decisions")]

    def _decision(self, key: str) -> Decision:
        fields = self._once(key)
        with record_of(self.store, key):
            trial = {"seed": 0, **fields["trial"]}
            decision: Decision = build(Decision, {"limit_usd": None, "worker": "", "at": 0.0, **fields, "trial": trial})
            _check_name(key, f"{decision.number:03d}")
            if not is_amount(decision.usd) or not is_amount(decision.most_usd):
                raise ValueError("a trial cannot cost less than nothing")
            return decision

    def decide(self, decision: Decision) -> bool:
        """Create this decision, and return whether it is the one of its number; False if another worker was first."""
        return self.store.create(f"{self.folder}/decisions/{decision.number:03d}.json", _json(asdict(decision)))

    def claims(self, decisions: Sequence[Decision]) -> list[Claim]:
        """Return everyone who has run each trial, in order."""
        later = [self._claim(key) for key in self._keys("claims")]
        first = [Claim(one.number, 1, one.worker, one.at) for one in decisions]
        return sorted([*first, *later], key=lambda one: (one.number, one.turn))

    def _claim(self, key: str) -> Claim:
        with record_of(self.store, key):
            claim: Claim = build(Claim, {"earlier_usd": 0.0, **self._once(key)})
            _check_name(key, f"{claim.number:03d}-{claim.turn:03d}")
            return claim

    def state(self) -> SweepState:
        """Return everything that was decided and observed; results are read first, so that none lacks its decision."""
        history = self.history()
        decisions = self.decisions()
        return SweepState(decisions, self.claims(decisions), history)

    def ask_stop(self, sessions: Sequence[str]) -> None:
        """Ask these sessions to take no more trials; sessions that start later are not affected."""
        self.save("stop", {"sessions": list(sessions)})

    def is_asked_to_stop(self, worker: str) -> bool:
        asked = self.load("stop")
        return asked is not None and worker.partition("/")[0] in asked["sessions"]

    def is_finished(self, number: int) -> bool:
        return self.store.exists(f"{self.folder}/trials/{number:03d}.json")

    def claim(self, claim: Claim) -> bool:
        """Claim the trial, and return whether it is this worker's from now on; False if another worker was first."""
        key = f"{self.folder}/claims/{claim.number:03d}-{claim.turn:03d}.json"
        return self.store.create(key, _json(asdict(claim)))

    def history(self) -> dict[int, Observation]:
        """Return the finished trials by number."""
        found: dict[int, Observation] = {}
        for key in self._keys("trials"):
            with record_of(self.store, key):
                found[int(key.rpartition("/")[2][:3])] = _observation(self._once(key))
        return dict(sorted(found.items()))

    def finish(self, number: int, observation: Observation) -> bool:
        """Write the trial's result, and return whether it counts; False if another worker has finished the trial."""
        loss = observation.loss if observation.finite else {True: "diverged", False: "stopped"}[observation.diverged]
        fields = asdict(observation) | {"loss": loss}
        return self.store.create(f"{self.folder}/trials/{number:03d}.json", _json(fields))

    def save(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write another object of the sweep, such as its answer; the newest counts."""
        self.store.write(f"{self.folder}/{name}.json", _json(fields))

    def load(self, name: str) -> dict[str, Any] | None:
        key = f"{self.folder}/{name}.json"
        return read_object(self.store, key) if self.store.exists(key) else None

    def save_answer(self, answer: Answer) -> None:
        """Write the answer; of the curves beside a projection, the rates and errors."""
        fits = [{"name": fit.name, "rate": fit.rate, "error": fit.error} for fit in answer.fits]
        self.save("answer", asdict(replace(answer, fits=())) | {"fits": fits})

    def answer(self) -> Answer | None:
        record = self.load("answer")
        with record_of(self.store, f"{self.folder}/answer.json"):
            if record is None:
                return None
            if not is_clock(record["rate"]) or not all(maybe(is_clock)(record.get(name)) for name in ("low", "high")):
                raise ValueError("the answer is not a number")
            return Answer(**{**record, "warnings": tuple(map(str, record["warnings"])), "fits": ()})

    def entries(self) -> list[Entry]:
        """Return the lines of the ledger."""
        return [self._entry(key) for key in self._keys("ledger")]

    def _entry(self, key: str) -> Entry:
        return read_entry(self.store, key)

    def _once(self, key: str) -> dict[str, Any]:
        if key not in self._read:
            self._read[key] = read_object(self.store, key)
        return self._read[key]

    def _keys(self, part: str) -> list[str]:
        return [stat.key for stat in self.store.list(f"{self.folder}/{part}/")]


def _check_name(key: str, name: str) -> None:
    """Raise ValueError unless a record is about the trial of its name: with another number it would be any run of SWEEP-."""
    if key.rpartition("/")[2] != f"{name}.json" or not TRIAL_NAME.fullmatch(name):
        raise ValueError(f"it is about {name}, which is not the trial of its name")


def trial_run(sweep: str, number: int) -> str:
    """Return the name of a trial's run."""
    return f"{sweep}-{number:03d}"


def find_sweep(store: Store, name: str) -> SweepStore:
    """Return an existing sweep, or raise SkytrainError with the nearest name."""
    sweep = SweepStore(store, name)
    if sweep.exists():
        return sweep
    names = store.folders("sweeps")
    guess = nearest(name, names)
    hint = f"did you mean {guess}?" if guess else f"sweeps: {', '.join(names) or 'none'}"
    raise SkytrainError(f"{store.url('sweeps')} has no sweep {name!r}\n  {hint}")


def _observation(fields: Mapping[str, Any]) -> Observation:
    loss = {"diverged": math.inf, "stopped": math.nan}.get(str(fields["loss"]), fields["loss"])
    amounts = (fields["usd"], fields["seconds"], fields["extra"].get("session_usd", 0.0))
    if (not isinstance(loss, float) and not is_clock(loss)) or not all(map(is_amount, amounts)):
        raise ValueError("its loss, dollars or seconds are none")
    trial: Trial = build(Trial, {"seed": 0, **fields["trial"]})
    return Observation(trial=trial, loss=loss, usd=fields["usd"], seconds=fields["seconds"], extra=fields["extra"])


def _json(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode()
