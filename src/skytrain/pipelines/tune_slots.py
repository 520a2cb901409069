"""Several trials at the same time on one machine: a process for each slot, with a GPU or some cores of its own.

Slots are workers like those of other machines: each takes its next trial from the sweep in the store. A slot runs
its trials in one process, so libraries are loaded and kernels compiled once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess

from ..config import EXIT_CODES, INTERRUPTED, Config, ConfigError, SkytrainError, set_variables, visible_gpus
from ..jobs import count_gpus, describe_exit, die_with_parent
from ..runs import Silent
from ..tuning import TuneSession

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class SlotPlace:
    """The devices of one slot."""

    number: int  # from 1
    slots: int

    def variables(self, config: Config) -> dict[str, str]:
        """Environment variables that must be set before torch is loaded."""
        cores = max(1, (os.cpu_count() or 1) // self.slots)
        found = {"OMP_NUM_THREADS": str(cores)}
        gpus = count_gpus() if config.trainer.device != "cpu" else 0
        if gpus:
            names = visible_gpus() or [str(number) for number in range(gpus)]
            found["CUDA_VISIBLE_DEVICES"] = names[self.number - 1]
        return found


def check_slots(config: Config) -> None:
    """Raises ConfigError where the machine has fewer GPUs than trials that are to run at the same time."""
    gpus = count_gpus() if config.trainer.device != "cpu" else 0
    if gpus and config.tune.parallel > gpus:
        raise ConfigError(
            "tune.parallel", f"{config.tune.parallel} trials at the same time need as many GPUs, not {gpus}"
        )


def run_slots(config: Config, session: TuneSession, watch: Callable[[], None]) -> None:
    """Runs trials in all slots until the sweep has no more; `watch` is called every second."""
    places = [SlotPlace(number, session.slots) for number in range(1, session.slots + 1)]
    slots = [_start(_work, (config, session, place)) for place in places]
    try:
        while any(slot.is_alive() for slot in slots):
            if any(slot.exitcode for slot in slots):
                break  # one has failed or was interrupted
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
    """The process was asked to stop; the trials have committed checkpoints."""

    exit_code = EXIT_CODES[INTERRUPTED]


def measure_in_slot(config: Config) -> None:
    """Measures all models as a slot will train them, and saves the estimates in the sweep."""
    child = _start(_measure, (config, SlotPlace(1, config.tune.parallel)))
    child.join()
    if child.exitcode:
        raise SkytrainError(f"the process that measures 20 steps {_ending(child.exitcode)}")


def _ending(code: int) -> str:
    """How a process ended that has failed; one that was killed could not say why."""
    if code >= 0:
        return f"ended with {describe_exit(code)}; its message is above"
    hint = ": is the machine's memory too small for it?" if code == -signal.SIGKILL else ""
    return f"was killed by {describe_exit(code)}{hint}"


def _start(target: Callable[..., None], arguments: tuple[object, ...]) -> BaseProcess:
    context = multiprocessing.get_context("spawn")  # a fork would inherit threads and a device that is open
    child = context.Process(target=_run, args=(target, arguments))
    child.start()
    return child


def _stop(slots: Sequence[BaseProcess]) -> None:
    """Lets trials commit and end."""
    for slot in slots:
        if slot.is_alive() and slot.pid is not None:
            os.kill(slot.pid, signal.SIGTERM)
    for slot in slots:
        slot.join()


def _run(target: Callable[..., None], arguments: tuple[object, ...]) -> None:
    die_with_parent()
    try:
        target(*arguments)
    except SkytrainError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_CODES[INTERRUPTED]) from None


def _work(config: Config, session: TuneSession, place: SlotPlace) -> None:
    set_variables(place.variables(config))
    from .tune import work_in_slot
    from .tune_runner import signals_interrupt

    with signals_interrupt():
        work_in_slot(config, session, place.number, Silent())


def _measure(config: Config, place: SlotPlace) -> None:
    set_variables(place.variables(config))
    from .tune import find_estimates

    find_estimates(replace(config, tune=replace(config.tune, parallel=1)), Silent())
