"""Machines that share a sweep in a bucket, as processes; one of them is killed in the middle of a trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, attempt_numbers
from skytrain.storage import open_store
from skytrain.tuning import Ledger, SweepStore
from tests.pipelines.test_tune import SWEEP
from tests.support.tiny import TINY, tiny_config

BUDGET = 2.0


def start(root: str, host: str) -> subprocess.Popen:
    words = [*TINY, f"store.root='{root}'", *SWEEP, "trainer.device=cpu", f"budget.usd={BUDGET}", f"tune.host={host}"]
    # Enough steps to be killed in the middle, with checkpoints to resume from.
    words += ["trainer.steps=320", "tune.horizons=[0.25]", "tune.machines=2", "trainer.checkpoint_every=10"]
    return subprocess.Popen(
        [sys.executable, "-m", "skytrain", "tune", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_of_two_machines_on_a_bucket_one_is_killed_and_the_other_resumes_its_trial(s3_root, s3_store):
    prepare(tiny_config(s3_root), Silent())
    first, second = start(s3_root, "one"), start(s3_root, "two")
    sweep = SweepStore(open_store(s3_root), "s")
    began = time.monotonic()
    number = None
    while number is None and time.monotonic() - began < 300:
        assert first.poll() is None, first.communicate()[1]
        state = sweep.state() if sweep.exists() else None
        mine = [one.number for one in state.running if one.worker.startswith("one-")] if state else []
        saved = [one for one in mine if s3_store.list(f"runs/s-{one:03d}/checkpoints/")]
        number = saved[0] if saved else None
        time.sleep(0.2)
    assert number is not None
    os.kill(first.pid, signal.SIGKILL)
    out, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    state = sweep.state()
    assert set(state.history) == {one.number for one in state.decisions} and len(state.history) >= 5
    taken = [claim for claim in state.claims if claim.number == number]
    assert [claim.worker.partition("-")[0] for claim in taken] == ["one", "two"]
    assert len(attempt_numbers(s3_store, f"s-{number:03d}")) == 2
    assert {claim.worker.partition("-")[0] for claim in state.claims} == {"one", "two"}
    ledger = Ledger(s3_store, sweep.folder, BUDGET)
    assert all(entry.charged_usd is not None for entry in ledger.entries if entry.what != "final")
    assert ledger.left_usd >= 0 and "Final run:" in out
