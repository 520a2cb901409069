"""The pods of a job, run for real: two hosts as network namespaces, with the command and variables of the rendered job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import cloud_files
from skytrain.config import compose
from skytrain.targets.eks.launch import EksRequest, prepare_eks_launch
from skytrain.targets.eks.requests import POD_CONFIG_FOLDER
from tests.support.hosts import Host, two_hosts
from tests.support.tiny import TINY

from .test_eks import IMAGE

pytestmark = pytest.mark.usefixtures("default_signals")

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 400
OUTPUTS = {"project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "bucket"}
FILES = {str(path): text for path, text in cloud_files(OUTPUTS, "ada").items()}


def rendered_container(folder: Path, *words: str) -> dict[str, Any]:
    """The container of a smoke test's job on two pods, as `launch` renders it."""
    settings = (
        *TINY, "cloud=eks", f"cloud.eks.image={IMAGE}", "cloud.eks.cpus=1", "cloud.eks.nodes=2",
        f"cloud.eks.volumes={{store: '{folder}'}}", f"store.root={folder / 'store'}", "store.sse=null", "trainer.device=cpu",
    )  # fmt: skip
    files = {path: text.encode() for path, text in FILES.items()}

    def no_session() -> Any:
        raise AssertionError("nothing is asked")

    request = EksRequest(compose([*settings, *words], config_dirs=[folder / "config"]), None, files)
    launch = prepare_eks_launch(request, no_session, ask=False)
    found: dict[str, Any] = launch.objects[-1]["spec"]["template"]["spec"]["containers"][0]
    return found


class Pods:
    """Two pods of a job. Each has the container's arguments, and the variables that Kubernetes would set."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path) -> None:
        self.hosts, self.folder, self.running = hosts, folder, dict[int, subprocess.Popen[bytes]]()
        self.logs: dict[int, Path] = {}

    def start(self, index: int, container: dict[str, Any]) -> None:
        host, number = self.hosts[index], len(list(self.folder.glob("*.log")))
        fields = {
            "metadata.name": f"pod-{index}-{number}",
            "status.podIP": host.address,
            "spec.nodeName": f"node-{index}",
        }
        variables = {
            each["name"]: each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
        }
        work = self.folder / f"work-{number}"
        work.mkdir()
        variables |= {
            "JOB_COMPLETION_INDEX": str(index), "HOME": str(work), "TMPDIR": str(work), "OMP_NUM_THREADS": "1",
            "SKYTRAIN_CACHE": str(work / "cache"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip
        arguments = [word.replace(POD_CONFIG_FOLDER, str(self.folder / "config")) for word in container["args"]]
        self.logs[index] = self.folder / f"pod-{index}-{number}.log"
        command = ["bash", str(ROOT / "docker/entrypoint.sh"), *arguments]
        self.running[index] = host.start(command, self.logs[index], variables)

    def tell(self) -> str:
        return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in self.logs.values())

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, self.tell()
            time.sleep(0.1)

    def ended(self, index: int) -> int:
        self.until(lambda: self.running[index].poll() is not None)
        return int(self.running[index].returncode)

    def kill(self, index: int) -> None:
        """SIGKILL to all processes of a pod, as when its node is lost."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.hosts[index].namespace], capture_output=True, text=True, check=True
        )
        for process in found.stdout.split():
            try:
                os.kill(int(process), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.running[index].wait()


@pytest.mark.slow
def test_pods_that_are_killed_or_drained_and_replaced_end_bit_for_bit_as_those_that_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from skytrain.checkpoints import committed_steps, load_model
    from skytrain.pipelines.prepare import prepare
    from skytrain.runs import Silent, attempt_numbers
    from skytrain.storage import open_store
    from tests.support.tiny import tiny_config
    from tests.targets.test_slurm_cluster import numbers

    steps = 240
    for path, text in FILES.items():
        (tmp_path / "config" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "config" / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    words = (
        "model.dropout=0.1", "trainer.micro_batch=2", f"trainer.steps={steps}", "trainer.validate_every=50",
        "trainer.checkpoint_every=10", "parallel=fsdp", "parallel.timeout=30s",
    )  # fmt: skip
    prepare(tiny_config(tmp_path / "store"), Silent())
    store = open_store(str(tmp_path / "store"))
    with two_hosts() as hosts:
        pods = Pods(hosts, tmp_path)
        try:
            hit = rendered_container(tmp_path, *words, "run=hit")
            for index in (0, 1):
                pods.start(index, hit)
            pods.until(lambda: len(committed_steps(store, "hit")) > 1)
            pods.kill(1)
            pods.start(1, hit)  # its replacement: the same index, another pod
            pods.until(lambda: len(attempt_numbers(store, "hit")) > 1)
            saved = max(committed_steps(store, "hit"))
            pods.until(lambda: max(committed_steps(store, "hit")) > saved)
            pods.running[0].send_signal(signal.SIGTERM)  # Karpenter drains its node
            assert pods.ended(0) == 7, pods.tell()  # saved within the grace period
            assert max(committed_steps(store, "hit")) < steps
            pods.start(0, hit)
            assert (pods.ended(0), pods.ended(1)) == (0, 0), pods.tell()
            assert len(attempt_numbers(store, "hit")) > 2
            assert any("metrics for Prometheus: http://10.77.0." in path.read_text() for path in tmp_path.glob("*.log"))

            whole = rendered_container(tmp_path, *words, "run=whole")
            for index in (0, 1):
                pods.start(index, whole)
            assert (pods.ended(0), pods.ended(1)) == (0, 0), pods.tell()
        finally:
            for index, each in pods.running.items():
                if each.poll() is None:
                    pods.kill(index)
    assert numbers(store, "hit") == numbers(store, "whole") != {}
    first, second = (load_model(store, f"{run}@{steps}").model.state_dict() for run in ("hit", "whole"))
    assert first and all(torch.equal(first[name], second[name]) for name in first)
