"""The checks of `skytrain doctor`, in order. To add one, write a function in its topic's file and list it here."""

from __future__ import annotations

from ..emr import checks as emr
from ..sagemaker import checks as sagemaker
from . import account, gpu, image, machine, network, offer, quota, store, trial_launch
from .check import Check, Finding, Group, Preflight, run_checks

__all__ = ["CHECKS", "EMR", "SAGEMAKER", "Check", "Finding", "Preflight", "run_checks"]

MACHINE: Group = "this machine"
AWS: Group = "AWS"

CALLER = ("sts:GetCallerIdentity",)
QUOTAS = (
    "servicequotas:GetServiceQuota",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:ListServiceQuotas",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeSpotInstanceRequests",
)
KNOWN = ("credentials", "region")


def launch_checks() -> tuple[Check, ...]:
    """Return the checks before a launch: the account, not this machine."""
    return tuple(check for check in CHECKS if check.group == AWS or check.name == "store")


SAGEMAKER_SHARED = (
    "store", "account", "credentials", "clock", "region", "encryption", "plan", "subnets", "route to S3", "security group",
)  # fmt: skip


def sagemaker_checks(*, planned: bool = True) -> tuple[Check, ...]:
    """Return the checks before a SageMaker training job: the account's, then the job's own, or all quotas without a plan."""
    own = [check for check in SAGEMAKER if planned or check.name not in ("type", "quota")]
    if not planned:
        own.append(Check("quotas", sagemaker.quotas, AWS, needs=("region",), actions=SAGEMAKER_QUOTAS))
    return (*(check for check in CHECKS if check.name in SAGEMAKER_SHARED), *own)


SAGEMAKER_QUOTAS = ("servicequotas:ListServiceQuotas", "servicequotas:ListAWSDefaultServiceQuotas")
EMR_SHARED = (
    "store", "account", "credentials", "clock", "region", "encryption", "subnets", "route to S3", "security group",
)  # fmt: skip


def emr_checks() -> tuple[Check, ...]:
    """Return the checks before a job on EMR: the account's, then the job's own."""
    return (*(check for check in CHECKS if check.name in EMR_SHARED), *EMR)


EMR: tuple[Check, ...] = (
    Check("role", emr.role, AWS, needs=("credentials",), actions=("iam:GetRole",)),
    Check("service-linked role", emr.service_linked_role, AWS, needs=("credentials",), actions=("iam:GetRole",)),
    Check(
        "quota",
        emr.quota,
        AWS,
        needs=KNOWN,
        actions=(*QUOTAS, "servicequotas:ListAWSDefaultServiceQuotas"),
    ),
    Check("zones", emr.zones, AWS, needs=KNOWN, actions=("ec2:DescribeInstanceTypeOfferings",)),
)
SAGEMAKER: tuple[Check, ...] = (
    Check("role", sagemaker.role, AWS, needs=("credentials",), actions=("iam:GetRole",)),
    Check("type", sagemaker.instance_type, AWS),
    Check(
        "quota",
        sagemaker.quota,
        AWS,
        needs=("region", "type"),
        actions=(
            *SAGEMAKER_QUOTAS,
            "sagemaker:ListTrainingJobs",
            "sagemaker:DescribeTrainingJob",
        ),
    ),
    Check("image", sagemaker.image, AWS, needs=("region",), actions=("ecr:BatchGetImage",)),
)
CHECKS: tuple[Check, ...] = (
    Check("python", machine.python, MACHINE),
    Check("packages", machine.packages, MACHINE),
    Check("disk", machine.disk, MACHINE),
    Check("store", store.store, MACHINE),
    Check("GPU", gpu.driver, MACHINE),
    Check("torch", gpu.torch_on_gpu, MACHINE, needs=("GPU",)),
    Check("NVMe", gpu.nvme, MACHINE, needs=("GPU",)),
    Check("EFA", gpu.efa_present, MACHINE, needs=("GPU",)),
    Check("NCCL", gpu.efa_used, MACHINE, needs=("GPU", "EFA", "torch")),
    Check("account", account.is_set_up, AWS),
    Check("credentials", account.credentials, AWS, actions=CALLER),
    Check("clock", account.clock, AWS, needs=("credentials",), actions=CALLER),
    Check("region", account.region, AWS, needs=("credentials",), actions=("ec2:DescribeRegions",)),
    Check("roles", account.roles, AWS, needs=("credentials",), actions=("iam:GetRole", "iam:GetInstanceProfile")),
    Check("encryption", store.encryption, AWS, needs=("credentials", "store"), actions=("s3:GetObject",)),
    Check("plan", offer.plan, AWS),
    Check("capacity block", offer.capacity_block, AWS, needs=KNOWN, actions=("ec2:DescribeCapacityReservations",)),
    Check("quota", quota.quota, AWS, needs=KNOWN, actions=QUOTAS),
    Check("fallback quota", quota.fallbacks, AWS, needs=KNOWN, actions=QUOTAS),
    Check("zones", offer.zones, AWS, needs=KNOWN, actions=("ec2:DescribeInstanceTypeOfferings",)),
    Check("spot price", offer.spot_price, AWS, needs=("zones",), actions=("ec2:DescribeSpotPriceHistory",)),
    Check(
        "image",
        image.image,
        AWS,
        needs=KNOWN,
        actions=("ssm:GetParametersByPath", "ssm:GetParameter", "ec2:DescribeImages"),
    ),
    Check("subnets", network.subnets, AWS, needs=KNOWN, actions=("ec2:DescribeSubnets",)),
    Check("route to S3", network.route_to_s3, AWS, needs=("subnets",), actions=("ec2:DescribeRouteTables",)),
    Check("endpoints", network.endpoints, AWS, needs=("subnets",), actions=("ec2:DescribeVpcEndpoints",)),
    Check("security group", network.security_group, AWS, needs=KNOWN, actions=("ec2:DescribeSecurityGroups",)),
    Check(
        "trial launch",
        trial_launch.trial_launch,
        AWS,
        needs=("image", "subnets", "security group", "roles"),
        actions=("ec2:RunInstances", "ec2:CreateTags", "iam:PassRole", "sts:DecodeAuthorizationMessage"),
    ),
)
