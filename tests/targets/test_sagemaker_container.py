"""The container side of a SageMaker training job: the files that SageMaker writes, the start script, and two hosts."""

from __future__ import annotations

import ensurepip
import hashlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skytrain.aws import cloud_files
from skytrain.cli.main import main
from skytrain.config import SkytrainError
from skytrain.targets.bundle import packed
from skytrain.targets.sagemaker.requests import StartScript, entry_point
from skytrain.targets.sagemaker.target import read_host, write_failure
from skytrain.targets.wheels import skytrain_wheel
from tests.support.hosts import Host, two_hosts
from tests.support.tiny import TINY

pytestmark = pytest.mark.usefixtures("default_signals")

OUTPUTS = {"project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "bucket"}
CONFIG = {str(path): text.encode() for path, text in cloud_files(OUTPUTS, "ada").items()}
PATIENCE_SECONDS = 600


def write_resources(root: Path, host: str, interface: str, hosts: tuple[str, ...] = ("algo-1", "algo-2")) -> None:
    """As SageMaker writes them."""
    folder = root / "input/config"
    folder.mkdir(parents=True, exist_ok=True)
    group = {"instance_group_name": "homogeneousCluster", "instance_type": "ml.g5.xlarge", "hosts": list(hosts)}
    found = {
        "current_host": host, "current_instance_type": "ml.g5.xlarge", "current_group_name": "homogeneousCluster",
        "hosts": list(hosts), "instance_groups": [group], "network_interface_name": interface,
        "topology": None,
    }  # fmt: skip
    (folder / "resourceconfig.json").write_text(json.dumps(found))


def test_a_host_is_what_sagemaker_says_in_its_file_or_in_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_resources(tmp_path, "algo-2", "lo")
    found = read_host(tmp_path)
    assert (found.name, found.hosts, found.address) == ("algo-2", ("algo-1", "algo-2"), "127.0.0.1")
    write_resources(tmp_path, "algo-2", "gone")
    assert read_host(tmp_path).address is None
    with pytest.raises(SkytrainError, match="not a container of a SageMaker training job"):
        read_host(tmp_path / "elsewhere")
    told = {
        "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SM_NETWORK_INTERFACE_NAME": "lo", "SM_NUM_GPUS": "4",
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    found = read_host(tmp_path / "elsewhere")
    assert (found.name, found.hosts, found.address, found.gpus) == ("algo-1", ("algo-1",), "127.0.0.1", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hosts": ["algo-1"]}', "'current_host' is missing"),
        ("[]", "is not what SageMaker writes"),
        ('{"hosts": ["al', "is not what SageMaker writes"),
        ('{"hosts": ["algo-1"], "current_host": "algo-2"}', "^[^:]*: this host, algo-2, is not among the hosts algo-1"),
    ],
)
def test_an_incomplete_file_of_sagemaker_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "input/config/resourceconfig.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(SkytrainError, match=message):
        read_host(tmp_path)


def test_the_reason_of_a_failure_is_one_line_of_at_most_1024_characters(tmp_path: Path) -> None:
    write_failure(tmp_path, "no such file\n  look for it" + "." * 2000)
    text = (tmp_path / "output/failure").read_text()
    assert text.startswith("no such file look for it...") and len(text) == 1024


def test_a_job_with_too_few_hosts_says_so_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in CONFIG.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    monkeypatch.chdir(tmp_path)
    write_resources(tmp_path, "algo-1", "lo", ("algo-1",))
    words = [*TINY, "trainer.device=cpu", "cloud=sagemaker", f"cloud.sagemaker.root={tmp_path}", "store.root=store"]
    monkeypatch.setattr(sys, "argv", ["skytrain", "node", *words, "--nodes", "2", "--processes", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert (tmp_path / "output/failure").read_text() == "the training job has 1 hosts, and the run is planned for 2"


def test_packages_that_were_changed_are_not_installed_and_the_job_says_why(tmp_path: Path) -> None:
    bundle, launch = (tmp_path / "ml/input/data" / name for name in ("bundle", "launch"))
    bundle.mkdir(parents=True)
    launch.mkdir()
    (bundle / "skytrain-1-py3-none-any.whl").write_bytes(b"changed")
    (bundle / "SHA256SUMS").write_text(f"{'0' * 64}  skytrain-1-py3-none-any.whl\n")
    script = StartScript(
        run="gpt2",
        command=("node",),
        python=sys.executable,
        bundle_sha256=hashlib.sha256((bundle / "SHA256SUMS").read_bytes()).hexdigest(),
        root=str(tmp_path / "ml"),
        work=str(tmp_path / "work"),
    )
    (launch / "start.sh").write_text(script.render())
    assert subprocess.run(["bash", launch / "start.sh"], capture_output=True).returncode == 3
    assert (tmp_path / "ml/output/failure").read_text() == "the packages of the run are damaged: launch it again"
    assert not (tmp_path / "work/venv").exists()


def test_a_container_runs_the_start_script_that_was_launched_and_no_other(tmp_path: Path) -> None:
    launch = tmp_path / "input/data/launch"
    launch.mkdir(parents=True)
    script = f"touch {tmp_path}/ran"
    (launch / "start.sh").write_text(script)
    entry = entry_point(str(tmp_path), hashlib.sha256(script.encode()).hexdigest())
    assert all(len(word) <= 256 for word in entry)  # SageMaker's limit
    assert subprocess.run(entry, capture_output=True).returncode == 0 and (tmp_path / "ran").exists()
    (launch / "start.sh").write_text(f"touch {tmp_path}/attacked")
    assert subprocess.run(entry, capture_output=True).returncode == 3 and not (tmp_path / "attacked").exists()
    assert "launch the run again" in (tmp_path / "output/failure").read_text()


def make_image(folder: Path) -> Path:
    """A Python that has all packages of this one but Skytrain, as a container image has; returns it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [there] = folder.glob("lib/python3*/site-packages")
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if "skytrain" not in entry.name.lower():
            (there / entry.name).symlink_to(entry)
    return folder / "bin/python"


def make_bundle_channel(folder: Path) -> None:
    folder.mkdir(parents=True)
    skytrain_wheel(folder)
    for wheel in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
        shutil.copy(wheel, folder)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.glob("*.whl"))]
    (folder / "SHA256SUMS").write_text("".join(sums))


class Containers:
    """Two hosts, each with a folder of its own that it sees at the same place, as containers see /opt/ml."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path) -> None:
        self.hosts, self.folder, self.store = hosts, folder, folder / "store"
        self.ml, self.python = folder / "ml", make_image(folder / "image")
        self.ml.mkdir()
        make_bundle_channel(folder / "bundle")
        self.running: list[subprocess.Popen[bytes]] = []

    def own(self, number: int) -> Path:
        return self.folder / f"ml-{number}"

    def log(self, number: int) -> Path:
        return self.folder / f"algo-{number}.log"

    def start(self, *words: str) -> None:
        """A new attempt of the job: the same channels, and containers that are empty otherwise."""
        command = (
            "node",
            *words,
            f"cloud.sagemaker.root={self.ml}",
            "--nodes",
            "2",
            "--processes",
            "2",
            "--launch",
            "1",
        )
        script = StartScript(
            run="run",
            command=command,
            python=str(self.python),
            bundle_sha256=hashlib.sha256((self.folder / "bundle/SHA256SUMS").read_bytes()).hexdigest(),
            config_sha256=hashlib.sha256(packed(CONFIG)).hexdigest(),
            root=str(self.ml),
            work=f"{self.ml}/work",
        )
        self.running = []
        for number, host in enumerate(self.hosts, 1):
            own = self.own(number)
            shutil.rmtree(own, ignore_errors=True)
            write_resources(own, f"algo-{number}", host.interface)
            launch = own / "input/data/launch"
            launch.mkdir(parents=True)
            shutil.copytree(self.folder / "bundle", own / "input/data/bundle")
            (launch / "start.sh").write_text(script.render())
            (launch / "config.tar.gz").write_bytes(packed(CONFIG))
            entry = (
                f"mount --bind {own} {self.ml} && unset PYTHONPATH && exec bash {self.ml}/input/data/launch/start.sh"
            )
            environment = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-2", "OMP_NUM_THREADS": "1"}
            self.running.append(host.start(["bash", "-c", entry], self.log(number), environment))

    def tell(self) -> str:
        return "\n".join(self.log(number).read_text()[-3000:] for number in (1, 2))

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, self.tell()
            time.sleep(0.1)

    def until_ended(self) -> list[int]:
        self.until(lambda: all(each.poll() is not None for each in self.running))
        return [int(each.returncode) for each in self.running]

    def kill(self, number: int) -> None:
        """SIGKILL to all processes of a container."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.hosts[number - 1].namespace], capture_output=True, text=True, check=True
        )
        for process in found.stdout.split():
            try:
                os.kill(int(process), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.running[number - 1].wait()


@pytest.mark.slow
def test_a_job_that_is_interrupted_and_started_again_ends_bit_for_bit_as_one_that_was_not(tmp_path: Path) -> None:
    import torch

    from skytrain.checkpoints import committed_steps, load_model
    from skytrain.pipelines.prepare import prepare
    from skytrain.runs import Silent, attempt_numbers
    from skytrain.storage import open_store
    from tests.support.tiny import tiny_config
    from tests.targets.test_slurm_cluster import numbers

    steps = 150
    words = (
        *TINY, "model.dropout=0.1", "trainer.device=cpu", "trainer.micro_batch=2", f"trainer.steps={steps}",
        "trainer.validate_every=50", "trainer.checkpoint_every=10", "parallel=fsdp", "parallel.timeout=30s",
        "cloud=sagemaker", f"store.root={tmp_path / 'store'}", "store.sse=null",
    )  # fmt: skip
    prepare(tiny_config(tmp_path / "store"), Silent())
    store = open_store(str(tmp_path / "store"))
    with two_hosts() as hosts:
        job = Containers(hosts, tmp_path)
        try:
            job.start(*words, "run=hit")
            job.until(lambda: len(committed_steps(store, "hit")) > 1 or job.running[0].poll() is not None)
            for each in job.running:  # to the first process of the container, as `docker stop` does
                each.send_signal(signal.SIGTERM)
            job.until(lambda: "SIGTERM received" in job.log(2).read_text())
            job.kill(2)  # before it has saved
            code = job.until_ended()[0]
            job.kill(1)
            saved, attempts = max(committed_steps(store, "hit")), len(attempt_numbers(store, "hit"))
            assert code in (7, 12) and saved < steps, job.tell()
            assert not (job.own(1) / "output/failure").exists()

            job.start(*words, "run=hit")
            assert job.until_ended() == [0, 0], job.tell()
            assert len(attempt_numbers(store, "hit")) > attempts
            job.start(*words, "run=whole")
            assert job.until_ended() == [0, 0], job.tell()
        finally:
            for number, each in enumerate(job.running, 1):
                if each.poll() is None:
                    job.kill(number)
    assert numbers(store, "hit") == numbers(store, "whole") != {}
    first, second = (load_model(store, f"{run}@{steps}").model.state_dict() for run in ("hit", "whole"))
    assert first and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_an_agent_that_dies_at_an_import_ends_the_job_with_the_import_that_failed(tmp_path: Path) -> None:
    ml, python = tmp_path / "ml", make_image(tmp_path / "image")
    [broken] = (tmp_path / "image").glob("lib/python3*/site-packages/typer")
    broken.unlink()  # its metadata is still there, so the bundle installs
    make_bundle_channel(ml / "input/data/bundle")
    launch = ml / "input/data/launch"
    launch.mkdir()
    (launch / "config.tar.gz").write_bytes(packed(CONFIG))
    script = StartScript(
        run="gpt2",
        command=("node",),
        python=str(python),
        bundle_sha256=hashlib.sha256((ml / "input/data/bundle/SHA256SUMS").read_bytes()).hexdigest(),
        config_sha256=hashlib.sha256(packed(CONFIG)).hexdigest(),
        root=str(ml),
        work=str(tmp_path / "work"),
    )
    (launch / "start.sh").write_text(script.render())
    ended = subprocess.run(["bash", launch / "start.sh"], capture_output=True, text=True)
    reason = (ml / "output/failure").read_text()
    assert ended.returncode == 1 and reason == "ModuleNotFoundError: No module named 'typer' (exit code 1)", ended


@pytest.mark.slow
def test_a_job_that_fails_ends_with_the_reason_of_its_run(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        job = Containers(hosts, tmp_path)
        words = (
            *(word for word in TINY if not word.startswith("data")),
            "data=python-docs",  # data=synthetic would be made at once
            "trainer.device=cpu",
            "trainer.micro_batch=2",
            "trainer.steps=5",
            "cloud=sagemaker",
            "store.sse=null",
            f"store.root={tmp_path / 'store'}",
        )
        job.start(*words, "run=lost", "parallel=fsdp")  # nobody has prepared its data
        codes = job.until_ended()
    assert codes == [2, 2], job.tell()
    reasons = {(job.own(number) / "output/failure").read_text() for number in (1, 2)}
    assert all(reason.endswith("(exit code 2)") for reason in reasons), reasons
    assert any("holds no tokens" in reason and "run `skytrain prepare`" in reason for reason in reasons), reasons
