"""From EC2's spot notice to a committed checkpoint: GPT-2 124M with optimizer, two ranks, folder and local S3.

    python benchmarks/runs/notice.py --log benchmarks/runs/notice.log

The notice comes from a stand-in for the metadata service on loopback, which is polled every five seconds, as
EC2's would be. The clock runs from the moment it can be read until the marker of a checkpoint that was made
after it is in the store; the limits are 30 s on a folder and 90 s on S3 (SeaweedFS on this machine). The exit
code of `skytrain train` must be 7, and the same command must resume from there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

from tests.support.imds import FakeMetadata, fake_metadata
from tests.support.s3 import start_server

from skytrain.checkpoints import committed, committed_steps, read_marker
from skytrain.runs import read_metrics, read_outcome
from skytrain.storage import Store, open_store

LIMITS = {"file": 30.0, "s3": 90.0}
STEPS_BEFORE = 2  # so that the optimizer has its state
SETTINGS = (
    "data=synthetic",
    "data.source.tokens=200K",
    "tokenizer=gpt2",
    "trainer.device=cpu",
    "trainer.validate_every=null",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[]",
    "trainer.steps=1000",
    "lr_schedule.warmup_steps=3",
)


def skytrain(verb: str, root: str, words: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "skytrain", verb, *SETTINGS, *words, f"store.root={root}"]
    with log.open("ab") as out:
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=out, stderr=out)


def steps_done(store: Store) -> int:
    return max((record["step"] for record in read_metrics(store, "noticed")), default=0)


def wait_until(condition: Any, process: subprocess.Popen[bytes], log: Path, seconds: float = 1800) -> float:
    began = time.monotonic()
    while not condition():
        if process.poll() is not None and not condition():
            raise SystemExit(f"training ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        if time.monotonic() - began > seconds:
            process.send_signal(signal.SIGTERM)
            raise SystemExit(f"nothing happened for {seconds:.0f} s:\n{log.read_text()[-3000:]}")
        time.sleep(0.02)
    return time.monotonic() - began


def measure(
    kind: str, root: str, fake: FakeMetadata, words: list[str], environment: dict[str, str], log: Path
) -> dict[str, Any]:
    fake.tree.pop("meta-data/spot/instance-action", None)
    environment = {**environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT": fake.url}
    os.environ.update(environment)
    assert skytrain("prepare", root, words[:-2], environment, log).wait() == 0, log.read_text()
    store = open_store(root)
    process = skytrain("train", root, words, environment, log)
    wait_until(lambda: steps_done(store) >= STEPS_BEFORE, process, log)
    before = steps_done(store)
    fake.give_notice()
    seconds = wait_until(lambda: bool(committed_steps(store, "noticed")), process, log, seconds=600)
    assert process.wait(600) == 7, log.read_text()
    outcome = read_outcome(store, "noticed", 0)
    assert outcome is not None and outcome["outcome"] == "interrupted"
    marker = read_marker(store, committed(store, "noticed")[-1])
    assert marker.step == outcome["step"] >= before
    records = read_metrics(store, "noticed")
    step_ms = [record["perf/step_ms"] for record in records if "perf/step_ms" in record]
    return {
        "store": kind,
        "seconds_to_commit": round(seconds, 2),
        "limit_seconds": LIMITS[kind],
        "checkpoint_bytes": marker.bytes,
        "step_seconds": round(sorted(step_ms)[len(step_ms) // 2] / 1e3, 2),
        "step": marker.step,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="gpt2-124m")
    arguments.add_argument("--stores", default="file,s3")
    arguments.add_argument("--log", type=Path)
    given = arguments.parse_args()
    # Without the metadata's price, and with a step of a few seconds on two cores: a step boundary is waited for.
    words = [
        f"model={given.model}",
        "run=noticed",
        "parallel=fsdp",
        "trainer.sequence_length=64",
        "trainer.micro_batch=1",
        "trainer.batch_tokens=128",
        "budget.usd_per_hour=1",
        "--processes",
        "2",
    ]
    load = os.getloadavg()[0]
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the beginning, Python {platform.python_version()}, {given.model}, 2 ranks"
    ]
    print(lines[0], flush=True)
    with tempfile.TemporaryDirectory(prefix="skytrain-notice-") as folder, fake_metadata() as fake:
        for kind in given.stores.split(","):
            place = Path(folder) / kind
            environment = dict[str, str]()
            server = None
            place.mkdir()
            root = str(place / "store")
            if kind == "s3":
                server, s3 = start_server(place)
                root = s3.new_root()
                environment = s3.environment()
            try:
                found = measure(kind, root, fake, words, environment, place / "train.log")
            finally:
                if server is not None:
                    server.kill()
                    server.wait()
            lines.append(json.dumps(found))
            print(lines[-1], flush=True)
            if given.log:
                given.log.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
