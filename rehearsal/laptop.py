"""The computer that launches: a folder as after `skytrain cloud init` and `skytrain plan`, and `skytrain launch` in it.

Two things differ from a user's: the plan's machines have two GPUs, which stand for two ranks on the CPU, and the image
has every package of this Python but Skytrain's own, so that a bundle has two wheels instead of 220 MB of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.tiny import TINY
from tests.targets.plans import offer, plan

from skytrain.aws import cloud_files
from skytrain.config import compose, source_hash
from skytrain.planning import PlannedOffer, write_plan
from skytrain.planning.plan_file import PlannedCode
from skytrain.storage import open_store
from skytrain.targets.wheels import skytrain_wheel

from .account import Account

STEPS = 120
SETTINGS = (
    *TINY,
    "model.dropout=0.1",
    "trainer.micro_batch=2",
    f"trainer.steps={STEPS}",
    "trainer.validate_every=20",
    "trainer.checkpoint_every=5",
    "trainer.max_restarts=20",
    "parallel=fsdp",
    "parallel.timeout=20s",
)
FIRST = "g5.12xlarge"
SECOND = "g6.12xlarge"
PRICES = {
    (FIRST, "us-east-2a"): 2.2203,
    (FIRST, "us-east-2b"): 2.4310,
    (SECOND, "us-east-2a"): 2.6105,
    (SECOND, "us-east-2b"): 2.3002,
}
RANKS = 2  # of a machine
# Of the machines that a pipeline chooses for itself, to prepare data and to finish: the cheapest of the catalogue.
PRICES |= {("c7i.xlarge", "us-east-2a"): 0.0473, ("g6.2xlarge", "us-east-2a"): 0.2566}


@dataclass(frozen=True)
class Wanted:
    """One launch: its run, its machines and its limits."""

    run: str
    nodes: int = 2
    kill_after_seconds: float = 4 * 3600.0
    patience: str = "15m"
    settings: tuple[str, ...] = ()

    def offers(self) -> list[PlannedOffer]:
        common = {"gpus_per_node": RANKS, "kill_after_seconds": self.kill_after_seconds, "efa_interfaces": 0}
        return [
            offer(FIRST, self.nodes, **common),
            offer(SECOND, self.nodes, usd_per_hour_each=[2.30, 2.61], **common),
        ]


class Laptop:
    """The folder, and the environment that leads AWS's clients to the rehearsal."""

    def __init__(self, folder: Path, account: Account, bucket: str, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.root = f"s3://{bucket}/demo"
        ground = account.ground
        outputs = {
            "project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": bucket,
            "private_subnets": ground.subnets, "public_subnets": {}, "node_subnets": "private",
            "security_group_id": ground.group, "operator_role_arn": ground.roles.operator,
            "node_role_arn": ground.roles.node, "viewer_role_arn": ground.roles.viewer,
            "machine_roles": ground.machine_roles, "instance_profile_name": "demo-node", "prepare_instance_profile_name": "demo-prepare",
        }  # fmt: skip
        for path, text in cloud_files(outputs, "ada").items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.image = make_image(folder / "image")

    def plan(self, wanted: Wanted) -> Path:
        words = [*SETTINGS, f"run={wanted.run}", *wanted.settings]
        made = replace(
            plan(*wanted.offers()), code=PlannedCode("0", source_hash()), words=words, config=compose(words).values
        )
        path = self.folder / f"{wanted.run}.json"
        write_plan(made, path)
        return path

    def launch(self, wanted: Wanted, log: Path, follow: bool) -> subprocess.Popen[bytes]:
        """Start `skytrain launch --yes`; the bundle is in the store before."""
        words = self.launch_words(wanted)
        self.upload_bundles(words)
        return self.start(*words, "--yes", "--follow" if follow else "--no-follow", log=log)

    def start(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a command of Skytrain in the folder."""
        environment = {**os.environ, **self.environment}
        with log.open("ab") as out:
            return subprocess.Popen(
                skytrain(*words), cwd=self.folder, env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, preexec_fn=_heed_interrupts,
            )  # fmt: skip

    def launch_job(self, words: Sequence[str]) -> str:
        """Run `skytrain launch --yes` of a job that needs no plan, to its end; return what it printed."""
        self.upload_bundles(words)
        return self.command(*words, "--yes").stdout

    def launch_words(self, wanted: Wanted, job: str = "train") -> list[str]:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        place = [f"cloud.python={self.image}", f"cloud.python_version='{version}'", f"cloud.patience={wanted.patience}"]
        return ["launch", job, "--plan", str(self.plan(wanted)), "cloud=ec2", *place]

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of Skytrain in the folder, to its end."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            skytrain(*words), cwd=self.folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if check and done.returncode:
            raise RuntimeError(f"skytrain {words[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def upload_bundles(self, words: Sequence[str]) -> str:
        """Upload the launch's bundles, under the names that boot scripts will ask for; return what a dry run says."""
        dry = self.command(*words, "--dry-run")
        for one in json.loads(dry.stdout):
            if one["operation"] == "CreateLaunchTemplate":
                data = one["parameters"]["LaunchTemplateData"]
                self._upload_bundle(base64.b64decode(data["UserData"]).decode())
        return dry.stderr

    def _upload_bundle(self, script: str) -> None:
        """Upload the bundle of a boot script, unless it is there."""
        found = re.search(rf"--recursive {self.root}/(bundles/\w+) ", script)
        assert found is not None, script
        store = open_store(self.root)
        key = found[1]
        if store.exists(f"{key}/SHA256SUMS"):
            return
        with tempfile.TemporaryDirectory(prefix="skytrain-bundle-") as name:
            wheels = [skytrain_wheel(Path(name)), pip_wheel(Path(name))]
            if "image.pth" not in script:  # a plain image has no packages: their wheels are in the bundle
                wheels.append(packages_wheel(Path(name), self.image))
            for path in wheels:
                store.upload(path, f"{key}/{path.name}")
            sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in wheels)
            store.create(f"{key}/SHA256SUMS", sums.encode())


def _heed_interrupts() -> None:
    """Undo what a shell does to programs that it starts with &: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def skytrain(*words: str) -> list[str]:
    return [sys.executable, "-m", "skytrain", *words]


def make_image(folder: Path) -> Path:
    """Make the Python of the machine image: all packages of this one, except Skytrain."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [place] = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "skytrain" not in path.name and not path.name.startswith("__"):
            (place / path.name).symlink_to(path)
    return folder / "bin" / "python"


def packages_wheel(folder: Path, image: Path) -> Path:
    """Write a wheel that stands for those of all other packages: it only says where they are."""
    from skytrain.targets.wheels import write_wheel

    [place] = image.parents[1].glob("lib/python*/site-packages")
    files = {"rehearsed_packages.pth": f"{place}\n".encode()}
    about = "Metadata-Version: 2.1\nName: rehearsed_packages\nVersion: 1\n"
    return write_wheel(folder, "rehearsed_packages", "1", files, about)


def pip_wheel(folder: Path) -> Path:
    """Write a wheel of the pip that is installed here."""
    from importlib import metadata

    from skytrain.targets.wheels import write_wheel

    found = metadata.distribution("pip")
    files = {
        str(file): Path(str(found.locate_file(file))).read_bytes()
        for file in found.files or []
        if file.parts[0] == "pip" and file.suffix != ".pyc"
    }
    return write_wheel(folder, "pip", found.version, files, found.read_text("METADATA") or "")
