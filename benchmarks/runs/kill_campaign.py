"""Kills runs with SIGKILL, at random moments and inside every phase of a save, and compares each with one that was left alone.

    python benchmarks/runs/kill_campaign.py --kills 100 --log benchmarks/runs/kill_campaign.log

A run that was killed must end with the losses of every step and all weights bit for bit those of the undisturbed one, and at
no time may a committed checkpoint be lost or fail to verify. Dropout is on, so random state counts too. Ranks are forked from
a process that has imported everything once: a start costs a second, not ten.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

import torch
from tests.support.tiny import tiny_config

from skytrain.checkpoints import committed, load_model, parts
from skytrain.checkpoints.verification import verify
from skytrain.config import Config
from skytrain.parallel.watchdog import SILENT_SECONDS
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, attempts, read_metrics, read_outcome
from skytrain.storage import open_store
from skytrain.storage.folder import FolderStore

STEPS, SAVE_EVERY, KILLS_A_RUN = 10, 2, 5
# On top of the tests' tiny run.
SETTINGS = (
    "model.layers=4",
    "model.dropout=0.1",
    "trainer.device=cpu",
    "trainer.micro_batch=2",
    f"trainer.steps={STEPS}",
    "trainer.validate_every=4",
    f"trainer.checkpoint_every={SAVE_EVERY}",
    "trainer.keep_checkpoints=2",
)
MODES = {
    "single": (1, ("parallel=single",)),
    "fsdp": (2, ("parallel=fsdp",)),
    "tp-fsdp": (4, ("parallel=tp-fsdp", "parallel.tensor=2")),
    "pp": (2, ("parallel=pp",)),
}
# A phase of a save: the operation that it is made of, and what its key looks like. `within`: the bytes are on the disk, the name is not.
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
class Kill:
    """One blow: at a moment in time, or in a phase of the n-th save."""

    victims: str  # one, all
    rank: int
    seconds: float | None = None
    phase: str | None = None
    moment: str | None = None
    save: int = 1

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.victims == "one" else "all ranks"
        if self.seconds is not None:
            return f"{who} after {self.seconds:.2f} s"
        return f"{who} {self.moment} {self.phase}, time {self.save}"


def choose(generator: random.Random, world: int, seconds: float, number: int, places: list[tuple[str, str]]) -> Kill:
    """Every second blow in time; the others go through all phases and moments in turn."""
    victims, rank = generator.choice(["one", "all"]), generator.randrange(world)
    if number % 2 == 0:
        return Kill(victims, rank, seconds=generator.uniform(0.0, seconds))
    phase, moment = places[number // 2 % len(places)]
    # The manifest and what follows are the first rank's work.
    rank = rank if phase in ("copy to the host", "a rank's file") else 0
    return Kill(victims, rank, phase=phase, moment=moment, save=generator.choice([1, 2]))


def arm(kill: Kill) -> None:
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


def start_rank(config: Config, rank: int, world: int, port: int, kill: Kill | None, log: Path) -> int:
    """A process of its own that trains as one rank; its pid."""
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


def run_attempt(config: Config, world: int, kill: Kill | None, log: Path) -> tuple[bool, float, bool]:
    """Whether the blow fell, how long the attempt took, and whether ranks that were left ended by themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    began = time.monotonic()
    alive = {start_rank(config, rank, world, port, kill, log): rank for rank in range(world)}
    by_rank = {rank: pid for pid, rank in alive.items()}
    fell, fell_at, by_themselves = False, 0.0, True
    while alive:
        passed = time.monotonic() - began
        if kill is not None and kill.seconds is not None and not fell and passed >= kill.seconds:
            fell, fell_at = True, passed
            for rank in range(world) if kill.victims == "all" else [kill.rank]:
                if by_rank[rank] in alive:
                    os.kill(by_rank[rank], signal.SIGKILL)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in alive:
            rank = alive.pop(pid)
            died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if died and not fell:
                fell, fell_at = True, passed
                if kill is not None and kill.victims == "all":
                    for other in alive:
                        os.kill(other, signal.SIGKILL)
            assert died or not os.WEXITSTATUS(status) or fell, f"rank {rank} failed by itself: see {log}"
        elif fell and alive and passed - fell_at > PEERS_SECONDS:
            by_themselves = False
            for other in alive:
                os.kill(other, signal.SIGKILL)
        else:
            time.sleep(0.005)
    return fell, time.monotonic() - began, by_themselves


def losses(root: Path, run: str) -> dict[tuple[int, str], float]:
    found = {}
    for record in read_metrics(open_store(str(root)), run):
        for name in ("train/loss", "val/loss", "train/grad_norm"):
            if name in record:
                found[record["step"], name] = record[name]
    return found


def finished(root: Path, run: str) -> bool:
    store = open_store(str(root))
    numbers = attempts(store, run)
    outcome = read_outcome(store, run, numbers[-1]) if numbers else None
    return outcome is not None and outcome["outcome"] == "done"


class Campaign:
    """All runs of one mode, against one that nobody disturbs."""

    def __init__(self, root: Path, mode: str, seed: int, say: Callable[[str], None]) -> None:
        self.root, self.mode, self.say = root, mode, say
        self.world, self.options = MODES[mode]
        self.generator = random.Random(f"{mode} {seed}")
        self.places = [(phase, moment) for phase in PHASES for moment in MOMENTS]
        self.generator.shuffle(self.places)
        self.kills = self.runs = self.tries = 0
        self.where: Counter[str] = Counter()
        self.checked = 0  # checkpoints that were verified
        config = self.config(f"{mode}-whole")
        _, self.seconds, _ = run_attempt(config, self.world, None, self.log("whole"))
        assert finished(root, f"{mode}-whole"), self.log("whole").read_text()
        self.expected = losses(root, f"{mode}-whole")
        self.weights = self.final_weights(f"{mode}-whole")
        say(
            f"{mode}: {self.world} rank(s), undisturbed in {self.seconds:.1f} s, {len(self.expected)} numbers to compare"
        )

    def config(self, run: str) -> Config:
        return tiny_config(self.root, *SETTINGS, *self.options, f"run={run}")

    def log(self, name: str) -> Path:
        return self.root / f"{self.mode}-{name}.log"

    def final_weights(self, run: str) -> dict[str, torch.Tensor]:
        return load_model(open_store(str(self.root)), f"{run}@{STEPS}").model.state_dict()

    def one_run(self, kills: int) -> None:
        """A run that is killed so often, and must end as if it had not been."""
        run = f"{self.mode}-{self.runs}"
        self.runs += 1
        config, newest, blows = self.config(run), 0, 0
        while not finished(self.root, run):
            kill = None
            if blows < kills:
                kill = choose(self.generator, self.world, self.seconds, self.tries, self.places)
                self.tries += 1
            before = len(attempts(open_store(str(self.root)), run))
            fell, seconds, by_themselves = run_attempt(config, self.world, kill, self.log(str(self.runs - 1)))
            newest = self.check(run, newest)
            if not fell:
                self.seconds = seconds  # as busy as the machine is now
            else:
                assert kill is not None
                blows, self.kills = blows + 1, self.kills + 1
                self.where["at a random moment" if kill.phase is None else f"{kill.moment} {kill.phase}"] += 1
                left = "" if by_themselves else f"; the others were still there after {PEERS_SECONDS:.0f} s"
                self.say(f"  {run}: killed {kill}; committed up to step {newest}{left}")
                # Before they have met, ranks wait for each other; torchrun, which is not here, ends them when one dies.
                met = len(attempts(open_store(str(self.root)), run)) > before
                assert by_themselves or not met, f"{run}: ranks did not notice that one was gone"
        self.compare(run)

    def check(self, run: str, newest_before: int) -> int:
        """Every committed checkpoint verifies, and the newest is never older than before."""
        store = open_store(str(self.root))
        found = committed(store, run)
        for commit in found:
            problems = verify(store, commit)
            assert not problems, f"{run}: {problems}"
            self.checked += 1
        newest = found[-1].step if found else 0
        assert newest >= newest_before, f"{run}: the checkpoint of step {newest_before} was lost"
        return newest

    def compare(self, run: str) -> None:
        found = losses(self.root, run)
        different = [key for key in self.expected if found.get(key) != self.expected[key]]
        assert not different and len(found) == len(self.expected), f"{run}: {different[:3]} differ"
        mine = self.final_weights(run)
        assert all(torch.equal(mine[name], self.weights[name]) for name in self.weights), f"{run}: weights differ"
        self.say(f"  {run}: {len(found)} numbers and {len(mine)} weights bit for bit those of the undisturbed run")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=100, help="over all modes")
    arguments.add_argument("--modes", default=",".join(MODES))
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--log", type=Path, help="also write what is said there")
    given = arguments.parse_args()
    if given.log:
        given.log.write_text("")

    def say(text: str) -> None:
        print(text, flush=True)
        if given.log:
            with given.log.open("a") as log:
                log.write(text + "\n")

    began = time.monotonic()
    say(
        f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}, seed {given.seed}"
    )
    with tempfile.TemporaryDirectory(prefix="skytrain-kills-") as folder:
        root = Path(folder)
        prepared = os.fork()
        if not prepared:
            prepare(tiny_config(root, *SETTINGS), Silent())
            os._exit(0)
        assert os.waitpid(prepared, 0)[1] == 0
        modes = given.modes.split(",")
        campaigns = []
        for number, mode in enumerate(modes):
            wanted = given.kills // len(modes) + (number < given.kills % len(modes))
            campaign = Campaign(root, mode, given.seed, say)
            campaigns.append(campaign)
            while campaign.kills < wanted:
                campaign.one_run(min(KILLS_A_RUN, wanted - campaign.kills))
    total = {
        "kills": sum(each.kills for each in campaigns),
        "runs": sum(each.runs for each in campaigns),
        "checkpoints_verified": sum(each.checked for each in campaigns),
        "identical": True,  # an assertion ended it otherwise
        "seconds": round(time.monotonic() - began),
        "where": dict(sum((each.where for each in campaigns), Counter[str]())),
    }
    say(json.dumps(total))


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # a pool of threads would not survive a fork
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main()
