"""The node agent: hosts meet through a store, run a job together, and meet again when one goes."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from bisect import bisect
from dataclasses import replace
from pathlib import Path

import pytest

from skytrain.aws import CloudError, Notice
from skytrain.config import SkytrainError, compose
from skytrain.jobs import (
    check_generation,
    generation_key,
    list_meeting,
    node_agent,
    read_generation,
    supervisor,
)
from skytrain.jobs.generations import EndGeneration, GenerationEnd, Propose
from skytrain.jobs.machines import LocalMachines
from skytrain.jobs.node import WaitingBudget, machine_lock
from skytrain.jobs.node_agent import AgentLimits
from skytrain.jobs.rendezvous import GenerationOver, HostIdentity, MeetingStore
from skytrain.pipelines.logs import logs
from skytrain.pipelines.prepare import prepare
from skytrain.runs import LogSelection, Meter, Silent, claim_attempt, meter, read_attempt
from skytrain.storage import Store, StoreUnreachable, open_store
from skytrain.tokens import find_prepared
from tests.jobs.node_simulation import SimulatedHost, simulated_host, until
from tests.support.tiny import TINY, tiny_config


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    """With agents that ask every moment: the folder is on this machine."""
    monkeypatch.setattr(node_agent, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(node_agent, "FOLLOW_SECONDS", 0.05)
    monkeypatch.setattr(node_agent, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(node_agent, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "FIRST_WAIT_SECONDS", 0.05)
    return open_store(str(tmp_path))


def running(hosts: list[SimulatedHost], generation: int) -> bool:
    return all(host.job is not None and host.job.generation.number == generation for host in hosts)


def test_two_hosts_meet_train_and_leave_together(store):
    hosts = [simulated_host(store, name, nodes=2).start() for name in ("one", "two")]
    until(lambda: running(hosts, 1), 120)
    jobs = [host.job for host in hosts]
    assert sorted(job.rank for job in jobs) == [0, 1]
    assert len({(job.generation.rendezvous_id, job.generation.port) for job in jobs}) == 1
    for job in jobs:
        job.code = 0
    assert [host.join() for host in hosts] == [0, 0]
    assert {each.presence for each in list_meeting(store, "simulated").hosts} == {"left"}


def test_a_notice_ends_the_generation_and_a_spare_takes_the_place(store):
    hosts = [simulated_host(store, name, nodes=2).start() for name in ("one", "two")]
    until(lambda: running(hosts, 1), 120)
    spare = simulated_host(store, "three", nodes=2).start()
    hosts[0].notice = Notice("spot", "EC2 will terminate this instance")
    until(lambda: running([hosts[1], spare], 2), 120)
    assert hosts[0].join() == 7
    end = json.loads(store.read(generation_key("simulated", 1, "ended")))
    assert end["reason"] == "EC2 will terminate this instance" and end["saves"]
    for host in (hosts[1], spare):
        host.job.code = 6
    assert [host.join() for host in (hosts[1], spare)] == [6, 6]


def test_a_job_that_fails_without_progress_is_started_again_so_often_and_then_ends_the_run(store):
    hosts = [simulated_host(store, name, nodes=2, max_restarts=2).start() for name in ("one", "two")]
    for generation in (1, 2, 3):
        until(lambda number=generation: running(hosts, number), 120)
        hosts[0].job.code = 1
    assert [host.join() for host in hosts] == [1, 1]
    assert any("3 times in a row without progress" in line for line in hosts[1].told)


def test_a_host_that_fails_its_health_check_thrice_is_reported_for_replacement(store, monkeypatch):
    host = simulated_host(store, "one", nodes=1)
    host.problems.append("nvidia-smi reports 7 of 8 GPUs")
    host.start()
    assert host.join() == 3
    assert host.replaced == ["it failed its health check 3 times: nvidia-smi reports 7 of 8 GPUs"]
    assert [each.presence for each in list_meeting(store, "simulated").hosts] == ["left"]  # its cost counts


class FakeClock:
    """The clock of an agent whose sleeps pass at once."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("code", "stays"), [(1, 1800.0), (9, 1800.0), (0, 0.0), (6, 0.0), (7, 0.0)])
def test_a_machine_stays_after_a_failure_and_its_cost_counts_meanwhile(store, monkeypatch, code, stays):
    clock = FakeClock()
    monkeypatch.setattr(node_agent, "time", clock)
    host = simulated_host(store, "one", nodes=1)
    agent, asked, beats = host.agent, list[tuple[str, float]](), list[float]()
    agent.limits = AgentLimits(2, 10.0, keep_seconds=1800.0)
    answers = [False, False, True]  # AWS does not answer at first

    def set_desired(count: int) -> bool:
        asked.append(("set_desired", clock.now))
        return answers.pop(0)

    agent.machines.set_desired = set_desired
    agent.machines.terminate_me = lambda: asked.append(("terminate_me", clock.now))
    agent.machines.end_run = lambda code: asked.append(("end_run", clock.now)) or len(asked) > 5
    agent.services = replace(agent.services, spend=lambda: beats.append(clock.now) or {})
    agent.state = replace(agent.state, phase="gone")  # the run is over, with this code
    agent.exit_code, agent._over = code, True
    assert agent.run() == code
    assert [name for name, _ in asked] == [*["set_desired"] * 3, *["end_run"] * 3, "terminate_me"]
    assert asked[0][1] - 1000.0 == pytest.approx(stays, abs=1.0)
    assert len(beats) == pytest.approx(6 + stays / agent.rules.beat_seconds, abs=2)
    if stays:
        assert any("skytrain shell simulated" in line for line in host.told)


def test_while_aws_does_not_take_a_machine_back_its_cost_is_recorded_as_often_as_while_it_works(store, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(node_agent, "time", clock)
    agent, beats = simulated_host(store, "one", nodes=1).agent, list[float]()
    agent.machines.set_desired = lambda count: clock.now > 1300.0  # AWS is out of reach for five minutes
    agent.services = replace(agent.services, spend=lambda: beats.append(clock.now) or {})
    agent.state, agent._over = replace(agent.state, phase="gone"), True
    agent.run()
    assert clock.now > 1300.0
    waits = [later - earlier for earlier, later in itertools.pairwise([*beats, clock.now])]
    assert max(waits) <= agent.rules.beat_seconds


@pytest.mark.parametrize(("code", "stays"), [(0, True), (6, False), (1, False)])
def test_a_machine_that_is_kept_after_success_stays_until_it_is_told_to_end(store, monkeypatch, code, stays):
    clock = FakeClock()
    monkeypatch.setattr(node_agent, "time", clock)
    host = simulated_host(store, "one", nodes=1)
    agent = host.agent
    agent.limits = AgentLimits(2, 10.0, keep_after_success=True)
    agent.state = replace(agent.state, phase="gone")
    agent.exit_code, agent._over = code, True

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now > 9000:
            agent._signal = signal.SIGTERM  # `skytrain stop`, or the kill time

    monkeypatch.setattr(clock, "sleep", sleep)
    assert agent.run() == code
    assert (clock.now > 9000) is stays


def test_a_machine_that_stays_leaves_at_once_when_it_must(store, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(node_agent, "time", clock)
    host = simulated_host(store, "one", nodes=1)
    host.agent.limits = AgentLimits(2, 10.0, keep_seconds=1800.0)
    host.agent.state = replace(host.agent.state, phase="gone")
    host.agent.exit_code, host.agent._over = 1, True
    host.notice = Notice("spot", "EC2 will terminate this instance")
    host.agent.run()
    assert clock.now < 1010


def test_one_of_the_hosts_that_wait_says_that_others_are_lacking(store, monkeypatch):
    monkeypatch.setattr(node_agent, "WAIT_CHECK_SECONDS", 0.05)
    hosts = [simulated_host(store, name, nodes=3) for name in ("one", "two")]
    lacked: list[tuple[str, int, int]] = []
    for host in hosts:
        name = host.name
        host.agent.machines.lack_nodes = lambda ready, wanted, seconds, name=name: lacked.append((name, ready, wanted))
        host.start()
    until(lambda: ("one", 2, 3) in lacked, 120)
    third = simulated_host(store, "three", nodes=3).start()
    until(lambda: running([*hosts, third], 1), 120)
    for host in (*hosts, third):
        host.job.code = 0
    assert {host.join() for host in (*hosts, third)} == {0}
    assert {name for name, ready, _ in lacked if ready == 2} == {"one"}


class NotedMachines(LocalMachines):
    """Rented machines that note what is asked of them."""

    def __init__(self, hopeless: str | None = None) -> None:
        super().__init__(lambda _: None)
        self.asked: list[tuple[str, object]] = []
        self.hopeless = hopeless
        self.waits = True

    def keep_waiting(self) -> bool:
        self.asked.append(("keep_waiting", self.waits))
        return self.waits

    def prove(self, progress: int) -> None:
        self.asked.append(("prove", progress))
        if [name for name, _ in self.asked].count("prove") == 1:
            raise CloudError("out of reach", fix="wait")

    def lack_nodes(self, ready: int, wanted: int, seconds: float) -> str | None:
        return self.hopeless

    def set_desired(self, count: int) -> bool:
        self.asked.append(("set_desired", count))
        return True

    def replace_me(self, reason: str) -> None:
        self.asked.append(("replace_me", reason))


def test_a_machine_proves_itself_by_a_commit_of_its_own_generation_and_asks_until_it_is_heard(store, monkeypatch):
    monkeypatch.setattr(node_agent, "PROOF_SECONDS", 0.05)
    host, machines, progress = simulated_host(store, "one", nodes=1), NotedMachines(), [7]  # steps of earlier machines
    host.agent.machines = machines
    host.agent.services = replace(host.agent.services, progress=lambda: progress[0])
    host.start()
    until(lambda: running([host], 1), 120)
    time.sleep(0.3)
    assert [name for name, _ in machines.asked] == ["keep_waiting"]
    progress[0] = 10
    until(lambda: machines.asked.count(("prove", 10)) == 2, 20)  # the first request failed
    progress[0] = 20
    time.sleep(0.3)
    assert machines.asked.count(("prove", 10)) == 2 and ("prove", 20) not in machines.asked
    host.job.code = 0
    assert host.join() == 0


def test_a_machine_that_needs_no_proof_asks_for_no_progress(store, monkeypatch):
    monkeypatch.setattr(node_agent, "PROOF_SECONDS", 0.05)
    host, machines = simulated_host(store, "one", nodes=1), NotedMachines()
    machines.waits, host.agent.machines = False, machines
    asked = []
    host.agent.services = replace(host.agent.services, progress=lambda: asked.append(1) or 0)
    host.start()
    until(lambda: running([host], 1), 120)
    before = len(asked)
    time.sleep(0.3)
    assert len(asked) == before <= 1
    host.job.code = 0
    assert host.join() == 0 and machines.asked == [("keep_waiting", False), ("set_desired", 0)]


def test_a_host_ends_the_run_when_no_machine_can_be_had_any_more(store, monkeypatch):
    monkeypatch.setattr(node_agent, "WAIT_CHECK_SECONDS", 0.05)
    host = simulated_host(store, "one", nodes=2)
    host.agent.machines = machines = NotedMachines("7 machines have started since the last committed step")
    assert host.start().join() == 12
    assert ("set_desired", 0) in machines.asked
    assert any("this node leaves: 7 machines have started" in line for line in host.told)


def test_nodes_that_never_reach_each_other_cost_one_machine_and_then_the_run(store):
    hosts = [simulated_host(store, name, nodes=2, max_restarts=20) for name in ("one", "two")]
    noted = {}
    for host in hosts:
        host.agent.machines = noted[host.name] = NotedMachines()
        host.agent.services = replace(host.agent.services, has_met=lambda generation: False)
        host.start()

    def fail(generation: int, name: str) -> None:
        [host] = [each for each in hosts if each.name == name]
        until(lambda: running([host], generation), 120)
        host.job.code = 1

    fail(1, "two")
    fail(2, "two")
    assert hosts[1].join() == 3
    [(_, reason)] = [asked for asked in noted["two"].asked if asked[0] == "replace_me"]
    assert str(reason).startswith("the nodes did not reach each other, 2 times in a row")
    third = simulated_host(store, "zwei", nodes=2, max_restarts=20)
    third.agent.services = replace(third.agent.services, has_met=lambda generation: False)
    hosts.append(third.start())
    fail(3, "zwei")
    fail(4, "zwei")
    assert [third.join(), hosts[0].join()] == [1, 1]
    assert any("did not reach each other, 4 times in a row" in line for line in hosts[0].told)


def test_a_proposal_that_arrives_after_the_end_of_the_run_changes_nothing(store):
    """With node 0's job done, a job that fails, and a spare whose proposal arrives late."""
    spare = MeetingStore(store, HostIdentity.create("simulated", "spare", "1x1", "00001"))
    spare.propose(Propose(1, ("one.1",)), "127.0.0.1", 1)
    spare.view()
    done = GenerationEnd("one.1", "the run is over: exit code 0", 0)
    spare.end(EndGeneration(1, replace(done, reason="a job failed", exit_code=None)))
    spare.end(EndGeneration(1, done))
    spare.propose(Propose(2, ("spare.1",)), "127.0.0.1", 1)
    for launch, code in (("00001", 0), ("00002", None)):  # another launch resumes the run
        late = MeetingStore(store, HostIdentity.create("simulated", "late", "1x1", launch))
        end = late.view().end
        assert (None if end is None else end.exit_code) == code
    found = read_generation(store, "simulated", list_meeting(store, "simulated"))
    assert (found.number, found.exit_code, found.launch) == (2, 0, "00001")
    host = simulated_host(store, "spare", nodes=1, launch="00001").start()
    assert host.join() == 0 and not host.jobs


def test_a_host_without_a_job_leaves_a_store_that_stays_silent(store):
    host = simulated_host(store, "one", nodes=2)
    host.agent.limits = node_agent.AgentLimits(2, 10.0, patience_seconds=0.2)

    def refuse(*_: object) -> None:
        raise StoreUnreachable("list", "s3://bucket", "no route to host")

    host.agent.meeting.view = host.agent.meeting.beat = refuse  # type: ignore[method-assign]
    host.start()
    assert host.join() == 10


def test_the_job_of_a_generation_that_has_ended_claims_no_attempt(store):
    one = MeetingStore(store, HostIdentity.create("r", "one", "1x1"))
    store.write(generation_key("r", 1), b"{}")
    assert claim_attempt(store, "r", lambda: check_generation(store, "r", 1)) == 0
    store.write(generation_key("r", 2), b"{}")
    with pytest.raises(GenerationOver, match="generation 2 is the newest"):
        claim_attempt(store, "r", lambda: check_generation(store, "r", 1))
    assert claim_attempt(store, "r", lambda: check_generation(store, "r", 2)) == 1
    assert one.earlier_agents() == frozenset()


def test_a_second_agent_on_a_machine_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for run in ("r", "r" * 256):
        with machine_lock("one", run), pytest.raises(SkytrainError, match="--name"), machine_lock("one", run):
            pass


def test_a_run_whose_hosts_only_wait_ends_when_its_budget_is_spent(store, monkeypatch):
    seconds = 1000.0
    monkeypatch.setattr(meter, "boot_clock", lambda: seconds)
    own = Meter([meter.MeteredMachine("one", "boot", seconds, 0.0)], 3600.0)
    waiting = WaitingBudget(
        store, "r", replace(compose().config.budget, usd=100.0, usd_per_hour=3600.0, margin=5.0), own
    )
    assert waiting.spent(hosts=2) is None
    seconds += 40
    assert waiting.spent(hosts=2) is None
    seconds += 5
    assert waiting.spent(hosts=2) == "the budget is spent: $100.00 of $100"
    # An attempt has recorded what the run cost in truth: one of the hosts came late.
    attempt = claim_attempt(store, "r")
    store.write(f"runs/r/attempts/{attempt}/spend/00000.jsonl", b'{"usd": 60.0, "machines": {}}\n')
    assert waiting.spent(hosts=2) is None
    seconds += 15
    assert waiting.spent(hosts=2) == "the budget is spent: $100.00 of $100"


def test_the_command_trains_a_run_to_its_end(tmp_path):
    prepare(tiny_config(tmp_path), Silent())
    words = [*TINY, "trainer.steps=3", "trainer.device=cpu", "trainer.validate_every=null", f"store.root={tmp_path}"]
    command = [sys.executable, "-m", "skytrain", "node", *words, "run=r", "--nodes", "1", "--processes", "1"]
    done = subprocess.run([*command, "--address", "127.0.0.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "generation 1: node 0 of 1" in done.stderr and "step 3/3" in done.stderr
    store = open_store(str(tmp_path))
    assert read_attempt(store, "r", 0)["generation"] == 1
    assert json.loads(store.read(generation_key("r", 1, "over")))["exit_code"] == 0


def test_a_machine_prepares_data_and_keeps_its_output(tmp_path):
    words = [*TINY, f"store.root={tmp_path}", "run=prepare-tiny"]
    command = [sys.executable, "-m", "skytrain", "node", "--job", "prepare", *words, "--launch", "00001"]
    done = subprocess.run([*command, "--address", "127.0.0.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    store, config = open_store(str(tmp_path)), tiny_config(tmp_path)
    assert find_prepared(store, config.data, config.tokenizer).train.tokens
    assert [stat.key for stat in store.list("runs/prepare-tiny/job-logs/")] == ["runs/prepare-tiny/job-logs/00001.log"]
    said = [line.text for line in logs(config, "prepare-tiny", LogSelection(), None)]
    assert any(line.startswith("prepared train") for line in said)


@pytest.mark.slow
def test_a_run_whose_hosts_come_and_go_ends_with_the_weights_of_an_undisturbed_one():
    script = Path(__file__).parents[2] / "benchmarks/runs/node_campaign.py"
    done = subprocess.run([sys.executable, str(script), "--blows", "4"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(found["blows"].values()) == 4 and found["identical"]


NODES = 64


@pytest.mark.slow
def test_64_hosts_meet_within_30_s_and_again_after_the_loss_of_any_with_few_requests(fault_proxy, s3_root):
    """Agents without training, over S3, at the product's own pace. The proxy counts what reaches the server."""
    store = open_store(s3_root)
    hosts = [simulated_host(store, f"i-{number:03d}", NODES) for number in range(NODES)]
    for host in hosts:
        host.start()
    took, told, met_again = until(lambda: running(hosts, 1), 60), [], []
    for generation, rank in ((1, 0), (2, 41)):  # node 0, and another one
        lost = next(host for host in hosts if host.job is not None and host.job.rank == rank)
        lost.vanish()
        replacement = simulated_host(store, f"i-{NODES + generation:03d}", NODES).start()
        hosts = [host for host in hosts if host is not lost] + [replacement]
        ends = f"generation {generation} ends: lost {lost.agent.identity.host}"
        told.append(until(lambda ends=ends, all_=hosts: any(ends in line for host in all_ for line in host.told), 120))
        met_again.append(until(lambda number=generation + 1, all_=hosts: running(all_, number), 60))
    quiet = time.monotonic()
    until(lambda: time.monotonic() - quiet > 60, 90)  # a minute of training, then the run's end
    for host in hosts:
        host.job.code = 0
    assert {host.join() for host in hosts} == {0}
    times = [request.at for request in fault_proxy.requests]
    steady = sum(quiet <= at < quiet + 60 for at in times) / NODES
    busiest = max(bisect(times, at + 60) - number for number, at in enumerate(times)) / NODES
    print(
        f"{NODES} hosts met in {took:.1f} s; lost ones were noticed in {[round(each, 1) for each in told]} s, and the others "
        f"met again in {[round(each, 1) for each in met_again]} s; requests per host and minute: {steady:.1f} while training, "
        f"{busiest:.1f} in the busiest minute"
    )
    assert took < 30 and max(met_again) < 30
    assert steady < 20 and busiest < 20
