import json
import os
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.runs import LaunchedGroup, LaunchRecord, create_launch
from skytrain.storage import open_store
from skytrain.targets import RunFollower
from skytrain.targets.slurm import launch as slurm_launch, target
from skytrain.targets.slurm.jobs import SlurmMachines, seconds_of, slurm_job
from skytrain.targets.slurm.launch import filesystem_of, prepare_slurm_launch
from skytrain.targets.slurm.requests import MOST_STARTS, OVER, slurm_time
from tests.support.tiny import TINY
from tests.targets.conftest import record_spend

WORDS = (
    *TINY,
    "run=one",
    "cloud=slurm",
    "cloud.slurm.nodes=2",
    "cloud.slurm.processes=2",
    "trainer.micro_batch=2",
    "parallel=fsdp",
)


@cache
def composed(*words):
    return compose([*WORDS, "store.root=store", *words])


def launch(*words, ask=False):
    return prepare_slurm_launch(composed(*words), ask=ask)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_script_can_be_read_and_asks_for_what_the_settings_say(shared):
    script = launch(
        f"store.root={shared}/my store", "cloud.slurm.partition=gpu", "cloud.slurm.gpus=8",
        "cloud.slurm.modules=[cuda/12.8]", "cloud.slurm.environment={NCCL_DEBUG: 'WARN, loud'}",
        "cloud.slurm.container=nvcr.io#nvidia/pytorch:25.01", "cloud.slurm.container_mounts=[/fsx:/fsx]",
        "cloud.slurm.options={constraint: a100}", "cloud.slurm.time=90m",
    ).script  # fmt: skip
    text = script.render()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--exclusive", "--requeue", "--partition=gpu", "--gpus-per-node=8", "--time=0-01:30:00"} < set(
        options
    )
    assert {"--signal=B:USR1@180", "--constraint=a100", f'--comment="skytrain store.root={shared}/my store"'} < set(
        options
    )
    assert "module load cuda/12.8" in text and "export NCCL_DEBUG='WARN, loud'" in text
    folders = ",".join(f"{path}:{path}" for path in (shared, f"{shared}/slurm/one", f"{shared}/my store"))
    assert f"--container-image='nvcr.io#nvidia/pytorch:25.01' --container-mounts='{folders},/fsx:/fsx'" in text
    assert f"--container-workdir={shared}" in text and "'exec python3 -m skytrain node" in text
    assert f"for shared in {shared}/slurm/one '{shared}/my store'; do" in text


def run_script(
    folder: Path,
    code: int,
    *,
    over: bool,
    restarts: int = 0,
    blind: bool = False,
    state: str = "RUNNING None",
    touch="",
    first="",
):
    """The script with stand-ins for Slurm's commands: agents that end with a code."""
    script = launch("trainer.max_restarts=2").script
    (folder / "store").mkdir(exist_ok=True)
    script.folder.mkdir(parents=True, exist_ok=True)
    end = f"touch {script.folder / OVER}; exit {code}" if over else f"exit {code}"
    look = 'rm -f "${@: -1}"; "${@:2}"' if blind else 'ON_NODE=1 "${@:2}"'
    stand_ins = f'srun() {{ case "$*" in *"exit 66"*) {look} ;; *) echo "srun $*"; ({end}) ;; esac; }}\nscontrol() {{ echo "scontrol $*"; }}\nsqueue() {{ echo "{state}"; }}\n'
    text = script.render().replace('"${agents[@]}" bash -c', 'srun "${agents[@]:1}" bash -c')
    stand_ins = f"{first}\n{stand_ins}"
    return subprocess.run(
        ["bash"],
        input=(f"touch() {{ {touch}; }}; export -f touch\n" if touch else "") + stand_ins + text,
        text=True,
        capture_output=True,
        check=False,
        env={"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin", "SLURM_RESTART_COUNT": str(restarts)},
    )


@pytest.mark.parametrize(
    ("code", "over", "requeued"),
    [(0, True, False), (6, True, False), (7, True, False), (2, False, False), (7, False, True), (137, False, True)],
)
def test_a_job_is_requeued_unless_the_run_is_over_or_the_settings_are_wrong(shared, code, over, requeued):
    done = run_script(shared, code, over=over)
    assert ("scontrol requeue 7" in done.stdout) is requeued, done.stdout + done.stderr
    assert done.returncode == (0 if requeued else code)


@pytest.mark.parametrize(
    ("state", "requeued"), [("COMPLETING None", False), ("COMPLETING TimeLimit", True), ("RUNNING None", True)]
)
def test_a_cancelled_job_stays_cancelled_and_one_that_reached_its_time_limit_does_not(shared, state, requeued):
    done = run_script(shared, 7, over=False, state=state)
    assert ("scontrol requeue 7" in done.stdout) is requeued, done.stdout + done.stderr


def test_a_run_has_a_name_that_slurm_can_find_it_by_and_options_survive_sbatch(shared):
    for name in ("a,b", "50%j"):
        with pytest.raises(SkytrainError, match="cannot name a job of Slurm"):
            launch(f"run='{name}'").script.render()
    assert r'--job-name="skytrain-a#1 \"b\""' in launch("""run='a#1 "b"'""").script.options()


def test_an_option_of_several_lines_is_no_line_of_the_script(shared):
    for words in ("cloud.slurm.account='a\ntouch attacked'", "cloud.slurm.options={comment: 'a\ntouch attacked'}"):
        with pytest.raises(SkytrainError, match="cannot be an option of sbatch: it has a line break"):
            launch(words).script.render()


def test_a_folder_that_a_node_does_not_see_ends_the_job_with_its_name(shared):
    done = run_script(shared, 0, over=True, blind=True)
    assert (done.returncode, "is not shared" in done.stdout) == (3, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("touch", "where"), [("false", "on "), ('[ -z "$ON_NODE" ] && command touch "$@"', "on every node of")]
)
def test_a_folder_that_cannot_be_written_is_told_apart_from_one_that_is_not_shared(shared, touch, where):
    done = run_script(shared, 0, over=True, touch=touch)
    assert done.returncode == 3 and "is not shared" not in done.stdout, done.stdout + done.stderr
    assert f"{shared}/slurm/one is not writable: " in done.stdout and f"cannot write there {where}" in done.stdout


@pytest.mark.parametrize("hyperpod", [True, False])
def test_on_hyperpod_the_agents_resume_by_themselves_and_its_log_is_told(shared, monkeypatch, hyperpod):
    """A node of HyperPod as it is laid out: /opt/sagemaker_cluster, here in another place."""
    monkeypatch.setattr("skytrain.targets.slurm.requests.HYPERPOD", str(shared / "sagemaker_cluster"))
    if hyperpod:
        (shared / "sagemaker_cluster").mkdir()
    done = run_script(shared, 0, over=True)
    assert ("--auto-resume=1" in done.stdout) is hyperpod, done.stdout + done.stderr
    log = shared / "slurm-7.log"
    log.write_text("step 10\n[Auto Resume] Info: JobID: 7 StepID: 0 Initiating communication\nstep 20\n")
    job = slurm_job(
        id="7", state="RUNNING", nodes="n1", elapsed="1:00", limit="2:00", restarts=0, reason="", log=str(log)
    )
    assert target.resiliency_lines([job]) == ["[Auto Resume] Info: JobID: 7 StepID: 0 Initiating communication"]
    assert target.resiliency_lines([replace(job, log=str(shared / "gone"))]) == []


def test_logs_and_status_say_what_became_of_a_job_that_wrote_nothing_or_was_preempted(shared, monkeypatch):
    found = []
    monkeypatch.setattr(target, "slurm_jobs", lambda run: found)
    config = composed().config
    with pytest.raises(SkytrainError, match="nor a job of Slurm"):
        target.TARGETS["slurm"].job_log(config, "one", 5)
    found[:] = [
        slurm_job(
            id="8",
            state="PENDING",
            nodes="2 wanted",
            elapsed="0:00",
            limit="2:00",
            restarts=0,
            reason="Resources",
            log=str(shared / "slurm-8.log"),
        )
    ]
    log = target.TARGETS["slurm"].job_log(config, "one", 5)
    assert (log.lines, log.ended) == (["job 8: pending (Resources); it has written nothing"], False)
    (shared / "slurm-8.log").write_text("a\nb\nc\n")
    found[:] = [slurm_job(id="8", state="PREEMPTED", nodes="n1", reason="None", log=str(shared / "slurm-8.log"))]
    log = target.TARGETS["slurm"].job_log(config, "one", 2)
    assert (log.lines, log.ended) == (["b", "c"], True)
    shown = target.TARGETS["slurm"].run_jobs(config, "one")
    assert shown.tables[0][1][1] == "preempted" and "launch one again, and it resumes" in shown.lines[0]


def test_without_a_run_status_lists_the_jobs_of_every_run_and_of_nobody_else(shared, monkeypatch):
    config = composed().config
    programs = shared / "programs"
    programs.mkdir()
    rows = ["7|RUNNING|n1|1|1:00|2:00|None|skytrain-one", "9_1|PENDING||2|0:00|2:00|Resources|skytrain-two|a"]
    rows.append("8|RUNNING|n2|1|1:00|2:00|None|another")
    for name, text in (("squeue", "\n".join(rows)), ("scontrol", "Restarts=3 StdOut=/x.log")):
        (programs / name).write_text(f"#!/bin/bash\ncat <<'END'\n{text}\nEND\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    listed = target.TARGETS["slurm"].run_jobs(config, None)
    assert [row[:3] for row in listed.tables[0]] == [
        ("RUN", "JOB", "STATE"),
        ("two|a", "9_1", "pending"),
        ("one", "7", "running"),
    ]
    assert [job["run"] for job in listed.facts] == ["two|a", "one"] and listed.facts[0]["restarts"] == 3
    monkeypatch.setenv("PATH", str(shared))
    assert "squeue is not installed here" in target.TARGETS["slurm"].run_jobs(config, None).lines[0]


def test_who_watches_a_run_that_waits_in_the_queue_goes_on_until_its_job_has_ended(shared, monkeypatch):
    config = composed(f"store.root={shared}/store").config
    group = LaunchedGroup(
        name="one",
        zone="",
        instance_type="node",
        market="slurm",
        nodes=2,
        usd_per_hour=0.0,
        kill_at="",
        placement_group=False,
    )
    at = "2026-11-16T00:00:00+00:00"
    record = LaunchRecord(
        id="00001",
        run="one",
        verb="train",
        launched_at=at,
        launched_by="ada",
        account="",
        region="",
        patience_seconds=9.0,
        plan_hash="",
        image="",
        bundle="",
        words=[],
        groups=[group],
        target="slurm",
    )
    create_launch(open_store(config.store), record)
    jobs = [
        slurm_job(
            id="8", state="PENDING", nodes="2 wanted", elapsed="0:00", limit="2:00", restarts=0, reason="Resources"
        )
    ]
    monkeypatch.setattr(target, "slurm_jobs", lambda run: jobs)
    follower = RunFollower(config, "one")
    view = follower.look()
    assert [follower.end_of(view) for _ in range(4)] == [None] * 4
    assert json.loads(target.TARGETS["slurm"].plan_stop(config, "one", print).requests()) == [["scancel", "8"]]
    jobs[:] = [slurm_job(id="8", state="CANCELLED by 0", nodes="n1")]
    with pytest.raises(SkytrainError, match="no run 'another'"):  # in a dry run, too
        target.TARGETS["slurm"].plan_stop(config, "another", print)
    assert follower.end_of(view) is None  # a job that is requeued may be seen so for a moment
    end = follower.end_of(view)
    assert end.exit_code == 12 and end.reason == "its job has ended; see skytrain logs one cloud=slurm"


def test_a_job_that_fails_again_and_again_is_given_up(shared):
    outcomes = [run_script(shared, 1, over=False, restarts=number) for number in range(3)]
    assert ["scontrol requeue 7" in each.stdout for each in outcomes] == [True, True, False]
    assert "failed 3 times in a row without a commit" in outcomes[-1].stdout and outcomes[-1].returncode == 1
    run_script(shared, 7, over=False, restarts=3)  # a commit starts the count again
    assert "scontrol requeue 7" in run_script(shared, 1, over=False, restarts=4).stdout


FULL = "trap '' XFSZ; ulimit -f 0"  # every write into a file fails, as on a full disk


def test_a_job_whose_counts_cannot_be_written_is_not_started_again_and_again(shared):
    never = run_script(shared, 1, over=False, restarts=1, first=FULL)
    assert never.returncode == 3 and "slurm/one/starts cannot be written: is the disk full?" in never.stdout
    assert "srun --ntasks" not in never.stdout and "requeue" not in never.stdout
    filled = f'wait() {{ builtin wait "$@"; local code=$?; {FULL}; return "$code"; }}'  # by the agents
    failed = run_script(shared, 1, over=False, restarts=1, first=filled)
    assert failed.returncode == 1 and "slurm/one/failures cannot be written" in failed.stdout
    assert "srun --ntasks" in failed.stdout and "requeue" not in failed.stdout
    saved = run_script(shared, 7, over=False, restarts=1, first=filled)  # it has no failures to count
    assert "scontrol requeue 7" in saved.stdout


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["cloud.slurm.time=2m"], "when it starts", 2),
        (["cloud.slurm.save_before=10s"], "a save may take", 2),
        (["store.root=/nowhere"], "does not exist", 2),
        (["store.root=/dev/shm/store"], "in the memory of this machine", 3),
    ],
)
def test_what_cannot_work_is_refused_before_the_cluster_is_asked(shared, words, message, code):
    with pytest.raises(SkytrainError, match=message) as caught:
        launch(*words, ask=True)
    assert caught.value.exit_code == code


def test_without_slurm_the_login_node_is_named(shared, monkeypatch):
    monkeypatch.setenv("PATH", str(shared))
    (shared / "store").mkdir()
    with pytest.raises(SkytrainError, match="sbatch is not installed here") as caught:
        launch(ask=True)
    assert caught.value.exit_code == 3


def test_a_folder_is_on_the_file_system_of_its_longest_mount_point():
    mounts = "/dev/sda / ext4 rw 0 0\nfs-1.fsx:/x /fsx lustre rw 0 0\nhead:/home /home\\040all nfs4 rw 0 0"
    found = [filesystem_of(Path(path), lambda: mounts) for path in ("/var/x", "/fsx/store", "/fsx2", "/home all/me")]
    assert found == ["ext4", "lustre", "ext4", "nfs4"]


def test_times_are_written_and_read_as_slurm_does():
    assert [slurm_time(seconds) for seconds in (90, 5400, 90061)] == ["0-00:01:30", "0-01:30:00", "1-01:01:01"]
    assert [seconds_of(text) for text in ("2:30", "01:30:00", "1-01:01:01", "2-00:00:00")] == [150, 5400, 90061, 172800]


def test_a_job_that_slurm_itself_starts_again_and_again_without_a_commit_ends(shared):
    lost = {"state": "COMPLETING None", "over": False}  # a node was lost: Slurm requeues the job, not the script
    starts = [run_script(shared, 137, restarts=number, **lost) for number in range(MOST_STARTS + 1)]
    assert all("srun --ntasks" in each.stdout for each in starts[:-1])
    assert starts[-1].returncode == 12 and "20 times without a committed step" in starts[-1].stdout
    assert "srun --ntasks" not in starts[-1].stdout
    SlurmMachines(launch().script.folder, "n1", pytest.fail).prove(5)
    assert "srun --ntasks" in run_script(shared, 137, restarts=MOST_STARTS + 1, **lost).stdout


def test_a_run_whose_budget_is_spent_is_not_submitted_again(shared, monkeypatch):
    """Slurm bounds no restarts by money: the meter does, while agents run, and this check does before they are asked for.

    Slurm itself ends a job that hangs, when what is left is spent.
    """
    (shared / "store").mkdir()
    monkeypatch.setattr(slurm_launch, "check_slurm_version", lambda: None)
    monkeypatch.setattr(slurm_launch, "_check_partition", lambda wanted: "gpu")
    monkeypatch.setattr(slurm_launch, "preempt_mode", lambda partition: "OFF")
    monkeypatch.setattr(slurm_launch, "slurm_jobs", lambda run: [])
    monkeypatch.setattr(slurm_launch, "submit_job", lambda *_, **__: "7")
    record_spend(open_store(str(shared / "store")), "one", 3.0)
    words = ("budget.usd=4", "budget.usd_per_hour=1.5", "cloud.slurm.nodes=2", "cloud.slurm.save_before=5m")
    # $1 at $3 an hour, a minute to spare, and the time in which it would be asked to save before the limit
    assert "#SBATCH --time=0-00:26:00\n" in launch(*words, ask=True).script.render()
    with pytest.raises(SkytrainError, match="nothing is left to rent machines with"):
        launch("budget.usd=3", "budget.usd_per_hour=1.5", ask=True)
