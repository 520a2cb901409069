"""Two torchrun agents on two hosts, which are network namespaces with a cable between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.parallel import equivalence

from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
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
    """The two agents of a job and what they print."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path, processes: int, *words: list[str]) -> None:
        self.logs = [folder / f"{host.namespace}.log" for host in hosts]
        self.agents: list[subprocess.Popen[bytes]] = []
        for host, log, own in zip(hosts, self.logs, words * 2 if len(words) == 1 else words, strict=False):
            self.agents.append(host.start(torchrun(host, hosts[0], processes, *own), log, ENVIRONMENT))

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


def test_a_host_that_is_cut_off_is_named_on_both_sides_and_both_stop(hosts, tmp_path):
    first, second = hosts
    with Job(hosts, tmp_path, 1, [WORKER, "steps", "10"]) as job:
        job.until_said("step 100\n")
        second.cut_off()
        here, there = job.end()
        assert f"{second.address}) stopped answering" in here
        assert "all_reduce among all ranks" in here
        assert f"error: {first.address}:" in there and "has not answered rank 1 (" in there
        assert all(agent.returncode != 0 for agent in job.agents)


@pytest.mark.slow
def test_tensor_and_pipeline_parallel_with_fsdp_over_two_hosts_have_the_loss_of_one_process(hosts, tmp_path):
    names = ["tp-fsdp 2x2, gpt2", "pp-fsdp 2x2, gpt2"]
    with Job(hosts, tmp_path, 2, [WORKER, "losses", json.dumps(names), str(tmp_path)]) as job:
        printed = job.end()
        assert [agent.returncode for agent in job.agents] == [0, 0], "\n".join(printed)
    case = next(case for case in equivalence.cases() if case.name == names[0])
    alone = equivalence.train(equivalence.reference(case)).losses
    for node in (0, 1):
        found = json.loads((tmp_path / f"node{node}.json").read_text())
        for name in names:
            assert found[name] == pytest.approx(alone, abs=equivalence.LOSS), name


def train_words(root: Path, *more: str) -> list[str]:
    return [
        "-m",
        "skytrain",
        "train",
        *TINY,
        "trainer.device=cpu",
        "trainer.micro_batch=2",
        "trainer.steps=2000",
        "trainer.validate_every=null",
        "parallel=tp-fsdp",
        f"store.root={root}",
        *more,
    ]


@pytest.mark.slow
def test_training_that_loses_a_host_mid_step_names_it_within_the_timeout_and_stops_everywhere(hosts, tmp_path):
    prepare(tiny_config(tmp_path / "store"), Silent())
    with Job(hosts, tmp_path, 2, train_words(tmp_path / "store", "parallel.timeout=20s")) as job:
        job.until_said("step 5/")
        hosts[1].cut_off()
        began = time.monotonic()
        here, there = job.end()
        assert time.monotonic() - began < 60
        assert "error: rank 2-3 (" in here and f"{hosts[1].address}) stopped answering" in here
        assert " among the " in here or "among all ranks" in here  # the collective that the others wait in
        assert "has not answered rank" in there
        assert all(agent.returncode != 0 for agent in job.agents)


@pytest.mark.slow
def test_two_nodes_with_another_configuration_say_so_on_both_and_stop(hosts, tmp_path):
    words = [train_words(tmp_path / "store", f"optimizer.lr={rate}") for rate in ("1e-3", "2e-3")]
    with Job(hosts, tmp_path, 1, *words) as job:
        for printed in job.end():
            assert printed.count("setting optimizer.lr: 0.001 on node 0 (") == 1
            assert "0.002 on node 1 (" in printed
        assert all(agent.returncode != 0 for agent in job.agents)
