"""How the processes of a job find each other, compare themselves, and notice that one is gone."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from skytrain.config import SkytrainError, advice, compose, resolve_mesh
from skytrain.jobs import Ranks, ToldByFirstRank, Watchdog, count_efa_devices, node_facts
from skytrain.jobs.network import NEVER, environment, interface_towards, set_environment
from skytrain.jobs.nodes import NodesDiffer, NoRendezvous, agree, check_reachable, meet, numbers
from skytrain.jobs.ranks import LostRank
from skytrain.planning import DIMENSIONS, Mesh

TWO_NODES = [Ranks(rank, 4, rank % 2, 2) for rank in range(4)]


@pytest.fixture
def store(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    return store


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# The environment of NCCL and EFA.


def test_a_gpu_node_with_efa_gets_what_aws_recommends_and_nothing_that_it_warns_of():
    found = environment("cuda", nodes=2, interface="ens5", efa=True, gpu="NVIDIA H100 80GB HBM3")
    assert found["FI_EFA_USE_HUGE_PAGE"] == "0"
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "ens5"
    assert found["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert not set(found) & set(NEVER)


def test_without_efa_nothing_is_said_to_it():
    assert "FI_EFA_USE_HUGE_PAGE" not in environment("cuda", nodes=2)


def test_on_one_node_nccl_may_use_the_loopback_and_between_nodes_never():
    assert "NCCL_SOCKET_IFNAME" not in environment("cuda", nodes=1)
    assert environment("cuda", nodes=2)["NCCL_SOCKET_IFNAME"] == "^docker,lo,veth"


def test_gpus_without_peer_memory_copy_through_the_host():
    assert environment("cuda", nodes=1, gpu="NVIDIA A10G")["NCCL_SHM_USE_CUDA_MEMCPY"] == "1"
    assert "NCCL_SHM_USE_CUDA_MEMCPY" not in environment("cuda", nodes=1, gpu="NVIDIA L40S")


def test_what_the_user_has_set_wins_and_is_shown(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "100")  # TORCH_FR_BUFFER_SIZE of old, which torch still heeds
    for name in environment("cuda", nodes=1):
        if name != "NCCL_DEBUG":
            monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv(name, "")  # so that it is taken away again afterwards
            monkeypatch.delenv(name)
    network = set_environment("cuda", nodes=1, master=None)
    assert not {"NCCL_DEBUG", "TORCH_FR_BUFFER_SIZE"} & network.chosen.keys()
    assert network.chosen["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert "yours: NCCL_DEBUG=INFO TORCH_NCCL_TRACE_BUFFER_SIZE=100" in network.summary()


def test_torch_does_not_warn_of_what_is_set_for_its_flight_recorder():
    program = (
        "import torch.distributed as dist\n"
        "from skytrain.jobs import flight_recorder as flight\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
        "dist.barrier()\n"
        "print(flight.counts())\n"
    )
    settings = {name: value for name, value in environment("cuda", nodes=1).items() if name.startswith("TORCH_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert "last_completed_collective" in done.stdout, done.stderr
    assert "deprecated" not in done.stderr


def test_a_setting_that_does_harm_is_pointed_out(monkeypatch):
    monkeypatch.setenv("NCCL_PROTO", "simple")
    warnings = set_environment("cpu", nodes=1, master=None).warnings
    assert len(warnings) == 1
    assert "NCCL_PROTO=simple" in warnings[0] and "unset it" in warnings[0]


def test_only_amazons_adapters_count_as_efa(tmp_path):
    for name, vendor in (("rdmap0", "0x1d0f"), ("rdmap1", "0x1d0f"), ("mlx5_0", "0x15b3")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/vendor").write_text(vendor + "\n")
    assert count_efa_devices(tmp_path) == 2
    assert count_efa_devices(tmp_path / "missing") == 0


def test_the_loopback_is_no_way_to_another_node():
    assert interface_towards("127.0.0.1") is None


# Finding the others, and comparing with them.


def at_once(work) -> list[BaseException | None]:
    """What each of two nodes' ranks raises."""

    def one(ranks: Ranks) -> BaseException | None:
        try:
            work(ranks)
        except SkytrainError as error:
            return error
        return None

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, TWO_NODES))


def test_nodes_that_run_the_same_go_on(store):
    facts = node_facts(compose(["trainer.steps=500"]).config)
    assert at_once(lambda ranks: agree(store.clone(), ranks, facts)) == [None] * 4


def test_another_setting_on_one_node_is_named_with_both_values_on_every_node_and_all_stop(store):
    facts = [node_facts(compose([f"trainer.steps={500 + node}"]).config) for node in (0, 1)]
    errors = at_once(lambda ranks: agree(store.clone(), ranks, facts[ranks.node]))
    assert [type(error) for error in errors] == [NodesDiffer, ToldByFirstRank] * 2
    for error in errors:
        assert "setting trainer.steps: 500 on node 0 (" in str(error)
        assert ", 501 on node 1 (" in str(error)


def test_another_file_of_code_on_one_node_is_named(store):
    facts = node_facts(compose([]).config)
    changed = facts | {"code skytrain/jobs/ranks.py": "0123456789ab"}
    errors = at_once(lambda ranks: agree(store.clone(), ranks, changed if ranks.node else facts))
    assert "code skytrain/jobs/ranks.py: " in str(errors[0])
    assert "0123456789ab on node 1" in str(errors[0])


def test_a_file_that_is_edited_while_the_processes_of_a_node_start_is_suspected(store):
    facts = node_facts(compose([]).config)
    changed = facts | {"code skytrain/jobs/ranks.py": "0123456789ab"}
    errors = at_once(lambda ranks: agree(store.clone(), ranks, changed if ranks.rank == 1 else facts))
    assert "node 0 (" in str(errors[0]) and "a file was edited while they started" in str(errors[0])


def test_a_cache_folder_may_differ_between_nodes():
    facts = node_facts(compose(["loader.cache_dir=/scratch"]).config)
    assert "setting loader.cache_limit" in facts
    assert "setting loader.cache_dir" not in facts


def test_ranks_that_do_not_come_are_named(store):
    with pytest.raises(NoRendezvous, match=r"rank 1-3 of 4 did not join .* within 0 s; rank 0 did, on node 0 \("):
        agree(store, TWO_NODES[0], {}, timeout_seconds=0.2)


def test_a_rendezvous_that_nobody_answers_is_named_with_what_to_look_at(monkeypatch):
    endpoint = f"127.0.0.1:{closed_port()}"
    with pytest.raises(NoRendezvous, match=rf"nothing answers at the rendezvous {endpoint} after 0 s.*refused"):
        check_reachable(endpoint, timeout_seconds=0.2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", endpoint.rpartition(":")[2])
    with pytest.raises(NoRendezvous, match=f"nothing answers at the rendezvous {endpoint}"):
        meet(TWO_NODES[1], timeout_seconds=1)


def test_a_rendezvous_that_answers_is_reachable(store):
    check_reachable(f"127.0.0.1:{store.port}", timeout_seconds=5)


def test_an_endpoint_without_a_port_is_refused():
    with pytest.raises(SkytrainError, match="'head-node' is not host:port"):
        check_reachable("head-node")


def test_ranks_are_listed_in_spans():
    assert numbers([6, 0, 1, 2, 3, 9, 8]) == "0-3, 6, 8-9"


# What of a mesh lies inside a node.


@pytest.mark.parametrize(("nodes", "replicas"), [(1, 2), (2, 2), (4, 4)])
def test_hsdp_has_a_replica_for_each_node_so_that_sharding_stays_inside(nodes, replicas):
    mesh = resolve_mesh(compose(["parallel=hsdp"]).config, 8, nodes)
    assert (mesh.replicate, mesh.shard) == (replicas, 8 // replicas)


def test_tensor_ranks_are_neighbours_so_that_they_share_a_node():
    assert DIMENSIONS[-1] == "tensor"
    assert advice(Mesh(shard=4, tensor=2), ranks_per_node=4) == []
    (line,) = advice(
        Mesh(shard=2, tensor=3), ranks_per_node=4
    )  # fewer than a node has, but the second group straddles two
    assert "parallel.tensor=3 crosses nodes of 4" in line


# The watchdog.


SECONDS = 3.0  # a rank that says nothing for half of it is gone: more than a busy machine makes a thread wait


@dataclasses.dataclass
class Watched:
    """Two ranks on two hosts, seen from one process; `over` is set when the first one's process would have ended."""

    first: Watchdog
    second: Watchdog
    over: threading.Event

    def said(self, capsys) -> str:
        assert self.over.wait(30), "the watchdog saw nothing"
        return capsys.readouterr().err


@pytest.fixture
def two(store):
    over = threading.Event()
    ranks = [Ranks(rank, 2, 0, 1) for rank in range(2)]
    first = Watchdog(store, ranks[0], SECONDS, end_process=over.set)
    second = Watchdog(store, ranks[1], SECONDS, end_process=lambda: None)
    yield Watched(first, second, over)
    for watchdog in (first, second):
        watchdog._closing.set()


def test_a_rank_that_falls_silent_is_named_with_its_host_and_step(two, capsys):
    two.first.start()  # and the second never beats again
    two.first.at_step(7)
    said = two.said(capsys)
    assert said.startswith(f"error: rank 1 ({socket.gethostname()} 127.0.0.1) stopped answering ")
    assert "was last seen at step 0, starting" in said
    assert "rank 0 " in said and "is at step 7" in said


def test_ranks_that_all_wait_are_named_with_where(two, capsys):
    two.second.start()
    two.second.at_step(3)
    two.first.start()
    said = two.said(capsys)
    assert f"(parallel.timeout is {SECONDS:.0f}s)" in said and "nothing has moved for " in said
    assert "is at step 3" in said


def test_a_rank_that_ends_with_an_error_tells_the_others_which(two, capsys):
    two.second.start()
    two.first.start()
    with pytest.raises(ValueError), two.second.guarding():
        raise ValueError("no such shard")
    stop = threading.Event()

    def move() -> None:  # the others would go on
        for step in range(10_000):
            if stop.wait(0.05):
                return
            two.first.at_step(step)

    thread = threading.Thread(target=move)
    thread.start()
    said = two.said(capsys)
    stop.set()
    thread.join()
    assert "ended with an error: ValueError: no such shard" in said


def test_a_failed_collective_becomes_a_message_that_names_who_is_gone(two):
    two.first.start()
    two.second.start()
    began = time.monotonic()
    while 1 not in two.first._beats and time.monotonic() - began < 10:
        threading.Event().wait(0.01)
    two.second._closing.set()  # as when its process is killed
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(LostRank, match=r"rank 1 \(.*\) is gone, and rank 0 \(.*\) stops") as caught,
        two.first.guarding(),
    ):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")
    signal.signal(signal.SIGTERM, before)  # from here on, a rank waits for nothing but its end
    assert caught.value.exit_code == 1


def test_a_store_that_is_gone_is_named(monkeypatch, capsys):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
    over = threading.Event()
    endpoint = f"127.0.0.1:{store.port}"
    watchdog = Watchdog(client, Ranks(1, 2, 0, 1), 1.0, end_process=over.set)
    Watchdog(client, Ranks(0, 2, 0, 1), 1.0)  # its first beat
    watchdog.start()
    del store
    assert over.wait(30)
    assert f"error: {endpoint}, where the ranks of this job meet, has not answered rank 1 (" in capsys.readouterr().err
