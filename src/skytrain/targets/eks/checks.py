"""What EKS checks before a launch besides the cluster: the account's quota, and the role of spot machines."""

from __future__ import annotations

from ...aws import CloudError
from ..checks import Check, Failed, NotChecked, Preflight
from ..checks.account import find_role
from ..checks.quota import QUOTA_ACTIONS, check_vcpus

SPOT_ROLE_NAME = "AWSServiceRoleForEC2Spot"
SPOT_ROLE_LINK = "https://karpenter.sh/docs/troubleshooting/#missing-service-linked-role"


def cluster_quota(preflight: Preflight) -> str:
    """Check that the nodes of the run fit into the account's quota of vCPUs; those that the cluster has may be used again."""
    owned_by = f"kubernetes.io/cluster/{preflight.config.cloud.eks.cluster}"
    try:
        return check_vcpus(preflight, preflight.offer, owned_by)
    except CloudError as error:
        if error.cause != "credentials":
            raise
        raise NotChecked(f"you may not see the account's quotas: {error.problem}") from None
    except Failed as error:
        raise Failed(
            f"{error.problem}: nodes would never come", error.fix, link=error.link, cause=error.cause
        ) from None


def spot_role(preflight: Preflight) -> str:
    """Check the role with which EC2 starts spot machines. Karpenter may not create it, and a new account lacks it."""
    if preflight.offer.market != "spot":
        raise NotChecked("the plan is on demand")
    try:
        find_role(preflight, SPOT_ROLE_NAME)
    except CloudError as error:
        if error.code != "NoSuchEntity":
            raise
        raise Failed(
            f"the account has no role {SPOT_ROLE_NAME}: Karpenter cannot start spot nodes",
            "create it once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
            link=SPOT_ROLE_LINK,
        ) from None
    return SPOT_ROLE_NAME


SPOT_ROLE = Check("spot role", spot_role, "AWS", actions=("iam:GetRole",))
CLUSTER_QUOTA = Check("quota", cluster_quota, "AWS", actions=QUOTA_ACTIONS)
