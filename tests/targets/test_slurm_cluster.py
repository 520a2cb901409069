"""Runs on a real Slurm cluster of two nodes on this machine."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from skytrain.checkpoints import committed_steps, load_model
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from skytrain.targets.slurm.jobs import seconds_of
from skytrain.tuning import SweepStore
from tests.pipelines.test_tune import SWEEP
from tests.support.slurm import slurm_cluster
from tests.support.tiny import TINY, tiny_config

STEPS = 600
SETTINGS = (
    *TINY, "model.dropout=0.1", "trainer.device=cpu", "trainer.micro_batch=2", f"trainer.steps={STEPS}",
    "trainer.validate_every=100", "trainer.checkpoint_every=10", "trainer.stop_within=50s", "parallel=fsdp",
    "parallel.timeout=20s", "cloud=slurm", "cloud.slurm.nodes=2", "cloud.slurm.processes=2",
    "cloud.slurm.save_before=60s", "cloud.slurm.time=1h",
)  # fmt: skip
PATIENCE_SECONDS = 600

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    prepare(tiny_config(folder / "store"), Silent())
    with slurm_cluster(folder / "cluster") as cluster:
        cluster.work = folder
        yield cluster


def skytrain(lab, *words):
    environment = {**os.environ, **lab.environment(), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "skytrain", *words], cwd=lab.work, env=environment, capture_output=True, text=True
    )


def launch(lab, run, *words):
    done = skytrain(lab, "launch", "train", *SETTINGS, "store.root=store", f"run={run}", *words, "--yes")
    assert done.returncode == 0, done.stderr
    return re.search(r"submitted job (\d+)", done.stdout)[1]


def state(lab, job):
    return re.search(r"JobState=(\w+)", lab.ask("scontrol", "show", "job", job))[1]


def log(lab, run, job):
    path = lab.work / "slurm" / run / f"slurm-{job}.log"
    return path.read_text() if path.exists() else ""


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.5)


def start_again(lab, job, restarts):
    """The scheduler lets a requeued job wait for two minutes; a user may ask for less.

    Not at once: until the first try is cleaned up, its credential is revoked, and the job would fail.
    """
    since = time.monotonic()

    def started():
        shown = lab.ask("scontrol", "show", "job", job)
        if "JobState=PENDING" in shown and time.monotonic() - since > 10:
            subprocess.run(
                ["scontrol", "update", f"jobid={job}", "StartTime=now"], env={**os.environ, **lab.environment()}
            )
        return "JobState=RUNNING" in shown and f"Restarts={restarts} " in shown

    until(started, lambda: lab.ask("squeue"))


def shorten(lab, job):
    """Lower the time limit, in whole minutes, so that the signal a minute before it comes within half a minute."""
    elapsed = seconds_of(re.search(r"RunTime=(\S+)", lab.ask("scontrol", "show", "job", job))[1])
    lab.ask("scontrol", "update", f"jobid={job}", f"TimeLimit={int(elapsed // 60) + (1 if elapsed % 60 < 30 else 2)}")


def numbers(store, run):
    return {
        (record["step"], name): record[name]
        for record in read_metrics(store, run)
        for name in ("train/loss", "val/loss", "train/grad_norm")
        if name in record
    }


def test_a_run_goes_on_after_its_time_limit_a_requeue_and_a_lost_node_and_ends_bit_for_bit(lab):
    store = open_store(str(lab.work / "store"))

    def commit_after(step, job):
        until(lambda: max(committed_steps(store, "hit"), default=0) > step, lambda: log(lab, "hit", job)[-3000:])
        return max(committed_steps(store, "hit"))

    job = launch(lab, "hit")
    commit_after(0, job)
    shorten(lab, job)
    until(lambda: "exit code 7: the job is requeued" in log(lab, "hit", job), lambda: log(lab, "hit", job)[-3000:])
    saved = max(committed_steps(store, "hit"))
    lab.ask("scontrol", "update", f"jobid={job}", "TimeLimit=60")
    start_again(lab, job, 1)
    saved = commit_after(saved, job)
    lab.ask("scontrol", "requeue", job)
    start_again(lab, job, 2)
    saved = commit_after(saved, job)
    lab.kill_node("n2")
    until(lambda: state(lab, job) != "RUNNING", lambda: lab.ask("squeue") + lab.ask("sinfo"))
    lab.start_node("n2")
    start_again(lab, job, 3)
    shown = skytrain(lab, "status", "hit", "cloud=slurm", "store.root=store")
    assert shown.returncode == 0 and re.search(rf"{job} +\w+", shown.stdout), shown.stdout + shown.stderr
    until(lambda: state(lab, job) == "COMPLETED", lambda: log(lab, "hit", job)[-3000:])
    assert max(committed_steps(store, "hit")) == STEPS
    assert "Restarts=3" in lab.ask("scontrol", "show", "job", job)

    whole = launch(lab, "whole")
    until(lambda: state(lab, whole) == "COMPLETED", lambda: log(lab, "whole", whole)[-3000:])
    assert numbers(store, "hit") == numbers(store, "whole")
    first, second = (load_model(store, f"{run}@{STEPS}").model.state_dict() for run in ("hit", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_stop_saves_and_ends_the_job_and_the_same_launch_resumes(lab):
    store = open_store(str(lab.work / "store"))
    job = launch(lab, "stopped")
    twice = skytrain(lab, "launch", "train", *SETTINGS, "store.root=store", "run=stopped", "--yes")
    assert twice.returncode == 2 and f"is job {job} already" in twice.stderr
    until(lambda: committed_steps(store, "stopped"), lambda: log(lab, "stopped", job)[-3000:])
    done = skytrain(lab, "stop", "stopped", "cloud=slurm", "store.root=store")
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: state(lab, job) in ("COMPLETED", "CANCELLED"), lambda: lab.ask("squeue"))
    assert "Restarts=0" in lab.ask("scontrol", "show", "job", job)
    again = launch(lab, "stopped")
    listed = skytrain(lab, "status", "cloud=slurm", "store.root=store")
    assert re.search(rf"^stopped +{again} +\w+", listed.stdout, re.MULTILINE), listed.stdout + listed.stderr
    assert skytrain(lab, "stop", "stopped", "cloud=slurm", "store.root=store", "--force").returncode == 0
    until(lambda: state(lab, again) in ("COMPLETED", "CANCELLED"), lambda: lab.ask("squeue"))


def test_a_sweep_is_a_job_array_whose_tasks_share_it(lab):
    words = ["launch", "tune", *TINY, *SWEEP, "trainer.device=cpu", "budget.usd=2", "tune.machines=2"]
    words += ["cloud=slurm", "cloud.slurm.time=1h", "store.root=store", "--yes"]
    done = skytrain(lab, *words)
    assert done.returncode == 0, done.stderr
    array = re.search(r"submitted job array (\d+): sweep s\b", done.stdout)[1]
    folder, store = lab.work / "slurm/s", open_store(str(lab.work / "store"))

    def logs():
        return "".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log"))) + lab.ask("squeue", "--array")

    twice = skytrain(lab, *words)
    assert twice.returncode == 3 and f"is job {array} already" in twice.stderr
    until(lambda: len(list(folder.glob("*.code"))) == 2, logs)
    assert {path.name: path.read_text() for path in folder.glob("*.code")} == {"0.code": "0\n", "1.code": "0\n"}, logs()
    sweep = SweepStore(store, "s")
    state = sweep.state()
    assert sweep.answer() is not None and set(state.history) == {one.number for one in state.decisions}
    assert {claim.worker.rpartition("-")[0] for claim in state.claims} == {"s-machine-1", "s-machine-2"}
    shown = skytrain(lab, "status", "s", "cloud=slurm", "store.root=store")
    assert shown.returncode == 0 and "s: answered" in shown.stdout, shown.stdout + shown.stderr


def test_a_job_that_its_partition_cancels_for_another_says_so_and_the_same_launch_resumes(lab):
    store, low = open_store(str(lab.work / "store")), "cloud.slurm.partition=low"
    done = skytrain(lab, "launch", "train", *SETTINGS, "store.root=store", "run=preempted", low, "--yes")
    assert "partition low cancels jobs that it preempts" in done.stderr, done.stderr
    job = re.search(r"submitted job (\d+)", done.stdout)[1]
    until(lambda: committed_steps(store, "preempted"), lambda: log(lab, "preempted", job)[-3000:])
    first = lab.ask(
        "sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"
    ).strip()  # fmt: skip
    until(lambda: state(lab, first) == "COMPLETED", lambda: lab.ask("squeue"))
    assert state(lab, job) == "PREEMPTED"
    shown = skytrain(lab, "status", "preempted", "cloud=slurm", "store.root=store")
    assert f"job {job} was preempted and cancelled by its partition" in shown.stdout, shown.stdout + shown.stderr
    saved = max(committed_steps(store, "preempted"))
    again = launch(lab, "preempted")
    until(lambda: max(committed_steps(store, "preempted")) > saved, lambda: log(lab, "preempted", again)[-3000:])
    assert skytrain(lab, "stop", "preempted", "cloud=slurm", "store.root=store", "--force").returncode == 0
    until(lambda: state(lab, again) in ("COMPLETED", "CANCELLED"), lambda: lab.ask("squeue"))


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["cloud.slurm.partition=gone"], "no such partition", 2),
        (["cloud.slurm.nodes=4", "cloud.slurm.processes=1"], "partition spot has 2", 4),
        (["cloud.slurm.time=5h"], "allows 2h", 2),
        (["cloud.slurm.options={mem: 900G}"], "sbatch", 3),
    ],
)
def test_what_the_cluster_cannot_give_is_refused_before_anything_is_submitted(lab, words, message, code):
    done = skytrain(lab, "launch", "train", *SETTINGS, "store.root=store", "run=refused", *words, "--yes")
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert not Path(lab.work, "slurm/refused").exists()
