"""The supervisor with workers that keep its protocol and compute nothing; training itself is in test_supervised_training."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from skytrain.config import EXIT_CODES, UNCOMMITTED, SkytrainError, StoreConfig, compose
from skytrain.jobs import (
    ClaimedAttempt,
    ProcessLayout,
    Supervision,
    choose_processes,
    count_gpus,
    handle_early_signals,
    handle_interrupts,
    supervisor as module,
)
from skytrain.jobs.lifeline import lives
from skytrain.jobs.nodes import NoRendezvous
from skytrain.jobs.processes import descendants, supervised_by
from skytrain.jobs.supervisor import Limits, Restarts, Supervisor, torchrun, was_asked_to_stop
from skytrain.runs import ask_stop, read_outcome
from skytrain.storage import open_store
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("default_signals")

WORKER = """
import os, signal, sys, time
from pathlib import Path
from skytrain.jobs.lifeline import tie_to_supervisor
tie_to_supervisor()
from skytrain.config import SkytrainError, StoreConfig
from skytrain.storage import StoreUnreachable
from skytrain.jobs.supervision import Supervision
here = Path(__file__).parent
supervision = Supervision.from_environment()
asked = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, lambda number, frame: asked.append(number))
starts = len(list(here.glob("start-*")))
(here / f"start-{starts}").write_text(str(os.getpid()))
supervision.arrive(0)
def wait(done=lambda: asked):
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Runs a worker's lines under a supervisor; gives its exit code and what was said."""
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.01)
    said: list[str] = []

    def run(lines: str, *, max_restarts: int = 0, stop_seconds: float = 30.0, before=lambda: None) -> int:
        script, folder = tmp_path / "worker.py", tmp_path / "supervision"
        script.write_text(WORKER + textwrap.dedent(lines))
        folder.mkdir()
        threading.Thread(target=before, daemon=True).start()
        limits = Limits(max_restarts, stop_seconds, lambda: run.stop_asked)
        run.supervisor = Supervisor([str(script)], Supervision.begin(folder), said.append, limits)
        return run.supervisor.run()

    run.said, run.folder, run.stop_asked = said, tmp_path, False
    return run


def when(path: Path, do) -> None:
    """Calls `do` with the text of a file as soon as there is one."""
    wait_until(lambda: path.exists() and path.read_text())
    do(path.read_text())


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("stopped", 0), ("budget", 6), ("interrupted", 7)])
def test_an_outcome_becomes_the_exit_code(supervised, outcome, code):
    assert supervised(f"supervision.report_outcome({outcome!r})") == code


def test_a_crash_is_started_again_so_often_and_then_shows(supervised):
    assert supervised("sys.exit(9)", max_restarts=2) == 9
    assert len(list(supervised.folder.glob("start-*"))) == 3
    assert "exit code 9" in supervised.said[0] and "1 of 2" in supervised.said[0]
    assert "the same command resumes" in supervised.said[-1]


def test_a_job_that_crashes_after_skytrain_stop_is_not_started_again(supervised):
    supervised.stop_asked = True
    assert supervised("sys.exit(9)", max_restarts=2) == EXIT_CODES[UNCOMMITTED]
    assert len(list(supervised.folder.glob("start-*"))) == 1
    assert supervised.supervisor.interruption == "the job crashed (exit code 9) after `skytrain stop`"


def test_a_supervisor_reads_the_request_that_names_its_attempt(tmp_path):
    store, claim, said = open_store(str(tmp_path)), ClaimedAttempt("r", 1, 0), []
    config = StoreConfig(root=str(tmp_path), sse=None, kms_key=None, patience=1.0)
    ask_stop(store, "r", 0)
    assert not was_asked_to_stop(config, claim, said.append) and not was_asked_to_stop(config, None, said.append)
    ask_stop(store, "r", 1)
    assert was_asked_to_stop(config, claim, said.append) and not said
    store.write("runs/r/stop.json", b"{")
    assert not was_asked_to_stop(config, claim, said.append) and "could not read whether" in said[0]


def test_nodes_that_do_not_come_are_waited_for_so_long_and_then_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OTHERS_SECONDS", 0.3)
    waits = ["-c", "import signal; signal.pause()"]  # as torchrun does
    before = descendants(os.getpid())
    with pytest.raises(NoRendezvous, match=r"not all nodes joined the rendezvous 10.0.0.5:29500\n  look for"):
        supervision = Supervision.begin(tmp_path)
        Supervisor(waits, supervision, lambda text: None, Limits(0, 30.0), rendezvous="10.0.0.5:29500").run()
    assert set(descendants(os.getpid())) <= set(before)


def test_a_worker_that_was_killed_is_started_again_and_may_finish(supervised):
    lines = """
    if starts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    supervision.report_outcome("done")
    """
    assert supervised(lines, max_restarts=1) == 0
    assert "SIGKILL" in supervised.said[0]


def test_an_error_of_the_users_is_not_repeated(supervised):
    lines = """
    supervision.report_error(SkytrainError("no such thing"))
    sys.exit(2)
    """
    assert supervised(lines, max_restarts=3) == 2
    assert len(list(supervised.folder.glob("start-*"))) == 1


def test_a_store_that_workers_waited_for_long_enough_ends_the_job_with_its_own_code(supervised):
    lines = """
    supervision.report_error(StoreUnreachable("read", "s3://b/k", "connection refused"))
    sys.exit(10)
    """
    assert supervised(lines, max_restarts=3) == 10
    assert len(list(supervised.folder.glob("start-*"))) == 1


def test_restarts_are_refilled_by_progress(supervised):
    lines = """
    supervision.report_resume(10 * min(starts, 3))
    sys.exit(1)
    """
    assert supervised(lines, max_restarts=2) == 1
    assert len(list(supervised.folder.glob("start-*"))) == 6  # from 0, 10, 20, 30, and twice more from 30


def test_a_restart_waits_longer_after_each_crash_without_progress():
    for failures, longest in ((1, 2.0), (2, 4.0), (4, 16.0), (20, 120.0)):
        waits = [module.restart_wait_seconds(failures) for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
    restarts = Restarts(2)
    assert [restarts.crashed(step) for step in (None, 0, None, 0)] == [1, 2, None, None]
    assert restarts.crashed(1) == 1


def test_a_signal_while_a_restart_is_waited_for_ends_the_job(supervised, monkeypatch):
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 600.0)

    def after_the_crash():
        wait_until(lambda: supervised.said)
        os.kill(os.getpid(), signal.SIGTERM)

    assert supervised("sys.exit(1)", max_restarts=1, before=after_the_crash) == 12


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_passed_on_once_and_the_worker_may_save(supervised, number, monkeypatch):
    """The worker goes on when the supervisor has had two more rounds in which to send it again."""
    lines = """
    wait()
    (here / "asked").write_text("yes")
    wait((here / "released").exists)
    supervision.report_outcome("interrupted" if asked == [NUMBER] else "done")
    """
    workers = Supervision.workers
    rounds: list[int] = []

    def look(supervision: Supervision) -> set[int]:
        if (supervised.folder / "asked").exists():
            rounds.append(1)
        if len(rounds) > 2:
            (supervised.folder / "released").write_text("yes")
        return workers(supervision)

    monkeypatch.setattr(Supervision, "workers", look)
    send = lambda: when(supervised.folder / "supervision/pid-0", lambda _: os.kill(os.getpid(), number))  # noqa: E731
    assert supervised(lines.replace("NUMBER", str(int(number))), before=send) == 7


def test_an_attempt_that_had_to_be_killed_is_recorded_as_interrupted(tmp_path, monkeypatch):
    script, said = tmp_path / "worker.py", list[str]()
    lines = """
    from skytrain.jobs.supervision import ClaimedAttempt, report_attempt
    report_attempt(0, ClaimedAttempt("r", 3, 7))
    (here / "ready").write_text("yes")
    time.sleep(600)
    """
    script.write_text(WORKER + textwrap.dedent(lines))
    monkeypatch.setattr(module, "Supervisor", lambda command, *rest, **more: Supervisor([str(script)], *rest, **more))
    send = lambda: when(tmp_path / "ready", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
    threading.Thread(target=send, daemon=True).start()
    config = compose([f"store.root={tmp_path}/store", "trainer.stop_within=0.2s"]).config
    assert module.supervise(config, [], ProcessLayout(), said.append) == 12
    late = "not stopped within 0.2s (trainer.stop_within): killed"
    assert said == [f"{late}; the last commit remains"]
    outcome = read_outcome(open_store(config.store), "r", 3)
    assert outcome is not None
    assert (outcome["outcome"], outcome["step"], outcome["host"]) == ("interrupted", 7, platform.node())
    assert outcome["cause"] == f"SIGTERM received; {late}"


def test_a_signal_before_the_supervisor_starts_ends_train_with_its_own_code(tmp_path):
    """The import of typer, which every command needs, stands for all that takes time."""
    (tmp_path / "typer.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "skytrain", "train"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (EXIT_CODES[UNCOMMITTED], "SIGTERM received: stopping\n")


def test_a_worker_that_crashes_while_stopping_is_not_started_again(supervised):
    send = lambda: when(supervised.folder / "supervision/pid-0", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
    assert supervised("wait(); sys.exit(3)", max_restarts=5, before=send) == 12
    assert len(list(supervised.folder.glob("start-*"))) == 1


def test_a_worker_that_does_not_stop_in_time_is_killed(supervised):
    send = lambda: when(supervised.folder / "supervision/pid-0", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
    assert supervised("time.sleep(600)", stop_seconds=0.2, before=send) == 12
    assert "trainer.stop_within" in supervised.said[-1]


def test_a_second_interrupt_ends_it_at_once(supervised):
    def twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: supervised.supervisor.interruption)  # two that come together are one
        os.kill(os.getpid(), signal.SIGINT)

    assert supervised("time.sleep(600)", before=lambda: when(supervised.folder / "supervision/pid-0", twice)) == 12
    assert supervised.said == []  # no time ran out


def test_a_cleaner_of_temporary_folders_neither_hides_workers_nor_loses_the_outcome(supervised):
    lines = """
    wait()
    supervision.report_outcome("interrupted")
    """

    def clean_then_stop(_):
        wait_until(lambda: supervised.supervisor._workers)  # a cleaner comes after days
        shutil.rmtree(supervised.folder / "supervision")
        os.kill(os.getpid(), signal.SIGTERM)

    assert supervised(lines, before=lambda: when(supervised.folder / "supervision/pid-0", clean_then_stop)) == 7
    assert supervised.said == []


def test_what_a_child_that_has_ended_leaves_behind_is_killed(supervised):
    """Also a process in a session of its own, whose parent is no longer below the supervisor."""
    lines = """
    import subprocess
    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (here / "left").write_text(str(left.pid))
    supervision.report_outcome("done")
    """
    assert supervised(lines) == 0
    assert not lives(int((supervised.folder / "left").read_text()))


SUPERVISOR = """
import sys
from pathlib import Path
from skytrain.jobs.supervisor import Limits, Supervisor
from skytrain.jobs.supervision import Supervision
supervision = Supervision.begin(Path(sys.argv[1]))
print(supervision.supervisor, flush=True)
Supervisor(sys.argv[2:], supervision, print, Limits(0, 30.0)).run()
"""


def kill_supervisor(folder: Path, moment: Path, *command: str) -> str:
    """Starts a supervisor of `command`, kills it when there is a file `moment`, and names it."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), *command], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    supervisor = process.stdout.readline().strip()
    when(moment, lambda _: process.kill())
    process.wait(60)
    process.stdout.close()
    return supervisor


def test_workers_die_with_a_supervisor_that_is_killed(tmp_path):
    """Also those that torchrun, or another process between, has started."""
    script, between = tmp_path / "worker.py", tmp_path / "between.py"
    script.write_text(WORKER + "time.sleep(600)")
    between.write_text(
        "from skytrain.jobs.lifeline import tie_to_supervisor\ntie_to_supervisor()\n"
        f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}])\n"
    )
    supervisor = kill_supervisor(tmp_path / "supervision", tmp_path / "supervision/pid-0", str(between))
    wait_until(lambda: not supervised_by(supervisor))


def test_a_worker_that_starts_when_its_supervisor_is_gone_ends_before_it_imports_anything(tmp_path):
    """As one that torchrun had just started, in a session of its own, when both were killed."""
    script, between, late = tmp_path / "worker.py", tmp_path / "between.py", tmp_path / "late"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\n"
        f"Path({str(tmp_path / 'started')!r}).write_text(str(os.getpid()))\n"
        "parent = os.getppid()\nwhile os.getppid() == parent:\n    time.sleep(0.01)\n"  # killed before it asked for PDEATHSIG
        f"from skytrain.jobs.lifeline import tie_to_supervisor\ntie_to_supervisor()\nPath({str(late)!r}).write_text('')\ntime.sleep(600)\n"
    )
    between.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}], start_new_session=True)\n"
    )
    supervisor = kill_supervisor(tmp_path / "supervision", tmp_path / "started", str(between))
    wait_until(lambda: not supervised_by(supervisor))
    assert not late.exists()


def test_processes_follow_the_gpus_where_work_is_shared(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    assert count_gpus() == 3
    assert choose_processes(compose(["parallel=fsdp"]).config, None) == 3
    assert choose_processes(compose(["parallel=single"]).config, None) == 1
    assert choose_processes(compose(["parallel=fsdp", "trainer.device=cpu"]).config, None) == 1
    assert choose_processes(compose(["parallel=fsdp", "trainer.device=cpu"]).config, 4) == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert count_gpus() == 0


def test_machines_without_a_place_to_meet_are_refused():
    with pytest.raises(SkytrainError, match="--nodes 2 needs --rendezvous"):
        ProcessLayout(processes=4, nodes=2)
    with pytest.raises(SkytrainError, match="--node-rank 2"):
        ProcessLayout(processes=4, nodes=2, node_rank=2, rendezvous="a:1")


def test_the_first_machine_hosts_the_rendezvous_of_all():
    first, second = (torchrun(ProcessLayout(4, 2, rank, "10.0.0.5:29500"), 3) for rank in (0, 1))
    assert "is_host=true" in first and "is_host=false" in second
    assert first[first.index("--rdzv-endpoint") + 1] == second[second.index("--rdzv-endpoint") + 1] == "10.0.0.5:29500"


def test_ctrl_c_ends_a_command_that_is_being_imported_and_is_an_exception_later(
    default_signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/skytrain", "plan"])
    handle_early_signals(["plan"])
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    handle_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pytest", "plan"])
    handle_early_signals(["plan"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
