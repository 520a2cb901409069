"""A rank on one of two hosts, under torchrun. Each process imports this anew, so it is apart from the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skytrain.config import SkytrainError
from skytrain.jobs import Ranks


def steps_for_ever(timeout_seconds: float) -> None:
    """Adds a number up again and again, until something stops it."""
    import torch
    import torch.distributed as dist

    with Ranks.from_environment().joined("cpu", timeout_seconds=timeout_seconds) as job:
        assert job.watchdog is not None
        step = 0
        while True:
            dist.all_reduce(torch.ones(1000))
            step += 1
            job.watchdog.at_step(step)
            if step % 100 == 0:
                print(f"step {step}", flush=True)


def losses(names: list[str], folder: Path) -> None:
    """Trains each named case of the equivalence table, and leaves its losses."""
    import torch
    from benchmarks.parallel import equivalence

    torch.set_num_threads(1)
    cases = {case.name: case for case in equivalence.cases()}
    ranks = Ranks.from_environment()
    with ranks.joined("cpu"):
        found = {name: equivalence.train(cases[name]).losses for name in names}
    if ranks.local_rank == 0:
        (folder / f"node{ranks.node}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    try:
        if sys.argv[1] == "losses":
            losses(json.loads(sys.argv[2]), Path(sys.argv[3]))
        else:
            steps_for_ever(float(sys.argv[2]))
    except SkytrainError as error:  # as the command line does it
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
