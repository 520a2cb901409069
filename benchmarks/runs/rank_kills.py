"""SIGKILL for one rank or all: half of them at a random moment, half inside a phase of a save.

Ranks are forked from a process that has imported everything once: a start costs a second, not ten. There is no
supervisor.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs.campaign import SETTINGS, AttemptResult, Campaign
from tests.support.tiny import tiny_config

from skytrain.checkpoints import parts
from skytrain.config import Config
from skytrain.jobs.watchdog import SILENT_SECONDS
from skytrain.pipelines.train import train
from skytrain.runs import Silent, attempt_numbers
from skytrain.storage import open_store
from skytrain.storage.folder import FolderStore

# A phase of a save: its operation, and the form of its key. `within`: the bytes are on disk, the name is not.
PHASES: dict[str, tuple[str, str]] = {
    "copy to the host": ("take", ""),
    "a rank's file": ("write_parts", ".bin"),
    "the manifest": ("write", "manifest.json"),
    "the marker": ("create", "COMMITTED"),
    "deleting a marker": ("delete", "COMMITTED"),
    "deleting files": ("delete_all", "checkpoints"),
}
MOMENTS = ("before", "within", "after")
# In which ranks that lost one must end by themselves: most see a socket close, and what none sees the watchdog does.
PEERS_SECONDS = SILENT_SECONDS + 20.0


@dataclass(frozen=True)
class RankKill:
    """One disturbance: at a moment in time, or in a phase of the n-th save."""

    victims: str  # one, all
    rank: int
    seconds: float | None = None
    phase: str | None = None
    moment: str | None = None
    save: int = 1

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.victims == "one" else "all ranks"
        if self.seconds is not None:
            return f"killed {who} after {self.seconds:.2f} s"
        return f"killed {who} {self.moment} {self.phase}, time {self.save}"


def choose(
    generator: random.Random, world: int, seconds: float, number: int, places: list[tuple[str, str]]
) -> RankKill:
    """Every second disturbance in time; the others go through all phases and moments in turn."""
    victims = generator.choice(["one", "all"])
    rank = generator.randrange(world)
    if number % 2 == 0:
        return RankKill(victims, rank, seconds=generator.uniform(0.0, seconds))
    phase, moment = places[number // 2 % len(places)]
    # The manifest and what follows are the first rank's work.
    rank = rank if phase in ("copy to the host", "a rank's file") else 0
    return RankKill(victims, rank, phase=phase, moment=moment, save=generator.choice([1, 2]))


def arm(kill: RankKill) -> None:
    """In the victim: the n-th time that the phase comes up is its last."""
    assert kill.phase is not None
    operation, key_part = PHASES[kill.phase]
    owner: Any = parts.HostCopy if operation == "take" else FolderStore
    real: Callable[..., Any] = getattr(owner, operation)
    seen = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def armed(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        if operation != "take" and not (key_part in str(args[0]) and "/checkpoints/" in str(args[0])):
            return real(self, *args, **kwargs)
        seen += 1
        if seen != kill.save:
            return real(self, *args, **kwargs)
        if kill.moment == "within":
            # Whatever gives the object its name or takes it away is the last thing that does not happen.
            for name in ("replace", "link", "unlink", "rmdir"):
                setattr(os, name, lambda *_, **__: die())
            from skytrain.storage import folder, transfer

            transfer.write_whole.__defaults__ = (lambda *_: die(),)
            folder.shutil.rmtree = lambda *_, **__: die()  # type: ignore[assignment]
            Path.unlink = lambda *_, **__: die()  # type: ignore[assignment,method-assign]
        if kill.moment == "before":
            die()
        result = real(self, *args, **kwargs)
        die()
        return result

    setattr(owner, operation, armed)


def start_rank(config: Config, rank: int, world: int, port: int, kill: RankKill | None, log: Path) -> int:
    """Starts a process that trains as one rank; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if world > 1:
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(world),
                LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
        if kill is not None and kill.phase is not None and rank == kill.rank:
            arm(kill)
        train(config, Silent())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_attempt(config: Config, world: int, kill: RankKill | None, log: Path) -> tuple[bool, float, bool]:
    """Whether it happened, how long the attempt took, and whether ranks that were left ended by themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    began = time.monotonic()
    alive = {start_rank(config, rank, world, port, kill, log): rank for rank in range(world)}
    by_rank = {rank: pid for pid, rank in alive.items()}
    happened = False
    fell_at = 0.0
    by_themselves = True
    while alive:
        passed = time.monotonic() - began
        if kill is not None and kill.seconds is not None and not happened and passed >= kill.seconds:
            happened = True
            fell_at = passed
            for rank in range(world) if kill.victims == "all" else [kill.rank]:
                if by_rank[rank] in alive:
                    os.kill(by_rank[rank], signal.SIGKILL)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in alive:
            rank = alive.pop(pid)
            died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if died and not happened:
                happened = True
                fell_at = passed
                if kill is not None and kill.victims == "all":
                    for other in alive:
                        os.kill(other, signal.SIGKILL)
            assert died or not os.WEXITSTATUS(status) or happened, f"rank {rank} failed by itself: see {log}"
        elif happened and alive and passed - fell_at > PEERS_SECONDS:
            by_themselves = False
            for other in alive:
                os.kill(other, signal.SIGKILL)
        else:
            time.sleep(0.005)
    return happened, time.monotonic() - began, by_themselves


class RankKills(Campaign[RankKill]):
    """Ranks without a supervisor."""

    kind = "ranks"
    modes = ("single", "fsdp", "tp-fsdp", "pp")

    def choose(self) -> RankKill:
        places = [(phase, moment) for phase in PHASES for moment in MOMENTS]
        random.Random(self.mode).shuffle(places)
        return choose(self.generator, self.world, self.seconds, self.tries, places)

    def place(self, disturbance: RankKill) -> str:
        return (
            "a rank at a random moment"
            if disturbance.phase is None
            else f"a rank {disturbance.moment} {disturbance.phase}"
        )

    def attempt(self, run: str, disturbance: RankKill | None) -> AttemptResult:
        config = tiny_config(self.root, *SETTINGS, *self.options, f"run={run}")
        store = open_store(str(self.root))
        before = len(attempt_numbers(store, run))
        happened, seconds, by_themselves = run_attempt(config, self.world, disturbance, self.log(run))
        # Before they have met, ranks wait for each other; torchrun, which is not here, ends them when one dies.
        met = len(attempt_numbers(store, run)) > before
        assert by_themselves or not met, f"{run}: ranks did not notice that one was gone"
        note = "" if by_themselves else f"the others were still there after {PEERS_SECONDS:.0f} s"
        return AttemptResult(happened, seconds, note)
