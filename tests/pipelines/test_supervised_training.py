"""`skytrain train` as a user starts it, with real workers, real kills and real signals."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skytrain.checkpoints import committed_steps
from skytrain.jobs import identify
from skytrain.jobs.processes import descendants
from skytrain.jobs.supervisor import remove_abandoned_folders
from skytrain.runs import attempt_numbers, load_run, read_metrics, read_outcome, read_spend
from skytrain.storage import open_store
from skytrain.targets import status_of
from tests.support.tiny import TINY

pytestmark = pytest.mark.usefixtures("default_signals")

ROOT = Path(__file__).parents[2]
LONG = ("trainer.steps=400", "trainer.validate_every=null", "trainer.checkpoint_every=2", "trainer.device=cpu")


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "skytrain", "train", *TINY, *LONG, f"store.root={root}", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_rank_is_started_again_and_a_signal_then_stops_all_of_them_resumably(root):
    """One start of two workers through torchrun: SIGKILL for one, then SIGTERM for every process."""
    store = open_store(str(root))
    process = start(root, "run=both", "parallel=fsdp", "trainer.micro_batch=2", "--processes", "2")
    wait_for(lambda: bool(committed_steps(store, "both")), process)
    agent, *workers = [pid for pid in descendants(process.pid) if b"skytrain" in _command(pid)]
    assert b"skytrain.jobs.agent" in _command(agent) and len(workers) == 2
    os.kill(workers[-1], signal.SIGKILL)
    wait_for(
        lambda: len(attempt_numbers(store, "both")) > 1 and bool(store.list("runs/both/attempts/1/metrics")), process
    )
    for pid in (*descendants(process.pid), process.pid):  # as systemd and Slurm do
        os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 7, err
    assert "death signal" not in err  # of torchrun, which would end the workers within 30 seconds
    assert len(attempt_numbers(store, "both")) == 2
    assert "SIGTERM received: saving at step" in err
    outcome = read_outcome(store, "both", 1)
    assert outcome is not None and outcome["outcome"] == "interrupted"
    assert outcome["step"] == committed_steps(store, "both")[-1]
    assert outcome["cause"] == "SIGTERM received" and outcome["host"] == platform.node()
    assert f"both: interrupted at step {outcome['step']}/400" in out and "the same command resumes" in out
    assert json.loads(store.read("runs/both/attempts/1/resumed.json"))["step"] > 0
    for rank in (0, 1):  # both wrote their logs
        assert store.list("runs/both/attempts/0/logs/")
        assert [stat for stat in store.list("runs/both/attempts/1/logs/") if f"/{rank}-" in stat.key]
    steps = [record["step"] for record in read_metrics(store, "both") if "train/loss" in record]
    assert steps == list(range(1, outcome["step"] + 1))  # every step once, whatever was repeated


SLOW_COMMITS = """
import os, time
from pathlib import Path
from skytrain.storage.folder import FolderStore
create = FolderStore.create
def slow(self, key, body):
    if "COMMITTED" in key and Path(os.environ["SLOW"]).exists():
        time.sleep(40)
    return create(self, key, body)
FolderStore.create = slow
"""


@pytest.mark.slow
def test_a_last_commit_that_takes_longer_than_torchruns_patience_is_waited_for(root, tmp_path, monkeypatch):
    """SIGTERM for every process; torchrun by itself would kill the workers after 30 seconds."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_COMMITS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("SLOW", str(tmp_path / "slow"))
    store = open_store(str(root))
    process = start(root, "run=slow", "parallel=ddp", "trainer.micro_batch=2", "trainer.steps=4000", "--processes", "2")
    wait_for(lambda: bool(committed_steps(store, "slow")), process)
    (tmp_path / "slow").touch()
    for pid in (*descendants(process.pid), process.pid):
        os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=400)
    outcome = read_outcome(store, "slow", 0)
    assert process.returncode == 7, err
    assert outcome is not None and outcome["step"] == committed_steps(store, "slow")[-1]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_budget_ends_with_code_six_and_a_mistake_with_two_without_starting_again(root):
    spent = start(root, "run=dear", "budget.usd=0.001", "budget.usd_per_hour=3600", "trainer.steps=20")
    out, err = spent.communicate(timeout=240)
    assert spent.returncode == 6, err
    assert "dear: stopped by its budget at step 0/20" in out
    wrong = start(root, "run=dear", "optimizer.lr=7", "trainer.steps=20")
    _, err = wrong.communicate(timeout=240)
    assert wrong.returncode == 2
    assert err.count("optimizer.lr: 0.003 -> 7.0") == 1
    assert "starting it again" not in err and "Traceback" not in err


def campaign(*words: str) -> dict:
    script = ROOT / "benchmarks/runs/kill_campaign.py"
    command = [sys.executable, str(script), *words]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_runs_that_are_killed_end_bit_for_bit_like_one_that_was_not():
    found = campaign("--kinds", "ranks", "--kills", "5", "--modes", "single", "--seed", "3")
    assert found["kills"] == 5 and found["identical"]


@pytest.mark.slow
def test_a_hundred_kills_change_nothing():
    found = campaign("--kinds", "ranks", "--kills", "100")
    assert found["kills"] == 100 and found["identical"]


@pytest.mark.slow
def test_sixty_blows_to_whole_jobs_change_nothing_and_leave_no_process():
    found = campaign("--kinds", "supervisor,group", "--kills", "60")
    assert found["kills"] == 60 and found["identical"]


@pytest.mark.slow
def test_outages_of_the_store_and_of_the_metadata_service_change_nothing():
    found = campaign("--kinds", "store,metadata", "--modes", "single,fsdp", "--kills", "12")
    assert found["kills"] == 12 and found["identical"]


def killed(process: subprocess.Popen[str]) -> None:
    """SIGKILL for the command and all its workers, as the power switch does."""
    for pid in (process.pid, *descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_with_kills_at_any_moment_the_meter_is_wall_time_times_price(root):
    """Killed while it imports torch, within five seconds of its claim, and while it trains; then to its end."""
    store, began = open_store(str(root)), time.monotonic()
    words = ("run=metered", "budget.usd=1e6", "budget.usd_per_hour=3600", "trainer.steps=60")
    moments: list[Callable[[], bool]] = [
        lambda: bool(store.list("runs/metered/commands/")),
        lambda: 0 in attempt_numbers(store, "metered"),
        lambda: bool(committed_steps(store, "metered")),
    ]
    for moment in moments:
        process = start(root, *words)
        wait_for(moment, process)
        killed(process)
    process = start(root, *words)
    _, err = process.communicate(timeout=240)
    wall = time.monotonic() - began
    assert process.returncode == 0, err
    spent = sum(count.usd for count in read_spend(store, "metered").counts.values())
    assert wall * 0.98 <= spent <= wall * 1.02, f"{spent:.2f} of {wall:.2f} s"
    shown = status_of(store, load_run(store, "metered")).usd
    assert shown is not None and shown == pytest.approx(spent, rel=0.02)


def test_folders_of_supervisors_that_were_killed_are_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    for name, owner in (("dead", identify(dead.pid)), ("alive", identify(os.getpid())), ("foreign", None)):
        folder = tmp_path / f"skytrain-supervise-{name}"
        folder.mkdir()
        if owner is not None:
            (folder / "supervisor").write_text(owner)
    dead.kill()
    dead.wait()
    remove_abandoned_folders()
    assert {path.name.rpartition("-")[2] for path in tmp_path.iterdir()} == {"alive", "foreign"}
