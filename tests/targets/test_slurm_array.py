"""Job arrays: the script of one, and arrays on a real Slurm cluster of two nodes on this machine."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from skytrain.config import SkytrainError
from skytrain.targets.slurm.array import SlurmArray, array_tasks, stop_tasks, submit_array, task_log
from tests.support.settings import CLOUD_DEFAULTS
from tests.support.slurm import slurm_cluster

pytestmark = pytest.mark.usefixtures("default_signals")

SETTINGS = replace(CLOUD_DEFAULTS.slurm, time=3600.0, save_before=60.0)


def array(folder, *commands, **changes):
    return SlurmArray(
        name="sweep", commands=commands, settings=SETTINGS, folder=folder / "array", work_folder=folder, **changes
    )


def test_the_script_lists_the_commands_and_limits_how_many_run_at_once(tmp_path):
    text = array(tmp_path, ("echo", "a b"), ("skytrain", "train", "run=it's"), at_once=2).render()
    assert "#SBATCH --array=0-1%2" in text and "#SBATCH --exclusive" in text and "#SBATCH --requeue" in text
    assert "skytrain train" in text and "#SBATCH --job-name=skytrain@sweep" in text
    shared = replace(array(tmp_path, ("true",)), settings=replace(SETTINGS, gpus=1)).render()
    assert "--gpus-per-node=1" in shared and "--exclusive" not in shared, "tasks that name their GPUs share nodes"
    inside = replace(SETTINGS, container="nvcr.io/image:1")
    boxed = replace(array(tmp_path, ("true",), folders=("/data/store",)), settings=inside).render()
    assert "--container-image=nvcr.io/image:1" in boxed and "/data/store:/data/store" in boxed
    assert f"{tmp_path}/array:{tmp_path}/array" in boxed, "a task in a container sees the folder of its results"


def test_an_array_without_commands_or_with_a_name_that_squeue_would_split_is_refused(tmp_path):
    with pytest.raises(SkytrainError, match="at least one command"):
        array(tmp_path).render()
    with pytest.raises(SkytrainError, match="cannot name a job array"):
        replace(array(tmp_path, ("true",)), name="a,b").render()


def run_task(tmp_path, code, tries, state="RUNNING None", first=""):
    """The script itself, with stand-ins for srun, squeue and scontrol."""
    programs, folder = tmp_path / "bin", tmp_path / "array"
    programs.mkdir()
    folder.mkdir()
    (programs / "squeue").write_text(f"#!/bin/bash\necho {state}\n")
    (programs / "srun").write_text('#!/bin/bash\nshift 2\nexec "$@"\n')
    (programs / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    if tries:
        (folder / "1.failures").write_text(f"{tries}\n")
    script = array(tmp_path, ("false",), ("bash", "-c", f"echo 'it runs'; exit {code}")).render()
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "14", "SLURM_RESTART_COUNT": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash"], input=f"{first}\n{script}", env=environment, capture_output=True, text=True, check=False
    )
    assert "it runs" in done.stdout, done.stderr
    return done, folder


@pytest.mark.parametrize(
    ("code", "tries", "final"), [(0, 0, 0), (2, 0, 2), (6, 0, 6), (7, 0, None), (1, 0, None), (1, 3, 1), (137, 3, 137)]
)
def test_a_task_is_requeued_by_its_own_name_unless_another_try_does_not_help(tmp_path, code, tries, final):
    done, folder = run_task(tmp_path, code, tries)
    if final is None:
        assert (tmp_path / "asked").read_text() == "requeue 12_1\n" and not (folder / "1.code").exists()
    else:
        assert not (tmp_path / "asked").exists() and (folder / "1.code").read_text() == f"{final}\n"
        assert done.returncode == final


def test_a_task_whose_failures_cannot_be_written_is_not_requeued_and_one_that_has_saved_is(tmp_path):
    full = "trap '' XFSZ; ulimit -f 0"  # every write into a file fails, as on a full disk
    (tmp_path / "failed").mkdir()
    done, _ = run_task(tmp_path / "failed", 1, 1, first=full)
    assert done.returncode == 1 and "is the disk full? Task 1 is not requeued" in done.stdout
    assert not (tmp_path / "failed/asked").exists()
    (tmp_path / "saved").mkdir()
    done, folder = run_task(tmp_path / "saved", 7, 1, first=full)
    assert "task 1 is requeued" in done.stdout and not (folder / "1.failures").exists()


def test_a_task_that_scancel_has_ended_is_not_requeued(tmp_path):
    done, _ = run_task(tmp_path, 7, 0, "COMPLETING None")
    assert done.returncode == 7 and not (tmp_path / "asked").exists()


@pytest.mark.slow
def test_tasks_end_are_requeued_and_stopped_each_on_its_own(tmp_path, monkeypatch):
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)

    def python(text):
        return (sys.executable, "-c", text)

    tried = tmp_path / "tried"
    interrupted = python(
        f"import pathlib, sys; p = pathlib.Path({str(tried)!r}); again = p.exists(); p.touch(); sys.exit(0 if again else 7)"
    )
    saves = python(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(7)))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(1)"
    )
    with slurm_cluster(tmp_path / "cluster") as cluster:
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        made = array(tmp_path, python("print('done')"), interrupted, saves, python("import sys; sys.exit(2)"))
        number = submit_array(made)
        log = task_log(made.folder, f"{number}_2")

        def task(index):
            return next(one for one in array_tasks("sweep", made.folder) if one.number == index)

        _until(lambda: log.exists() and "ready" in log.read_text(), cluster)
        with pytest.raises(SkytrainError, match=f"job {number} already"):
            submit_array(made)
        stop_tasks([task(2)])
        _until(lambda: task(2).is_over, cluster)
        assert task(2).exit_code == 7 or task(2).job.state == "CANCELLED"
        _until(lambda: (made.folder / "2.code").exists(), cluster)
        assert "saved" in log.read_text() and "requeued" not in log.read_text()

        _until(lambda: "task 1 is requeued" in task_log(made.folder, f"{number}_1").read_text(), cluster)
        time.sleep(10)  # the scheduler revokes the credential of the first try before another may start
        cluster.ask("scontrol", "update", f"jobid={number}_1", "StartTime=now")
        _until(lambda: task(1).is_over, cluster)
        assert (task(1).exit_code, task(1).job.facts["restarts"]) == (0, 1)
        assert {one.number: one.exit_code for one in array_tasks("sweep", made.folder)} == {0: 0, 1: 0, 2: 7, 3: 2}

        monkeypatch.setattr("skytrain.targets.slurm.array.ask_slurm", lambda _: "")  # a scheduler that has forgotten
        assert {one.number: one.job.state for one in array_tasks("sweep", made.folder)} == {
            0: "COMPLETED", 1: "COMPLETED", 2: "FAILED", 3: "FAILED",
        }  # fmt: skip


def _until(condition, cluster):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, (
            cluster.ask("squeue", "--array") + Path(cluster.folder, "slurmctld.log").read_text()[-2000:]
        )
        time.sleep(0.5)
