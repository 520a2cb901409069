"""A Spark job on EMR that prepares data: what both kinds of EMR are asked for, and the requests of EMR Serverless."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...aws import Call, Tags
from ...config import CloudConfig, EmrConfig, SkytrainError, nearest
from ..bundle import UNKNOWN_SHA256, UNPACK
from ..jobs import scheduler_job_name
from .environment import ARCHIVE

# of the archives in a container's folder
ENVIRONMENT_NAME = "environment"
CONFIG_NAME = "config"
ENTRY_POINT_LENGTH = 256
# AWS's release guide: 7.0.0 has only Python 3.9, 7.1.0 and later have 3.9 and 3.11.
RELEASE = re.compile(r"emr-7\.[1-9]\d*\.\d+")
KMS_KEY = re.compile(r"arn:aws[a-zA-Z0-9-]*:kms:[a-zA-Z0-9-]+:\d{12}:key/[a-zA-Z0-9-]+")
START_SECONDS = 1800  # machines and packages: an attempt's time counts from when it runs
APPLICATION_ID = "APPLICATION_ID"  # in requests that are shown before there is an application
# Memory in GB that a worker of EMR Serverless may have, by its cores.
WORKERS = {1: range(2, 9), 2: range(4, 17), 4: range(8, 31), 8: range(16, 61, 4), 16: range(32, 121, 8)}
SERVERLESS_DISK_GB = range(20, 201)
SERVERLESS_IMAGE = re.compile(
    r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/[a-z0-9._/-]+(:[\w.-]+|@sha256:[0-9a-f]{64})"
)
MACHINE_IMAGE = re.compile(r"ami-[0-9a-f]{8,17}")
# The names that AWS' release guide of EMR 7 lists; EMR refuses others only after the request.
APPLICATIONS = (
    "AmazonCloudWatchAgent", "Delta", "Flink", "HBase", "HCatalog", "Hadoop", "Hive", "Hudi", "Hue", "Iceberg",
    "JupyterEnterpriseGateway", "JupyterHub", "Livy", "Oozie", "Phoenix", "Pig", "Presto", "Spark", "Tez", "TensorFlow",
    "Trino", "Zeppelin", "ZooKeeper",
)  # fmt: skip


@dataclass(frozen=True)
class EmrPlaces:
    """s3:// URLs of a job."""

    environment: str  # the packed environment
    entry: str  # prepare.py
    config: str  # the user's own configuration files, as .tar.gz
    logs: str  # a folder


@dataclass(frozen=True)
class EmrJobSpec:
    """All that the requests are made of."""

    run: str
    launch: str
    overrides: tuple[str, ...]  # of `skytrain prepare`
    tags: Tags
    cloud: CloudConfig
    places: EmrPlaces
    launched_at: datetime
    timeout_seconds: int
    executors: int

    @property
    def name(self) -> str:
        """The name of the application and its job, or of the cluster: no other launch has it."""
        return scheduler_job_name(self.tags.project, self.run, self.launch)

    @property
    def settings(self) -> EmrConfig:
        return self.cloud.emr

    @property
    def attempts(self) -> int:
        return 1 + self.settings.retries

    @property
    def kill_at(self) -> datetime:
        """When AWS has ended the job and what it ran on."""
        return (self.launched_at + timedelta(seconds=self.most_seconds)).replace(second=0, microsecond=0)

    @property
    def most_seconds(self) -> int:
        """The longest time from the start of its machines to their end."""
        return int(START_SECONDS + self.attempts * self.timeout_seconds + self.settings.idle)

    @property
    def own_tags(self) -> Tags:
        return replace(self.tags, run=self.run, expires_at=self.kill_at)

    @property
    def command(self) -> list[str]:
        """The arguments after the program: `skytrain prepare` with the configuration that was sent along."""
        return ["prepare", *self.overrides, "engine=spark"]

    def properties(self) -> dict[str, str]:
        """Spark's properties: three eighths of the memory are the JVM's, the rest Python's."""
        wanted = self.settings
        heap = max(1, wanted.executor_gb * 3 // 8)
        sizes = {"cores": str(wanted.executor_cores), "memory": f"{heap}g"}
        sizes["memoryOverhead"] = f"{wanted.executor_gb - heap}g"
        both = {f"spark.{who}.{name}": value for who in ("driver", "executor") for name, value in sizes.items()}
        return {
            **both,
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.maxExecutors": str(self.executors),
            # Partitions follow from it. It must not change with the executors that happen to be there: the next
            # attempt would not recognize the finished stages of this one.
            "spark.default.parallelism": str(self.executors * wanted.executor_cores),
        }


def check_settings(job: EmrJobSpec) -> None:
    """Raise SkytrainError for settings that EMR refuses."""
    wanted = job.settings
    if not RELEASE.fullmatch(wanted.release):
        raise SkytrainError(
            f"cloud.emr.release={wanted.release}: Skytrain runs on releases 7.1 to 7.x, which have Python 3.11\n"
            "  for example: cloud.emr.release=emr-7.11.0"
        )
    if job.cloud.kms_key and not KMS_KEY.fullmatch(job.cloud.kms_key):
        raise SkytrainError(
            f"cloud.kms_key={job.cloud.kms_key}: EMR takes the ARN of a key, and no alias\n"
            "  arn:aws:kms:REGION:ACCOUNT:key/ID; `skytrain cloud init` writes the base's key"
        )
    if wanted.executor_gb < 2 * wanted.executor_cores:
        raise SkytrainError(
            f"cloud.emr.executor_gb={wanted.executor_gb} is too little for {wanted.executor_cores} cores\n"
            f"  set cloud.emr.executor_gb={2 * wanted.executor_cores} or more"
        )
    if len(job.places.entry) > ENTRY_POINT_LENGTH:
        raise SkytrainError(
            f"{job.places.entry}: EMR takes {ENTRY_POINT_LENGTH} characters, and this has {len(job.places.entry)}\n"
            "  choose a shorter name: run=NAME"
        )
    spaced = [word for word in job.overrides if "\n" in word]
    if spaced:
        raise SkytrainError(f"{spaced[0]!r}: a setting for EMR has no line breaks\n  put it into a file of your own")


def check_worker(wanted: EmrConfig) -> None:
    """Raise SkytrainError for a worker that EMR Serverless does not have."""
    sizes = WORKERS.get(wanted.executor_cores)
    if sizes is None:
        raise SkytrainError(
            f"cloud.emr.executor_cores={wanted.executor_cores}: workers of EMR Serverless have "
            f"{', '.join(map(str, WORKERS))}\n  for example: cloud.emr.executor_cores=4"
        )
    if wanted.executor_gb not in sizes:
        step = f" in steps of {sizes.step}" if sizes.step > 1 else ""
        raise SkytrainError(
            f"cloud.emr.executor_gb={wanted.executor_gb}: a worker with {wanted.executor_cores} cores has {sizes[0]} to "
            f"{sizes[-1]} GB{step}\n  for example: cloud.emr.executor_gb={sizes[len(sizes) // 2]}"
        )
    if wanted.disk_gb not in SERVERLESS_DISK_GB:
        raise SkytrainError(
            f"cloud.emr.disk_gb={wanted.disk_gb}: a worker of EMR Serverless has {SERVERLESS_DISK_GB[0]} to "
            f"{SERVERLESS_DISK_GB[-1]} GB\n  more executors share more disk: cloud.emr.executors"
        )


def check_serverless(wanted: EmrConfig) -> None:
    """Raise SkytrainError for settings that only a cluster has, and for an image that is not in ECR."""
    for name, used in (
        ("applications", wanted.applications != ["Spark"]),
        ("keep_alive", wanted.keep_alive),
    ):
        if used:
            raise SkytrainError(
                f"cloud.emr.{name}={getattr(wanted, name)}: EMR Serverless runs Spark jobs only\n  use a cluster: cloud=emr"
            )
    if wanted.image is not None and not SERVERLESS_IMAGE.fullmatch(wanted.image):
        raise SkytrainError(
            f"cloud.emr.image={wanted.image}: EMR Serverless takes an image of ECR by tag or digest\n"
            "  for example: cloud.emr.image=123456789012.dkr.ecr.us-east-2.amazonaws.com/spark:7.11.0"
        )


def check_cluster(wanted: EmrConfig) -> None:
    """Raise SkytrainError for nodes and applications that EMR does not have."""
    if wanted.disk_gb not in DISK_GB:
        raise SkytrainError(
            f"cloud.emr.disk_gb={wanted.disk_gb}: a node of EMR has {DISK_GB[0]} to {DISK_GB[-1]} GB\n"
            "  more nodes share more disk: cloud.emr.core_nodes, cloud.emr.task_nodes"
        )
    for name in wanted.applications:
        if name not in APPLICATIONS:
            guess = nearest(name, APPLICATIONS)
            hint = f"did you mean {guess}?" if guess else f"one of {', '.join(APPLICATIONS)}"
            raise SkytrainError(f"cloud.emr.applications: EMR has no application {name}\n  {hint}")
    if "Spark" not in wanted.applications:
        raise SkytrainError(
            f"cloud.emr.applications={wanted.applications}: the job needs Spark\n"
            f"  set cloud.emr.applications=[{', '.join(['Spark', *wanted.applications])}]"
        )
    if wanted.image is not None and not MACHINE_IMAGE.fullmatch(wanted.image):
        raise SkytrainError(
            f"cloud.emr.image={wanted.image}: a cluster takes the id of an AMI\n"
            "  for example: cloud.emr.image=ami-0123456789abcdef0, Amazon Linux 2023 with an EBS root volume"
        )


def serverless_calls(job: EmrJobSpec, application: str = APPLICATION_ID) -> list[Call]:
    """Return the requests: an application with a limit, and its job. Neither costs anything before the job runs."""
    check_settings(job)
    check_worker(job.settings)
    check_serverless(job.settings)
    if re.search(r"\s", job.run + job.places.config):
        raise SkytrainError(
            f"run={job.run}: EMR Serverless takes no spaces in the URLs of a job\n"
            f"  for example: run={'-'.join(job.run.split())}"
        )
    job.own_tags.check_ascii("EMR Serverless")
    return [create_application(job), start_job_run(job, application)]


def create_application(job: EmrJobSpec) -> Call:
    """Return the request for the application: it stops when idle, and never grows beyond the job's executors."""
    # and the driver
    wanted = job.settings
    workers = job.executors + 1
    body: dict[str, Any] = {
        "name": job.name,
        "releaseLabel": wanted.release,
        "type": "SPARK",
        "architecture": "X86_64",
        "maximumCapacity": {
            "cpu": f"{workers * wanted.executor_cores} vCPU",
            "memory": f"{workers * wanted.executor_gb} GB",
            "disk": f"{workers * wanted.disk_gb} GB",
        },
        "autoStartConfiguration": {"enabled": True},
        "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": max(1, round(wanted.idle / 60))},
        "tags": job.own_tags.mapping(),
    }
    if wanted.image is not None:
        body["imageConfiguration"] = {"imageUri": wanted.image}
    subnets = sorted(job.cloud.subnets.private.values())
    if subnets and job.cloud.security_group:
        body["networkConfiguration"] = {"subnetIds": subnets, "securityGroupIds": [job.cloud.security_group]}
    return Call("emr-serverless", "CreateApplication", body, token_key=_key(job))


def start_job_run(job: EmrJobSpec, application: str) -> Call:
    """Return the request for the job: its packages and configuration come from the store, its log goes there."""
    python = f"./{ENVIRONMENT_NAME}/bin/python"
    properties = {
        **job.properties(),
        "spark.archives": f"{job.places.environment}#{ENVIRONMENT_NAME},{job.places.config}#{CONFIG_NAME}",
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": python,
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": python,
        "spark.executorEnv.PYSPARK_PYTHON": python,
        "spark.emr-serverless.driver.disk": f"{job.settings.disk_gb}G",
        "spark.emr-serverless.executor.disk": f"{job.settings.disk_gb}G",
    }
    logs: dict[str, str] = {"logUri": job.places.logs}
    if job.cloud.kms_key:
        logs["encryptionKeyArn"] = job.cloud.kms_key
    body = {
        "applicationId": application,
        "name": job.name,
        "executionRoleArn": needed(job.cloud.roles.prepare, "roles.prepare"),
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": job.places.entry,
                "entryPointArguments": [*job.command, "--config-dir", CONFIG_NAME],
                "sparkSubmitParameters": " ".join(f"--conf {name}={value}" for name, value in properties.items()),
            }
        },
        "configurationOverrides": {
            "monitoringConfiguration": {
                "s3MonitoringConfiguration": logs,
                "managedPersistenceMonitoringConfiguration": {"enabled": False},
            }
        },
        "executionTimeoutMinutes": max(5, round(job.timeout_seconds / 60)),
        "retryPolicy": {"maxAttempts": job.attempts},
        "tags": job.own_tags.mapping(),
    }
    return Call("emr-serverless", "StartJobRun", body, token_key=_key(job))


def spark_options(properties: Mapping[str, str]) -> str:
    """Return properties as options of spark-submit."""
    return " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in properties.items())


def needed(value: str | None, name: str) -> str:
    """Return a setting that the base gives; raises SkytrainError if it is missing."""
    if not value:
        raise SkytrainError(
            f"cloud.{name} is not set: the account is not set up for EMR\n"
            "  set emr = true in infra/terraform/base/terraform.tfvars, apply, then: skytrain cloud init --force"
        )
    return value


def _key(job: EmrJobSpec) -> str:
    return f"{job.name} {job.launched_at.isoformat()}"


FOLDER = "/opt/skytrain"  # on every node
INSTANCE = "/mnt/var/lib/info/instance.json"  # what EMR writes about a node before it runs any bootstrap action
MANAGED_TAG = {
    "Key": "for-use-with-amazon-emr-managed-policies",
    "Value": "true",
}  # AmazonEMRServicePolicy_v2 asks for it
# of a node; EMR's API takes volumes of 10 to 1024 GiB for these types
VOLUME_GB = 1024
MOST_VOLUMES = 16
DISK_GB = range(10, VOLUME_GB * MOST_VOLUMES + 1)
LAST_NO_RETRY = 11  # exit codes 2 to 11 are not cured by another attempt, except those of the store
RETRIED = (10,)
# Every node, before Spark starts there. EMR runs it as the user hadoop, who may use sudo.
BOOTSTRAP = f"""\
#!/bin/bash
# Made by Skytrain: packages and configuration of a job, from the store. Arguments: s3:// folder of the packed
# environment, s3:// URL of the launch's files, seconds after which the cluster must be gone, SHA-256 of the two archives.
set -euo pipefail
# A cluster ends with its primary node. This is the last limit: it also holds if no step ever starts.
if grep -Eq '"isMaster": *true' {INSTANCE}; then
  sudo systemd-run --unit=skytrain-limit --on-active="$3" shutdown -h now
fi
sudo mkdir -p {FOLDER}/environment {FOLDER}/launch
sudo chown -R "$(id -un)" {FOLDER}
cd {FOLDER}
aws s3 cp --only-show-errors "$1/{ARCHIVE}" {ARCHIVE}
sha256sum --quiet -c <<< "$4  {ARCHIVE}"
tar -xzf {ARCHIVE} -C environment
rm {ARCHIVE}
aws s3 cp --only-show-errors "$2" launch.tar.gz
sha256sum --quiet -c <<< "$5  launch.tar.gz"
environment/bin/python -I -c {shlex.quote(UNPACK)} launch.tar.gz launch
environment/bin/python -c 'import skytrain.corpus'
"""


def submit_script(job: EmrJobSpec) -> str:
    """Return the script of the cluster's step: attempts until one ends well, or with an error that would come again."""
    options = spark_options(job.properties())
    arguments = shlex.join([*job.command, "--config-dir", f"{FOLDER}/launch"])
    submit = f"spark-submit --master yarn --deploy-mode client {options} {FOLDER}/launch/prepare.py {arguments}"
    return f"""\
#!/bin/bash
# Made by Skytrain.
export PYSPARK_PYTHON={FOLDER}/environment/bin/python PYSPARK_DRIVER_PYTHON={FOLDER}/environment/bin/python
for attempt in $(seq {job.attempts}); do
  timeout --kill-after=60 {job.timeout_seconds} {submit}
  code=$?
  [ $code -eq 0 ] && exit 0
  echo "attempt $attempt of {job.attempts} ended with exit code $code" >&2
  [ $code -ge 2 ] && [ $code -le {LAST_NO_RETRY} ] && [ $code -ne {RETRIED[0]} ] && exit $code
done
exit $code
"""


def cluster_call(
    job: EmrJobSpec, subnet: str, bootstrap: str, files: str, given: tuple[str, str] = (UNKNOWN_SHA256, UNKNOWN_SHA256)
) -> Call:
    """Return the request. `bootstrap` and `files` are s3:// URLs of the script and of the launch's files.

    `given` has the SHA-256 of the packed environment and of those files, which each node checks before it unpacks them.
    """
    check_settings(job)
    wanted = job.settings
    cloud = job.cloud
    check_cluster(wanted)
    body: dict[str, Any] = {
        "Name": job.name,
        "ReleaseLabel": wanted.release,
        "Applications": [{"Name": name} for name in wanted.applications],
        "LogUri": job.places.logs,
        "ServiceRole": needed(cloud.roles.emr_service, "roles.emr_service"),
        "JobFlowRole": needed(cloud.prepare_profile, "prepare_profile"),
        "Instances": _instances(job, subnet),
        "BootstrapActions": [
            {
                "Name": "skytrain",
                "ScriptBootstrapAction": {
                    "Path": bootstrap,
                    "Args": [
                        job.places.environment.rpartition("/")[0],
                        files,
                        str(job.most_seconds),
                        *given,
                    ],
                },
            }
        ],
        "Steps": [
            {
                "Name": "prepare",
                "ActionOnFailure": "TERMINATE_CLUSTER",
                "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["bash", f"{FOLDER}/launch/submit.sh"]},
            }
        ],
        "Configurations": _configurations(),
        "AutoTerminationPolicy": {"IdleTimeout": int(wanted.idle)},
        "ScaleDownBehavior": "TERMINATE_AT_TASK_COMPLETION",
        "EbsRootVolumeSize": wanted.root_disk_gb,
        "VisibleToAllUsers": True,
        "Tags": [*job.own_tags.pairs(), MANAGED_TAG],
    }
    if wanted.image is not None:
        body["CustomAmiId"] = wanted.image
    if cloud.kms_key:
        body["LogEncryptionKmsKeyId"] = cloud.kms_key
    if cloud.emr_security:
        body["SecurityConfiguration"] = cloud.emr_security
    return Call("emr", "RunJobFlow", body)


def _instances(job: EmrJobSpec, subnet: str) -> dict[str, Any]:
    wanted = job.settings
    cloud = job.cloud
    group = needed(cloud.security_group, "security_group")
    groups = [
        _group(job, "MASTER", wanted.primary, 1),
        _group(job, "CORE", wanted.core, wanted.core_nodes),
        *([_group(job, "TASK", wanted.task, wanted.task_nodes)] if wanted.task_nodes else []),
    ]
    body: dict[str, Any] = {
        "InstanceGroups": groups,
        "Ec2SubnetId": subnet,
        "EmrManagedMasterSecurityGroup": group,
        "EmrManagedSlaveSecurityGroup": group,
        "KeepJobFlowAliveWhenNoSteps": wanted.keep_alive,
        "TerminationProtected": False,
    }
    if cloud.subnets.nodes == "private":
        body["ServiceAccessSecurityGroup"] = needed(cloud.emr_service_group, "emr_service_group")
    return body


def _group(job: EmrJobSpec, role: str, kind: str, count: int) -> dict[str, Any]:
    volumes = -(-job.settings.disk_gb // VOLUME_GB)
    volume = {"VolumeType": "gp3", "SizeInGB": -(-job.settings.disk_gb // volumes)}
    return {
        "Name": role.lower(),
        "InstanceRole": role,
        "InstanceType": kind,
        "InstanceCount": count,
        # Without a bid, spot nodes cost at most the price on demand.
        "Market": "SPOT" if role == "TASK" else "ON_DEMAND",
        "EbsConfiguration": {
            "EbsBlockDeviceConfigs": [{"VolumeSpecification": volume, "VolumesPerInstance": volumes}],
            "EbsOptimized": True,
        },
    }


def _configurations() -> list[dict[str, Any]]:
    python = f"{FOLDER}/environment/bin/python"
    exported = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    return [
        {
            "Classification": "spark-env",
            "Properties": {},
            "Configurations": [{"Classification": "export", "Properties": exported}],
        },
        # An executor that was lost with its spot node is not the job's failure.
        {"Classification": "spark-defaults", "Properties": {"spark.yarn.max.executor.failures": "1000"}},
    ]


def cluster_subnet(job: EmrJobSpec, sold: dict[str, set[str]]) -> str:
    """Return the first subnet in a zone that sells every type of node; `sold` has the zones of each type."""
    cloud = job.cloud
    wanted = job.settings
    subnets: dict[str, str] = getattr(cloud.subnets, cloud.subnets.nodes)
    types = {wanted.primary, wanted.core, *([wanted.task] if wanted.task_nodes else [])}
    for zone, subnet in sorted(subnets.items()):
        if all(zone in sold[kind] for kind in types):
            return subnet
    raise SkytrainError(
        f"no zone with a {cloud.subnets.nodes} subnet sells all of {', '.join(sorted(types))}\n"
        f"  the subnets are in {', '.join(sorted(subnets)) or 'none'}; set cloud.emr.core and cloud.emr.task to other types"
    )
