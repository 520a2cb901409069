"""Kills runs in every way a machine or scheduler may, and compares each with an uninterrupted run.

    python benchmarks/runs/kill_campaign.py --kills 100 --log benchmarks/runs/kill_campaign.log
    python benchmarks/runs/kill_campaign.py --kinds supervisor,group --modes single,ddp,fsdp --kills 20

Kinds: `ranks`, SIGKILL for ranks at random moments and inside every phase of a save; `supervisor`, SIGKILL for
the supervisor of `skytrain train`, from before its workers have imported torch; `group`, SIGTERM for every
process of a job; `store`, the store answers 503 or 403 for 10 s to 3 minutes; `metadata`, EC2's metadata
service fails before it gives a spot notice. A disturbed run must end with the losses of every step and all
weights bit for bit those of the undisturbed one, and no process may be left after 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

import torch
from benchmarks.runs.campaign import BLOWS_A_RUN, MODES, SETTINGS, Campaign
from benchmarks.runs.job_kills import GroupSignals, SupervisorKills
from benchmarks.runs.outages import MetadataFaults, StoreOutages
from benchmarks.runs.rank_kills import RankKills
from tests.support.tiny import tiny_config

from skytrain.runs import Silent

ALL = (RankKills, SupervisorKills, GroupSignals, StoreOutages, MetadataFaults)
KINDS: dict[str, type[Campaign[Any]]] = {each.kind: each for each in ALL}


def prepare_data(root: Path, prepared: Path | None) -> None:
    """In a process of its own, so that the campaign forks without the threads that preparing starts."""
    if prepared is not None:
        shutil.copytree(prepared, root, dirs_exist_ok=True)
        return
    child = os.fork()
    if not child:
        from skytrain.pipelines.prepare import prepare

        prepare(tiny_config(root, *SETTINGS), Silent())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=100, help="over all kinds and modes")
    arguments.add_argument("--kinds", default=",".join(KINDS))
    arguments.add_argument("--modes", default=",".join(MODES))
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument(
        "--prepared", type=Path, help="a store that holds the data, where this machine cannot prepare it"
    )
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
    modes = given.modes.split(",")
    parts = [(KINDS[kind], mode) for kind in given.kinds.split(",") for mode in KINDS[kind].modes if mode in modes]
    with tempfile.TemporaryDirectory(prefix="skytrain-kills-") as folder:
        root = Path(folder)
        prepare_data(root, given.prepared)
        campaigns = []
        for number, (kind, mode) in enumerate(parts):
            wanted = given.kills // len(parts) + (number < given.kills % len(parts))
            campaign = kind(root, mode, given.seed, say)
            campaigns.append(campaign)
            while campaign.kills < wanted:
                campaign.one_run(min(BLOWS_A_RUN, wanted - campaign.kills))
            campaign.close()
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
