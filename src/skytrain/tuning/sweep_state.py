"""The state of a sweep for `status`, `logs` and `stop`: its trials, cost and machines, and how to end it."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, SkytrainError
from ..runs import NoRuns, Reporter, ask_stop, attempt_numbers, final_usd, launched_runs, run_names
from ..storage import Store, open_store
from .hosts import live_sessions
from .ledger import FINAL
from .sweeps import SweepState, SweepStore, trial_run


@dataclass(frozen=True)
class SweepStatus:
    """The status of a sweep, read from the store."""

    sweep: str
    state: str  # tuning, idle, answered, or damaged
    finished: int
    running: list[str]  # running trials, each with its machine
    machines: list[str]  # names of the launches that work on it
    sessions: list[str]  # processes that are alive
    spent_usd: float
    final_usd: float
    answer: float | None
    low: float | None
    high: float | None


def find_sweep_status(config: Config, name: str | None) -> SweepStatus | None:
    """Return the status of a sweep; None if there is no sweep of this name.

    One that was launched exists from then on, although its machines have not begun.
    """
    store = open_store(config.store)
    if name is None:
        return None
    sweep = SweepStore(store, name)
    machines = machines_of_sweep(store, name)
    if not machines and not sweep.exists():
        return None
    state = sweep.state()
    answer = sweep.answer()
    sessions = live_sessions(sweep)
    final = next((entry.usd for entry in sweep.entries() if entry.what == FINAL), 0.0)
    word = "tuning" if sessions else ("answered" if answer is not None else "idle")
    return SweepStatus(
        sweep=name,
        state=word,
        finished=len(state.history),
        running=_running(state),
        machines=machines,
        sessions=sessions,
        spent_usd=sweep_spent_usd(store, name),
        final_usd=final,
        answer=answer.rate if answer else None,
        low=answer.low if answer else None,
        high=answer.high if answer else None,
    )


def launched_sweep(config: Config, name: str) -> SweepStatus | None:
    """Return what the launches of a sweep say of it, whose own records may be damaged; None without any."""
    machines = machines_of_sweep(open_store(config.store), name)
    return damaged_sweep(name, machines) if machines else None


def damaged_sweep(name: str, machines: list[str]) -> SweepStatus:
    """Return the status of a sweep whose records cannot be read."""
    return SweepStatus(
        sweep=name,
        state="damaged",
        finished=0,
        running=[],
        machines=machines,
        sessions=[],
        spent_usd=0.0,
        final_usd=0.0,
        answer=None,
        low=None,
        high=None,
    )


def _running(state: SweepState) -> list[str]:
    return [f"{one.number} {one.trial.key} on {state.claim_of(one.number).worker}" for one in state.running]


def machines_of_sweep(store: Store, name: str) -> list[str]:
    """Return the runs under which machines of a sweep were launched."""
    return launched_runs(store, lambda run: run.rpartition("-machine-")[0] == name)


def sweep_spent_usd(store: Store, name: str) -> float:
    """Return what a sweep has cost so far: by its ledger, or by its rented machines, some of which may never have begun."""
    charged = [entry.usd for entry in SweepStore(store, name).entries() if entry.what != FINAL]
    return max(sum(charged), sum(final_usd(store, run) for run in machines_of_sweep(store, name)))


def stop_sweep(config: Config, name: str, reporter: Reporter) -> list[str]:
    """Ask all processes of a sweep to save their trials and end; return the names of those that are alive."""
    store = open_store(config.store)
    sweep = SweepStore(store, name)
    sessions = live_sessions(sweep)
    sweep.ask_stop(sessions)
    for one in sweep.state().running:
        run = trial_run(name, one.number)
        numbers = attempt_numbers(store, run)
        if numbers and sessions:
            ask_stop(store, run, numbers[-1])
            reporter.note(f"{name}: asked trial {one.number} to save a checkpoint and stop")
    return sessions


def newest_trial_run(config: Config, name: str) -> str | None:
    """Return the run of a sweep's newest trial, whose log `skytrain logs` shows; None if there is no such sweep."""
    store = open_store(config.store)
    sweep = SweepStore(store, name)
    if not sweep.exists():
        return None
    try:
        known = set(run_names(store))
    except NoRuns:
        known = set()
    runs = [trial_run(name, one.number) for one in sweep.decisions()]
    recorded = [run for run in runs if run in known]
    if not recorded:
        raise SkytrainError(f"sweep {name!r} has no trial with a log yet")
    return recorded[-1]
