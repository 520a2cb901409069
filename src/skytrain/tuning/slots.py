"""Several trials at the same time on one machine: one process per slot, each with its own GPU or cores.

Slots are workers like those of other machines: each takes its next trial from the sweep in the store. A slot runs
its trials in one process, so libraries are loaded and kernels compiled once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess

from ..config import (
    EXIT_CODES,
    INTERRUPTED,
    Config,
    ConfigError,
    SkytrainError,
    hidden_main,
    temporarily,
    visible,
    visible_gpus,
)
from ..jobs import count_gpus, describe_exit, die_with_parent, handled_signals
from .hosts import TuneSession
from .ledger import BudgetError

POLL_SECONDS = 1.0
# Runs in a separate process, so it must be a module-level function; its arguments are the configuration, the session
# and the slot's number.
SlotTask = Callable[[Config, TuneSession | None, int], None]


@dataclass(frozen=True)
class SlotPlace:
    """The devices of one slot."""

    number: int  # from 1
    slots: int

    def variables(self, config: Config) -> dict[str, str]:
        """Return the environment of the slot's process: it must be set before torch is loaded."""
        cores = max(1, (os.cpu_count() or 1) // self.slots)
        chosen = {"OMP_NUM_THREADS": str(cores)}
        gpus = count_gpus() if config.trainer.device != "cpu" else 0
        if gpus:
            names = visible_gpus() or [str(number) for number in range(gpus)]
            chosen["CUDA_VISIBLE_DEVICES"] = names[self.number - 1]
        return chosen


def check_slots(config: Config, rented_gpus: int | None = None) -> None:
    """Raise ConfigError where a machine has fewer GPUs, or cores, than trials that are to run at the same time.

    It is this one, or the one of `tune.instance` with its GPUs.
    """
    if rented_gpus is not None:
        places, what, where = rented_gpus, "GPUs", str(config.tune.instance)
    else:
        gpus = count_gpus() if config.trainer.device != "cpu" else 0
        places, what = (gpus, "GPUs") if gpus else (os.cpu_count() or 1, "cores")
        where = "this machine"
    if config.tune.parallel > places:
        raise ConfigError(
            "tune.parallel",
            f"{config.tune.parallel} trials at the same time need as many {what}, and {where} has {places}",
            hint=f"try tune.parallel={places}",
        )


def run_slots(task: SlotTask, config: Config, session: TuneSession, watch: Callable[[], None]) -> None:
    """Run trials in all slots until the sweep has no more; `watch` is called every second."""
    places = [SlotPlace(number, session.slots) for number in range(1, session.slots + 1)]
    slots = [_start(task, config, session, place) for place in places]
    try:
        while any(slot.is_alive() for slot in slots):
            if any(slot.exitcode for slot in slots):
                break  # one failed or was interrupted
            watch()
            time.sleep(POLL_SECONDS)
    finally:
        _stop(slots)
    watch()
    codes = sorted({slot.exitcode or 0 for slot in slots} - {0}, key=abs)
    if not codes:
        return
    if EXIT_CODES[INTERRUPTED] in codes and len(codes) == 1:
        raise SlotsInterrupted("the trials were interrupted\n  the same command continues the sweep")
    raise SkytrainError(f"a slot of the sweep {_ending(codes[-1])}\n  the same command continues the sweep")


class SlotsInterrupted(SkytrainError):
    """A request to stop this process; the trials have committed checkpoints."""

    exit_code = EXIT_CODES[INTERRUPTED]


def measure_in_slot(task: SlotTask, config: Config, session: TuneSession | None) -> None:
    """Measure all models as a slot will train them; the task saves the estimates in the sweep."""
    child = _start(
        task, replace(config, tune=replace(config.tune, parallel=1)), session, SlotPlace(1, config.tune.parallel)
    )
    child.join()
    if child.exitcode == EXIT_CODES["budget"]:
        raise BudgetError("the steps of the models were not measured; the message is above")
    if child.exitcode:
        raise SkytrainError(f"the process that measures 20 steps {_ending(child.exitcode)}")


def _ending(code: int) -> str:
    """Return how a failed process ended; one that was killed could not say why."""
    if code >= 0:
        return f"ended with {describe_exit(code)}; its message is above"
    hint = ": is the machine's memory too small for it?" if code == -signal.SIGKILL else ""
    return f"was killed by {describe_exit(code)}{hint}"


def _start(task: SlotTask, config: Config, session: TuneSession | None, place: SlotPlace) -> BaseProcess:
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads and an open device
    child = context.Process(target=_run, args=(task, config, session, place.number))
    with temporarily(place.variables(config)), hidden_main():  # unpickling the task loads torch
        child.start()
    return child


def _stop(slots: Sequence[BaseProcess]) -> None:
    """Let trials commit and end."""
    for slot in slots:
        if slot.is_alive() and slot.pid is not None:
            os.kill(slot.pid, signal.SIGTERM)
    for slot in slots:
        slot.join()


def _run(task: SlotTask, config: Config, session: TuneSession | None, slot: int) -> None:
    die_with_parent()
    try:
        task(config, session, slot)
    except SkytrainError as error:
        sys.stderr.write(visible(f"{error}\n"))
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_CODES[INTERRUPTED]) from None


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let every signal that stops a job raise KeyboardInterrupt; a trial handles them itself, and commits first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.default_int_handler) for number in handled_signals()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
