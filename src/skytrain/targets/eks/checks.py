"""What EKS checks before a launch besides the cluster: the account's quota, from which nodes are started."""

from __future__ import annotations

from ...aws import CloudError
from ..checks import Check, Failed, NotChecked, Preflight
from ..checks.quota import QUOTA_ACTIONS, check_vcpus


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


CLUSTER_QUOTA = Check("quota", cluster_quota, "AWS", actions=QUOTA_ACTIONS)
