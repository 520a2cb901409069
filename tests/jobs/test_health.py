"""The health check of a host: GPUs, EFA devices, and sums among processes."""

from __future__ import annotations

import subprocess

import pytest

from skytrain.jobs import health, uses_efa
from skytrain.jobs.health import HostNeeds, all_reduce_problems, find_problems


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """A machine with two GPUs, as far as nvidia-smi says; `answer` is what it prints."""

    def answer(text: str, code: int = 0) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    return answer


@pytest.mark.parametrize(
    ("printed", "code", "problems"),
    [
        ("0, 0\n1, 0", 0, []),
        ("0, [N/A]\n1, [N/A]", 0, []),
        ("0, 0\n1, 3", 0, ["GPU 1 has 3 uncorrected memory errors"]),
        ("0, 0", 9, ["nvidia-smi reports 1 of 2 GPUs (exit code 9): "]),
    ],
)
def test_gpus_that_are_missing_or_have_errors_are_named(two_gpus, printed, code, problems):
    two_gpus(printed, code)
    assert find_problems(HostNeeds(1)) == problems


def test_a_machine_with_fewer_gpus_than_the_job_needs_is_not_fit(two_gpus):
    two_gpus("0, 0\n1, 0")
    assert find_problems(HostNeeds(4)) == ["the machine has 2 GPUs, and the job needs 4"]


def test_an_efa_port_that_is_down_is_named(tmp_path):
    for name, state in (("rdmap0", "4: ACTIVE"), ("rdmap1", "1: DOWN")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device/vendor").write_text("0x1d0f\n")
        (tmp_path / name / "ports/1").mkdir(parents=True)
        (tmp_path / name / "ports/1/state").write_text(f"{state}\n")
    down = "EFA device rdmap1 is 1: DOWN"
    assert list(health._efa_problems(2, tmp_path)) == [down]
    assert list(health._efa_problems(4, tmp_path)) == ["only 2 of 4 EFA devices are present", down]


@pytest.mark.parametrize(
    ("log", "problems"),
    [
        ("ip-10-0-0-5:99:120 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)", []),
        ("ip-10-0-0-5:99:120 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)", []),
        ("ip-10-0-0-5:99:120 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.0.5<0>", ["NCCL does not use EFA"]),
    ],
)
def test_a_machine_rented_with_efa_on_which_nccl_takes_another_network_is_unfit(two_gpus, monkeypatch, log, problems):
    asked = []

    def run(command, **options):
        asked.append(options.get("env", {}).get("NCCL_DEBUG"))
        printed = "0, 0\n1, 0\n" if command[0] == "nvidia-smi" else log
        return subprocess.CompletedProcess(command, 0, printed, "")

    monkeypatch.setattr(health.subprocess, "run", run)
    monkeypatch.setattr(health, "count_efa_devices", lambda folder: 4)
    found = find_problems(HostNeeds(1, efa_devices=4))
    assert [problem.partition(":")[0] for problem in found] == problems and asked[-1] == "INFO"
    assert uses_efa(log) == (not problems)


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "NVME", str(tmp_path / "nvme*"))
    assert list(health._disk_problems(tmp_path / "cache")) == []
    (tmp_path / "nvme0n1").touch()
    assert list(health._disk_problems(tmp_path / "cache")) == []
    (problem,) = health._disk_problems(tmp_path / "nvme0n1" / "cache")
    assert problem.endswith("cannot be written: Not a directory")


@pytest.mark.slow
def test_two_processes_of_a_host_sum_for_as_long_as_asked():
    assert all_reduce_problems(2, "gloo", 1.0) == []
    (problem,) = all_reduce_problems(2, "no-such-backend", 1.0)
    assert problem.startswith("an all-reduce among 2 processes failed: ")
