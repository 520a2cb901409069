"""The SageMaker request that trains a plan: one training job, whose containers run the node agent.

Checkpoints go straight to the store, so the request has no CheckpointConfig: SageMaker's copying is asynchronous and
says nothing when it fails.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...aws import Call, Tags
from ...config import CloudConfig, SageMakerConfig, SkytrainError, format_seconds
from ...planning import PlannedOffer, load_catalog
from ..bundle import INSTALL, UNKNOWN_SHA256, UNPACK
from ..jobs import scheduler_job_name

MOST_SECONDS = 28 * 86400  # of a training job
LEAST_PENDING_SECONDS = 1800
# in the channel `launch`
ENTRY = "start.sh"
CONFIG = "config.tar.gz"
# channels
LAUNCH = "launch"
BUNDLE = "bundle"
IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<name>[a-z0-9._/-]+)"
    r"@(?P<digest>sha256:[0-9a-f]{64})"
)
# Of the lines that training prints: `step 20/300 | loss 4.2 | lr ...` and `step 20 | validation loss 4.3`.
NUMBER = r"([-+0-9.e]+|nan|inf)"
METRICS = {
    "train/step": r"step ([0-9]+)/[0-9]+ \| loss",
    "train/loss": rf"\| loss {NUMBER}",
    "train/lr": rf"\| lr {NUMBER}",
    "train/grad_norm": rf"\| norm {NUMBER}",
    "perf/step_ms": r"\| ([0-9]+) ms \|",
    "perf/mfu_percent": r"\| mfu ([0-9.]+)%",
    "cost/usd": r"\| \$([0-9.]+) of \$",
    "val/loss": rf"\| validation loss {NUMBER}",
}


@dataclass(frozen=True)
class EcrImage:
    """A container image in a registry of ECR, by digest."""

    account: str
    region: str
    name: str
    digest: str


@dataclass(frozen=True)
class JobPlaces:
    """s3:// URLs of a training job."""

    launch: str  # the start script and the user's configuration
    bundle: str  # packages
    output: str  # what SageMaker itself uploads; nothing of ours
    tensorboard: str


@dataclass(frozen=True)
class SageMakerJobSpec:
    """All that the request is made of."""

    run: str
    launch: str
    offer: PlannedOffer
    tags: Tags
    cloud: CloudConfig
    places: JobPlaces
    launched_at: datetime
    script_sha256: str = UNKNOWN_SHA256  # of the start script, which the container checks before it runs it

    @property
    def name(self) -> str:
        return scheduler_job_name(self.tags.project, self.run, self.launch)

    @property
    def run_seconds(self) -> int:
        return int(self.offer.kill_after_seconds)

    @property
    def wait_seconds(self) -> int:
        return max(LEAST_PENDING_SECONDS, int(self.cloud.sagemaker.wait))

    @property
    def kill_at(self) -> datetime:
        """When SageMaker has ended the job, whatever happens."""
        return self.launched_at + timedelta(seconds=self.wait_seconds + self.run_seconds)

    def request(self) -> Call:
        """Return the request; raises SkytrainError for settings that SageMaker refuses."""
        wanted = self.cloud.sagemaker
        offer = self.offer
        check_settings(wanted, offer)
        key = self.cloud.kms_key
        body: dict[str, Any] = {
            "TrainingJobName": self.name,
            "RoleArn": job_role(self.cloud),
            "AlgorithmSpecification": {
                "TrainingImage": wanted.image,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": entry_point(wanted.root, self.script_sha256),
                "MetricDefinitions": [{"Name": name, "Regex": regex} for name, regex in METRICS.items()],
                "EnableSageMakerMetricsTimeSeries": True,
            },
            "InputDataConfig": [_channel(LAUNCH, self.places.launch), _channel(BUNDLE, self.places.bundle)],
            "OutputDataConfig": {"S3OutputPath": self.places.output, **({"KmsKeyId": key} if key else {})},
            "ResourceConfig": _resources(self),
            "StoppingCondition": self._stopping(),
            "RetryStrategy": {"MaximumRetryAttempts": wanted.retries},
            "TensorBoardOutputConfig": {"S3OutputPath": self.places.tensorboard},
            "VpcConfig": {
                "Subnets": _needed(sorted(self.cloud.subnets.private.values()), "subnets.private"),
                "SecurityGroupIds": [_needed(self.cloud.security_group, "security_group")],
            },
            "EnableNetworkIsolation": False,  # the store is in S3
            "EnableInterContainerTrafficEncryption": wanted.encrypt_traffic,
            "EnableManagedSpotTraining": offer.market == "spot",
            "Environment": self._environment(),
            "Tags": replace(self.tags, run=self.run, expires_at=self.kill_at).pairs(),
        }
        return Call("sagemaker", "CreateTrainingJob", body)

    def _stopping(self) -> dict[str, int]:
        """Both limits cover all attempts together; a job on demand has its own limit for waiting."""
        if self.offer.market == "spot":
            return {
                "MaxRuntimeInSeconds": self.run_seconds,
                "MaxWaitTimeInSeconds": self.run_seconds + self.wait_seconds,
            }
        return {"MaxRuntimeInSeconds": self.run_seconds, "MaxPendingTimeInSeconds": self.wait_seconds}

    def _environment(self) -> dict[str, str]:
        region = _needed(self.cloud.region, "region")
        # A container's metadata service is not the instance's: credentials come from the role, spot notices as signals.
        return {"AWS_REGION": region, "AWS_EC2_METADATA_DISABLED": "true", **self.cloud.sagemaker.environment}


def entry_point(root: str, script_sha256: str) -> list[str]:
    """Return what the container runs: the start script of the channel, if it is the one that was launched."""
    check = (
        'sha256sum --quiet -c <<< "$0  $1" && exec bash "$1"; '
        "mkdir -p $2; echo the start script was changed: launch the run again | tee $2/failure; exit 3"
    )
    return ["bash", "-c", check, script_sha256, f"{root}/input/data/{LAUNCH}/{ENTRY}", f"{root}/output"]


def job_role(cloud: CloudConfig) -> str:
    """Return the role of the containers."""
    return str(_needed(cloud.sagemaker.role or cloud.roles.node, "roles.node"))


def ecr_image(wanted: SageMakerConfig) -> EcrImage:
    """Return the image; raises SkytrainError unless it is in ECR and named by digest."""
    if wanted.image is None:
        raise SkytrainError(
            "cloud.sagemaker.image is not set, and the store records none\n"
            "  skytrain image push makes and records one; or an image in ECR with PyTorch: cloud.sagemaker.image=ACCOUNT.dkr.ecr.REGION.amazonaws.com/"
            "NAME@sha256:...; docs/sagemaker.md shows how to find AWS's own"
        )
    match = IMAGE.fullmatch(wanted.image)
    if match is None:
        raise SkytrainError(
            f"cloud.sagemaker.image={wanted.image}: not an image in ECR by digest\n"
            "  SageMaker runs ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME@sha256:...; a tag may be moved to another image"
        )
    return EcrImage(**match.groupdict())


def check_settings(wanted: SageMakerConfig, offer: PlannedOffer) -> None:
    """Raise SkytrainError for what SageMaker refuses, or would do in silence."""
    ecr_image(wanted)
    spot = offer.market == "spot"
    if spot and (wanted.warm_pool or wanted.training_plan):
        name = "warm_pool" if wanted.warm_pool else "training_plan"
        raise SkytrainError(
            f"cloud.sagemaker.{name} is set, and the plan's machines are spot: SageMaker refuses both together\n"
            "  leave it out, or plan again with --market on-demand"
        )
    if wanted.warm_pool and wanted.training_plan:
        raise SkytrainError(
            "cloud.sagemaker.warm_pool and cloud.sagemaker.training_plan: SageMaker takes one of them\n"
            "  machines of a training plan are yours for its whole time: leave out the warm pool"
        )
    if offer.kill_after_seconds > MOST_SECONDS:
        raise SkytrainError(
            f"the plan may run for {format_seconds(round(offer.kill_after_seconds))}; a training job ends after 28 days\n"
            "  plan more or larger machines, or fewer tokens"
        )
    if wanted.wait > MOST_SECONDS:
        raise SkytrainError(
            f"cloud.sagemaker.wait={format_seconds(wanted.wait)}: a job waits for machines for at most 28 days\n  lower it"
        )


def _channel(name: str, url: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"{url}/", "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def _resources(job: SageMakerJobSpec) -> dict[str, Any]:
    offer = job.offer
    wanted = job.cloud.sagemaker
    size = wanted.volume_gb or offer.disk_gb
    disk = load_catalog().instance(offer.instance_type).nvme_gb
    # With local disks there is no volume: SageMaker refuses a key for it, and more than the disks hold.
    volume: dict[str, Any] = {"VolumeSizeInGB": min(size, disk) if disk else size}
    if not disk and job.cloud.kms_key:
        volume["VolumeKmsKeyId"] = job.cloud.kms_key
    return {
        "InstanceType": f"ml.{offer.instance_type}",
        "InstanceCount": offer.nodes,
        **volume,
        **({"KeepAlivePeriodInSeconds": int(wanted.warm_pool)} if wanted.warm_pool else {}),
        **({"TrainingPlanArn": wanted.training_plan} if wanted.training_plan else {}),
    }


def _needed(value: Any, name: str) -> Any:
    if not value:
        raise SkytrainError(f"cloud.{name} is not set\n  skytrain cloud init sets it")
    return value


TEMPLATE = """\
#!/bin/bash
# Run {run}, written by `skytrain launch`. It resumes from the last commit whenever it starts.
ml={root} work={work}
fail() {{ # SageMaker shows the first 1024 characters as the job's FailureReason
  mkdir -p "$ml/output"
  [ -s "$ml/output/failure" ] || printf '%.1024s' "$1" > "$ml/output/failure"
  echo "$1" >&2
  exit "$2"
}}
mkdir -p "$work/config" "$work/cache" || fail "no room for packages in $work" 3
# The channels hold packages and configuration: nothing comes from the internet.
cd "$ml/input/data/{bundle}" || fail "the channel {bundle} is missing" 3
sha256sum --quiet -c <<< '{bundle_sha256}  SHA256SUMS' && sha256sum --quiet -c SHA256SUMS || fail "the packages of the run are damaged: launch it again" 3
# The image's Python may itself be a virtual environment: one made from it sees its packages through a .pth file only.
[ -e "$work/venv/bin/python" ] || {python} -m venv --without-pip "$work/venv" || fail "{python} makes no environment" 3
site=$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
{python} -c 'import site; print(*site.getsitepackages(), sep="\\n")' > "$site/image.pth"
{install} ||
  fail "the packages of the run do not fit the image's Python" 3
archive="$ml/input/data/{launch}/config.tar.gz"
sha256sum --quiet -c <<< "{config_sha256}  $archive" || fail "the configuration of the run was changed: launch it again" 3
{python} -I -c {unpack} "$archive" "$work/config" && cd "$work/config" || fail "no configuration" 3
export SKYTRAIN_CACHE="$work/cache" PYTHONSAFEPATH=1

# This shell is the container's first process: it passes signals on and collects processes that have lost their parent.
"$work/venv/bin/skytrain" {command} > >(tee "$work/log") 2>&1 &
agent=$!
trap 'kill -TERM "$agent"' TERM
while kill -0 "$agent" 2> /dev/null; do # a trap ends `wait` early
  wait "$agent"
done
wait "$agent" # its status is kept
code=$?
case $code in
  0 | 7 | 12) exit "$code" ;; # done or stopped; interrupted
esac
# The last message `error: ...` and its remedy, where this host has printed one; otherwise the end of a traceback.
said=$(awk '/^error: / {{ said = substr($0, 8); more = 1; next }} more && /^  / {{ said = said $0 }} {{ more = 0 }}
  /^[A-Za-z_.]+(Error|Exception)(:|$)/ {{ raised = $0 }} END {{ print said ? said : raised }}' "$work/log")
fail "${{said:-the node agent ended, see the logs of the other hosts}} (exit code $code)" "$code"
"""


@dataclass(frozen=True)
class StartScript:
    """The parts of the script that differ between runs."""

    run: str
    command: tuple[str, ...]  # of skytrain: node ...
    python: str  # of the image
    bundle_sha256: str = UNKNOWN_SHA256  # of the list of the packages' hashes
    config_sha256: str = UNKNOWN_SHA256
    root: str = "/opt/ml"
    work: str = "/tmp/skytrain"  # noqa: S108 - on the disk of the job, where /opt/ml/input is too

    def render(self) -> str:
        """Return the script. It contains no credentials: the role of the job has them."""
        return TEMPLATE.format(
            run=self.run,
            root=shlex.quote(self.root),
            work=shlex.quote(self.work),
            bundle=BUNDLE,
            launch=LAUNCH,
            python=shlex.quote(self.python),
            install=INSTALL.format(python='"$work/venv/bin/python"', requirements='"$work/requirements.txt"'),
            command=shlex.join(self.command),
            bundle_sha256=self.bundle_sha256,
            config_sha256=self.config_sha256,
            unpack=shlex.quote(UNPACK),
        )
