"""Checkpoints through a bad network, a full disk, revoked rights, a killed server and two attempts at once.

python benchmarks/checkpoints/storage_campaign.py --faults 1000 --out benchmarks/checkpoints/storage_campaign.log

Against SeaweedFS, through the proxy of the storage tests. After every part, every committed checkpoint is read from the
server directly, byte by byte.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

import torch
from tests.support.faults import FaultProxy, Kind, Request
from tests.support.s3 import (
    FAST_RETRY,
    READER_KEY,
    READER_SECRET,
    START_SECONDS,
    S3Server,
    die_with_parent,
    start_server,
)

from skytrain.checkpoints import (
    CheckpointError,
    Keep,
    SaveOptions,
    committed,
    committed_steps,
    open_checkpoint,
    prune,
    step_key,
    verify,
)
from skytrain.checkpoints.saving import Saver, TrainingState
from skytrain.config import SkytrainError
from skytrain.runs import claim_attempt, record_resume
from skytrain.storage import Retry, Store, open_store

KINDS: tuple[Kind, ...] = (
    "slow_down",
    "internal_error",
    "conflict",
    "reset",
    "lost_answer",
    "cut",
    "wrong_bytes",
    "damaged_request",
    "latency",
)
RATE = 0.35  # of requests that meet a fault


def some_state(seed: int) -> TrainingState:
    """About 10 MB, so that a file is sent in parts."""
    made = torch.Generator().manual_seed(seed)
    tensors = {f"model/{layer}.weight": torch.randn(640, 512, generator=made) for layer in range(6)}
    tensors |= {f"optimizer/0/{layer}.weight/step": torch.tensor(float(seed)) for layer in range(6)}
    tensors["optimizer/0/0.weight/exp_avg"] = torch.randn(640, 512, generator=made)
    return TrainingState(tensors, {"seed": seed}, {"groups": []})


def check_all(store: Store, run: str, seeds: dict[int, int] | None = None) -> int:
    """Every committed checkpoint is whole, and holds what its saver was given; how many there are."""
    found = committed(store, run)
    for commit in found:
        problems = verify(store, commit)
        assert not problems, problems
        if seeds is not None:
            read = open_checkpoint(store, commit.key).tensors.read()
            expected = some_state(seeds[commit.step]).tensors
            assert all(torch.equal(read[name], tensor) for name, tensor in expected.items()), commit
    return len(found)


class Faults:
    """Lets requests through a proxy meet faults at random; `on` says whether they do just now."""

    def __init__(self, proxy: FaultProxy, seed: int) -> None:
        self._random = random.Random(seed)
        self.on = True
        for kind in KINDS:
            proxy.inject(kind, when=lambda request, kind=kind: self._strikes(kind, request))  # type: ignore[misc]

    def _strikes(self, kind: Kind, request: Request) -> bool:
        if not self.on or (kind == "conflict" and "if-none-match" not in request.headers):
            return False
        return self._random.random() < RATE / len(KINDS)


def bad_network(server: S3Server, root: str, wanted: int, seed: int = 0) -> list[str]:
    """Saves, loads and prunes through faults until enough of them have happened."""
    direct = open_store(root, retry=FAST_RETRY)
    outcomes: Counter[str] = Counter()
    seeds: dict[int, int] = {}
    step = 0
    with FaultProxy(server.port) as proxy:
        store = through(proxy, server, root)
        faults = Faults(proxy, seed)
        saver = Saver(store)
        while proxy.happened.total() < wanted:
            step += 1
            seeds[step] = step
            try:
                saver.save(step_key("faults", step), some_state(step), SaveOptions(background=bool(step % 2)))
                saver.wait()
                outcomes["saves committed"] += 1
            except CheckpointError:
                outcomes["saves refused"] += 1
            before = committed_steps(direct, "faults")
            if before:
                try:
                    read = open_checkpoint(store, step_key("faults", before[-1])).tensors.read()
                    expected = some_state(before[-1]).tensors
                    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())
                    outcomes["loads right"] += 1
                except SkytrainError:
                    outcomes["loads refused"] += 1
            if step % 5 == 0:
                try:
                    prune(store, "faults", Keep(last=3), attempt=0)
                except SkytrainError:
                    outcomes["prunes refused"] += 1
            check_all(direct, "faults", seeds) if step % 5 == 0 else None
        faults.on = False
        whole = check_all(direct, "faults", seeds)
        happened = proxy.happened
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(happened.items()))
    return [
        f"bad network: {happened.total()} faults ({kinds}) in {len(proxy.requests)} requests",
        "  " + ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items())),
        f"  {whole} committed checkpoints at the end, all whole; no load gave a wrong value",
    ]


def training(server: S3Server, root: str, seed: int = 0) -> list[str]:
    """A run that saves every second step through faults, is stopped, and resumes through faults."""
    from tests.support.tiny import tiny_config

    from skytrain.pipelines.prepare import prepare
    from skytrain.pipelines.train import train
    from skytrain.runs import Silent, read_metrics

    options = ("trainer.steps=12", "trainer.checkpoint_every=2", "trainer.validate_every=null", "model.dropout=0.1")
    prepare(tiny_config(root), Silent())
    train(tiny_config(root, "run=quiet", *options), Silent())
    patient = Retry(first_wait_seconds=0.002, longest_wait_seconds=0.05)  # as often as ever, with shorter waits
    with FaultProxy(server.port) as proxy, mock.patch("skytrain.storage.opening.Retry", lambda: patient):
        faults = Faults(proxy, seed)
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        try:
            for stop in (7, 12):
                train(tiny_config(root, "run=faulty", f"trainer.stop_at_step={stop}", *options), Silent())
        finally:
            os.environ["AWS_ENDPOINT_URL"] = server.url
            faults.on = False
        happened = proxy.happened.total()
    store = open_store(root, retry=FAST_RETRY)
    losses = [
        [record["train/loss"] for record in read_metrics(store, run) if "train/loss" in record]
        for run in ("quiet", "faulty")
    ]
    assert losses[0] == losses[1], losses
    check_all(store, "faulty")
    return [
        f"training: {happened} faults while it ran, stopped and went on; its losses are those of a quiet network, bit for bit"
    ]


def through(proxy: FaultProxy, server: S3Server, root: str) -> Store:
    before = os.environ["AWS_ENDPOINT_URL"]
    os.environ["AWS_ENDPOINT_URL"] = proxy.url
    try:
        return open_store(root, retry=FAST_RETRY)
    finally:
        os.environ["AWS_ENDPOINT_URL"] = before


def full_disk(folder: Path) -> list[str]:
    """No file may grow past a megabyte: to a writer, a disk that is full."""
    store = open_store(str(folder))
    saver = Saver(open_store(str(folder)))
    saver.save(step_key("disk", 1), some_state(1), SaveOptions())
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        said = refused(lambda: saver.save(step_key("disk", 2), some_state(2), SaveOptions()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert check_all(store, "disk", {1: 1}) == 1
    saver.save(step_key("disk", 3), some_state(3), SaveOptions())
    assert check_all(store, "disk", {1: 1, 3: 3}) == 2
    said = said.replace(folder.as_uri(), "file://...")
    return [f"full disk: {said}", "  what was committed before is whole; with room again, the next save commits"]


def revoked_rights(root: str) -> list[str]:
    """The credentials may no longer write."""
    store = open_store(root, retry=FAST_RETRY)
    Saver(store).save(step_key("rights", 1), some_state(1), SaveOptions())
    writer = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    os.environ.update(AWS_ACCESS_KEY_ID=READER_KEY, AWS_SECRET_ACCESS_KEY=READER_SECRET)
    reader = open_store(root, retry=FAST_RETRY)
    os.environ.update(writer)
    said = refused(lambda: Saver(reader).save(step_key("rights", 2), some_state(2), SaveOptions()))
    open_checkpoint(reader, step_key("rights", 1)).tensors.read()
    assert check_all(store, "rights", {1: 1}) == 1
    return [f"revoked rights: {said}", "  what was committed before is whole, and is still read"]


def killed_server(process: Any, server: S3Server, root: str, folder: Path, wanted: int = 3) -> tuple[list[str], Any]:
    """The server dies in the middle of saves, and comes back with what it had on its disk."""
    lines = []
    step = 0
    seeds = {}
    saver = Saver(open_store(root, retry=FAST_RETRY))
    for turn in range(wanted):
        step += 1
        seeds[step] = step
        saver.save(step_key("killed", step), some_state(step), SaveOptions())
        step += 1
        seeds[step] = step
        pending = saver.save(step_key("killed", step), some_state(step), SaveOptions(background=True))
        threading.Event().wait(0.01 * turn)
        process.kill()
        process.wait()
        try:
            pending.wait()
            said = "committed just before"
        except CheckpointError as error:
            said = str(error).splitlines()[0][:120]
        saver.pending = None
        process = started_again(process.args, server, folder)
        check_all(open_store(root, retry=FAST_RETRY), "killed", seeds)
        lines.append(f"killed server: {said}")
    whole = committed_steps(open_store(root, retry=FAST_RETRY), "killed")
    assert set(range(1, 2 * wanted, 2)) <= set(whole), whole
    return [*lines, f"  {len(whole)} committed checkpoints after {wanted} kills, all whole"], process


def started_again(command: Any, server: S3Server, folder: Path) -> subprocess.Popen[bytes]:
    """Start the server again on its disk. It ends at once while something else has one of its ports, and is then tried again."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = server.client()
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "HOME": str(folder)},
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.put_object(Bucket=server.bucket, Key="started", Body=b"1")  # the only true sign
                return process
            except (BotoCoreError, ClientError):
                time.sleep(0.1)
    raise RuntimeError("the server did not come back:\n" + (folder / "log").read_text(errors="replace")[-2000:])


def two_attempts(root: str, rounds: int) -> list[str]:
    """An older attempt keeps saving while a newer one takes over: neither harms the other, and the newer one counts."""
    outcomes: Counter[str] = Counter()
    for turn in range(rounds):
        run, store = f"two-{turn}", open_store(root, retry=FAST_RETRY)
        old = claim_attempt(store, run)
        record_resume(store, run, old, 0)
        Saver(store).save(step_key(run, 1), some_state(1), SaveOptions(old))
        stop, far_enough = threading.Event(), threading.Event()

        def keep_saving(
            run: str = run,
            old: int = old,
            stop: threading.Event = stop,
            far: threading.Event = far_enough,
            turn: int = turn,
        ) -> None:
            saver = Saver(open_store(root, retry=FAST_RETRY))
            for step in range(2, 8):
                if step > turn % 3 + 1:
                    far.set()
                try:
                    saver.save(step_key(run, step), some_state(100 + step), SaveOptions(old))
                    outcomes["older attempt: committed"] += 1
                except CheckpointError:
                    outcomes["older attempt: refused"] += 1
                if stop.is_set():
                    return

        older = threading.Thread(target=keep_saving)
        older.start()
        far_enough.wait()
        threading.Event().wait(0.01 * turn)
        new = claim_attempt(store, run)
        start = committed_steps(store, run)[-1]
        record_resume(store, run, new, start)
        saver = Saver(store)
        for step in range(start + 1, start + 4):
            saver.save(step_key(run, step), some_state(step), SaveOptions(new))
            prune(store, run, Keep(last=10), attempt=new)
        stop.set()
        older.join()
        expected = {step: 100 + step for step in range(2, start + 1)} | {1: 1}
        expected |= {step: step for step in range(start + 1, start + 4)}
        assert committed_steps(store, run)[-1] == start + 3, committed_steps(store, run)
        check_all(store, run, expected)
        outcomes["newer attempt: committed"] += 3
    said = ", ".join(f"{what} {count}" for what, count in sorted(outcomes.items()))
    return [f"two attempts at once, {rounds} times: {said}", "  the newer one's checkpoints all count and are whole"]


def refused(work: Any) -> str:
    try:
        work()
    except CheckpointError as error:
        return " ".join(str(error).split())
    raise AssertionError("it was not refused")


def campaign(
    process: Any, server: S3Server, folder: Path, faults: int, kills: int, rounds: int
) -> tuple[list[str], Any]:
    """Run every trouble; the environment leads to the server. Return the lines, and the server's last process."""
    lines: list[str] = []

    def say(more: list[str]) -> None:
        print("\n".join(more), flush=True)
        lines.extend(more)

    say(bad_network(server, server.new_root(), faults))
    say(training(server, server.new_root()))
    say(full_disk(folder / "small-disk"))
    say(revoked_rights(server.new_root()))
    say(two_attempts(server.new_root(), rounds))
    more, process = killed_server(process, server, server.new_root(), folder, kills)
    say(more)
    return lines, process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="skytrain-campaign-", ignore_cleanup_errors=True) as scratch:
        process, server = start_server(Path(scratch))
        os.environ.update(server.environment())
        try:
            lines, process = campaign(
                process, server, Path(scratch), arguments.faults, arguments.kills, arguments.rounds
            )
        finally:
            process.kill()
            process.wait()
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
