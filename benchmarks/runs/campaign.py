"""What all kinds of blows have in common: a run that was struck must end as the run that was left alone.

The losses of every step and all weights are compared bit for bit, and at no time may a committed checkpoint be lost or fail
to verify. Dropout is on, so random state counts too.
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

from skytrain.checkpoints import committed, load_model
from skytrain.checkpoints.verification import verify
from skytrain.runs import attempt_numbers, read_metrics, read_outcome
from skytrain.storage import open_store

STEPS, SAVE_EVERY, BLOWS_A_RUN = 10, 2, 5
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
Blow = TypeVar("Blow")


@dataclass(frozen=True)
class Struck:
    """How an attempt went."""

    fell: bool  # whether it was still running when the blow was due
    seconds: float
    note: str = ""  # what is worth saying about it


class Campaign(ABC, Generic[Blow]):
    """All runs of one mode, against one that nobody disturbs."""

    kind: str  # of blows
    modes: tuple[str, ...]

    def __init__(self, root: Path, mode: str, seed: int, say: Callable[[str], None]) -> None:
        self.root, self.mode, self.say = root, mode, say
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
    def choose(self) -> Blow:
        """The next blow; `tries` counts them."""

    @abstractmethod
    def place(self, blow: Blow) -> str:
        """Under which words a blow is counted."""

    @abstractmethod
    def attempt(self, run: str, blow: Blow | None) -> Struck:
        """Trains until the run is done or the blow has fallen; nothing of it is left running then."""

    def close(self) -> None:
        """Ends what the campaign has started beside its runs."""

    @property
    def store_root(self) -> str:
        """Where the runs are; the data is prepared there."""
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

    def one_run(self, blows: int) -> None:
        """A run that is struck so often, and must end as if it had not been."""
        run = f"{self.kind}-{self.mode}-{self.runs}"
        self.runs += 1
        newest = fallen = 0
        while not self.finished(run):
            blow = self.choose() if fallen < blows else None
            self.tries += blow is not None
            struck = self.attempt(run, blow)
            newest = self.check(run, newest)
            if not struck.fell:
                self.seconds = struck.seconds  # as busy as the machine is now
            elif blow is not None:
                fallen, self.kills = fallen + 1, self.kills + 1
                self.where[self.place(blow)] += 1
                note = f"; {struck.note}" if struck.note else ""
                self.say(f"  {run}: {blow}; committed up to step {newest}{note}")
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
