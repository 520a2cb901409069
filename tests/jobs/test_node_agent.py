"""The node agent: hosts meet through a store, run a job together, and meet again when one goes."""

from __future__ import annotations

import json

import pytest

from skytrain.config import SkytrainError
from skytrain.jobs import node_agent, supervisor
from skytrain.jobs.generations import MeetingRules
from skytrain.jobs.meeting import HostIdentity, MeetingStore
from skytrain.jobs.node import machine_lock
from skytrain.runs import GenerationOver, Notice, check_generation, claim_attempt, generation_key, list_meeting
from skytrain.storage import Store, open_store
from tests.jobs.node_simulation import SimulatedHost, simulated_host, until


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    """With agents that ask every moment: the folder is on this machine."""
    monkeypatch.setattr(node_agent, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(node_agent, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(node_agent, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "FIRST_WAIT_SECONDS", 0.05)
    return open_store(str(tmp_path))


def running(hosts: list[SimulatedHost], generation: int) -> bool:
    return all(host.job is not None and host.job.generation.number == generation for host in hosts)


def test_two_hosts_meet_train_and_leave_together(store):
    hosts = [simulated_host(store, name, nodes=2).start() for name in ("one", "two")]
    until(lambda: running(hosts, 1), 20)
    jobs = [host.job for host in hosts]
    assert sorted(job.rank for job in jobs) == [0, 1]
    assert len({(job.generation.rendezvous_id, job.generation.port) for job in jobs}) == 1
    for job in jobs:
        job.code = 0
    assert [host.join() for host in hosts] == [0, 0]
    assert {each.presence for each in list_meeting(store, "simulated").hosts} == {"left"}


def test_a_notice_ends_the_generation_and_a_spare_takes_the_place(store):
    hosts = [simulated_host(store, name, nodes=2).start() for name in ("one", "two")]
    until(lambda: running(hosts, 1), 20)
    spare = simulated_host(store, "three", nodes=2).start()
    hosts[0].notice = Notice("spot", "EC2 will terminate this instance")
    until(lambda: running([hosts[1], spare], 2), 20)
    assert hosts[0].join() == 7
    end = json.loads(store.read(generation_key("simulated", 1, "ended")))
    assert end["reason"] == "EC2 will terminate this instance" and end["saves"]
    for host in (hosts[1], spare):
        host.job.code = 6
    assert [host.join() for host in (hosts[1], spare)] == [6, 6]


def test_a_job_that_fails_without_progress_is_started_again_so_often_and_then_ends_the_run(store):
    hosts = [simulated_host(store, name, nodes=2, max_restarts=2).start() for name in ("one", "two")]
    for generation in (1, 2, 3):
        until(lambda number=generation: running(hosts, number), 20)
        hosts[0].job.code = 1
    assert [host.join() for host in hosts] == [1, 1]
    assert any("3 times in a row without progress" in line for line in hosts[1].told)


def test_a_host_that_fails_its_health_check_thrice_is_reported_for_replacement(store, monkeypatch):
    host = simulated_host(store, "one", nodes=1)
    host.problems.append("nvidia-smi reports 7 of 8 GPUs")
    host.start()
    assert host.join() == 3
    assert host.replaced == ["it failed its health check 3 times: nvidia-smi reports 7 of 8 GPUs"]
    assert list_meeting(store, "simulated").hosts == ()


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
    with machine_lock("one", "r"), pytest.raises(SkytrainError, match="--name"), machine_lock("one", "r"):
        pass


def test_the_requests_of_an_agent_stay_below_twenty_a_minute():
    looks, beats = 60 / node_agent.LOOK_SECONDS, 60 / MeetingRules(2).beat_seconds
    waiting = 2 * 60 / node_agent.WAIT_CHECK_SECONDS
    assert looks + beats + waiting < 20
