"""What all fault campaigns share: a run that was interrupted must end exactly as an uninterrupted run.

The losses of every step and all weights are compared bit for bit, and at no time may a committed checkpoint be
lost or fail to verify. Dropout is on, so random state counts too.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from skytrain.checkpoints import committed, load_model, verify
from skytrain.runs import attempt_numbers, read_metrics, read_outcome
from skytrain.storage import open_store

STEPS = 10
SAVE_EVERY = 2
BLOWS_A_RUN = 5
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
    "ddp": (2, ("parallel=ddp",)),
    "fsdp": (2, ("parallel=fsdp",)),
    "tp-fsdp": (4, ("parallel=tp-fsdp", "parallel.tensor=2")),
    "pp": (2, ("parallel=pp",)),
}
Disturbance = TypeVar("Disturbance")


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt went."""

    happened: bool  # whether the job was still running when the disturbance was due
    seconds: float
    note: str = ""  # what is worth saying about it


class Campaign(ABC, Generic[Disturbance]):
    """All runs of one mode, against one that nobody disturbs."""

    kind: str  # of disturbances
    modes: tuple[str, ...]

    def __init__(self, root: Path, mode: str, seed: int, say: Callable[[str], None]) -> None:
        self.root = root
        self.mode = mode
        self.say = say
        self.world, self.options = MODES[mode]
        self.generator = random.Random(f"{self.kind} {mode} {seed}")
        self.kills = self.runs = self.tries = 0
        self.where: Counter[str] = Counter()
        self.checked = 0  # checkpoints that were verified
        whole = f"{self.kind}-{mode}-whole"
        self.seconds = self.attempt(whole, None).seconds
        assert self.finished(whole), self.log(whole).read_text()
        self.expected, self.weights = self.losses(whole), self.final_weights(whole)
        say(
            f"{self.kind}, {mode}: {self.world} rank(s), undisturbed in {self.seconds:.1f} s, {len(self.expected)} numbers to compare"
        )

    @abstractmethod
    def choose(self) -> Disturbance:
        """The next disturbance; `tries` counts them."""

    @abstractmethod
    def place(self, disturbance: Disturbance) -> str:
        """Under which words a disturbance is counted."""

    @abstractmethod
    def attempt(self, run: str, disturbance: Disturbance | None) -> AttemptResult:
        """Trains until the run is done or the disturbance has happened; nothing of it is left running then."""

    def close(self) -> None:
        """Ends what the campaign has started in addition to its runs."""

    @property
    def store_root(self) -> str:
        """Return where the runs are; the data is prepared there."""
        return str(self.root)

    def log(self, run: str) -> Path:
        return self.root / f"{run}.log"

    def losses(self, run: str) -> dict[tuple[int, str], float]:
        found = {}
        for record in read_metrics(open_store(self.store_root), run):
            for name in ("train/loss", "val/loss", "train/grad_norm"):
                if name in record:
                    found[record["step"], name] = record[name]
        return found

    def finished(self, run: str) -> bool:
        store = open_store(self.store_root)
        numbers = attempt_numbers(store, run)
        outcome = read_outcome(store, run, numbers[-1]) if numbers else None
        return outcome is not None and outcome["outcome"] == "done"

    def final_weights(self, run: str) -> dict[str, torch.Tensor]:
        return load_model(open_store(self.store_root), f"{run}@{STEPS}").model.state_dict()

    def one_run(self, disturbances: int) -> None:
        """A run that is disturbed so often, and must end as an undisturbed one."""
        run = f"{self.kind}-{self.mode}-{self.runs}"
        self.runs += 1
        newest = fallen = 0
        while not self.finished(run):
            disturbance = self.choose() if fallen < disturbances else None
            self.tries += disturbance is not None
            result = self.attempt(run, disturbance)
            newest = self.check(run, newest)
            if not result.happened:
                self.seconds = result.seconds  # as busy as the machine is now
            elif disturbance is not None:
                fallen, self.kills = fallen + 1, self.kills + 1
                self.where[self.place(disturbance)] += 1
                note = f"; {result.note}" if result.note else ""
                self.say(f"  {run}: {disturbance}; committed up to step {newest}{note}")
        self.compare(run)

    def check(self, run: str, newest_before: int) -> int:
        """Every committed checkpoint verifies, and the newest is never older than before."""
        store = open_store(self.store_root)
        found = committed(store, run)
        for commit in found:
            problems = verify(store, commit)
            assert not problems, f"{run}: {problems}"
            self.checked += 1
        newest = found[-1].step if found else 0
        assert newest >= newest_before, f"{run}: the checkpoint of step {newest_before} was lost"
        return newest

    def compare(self, run: str) -> None:
        found = self.losses(run)
        different = [key for key in self.expected if found.get(key) != self.expected[key]]
        assert not different and len(found) == len(self.expected), f"{run}: {different[:3]} differ"
        mine = self.final_weights(run)
        assert all(torch.equal(mine[name], self.weights[name]) for name in self.weights), f"{run}: weights differ"
        self.say(f"  {run}: {len(found)} numbers and {len(mine)} weights bit for bit those of the undisturbed run")
