"""What a job has done for good: it only grows, and nothing that happens to the machines takes it away."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Callable

from ..checkpoints import committed_steps
from ..config import Config
from ..runs import attempt_numbers, read_attempt
from ..storage import Store

ENDPOINT_PORT = 8000  # of an endpoint on a rented machine
ANSWER_SECONDS = 1.0
FINISH_SUFFIX = "-finish"  # of the name under which a machine is launched that finishes a run


def lasting_progress(store: Store, run: str, job: str, config: Config) -> int:
    """Return how far a job has come: committed steps, trials, parts of data, results, or an endpoint that answers."""
    measures: dict[str, Callable[[], int]] = {
        "train": lambda: max(committed_steps(store, run), default=0),
        "tune": lambda: _of_sweep(store, run.rpartition("-machine-")[0]),
        "prepare": lambda: sum(len(store.list(f"{kind}/{config.data.name}/")) for kind in ("corpora", "tokens")),
        "serve": lambda: int(_answers(ENDPOINT_PORT)),
        "finish": lambda: len(store.list(f"runs/{trained_run(run)}/finish/")),
    }
    return measures[job]()


def trained_run(run: str) -> str:
    """Return the run that a machine finishes, by the name under which the machine is launched."""
    return run.removesuffix(FINISH_SUFFIX)


def has_met(store: Store, run: str, generation: int) -> bool:
    """Return whether the hosts of a generation found each other: their job has claimed an attempt."""
    newest = max(attempt_numbers(store, run), default=None)
    return newest is not None and int(read_attempt(store, run, newest).get("generation") or 0) >= generation


def _of_sweep(store: Store, sweep: str) -> int:
    """Return the results and committed steps of the sweep's trials that this host ran last.

    What other machines achieve does not prove that this one works.
    """
    trial = re.compile(rf"{re.escape(sweep)}-(\d+)")
    trials = [found for name in store.folders("runs/") if (found := trial.fullmatch(name))]
    results = {stat.key.rpartition("/")[2] for stat in store.list(f"sweeps/{sweep}/trials/")}
    mine = [found for found in trials if _last_host(store, found[0]) == platform.node()]
    return sum(max(committed_steps(store, found[0]), default=0) + (f"{found[1]}.json" in results) for found in mine)


def _last_host(store: Store, run: str) -> str | None:
    numbers = attempt_numbers(store, run)
    return read_attempt(store, run, max(numbers)).get("host") if numbers else None


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS):
            return True
    except OSError:
        return False
