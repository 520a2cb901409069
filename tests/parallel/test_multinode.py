"""Jobs on two hosts, which are network namespaces with a cable between them: two torchrun agents, or `skytrain train` on each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.parallel import equivalence
from benchmarks.parallel.processes import run_ranks

from skytrain.checkpoints import committed_steps, open_checkpoint, step_key
from skytrain.jobs.processes import descendants
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, attempt_numbers
from skytrain.storage import Store, open_store
from tests.parallel import workers
from tests.support.hosts import Host, torchrun, two_hosts
from tests.support.tiny import TINY, tiny_config

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).with_name("hosts_worker.py"))
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
PATIENCE_SECONDS = 240


@pytest.fixture
def hosts():
    with two_hosts() as hosts:
        yield hosts


class Job:
    """What runs on the two hosts, by the command of each, and what it prints."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path, *commands: list[str], packages: str = "") -> None:
        """`packages`: a folder from which the second host imports before all others."""
        self.logs = [folder / f"{host.namespace}.log" for host in hosts]
        self.agents: list[subprocess.Popen[bytes]] = []
        for host, log, command, first in zip(hosts, self.logs, commands, ("", packages), strict=True):
            path = os.pathsep.join(filter(None, [first, ENVIRONMENT["PYTHONPATH"]]))
            self.agents.append(host.start(command, log, {**ENVIRONMENT, "PYTHONPATH": path}))

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, "\n".join(log.read_text()[-3000:] for log in self.logs)
            time.sleep(0.1)

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.logs[0].read_text() or self.ended)
        assert text in self.logs[0].read_text(), self.logs[0].read_text()[-3000:]

    @property
    def ended(self) -> bool:
        return all(agent.poll() is not None for agent in self.agents)

    def end(self) -> list[str]:
        """Waits for both agents; what each host has printed."""
        self.until(lambda: self.ended)
        return [log.read_text() for log in self.logs]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


def agents(hosts: tuple[Host, Host], processes: int, *words: str) -> list[list[str]]:
    return [torchrun(host, hosts[0], processes, *words) for host in hosts]


def test_a_host_that_is_cut_off_is_named_on_both_sides_and_both_stop(hosts, tmp_path):
    first, second = hosts
    with Job(hosts, tmp_path, *agents(hosts, 1, WORKER, "steps", "10")) as job:
        job.until_said("step 100\n")
        second.cut_off()
        here, there = job.end()
        assert f"{second.address}) stopped answering" in here
        assert "all_reduce among all ranks" in here
        assert f"error: {first.address}:" in there and "has not answered rank 1 (" in there
        # The agents themselves are ended: each would wait for the other.
        assert [agent.returncode for agent in job.agents] == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.slow
def test_tensor_and_pipeline_parallel_with_fsdp_over_two_hosts_have_the_loss_of_one_process(hosts, tmp_path):
    names = ["tp-fsdp 2x2, gpt2", "pp-fsdp 2x2, gpt2"]
    with Job(hosts, tmp_path, *agents(hosts, 2, WORKER, "losses", json.dumps(names), str(tmp_path))) as job:
        printed = job.end()
        assert [agent.returncode for agent in job.agents] == [0, 0], "\n".join(printed)
    case = next(case for case in equivalence.cases() if case.name == names[0])
    alone = equivalence.train(equivalence.reference(case)).losses
    for node in (0, 1):
        found = json.loads((tmp_path / f"node{node}.json").read_text())
        for name in names:
            assert found[name] == pytest.approx(alone, abs=case.loss), name


SMALL = ("trainer.device=cpu", "trainer.micro_batch=2", "trainer.validate_every=null")


def command(root: Path, node: int, *words: str, processes: int = 1, address: str = "10.77.0.1") -> list[str]:
    """As docs/multi-node.md has it."""
    meeting = ["--nodes", "2", "--node-rank", str(node), "--rendezvous", f"{address}:29500"]
    settings = [*TINY, *SMALL, f"store.root={root}", *words]
    return [sys.executable, "-m", "skytrain", "train", *settings, "--processes", str(processes), *meeting]


def commands(root: Path, *words: str, processes: int = 1) -> list[list[str]]:
    return [command(root, node, *words, processes=processes) for node in (0, 1)]


@pytest.mark.slow
def test_training_that_loses_a_host_mid_step_names_it_within_the_timeout_and_stops_everywhere(hosts, tmp_path):
    prepare(tiny_config(tmp_path / "store"), Silent())
    words = ("trainer.steps=2000", "parallel=tp-fsdp", "parallel.timeout=20s")
    with Job(hosts, tmp_path, *commands(tmp_path / "store", *words, processes=2)) as job:
        job.until_said("step 5/")
        hosts[1].cut_off()
        began = time.monotonic()
        here, there = job.end()
        assert time.monotonic() - began < 60
        assert "error: rank 2-3 (" in here and f"{hosts[1].address}) stopped answering" in here
        assert " among the " in here or "among all ranks" in here  # the collective that the others wait in
        assert "has not answered rank" in there
        assert [agent.returncode for agent in job.agents] == [137, 137]


def weights(store: Store, run: str, step: int) -> dict[str, torch.Tensor]:
    return open_checkpoint(store, step_key(run, step)).tensors.below("model/").read()


@pytest.mark.slow
def test_a_rank_that_is_killed_is_started_again_on_both_hosts_and_the_run_ends_with_the_same_weights(hosts, tmp_path):
    root, last = tmp_path / "store", 30
    store = open_store(str(root))
    prepare(tiny_config(root), Silent())
    words = (*SMALL, f"trainer.steps={last}", "trainer.checkpoint_every=5")
    with Job(hosts, tmp_path, *commands(root, *words, "parallel=fsdp", "run=killed")) as job:
        job.until(lambda: 5 in committed_steps(store, "killed"))
        (victim,) = [pid for pid in descendants(job.agents[1].pid) if b"\0RANK=1\0" in environment_of(pid)]
        os.kill(victim, signal.SIGKILL)
        here, _ = job.end()
        assert [agent.returncode for agent in job.agents] == [0, 0], here
    assert f"rank 1 ({os.uname().nodename} {hosts[1].address}) is gone" in here and "resumes    from step" in here
    assert len(attempt_numbers(store, "killed")) == 2
    run_ranks(2, workers.train_in_pieces, root, "undisturbed", [("fsdp", last)], words)
    undisturbed, killed = weights(store, "undisturbed", last), weights(store, "killed", last)
    assert killed.keys() == undisturbed.keys() and len(killed) > 10
    assert all(torch.equal(killed[name], value) for name, value in undisturbed.items())


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.mark.slow
def test_two_nodes_with_other_code_and_another_configuration_say_so_on_both_and_stop(hosts, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(ROOT / "src/skytrain", other / "skytrain", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "skytrain/training/step.py").open("a") as code:
        code.write("# changed\n")
    started = [
        command(tmp_path / "store", node, "parallel=fsdp", f"optimizer.lr={rate}")
        for node, rate in enumerate(("1e-3", "2e-3"))
    ]
    with Job(hosts, tmp_path, *started, packages=str(other)) as job:
        for printed in job.end():
            assert printed.count("setting optimizer.lr: 0.001 on node 0 (") == 1
            assert "0.002 on node 1 (" in printed
            assert printed.count("code skytrain/training/step.py: ") == 1
            assert "Traceback" not in printed
        assert [agent.returncode for agent in job.agents] == [2, 2]


IMPATIENT = (
    "import skytrain.jobs.supervisor as supervise\n"
    "supervise.FIRST_NODE_SECONDS = supervise.START_SECONDS = 0.5\n"
    "supervise.OTHERS_SECONDS = 3.0\n"
    "from skytrain.cli.main import main\n"
    "main()\n"
)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (0, "error: no worker has started here for 3s: not all nodes joined the rendezvous 127.0.0.1:29500"),
        (1, "error: nothing answers at the rendezvous 127.0.0.1:29500"),
    ],
)
def test_a_node_that_finds_no_other_says_so(tmp_path, node, words):
    python, _, _, *arguments = command(tmp_path, node, "parallel=fsdp", address="127.0.0.1")
    done = subprocess.run([python, "-c", IMPATIENT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count(words) == 1
    assert "Traceback" not in done.stderr
