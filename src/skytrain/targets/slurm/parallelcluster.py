"""The configuration of an AWS ParallelCluster 3 that can run a plan: one Slurm queue for each kind of machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...aws import Tags
from ...config import CloudConfig, SkytrainError
from ...planning import PlannedOffer
from ...storage import partition_of

FSX_STEP_GB = 1200  # PERSISTENT_2 grows in such steps
QUEUE_NAME_LENGTH = 25
CAPACITY = {"spot": "SPOT", "on-demand": "ONDEMAND", "capacity-block": "CAPACITY_BLOCK"}
SSM_POLICY = "arn:{partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster is made of, besides the machines of the plan."""

    cloud: CloudConfig
    tags: Tags
    store: str  # s3://bucket/prefix
    head_type: str = "m6i.xlarge"
    fsx_gb: int = FSX_STEP_GB
    reservation: str | None = None  # of the plan's first offer


def cluster_config(spec: ClusterSpec, offers: Sequence[PlannedOffer]) -> dict[str, Any]:
    """Return the configuration as `pcluster create-cluster` takes it."""
    if not spec.store.startswith("s3://"):
        raise SkytrainError(
            f"store.root={spec.store}: the cluster's file system is linked to a bucket\n  add cloud=aws"
        )
    if spec.fsx_gb < FSX_STEP_GB or spec.fsx_gb % FSX_STEP_GB:
        raise SkytrainError(f"--fsx-gb {spec.fsx_gb}: FSx for Lustre is sold in steps of {FSX_STEP_GB} GB")
    subnet = _subnet(spec, offers[0])
    bucket = spec.store.removeprefix("s3://").partition("/")[0]
    access = {"S3Access": [{"BucketName": bucket, "EnableWriteAccess": True}]}
    partition = partition_of(offers[0].region).name
    return {
        "Region": offers[0].region,
        "Image": {"Os": "alinux2023"},
        "Imds": {"ImdsSupport": "v2.0"},
        "HeadNode": {
            "InstanceType": spec.head_type,
            "Networking": {"SubnetId": subnet},
            "LocalStorage": {"RootVolume": {"Size": 100, "VolumeType": "gp3", "Encrypted": True}},
            "Imds": {"Secured": True},
            "Iam": {**access, "AdditionalIamPolicies": [{"Policy": SSM_POLICY.format(partition=partition)}]},
        },
        "Scheduling": {
            "Scheduler": "slurm",
            "SlurmSettings": {"ScaledownIdletime": 5, "QueueUpdateStrategy": "DRAIN"},
            "SlurmQueues": _queues(spec, offers, subnet, access),
        },
        "SharedStorage": [_file_system(spec)],
        "Monitoring": {"Logs": {"CloudWatch": {"Enabled": True, "RetentionInDays": 30}}},
        "Tags": spec.tags.pairs(),
    }


def _subnet(spec: ClusterSpec, offer: PlannedOffer) -> str:
    """Return the subnet of the plan's cheapest zone that has one."""
    subnets = spec.cloud.subnets.public if spec.cloud.subnets.nodes == "public" else spec.cloud.subnets.private
    if not subnets:
        raise SkytrainError("no subnets are known\n  set up the account first (docs/aws.md), and add cloud=aws")
    planned = [each.zone for each in offer.zones] or sorted(subnets)
    chosen = next((zone for zone in planned if zone in subnets), None)
    if chosen is None:
        raise SkytrainError(
            f"the plan's machines are in {', '.join(planned)}, and the account's {spec.cloud.subnets.nodes} subnets in "
            f"{', '.join(sorted(subnets))}\n  add a zone to the base (docs/aws.md), or plan for another region"
        )
    return subnets[chosen]


def _queues(
    spec: ClusterSpec, offers: Sequence[PlannedOffer], subnet: str, access: dict[str, Any]
) -> list[dict[str, Any]]:
    queues: dict[str, dict[str, Any]] = {}
    for number, offer in enumerate(offers):
        reserved = offer.reservation or (spec.reservation if number == 0 else None)
        market = "capacity-block" if reserved else offer.market
        name = f"{offer.instance_type.replace('.', '-')}-{'block' if reserved else offer.market}"
        if len(name) > QUEUE_NAME_LENGTH:
            name = name.replace("on-demand", "ondemand")
        if name in queues:  # the same machines with another mesh
            resource = queues[name]["ComputeResources"][0]
            resource["MaxCount"] = max(resource["MaxCount"], offer.nodes)
            continue
        together = offer.nodes > 1
        efa = together and offer.efa_interfaces > 0
        resource = {
            "Name": offer.instance_type.replace(".", "-"),
            "InstanceType": offer.instance_type,
            # A block's machines are paid for in any case; others start with a job, and end after it.
            "MinCount": offer.nodes if reserved else 0,
            "MaxCount": offer.nodes,
            "Efa": {"Enabled": efa},
        }
        if reserved:
            resource["CapacityReservationTarget"] = {"CapacityReservationId": reserved}
        elif offer.market == "spot":
            resource["SpotPrice"] = round(offer.max_usd_per_hour_each, 4)
        queues[name] = {
            "Name": name,
            "CapacityType": CAPACITY[market],
            "Networking": {"SubnetIds": [subnet], **_placement(together and offer.placement_group and not reserved)},
            "HealthChecks": {"Gpu": {"Enabled": offer.gpus_per_node > 0}},
            "ComputeSettings": {
                "LocalStorage": {
                    "RootVolume": {"Size": max(offer.disk_gb, 100), "VolumeType": "gp3", "Encrypted": True},
                    "EphemeralVolume": {"MountDir": "/scratch"},
                }
            },
            "JobExclusiveAllocation": True,
            "Iam": access,
            "ComputeResources": [resource],
        }
    return list(queues.values())


def _placement(wanted: bool) -> dict[str, Any]:
    return {"PlacementGroup": {"Enabled": True}} if wanted else {}


def _file_system(spec: ClusterSpec) -> dict[str, Any]:
    key = {"KmsKeyId": spec.cloud.kms_key} if spec.cloud.kms_key else {}
    link = {
        "Name": "store",
        "DataRepositoryPath": spec.store,
        "FileSystemPath": "/store",
        "BatchImportMetaDataOnCreate": True,
        "AutoImportPolicy": ["NEW", "CHANGED", "DELETED"],
        "AutoExportPolicy": ["NEW", "CHANGED"],  # a file that is deleted here stays in the bucket
    }
    return {
        "Name": "store",
        "StorageType": "FsxLustre",
        "MountDir": "/fsx",
        "FsxLustreSettings": {
            "StorageCapacity": spec.fsx_gb,
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": 250,
            "DataCompressionType": "LZ4",
            "DataRepositoryAssociations": [link],
            "DeletionPolicy": "Delete",  # what it has is in the bucket
            **key,
        },
    }
