"""From a spot notice on one of two nodes to the commit, and from its replacement to the first step, by phase.

    python benchmarks/runs/node_notice.py --log benchmarks/runs/node_notice.log
    python benchmarks/runs/node_notice.py --parameters 124M --log benchmarks/runs/node_notice_124m.log

2 nodes x 2 ranks, gloo, fsdp, a model of 10M or 124M parameters with its optimizer, over SeaweedFS on this machine. The notice comes
from a stand-in for the metadata service, which agents and workers ask every five seconds. The clock starts when the
notice can be read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

from benchmarks.runs.node_campaign import NodeCampaign
from tests.support.faults import FaultProxy
from tests.support.s3 import start_server
from tests.support.tiny import tiny_config

from skytrain.checkpoints import committed, committed_steps, read_marker
from skytrain.jobs import list_meeting
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, attempt_numbers

RUN = "noticed"
STEPS_BEFORE = 3
COMMON = ("trainer.steps=1000", "trainer.checkpoint_every=null", "trainer.validate_every=null")
MODELS = {
    "10M": ("model.layers=8", "model.width=320", "model.heads=5"),
    "124M": ("model.layers=12", "model.width=768", "model.heads=12", "model.vocab_size=50304"),
}


def measure(folder: Path, root: str, proxy: FaultProxy, model: tuple[str, ...]) -> dict[str, object]:
    found = NodeCampaign(folder, root, proxy, 0, print)
    found.settings = (*NodeCampaign.settings, *COMMON, *model)
    found.hosts = [found.new_host(RUN), found.new_host(RUN)]
    try:
        found.until(lambda: found.step(RUN) >= STEPS_BEFORE)
        # node 1: the record is written on node 0
        going = found.hosts[1]
        staying = found.hosts[0]
        phases: dict[str, float] = {}

        def mark(name: str, done: Callable[[], bool]) -> None:
            found.until(done)
            phases[name] = round(time.monotonic() - began, 2)

        going.fake.give_notice()
        began = time.monotonic()
        logs = [going.log, staying.log]
        mark("saving begins", lambda: any("saving at step" in log.read_text() for log in logs))
        mark("committed", lambda: bool(committed_steps(found.store, RUN)))
        mark("told to all", lambda: list_meeting(found.store, RUN).ended)
        mark("the node has left", lambda: going.agent.poll() is not None)
        assert going.agent.returncode == 7, going.log.read_text()[-3000:]
        marker = read_marker(found.store, committed(found.store, RUN)[-1])
        before, phases = phases, {}
        began, replacement = time.monotonic(), found.new_host(RUN)
        name = replacement.name
        mark(
            "registered", lambda: any(each.host.startswith(f"{name}.") for each in list_meeting(found.store, RUN).hosts)
        )
        mark("met", lambda: list_meeting(found.store, RUN).newest == 2)
        mark("claimed its attempt", lambda: len(attempt_numbers(found.store, RUN)) == 2)
        logs = [staying.log, replacement.log]
        later = re.compile(rf"step (?!(?:[1-9]|{marker.step})/)\d+/|step {marker.step + 1}/")
        mark("first step", lambda: any(later.search(log.read_text()) for log in logs))
        parameters = re.search(r"([\d,]+) parameters", staying.log.read_text() + going.log.read_text())
        return {
            "parameters": parameters[1] if parameters else None,
            "checkpoint_bytes": marker.bytes,
            "seconds from notice": before,
            "seconds from the replacement's start": phases,
        }
    finally:
        found.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--parameters", choices=MODELS, default="10M")
    arguments.add_argument("--log", type=Path)
    given = arguments.parse_args()
    load = os.getloadavg()[0]
    lines = [f"{platform.machine()}, {os.cpu_count()} cores (load {load:.1f} before), torch {torch.__version__}"]
    with tempfile.TemporaryDirectory(prefix="skytrain-nodes-", ignore_cleanup_errors=True) as folder:
        process, server = start_server(Path(folder))
        try:
            with FaultProxy(server.port) as proxy:
                os.environ.update(server.environment())
                root = server.new_root()
                prepare(tiny_config(root), Silent())
                lines.append(json.dumps(measure(Path(folder), root, proxy, MODELS[given.parameters])))
        finally:
            process.kill()
            process.wait()
    print("\n".join(lines))
    if given.log:
        given.log.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
