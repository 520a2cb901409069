"""The checks of `skytrain doctor`, in order. To add one, write a function in its topic's file and list it here."""

from __future__ import annotations

from . import account, gpu, image, machine, network, offer, quota, store, trial_launch
from .check import Check, Finding, Group, Preflight, run_checks

__all__ = ["CHECKS", "Check", "Finding", "Preflight", "run_checks"]

MACHINE: Group = "this machine"
AWS: Group = "AWS"

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
    Check("credentials", account.credentials, AWS),
    Check("clock", account.clock, AWS, needs=("credentials",)),
    Check("region", account.region, AWS, needs=("credentials",)),
    Check("roles", account.roles, AWS, needs=("credentials",)),
    Check("encryption", store.encryption, AWS, needs=("credentials", "store")),
    Check("plan", offer.plan, AWS),
    Check("quota", quota.quota, AWS, needs=("credentials", "region")),
    Check("fallback quota", quota.fallbacks, AWS, needs=("credentials", "region")),
    Check("zones", offer.zones, AWS, needs=("credentials", "region")),
    Check("spot price", offer.spot_price, AWS, needs=("zones",)),
    Check("image", image.image, AWS, needs=("credentials", "region")),
    Check("subnets", network.subnets, AWS, needs=("credentials", "region")),
    Check("route to S3", network.route_to_s3, AWS, needs=("subnets",)),
    Check("endpoints", network.endpoints, AWS, needs=("subnets",)),
    Check("security group", network.security_group, AWS, needs=("credentials", "region")),
    Check("trial launch", trial_launch.trial_launch, AWS, needs=("image", "subnets", "security group", "roles")),
)
