"""The supervisor with workers that keep its protocol and compute nothing; training itself is in test_supervised_training."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from skytrain.config import SkytrainError
from skytrain.config.compose import compose
from skytrain.parallel.nodes import NoRendezvous
from skytrain.pipelines import supervise
from skytrain.pipelines.supervise import Layout, Supervisor, choose_processes, count_gpus, descendants, torchrun
from skytrain.runs.supervision import Supervision

WORKER = """
import os, signal, sys, time
from pathlib import Path
from skytrain.config import SkytrainError
from skytrain.storage import StoreError
from skytrain.runs.supervision import Supervision
here = Path(__file__).parent
supervision = Supervision.from_environment()
asked = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: asked.append(number))
starts = len(list(here.glob("start-*")))
(here / f"start-{starts}").write_text(str(os.getpid()))
supervision.arrive(0)
def wait():
    while not asked:
        time.sleep(0.01)
"""


@pytest.fixture
def supervised(tmp_path):
    """Runs a worker's lines under a supervisor; gives its exit code and what was said."""
    said: list[str] = []

    def run(lines: str, *, max_restarts: int = 0, stop_seconds: float = 30.0, before=lambda: None) -> int:
        script, folder = tmp_path / "worker.py", tmp_path / "supervision"
        script.write_text(WORKER + textwrap.dedent(lines))
        folder.mkdir()
        threading.Thread(target=before, daemon=True).start()
        return Supervisor([str(script)], Supervision(folder), said.append, max_restarts, stop_seconds).run()

    run.said, run.folder = said, tmp_path
    return run


def when(path: Path, do) -> None:
    """Calls `do` with the text of a file as soon as there is one."""
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    do(path.read_text())


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("stopped", 0), ("budget", 6), ("interrupted", 7)])
def test_an_outcome_becomes_the_exit_code(supervised, outcome, code):
    assert supervised(f"supervision.report_outcome({outcome!r})") == code


def test_a_crash_is_started_again_so_often_and_then_shows(supervised):
    assert supervised("sys.exit(9)", max_restarts=2) == 9
    assert len(list(supervised.folder.glob("start-*"))) == 3
    assert "exit code 9" in supervised.said[0] and "1 of 2" in supervised.said[0]
    assert "the same command continues" in supervised.said[-1]


def test_nodes_that_do_not_come_are_waited_for_so_long_and_then_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "OTHERS_SECONDS", 0.3)
    waits = ["-c", "import signal; signal.pause()"]  # as torchrun does
    before = descendants(os.getpid())
    with pytest.raises(NoRendezvous, match=r"not all nodes came to the rendezvous 10.0.0.5:29500\n  look for"):
        Supervisor(waits, Supervision(tmp_path), lambda text: None, 0, 30.0, 1, "10.0.0.5:29500").run()
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


def test_a_store_that_was_out_of_reach_is_tried_again(supervised):
    lines = """
    if starts == 0:
        supervision.report_error(StoreError("read", "s3://b/k", "connection refused"))
        sys.exit(2)
    supervision.report_outcome("done")
    """
    assert supervised(lines, max_restarts=3) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_once_and_the_worker_may_save(supervised, number):
    lines = """
    wait()
    time.sleep(0.3)
    supervision.report_outcome("interrupted" if len(asked) == 1 else "done")
    """
    send = lambda: when(supervised.folder / "supervision/pid-0", lambda _: os.kill(os.getpid(), number))  # noqa: E731
    assert supervised(lines, before=send) == 7


def test_a_worker_that_crashes_while_stopping_is_not_started_again(supervised):
    send = lambda: when(supervised.folder / "supervision/pid-0", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
    assert supervised("wait(); sys.exit(3)", max_restarts=5, before=send) == 7
    assert len(list(supervised.folder.glob("start-*"))) == 1


def test_a_worker_that_does_not_stop_in_time_is_killed(supervised):
    send = lambda: when(supervised.folder / "supervision/pid-0", lambda _: os.kill(os.getpid(), signal.SIGTERM))  # noqa: E731
    assert supervised("time.sleep(600)", stop_seconds=0.2, before=send) == 7
    assert "trainer.stop_within" in supervised.said[-1]


def test_a_second_interrupt_ends_it_at_once(supervised):
    def twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    assert supervised("time.sleep(600)", before=lambda: when(supervised.folder / "supervision/pid-0", twice)) == 7
    assert supervised.said == []  # no time ran out


def test_workers_die_with_a_supervisor_that_is_killed(tmp_path):
    """Also those that torchrun, or another process between, has started."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER + "time.sleep(600)")
    between = tmp_path / "between.py"
    between.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}])\n")
    (tmp_path / "supervision").mkdir()
    main = f"""
from pathlib import Path
from skytrain.pipelines.supervise import Supervisor
from skytrain.runs.supervision import Supervision
Supervisor([{str(between)!r}], Supervision(Path({str(tmp_path / "supervision")!r})), print, 0, 30.0).run()
"""
    process = subprocess.Popen([sys.executable, "-c", main])
    pids: list[int] = []
    when(tmp_path / "supervision/pid-0", lambda text: pids.append(int(text)))
    family = descendants(process.pid)
    assert pids[0] in family and len(family) == 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() and not _zombie(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists() and not _zombie(pid)]


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


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
        Layout(processes=4, nodes=2)
    with pytest.raises(SkytrainError, match="--node-rank 2"):
        Layout(processes=4, nodes=2, node_rank=2, rendezvous="a:1")


def test_the_first_machine_hosts_the_rendezvous_of_all():
    first, second = (torchrun(Layout(4, 2, rank, "10.0.0.5:29500"), 3) for rank in (0, 1))
    assert "is_host=true" in first and "is_host=false" in second
    assert first[first.index("--rdzv-endpoint") + 1] == second[second.index("--rdzv-endpoint") + 1] == "10.0.0.5:29500"
