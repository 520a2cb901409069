"""Quotas: the vCPUs that a plan needs against those that the account may run, less those it runs now."""

from __future__ import annotations

from collections import Counter

from ...aws import AwsSession, Call, CloudError, quota_page
from ...planning import Market, PlannedOffer, quota_code
from .check import Failed, NotChecked, Preflight

MISSING = "NoSuchResourceException"
QUOTA_ACTIONS = (
    "servicequotas:GetServiceQuota",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:ListServiceQuotas",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeSpotInstanceRequests",
)


def quota(preflight: Preflight) -> str:
    if preflight.offer.reservation is not None:
        raise NotChecked("machines of a capacity block do not count towards the quotas of on-demand machines")
    return check_vcpus(preflight, preflight.offer)


def fallbacks(preflight: Preflight) -> str:
    """Report the offers after the first; a launch can do without them, so a shortage is not a failure."""
    _ = preflight.offer
    assert preflight.plan is not None
    if not preflight.plan.offers[1:]:
        raise NotChecked("the plan has no fallback")
    short = []
    for offer in preflight.plan.offers[1:]:
        try:
            check_vcpus(preflight, offer)
        except (Failed, NotChecked) as problem:
            short.append(str(problem))
    if short:
        raise NotChecked("; ".join(short))
    return f"enough for all {len(preflight.plan.offers) - 1} fallbacks"


def check_vcpus(preflight: Preflight, offer: PlannedOffer, owned_by: str | None = None) -> str:
    """Return how many vCPUs are free for an offer. Raises Failed if they are too few.

    `owned_by`: machines with this tag count as free, because the offer may use them.
    """
    session = preflight.session
    what = f"{offer.nodes} x {offer.instance_type}, {offer.market}"
    code = offer.quota.code or _code_by_name(session, offer)
    if code is None:
        raise NotChecked(f"{what}: needs {offer.quota.vcpus} vCPUs of a quota whose code is not known; look it up")
    held = held_vcpus(session, code)
    used = used_vcpus(session, code, offer.market, owned_by)
    if held - used < offer.quota.vcpus:
        raise Failed(
            f"{what}: needs {offer.quota.vcpus} vCPUs; quota {code} is {held}, of which {used} are in use",
            f"request {used + offer.quota.vcpus} or more for {code} in {session.region}, or plan smaller or fewer machines",
            link=quota_page(session.region, "ec2", code),
            cause="quota",
        )
    return f"{what}: needs {offer.quota.vcpus} vCPUs, {held - used} of {held} are free ({code})"


def held_vcpus(session: AwsSession, code: str) -> int:
    """Return the quota's value in the session's region; AWS's default if the account never changed it."""
    named = {"ServiceCode": "ec2", "QuotaCode": code}
    try:
        answer = session.perform(Call("service-quotas", "GetServiceQuota", named))
    except CloudError as error:
        if error.code != MISSING:
            raise
        answer = session.perform(Call("service-quotas", "GetAWSDefaultServiceQuota", named))
    return int(answer["Quota"]["Value"])


def used_vcpus(session: AwsSession, code: str, market: Market, owned_by: str | None = None) -> int:
    """Return the vCPUs that running instances, but those with the tag `owned_by`, and open spot requests take of the quota."""
    running = {"Filters": [{"Name": "instance-state-name", "Values": ["pending", "running"]}]}
    types: Counter[str] = Counter()
    for reservation in session.items(Call("ec2", "DescribeInstances", running), "Reservations"):
        for instance in reservation["Instances"]:
            lifecycle: Market = "spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand"
            owned = any(tag["Key"] == owned_by for tag in instance.get("Tags", []))
            if lifecycle == market and not owned:
                types[instance["InstanceType"]] += 1
    if market == "spot":
        waiting = {"Filters": [{"Name": "state", "Values": ["open"]}]}
        for request in session.items(Call("ec2", "DescribeSpotInstanceRequests", waiting), "SpotInstanceRequests"):
            types[request["LaunchSpecification"]["InstanceType"]] += 1
    counted = {kind: count for kind, count in types.items() if quota_code(kind, market) == code}
    if not counted:
        return 0
    described = session.items(Call("ec2", "DescribeInstanceTypes", {"InstanceTypes": list(counted)}), "InstanceTypes")
    return sum(counted[one["InstanceType"]] * one["VCpuInfo"]["DefaultVCpus"] for one in described)


def _code_by_name(session: AwsSession, offer: PlannedOffer) -> str | None:
    """Find the quota of a family whose code is not published, by its name: "All P6 Spot Instance Requests"."""
    generation = offer.instance_type[:2].upper()
    word = "Spot" if offer.market == "spot" else "On-Demand"
    for one in session.items(Call("service-quotas", "ListServiceQuotas", {"ServiceCode": "ec2"}), "Quotas"):
        if generation in one["QuotaName"] and word in one["QuotaName"]:
            return str(one["QuotaCode"])
    return None
