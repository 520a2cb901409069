"""The checks of `skytrain doctor`, in order. To add one, write a function in its topic's file and list it here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...aws import CloudError
from . import account, machine, network, offer, quota, store
from .check import Check, Failed, Finding, Group, NotChecked, Preflight, run_checks
from .offer import planned_lines

__all__ = [
    "CHECKS", "Check", "Failed", "Finding", "NotChecked", "Preflight", "account_checks", "planned_lines", "require", "run_checks",
]  # fmt: skip

MACHINE: Group = "this machine"
AWS: Group = "AWS"

CALLER = ("sts:GetCallerIdentity",)
KNOWN = ("credentials", "region")


def account_checks(*names: str) -> tuple[Check, ...]:
    """Return the checks of these names, in their order in `CHECKS`; without names, all that a rented machine needs."""
    if names:
        return tuple(check for check in CHECKS if check.name in names)
    return tuple(check for check in CHECKS if check.group == AWS or check.name == "store")


def require(checks: Sequence[Check], preflight: Preflight, tell: Callable[[Finding], None]) -> None:
    """Run the checks before a launch. Raises CloudError, with its exit code, for the first one that fails.

    The owner of the bucket is checked before anything is written: a bucket of somebody else has its own error.
    """
    before_store = ("account", "credentials", "bucket")
    first = [check for check in checks if check.name in before_store]
    for finding in run_checks([*first, *(check for check in checks if check not in first)], preflight):
        tell(finding)
        if finding.verdict == "failed":
            raise CloudError(finding.text, fix=finding.fix, cause=finding.cause, link=finding.link)


CHECKS: tuple[Check, ...] = (
    Check("python", machine.python, MACHINE),
    Check("packages", machine.packages, MACHINE),
    Check("disk", machine.disk, MACHINE),
    Check("store", store.store, MACHINE),
    Check("GPU", machine.driver, MACHINE),
    Check("torch", machine.torch_on_gpu, MACHINE, needs=("GPU",)),
    Check("NVMe", machine.nvme, MACHINE, needs=("GPU",)),
    Check("EFA", machine.efa_present, MACHINE, needs=("GPU",)),
    Check("NCCL", machine.efa_used, MACHINE, needs=("GPU", "EFA", "torch")),
    Check("account", account.is_set_up, AWS),
    Check("credentials", account.credentials, AWS, actions=CALLER),
    Check("clock", account.clock, AWS, needs=("credentials",), actions=CALLER),
    Check("region", account.region, AWS, needs=("credentials",), actions=("ec2:DescribeRegions",)),
    Check("roles", account.roles, AWS, needs=("credentials",), actions=("iam:GetRole", "iam:GetInstanceProfile")),
    Check("service roles", account.service_roles, AWS, needs=("credentials",), actions=("iam:GetRole",)),
    Check(
        "secrets",
        account.secrets,
        AWS,
        needs=KNOWN,
        actions=("secretsmanager:DescribeSecret", "ssm:DescribeParameters"),
    ),
    Check("bucket", store.bucket, AWS, needs=("credentials",), actions=("s3:GetBucketLocation",)),
    Check("encryption", store.encryption, AWS, needs=("credentials", "store"), actions=("s3:GetObject",)),
    Check("plan", offer.plan, AWS),
    Check("capacity block", offer.capacity_block, AWS, needs=KNOWN, actions=("ec2:DescribeCapacityReservations",)),
    Check("quota", quota.quota, AWS, needs=KNOWN, actions=quota.QUOTA_ACTIONS),
    Check("fallback quota", quota.fallbacks, AWS, needs=KNOWN, actions=quota.QUOTA_ACTIONS),
    Check("zones", offer.zones, AWS, needs=KNOWN, actions=("ec2:DescribeInstanceTypeOfferings",)),
    Check("spot price", offer.spot_price, AWS, needs=("zones",), actions=("ec2:DescribeSpotPriceHistory",)),
    Check(
        "image",
        offer.image,
        AWS,
        needs=KNOWN,
        actions=("ssm:GetParametersByPath", "ec2:DescribeImages"),
    ),
    Check("subnets", network.subnets, AWS, needs=KNOWN, actions=("ec2:DescribeSubnets",)),
    Check("route to S3", network.route_to_s3, AWS, needs=("subnets",), actions=("ec2:DescribeRouteTables",)),
    Check("endpoints", network.endpoints, AWS, needs=("subnets",), actions=("ec2:DescribeVpcEndpoints",)),
    Check("security group", network.security_group, AWS, needs=KNOWN, actions=("ec2:DescribeSecurityGroups",)),
    Check(
        "trial launch",
        offer.trial_launch,
        AWS,
        needs=("image", "subnets", "security group"),
        unless_failed=("roles",),  # who may not see them learns here whether AWS takes them
        actions=("ec2:RunInstances", "ec2:CreateTags", "iam:PassRole", "sts:DecodeAuthorizationMessage"),
    ),
)
