"""The request for an EMR cluster that prepares data and ends: primary and core nodes on demand, task nodes on spot."""

from __future__ import annotations

import shlex
from typing import Any

from ...aws import Call
from ...config import SkytrainError
from ..bundle import SUMS
from .environment import ARCHIVE
from .requests import EmrJobSpec, check_settings, needed, spark_options

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
# environment, s3:// URL of the launch's files, seconds after which the cluster must be gone.
set -euo pipefail
# A cluster ends with its primary node. This is the last limit: it also holds if no step ever starts.
if grep -Eq '"isMaster": *true' {INSTANCE}; then
  sudo systemd-run --unit=skytrain-limit --on-active="$3" shutdown -h now
fi
sudo mkdir -p {FOLDER}/environment {FOLDER}/launch
sudo chown -R "$(id -un)" {FOLDER}
cd {FOLDER}
aws s3 cp --only-show-errors "$1/{ARCHIVE}" {ARCHIVE}
aws s3 cp --only-show-errors "$1/{SUMS}" {SUMS}
sha256sum --quiet -c {SUMS}
tar -xzf {ARCHIVE} -C environment
rm {ARCHIVE}
aws s3 cp --only-show-errors "$2" - | tar -xz -C launch
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


def cluster_call(job: EmrJobSpec, subnet: str, bootstrap: str, files: str) -> Call:
    """Return the request. `bootstrap` and `files` are s3:// URLs of the script and of the launch's files."""
    check_settings(job)
    wanted = job.settings
    cloud = job.cloud
    if wanted.disk_gb not in DISK_GB:
        raise SkytrainError(
            f"cloud.emr.disk_gb={wanted.disk_gb}: a node of EMR has {DISK_GB[0]} to {DISK_GB[-1]} GB\n"
            "  more nodes share more disk: cloud.emr.core_nodes, cloud.emr.task_nodes"
        )
    body: dict[str, Any] = {
        "Name": job.name,
        "ReleaseLabel": wanted.release,
        "Applications": [{"Name": "Spark"}],
        "LogUri": job.places.logs,
        "ServiceRole": needed(cloud.roles.emr_service, "roles.emr_service"),
        "JobFlowRole": needed(cloud.prepare_profile, "prepare_profile"),
        "Instances": _instances(job, subnet),
        "BootstrapActions": [
            {
                "Name": "skytrain",
                "ScriptBootstrapAction": {
                    "Path": bootstrap,
                    "Args": [job.places.environment.rpartition("/")[0], files, str(job.most_seconds)],
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
        "EbsRootVolumeSize": 30,
        "VisibleToAllUsers": True,
        "Tags": [*job.own_tags.pairs(), MANAGED_TAG],
    }
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
        "KeepJobFlowAliveWhenNoSteps": False,
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
