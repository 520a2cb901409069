"""The account: who calls, in which region, with which roles, and by which clock."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...aws import REGIONS_LINK, AwsSession, Call, CloudError, find_secret
from .check import Failed, NotChecked, Preflight

TOLERATED_SKEW_SECONDS = 60.0  # AWS rejects signatures that are five minutes off
CLOCK_LINK = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html"
SERVICE_ROLES_LINK = "https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html"
APPLY = "terraform -chdir=infra/terraform/base apply, then: skytrain cloud init --force"


def is_set_up(preflight: Preflight) -> str:
    cloud = preflight.config.cloud
    if cloud.project is None:
        raise NotChecked(
            "no account is set up: terraform -chdir=infra/terraform/base apply, then skytrain cloud init (docs/aws.md)"
        )
    return f"project {cloud.project}, account {cloud.account or 'any'}, store {preflight.config.store.root}"


def credentials(preflight: Preflight) -> str:
    return preflight.session.identity.arn


def clock(preflight: Preflight) -> str:
    answer = preflight.session.perform(Call("sts", "GetCallerIdentity"))
    said = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    if not said:
        raise NotChecked("the answer of AWS carries no date")
    skew = (datetime.now(UTC) - parsedate_to_datetime(said)).total_seconds()
    if abs(skew) > TOLERATED_SKEW_SECONDS:
        raise Failed(
            f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} AWS's",
            "set it: sudo chronyc makestep, or sudo timedatectl set-ntp true",
            link=CLOCK_LINK,
        )
    return f"within {max(1.0, abs(skew)):.0f} s of AWS's"


def region(preflight: Preflight) -> str:
    name = preflight.session.region
    regions = preflight.session.perform(Call("ec2", "DescribeRegions", {"AllRegions": True}))["Regions"]
    here = next((one for one in regions if one["RegionName"] == name), None)
    if here is None:
        raise Failed(f"AWS has no region {name}", "set cloud.region to one of: aws ec2 describe-regions")
    if here.get("OptInStatus") == "not-opted-in":
        raise Failed(
            f"{name} is not enabled for this account",
            f"enable it: aws account enable-region --region-name {name}; it takes minutes to hours",
            link=REGIONS_LINK,
        )
    planned = preflight.plan.choice.region if preflight.plan else name
    if planned != name:
        raise Failed(
            f"the plan is for {planned}, and the account is set up in {name}",
            f"plan for it: skytrain plan --region {name}",
        )
    return f"{name} is enabled"


def roles(preflight: Preflight) -> str:
    """Check that the roles exist and that the instance profile carries the node role."""
    cloud = preflight.config.cloud
    if cloud.instance_profile is None:
        raise NotChecked("cloud.instance_profile is not set; skytrain cloud init sets it")
    given = {"operator": cloud.roles.operator, "node": cloud.roles.node, "viewer": cloud.roles.viewer}
    names = {kind: arn.rpartition("/")[2] for kind, arn in given.items() if arn}
    for kind, name in names.items():
        role = find_role(preflight, name)
        if kind == "node" and role.get("PermissionsBoundary") and cloud.machine_roles.boundary is None:
            raise Failed(
                "the base gives each launch a role of its own, and the settings of cloud=aws do not name its policies: "
                "machines could write nothing",
                "skytrain cloud init --force",
            )
    profile = _visible(preflight.session, "GetInstanceProfile", InstanceProfileName=cloud.instance_profile)
    carried = [role["RoleName"] for role in profile["InstanceProfile"]["Roles"]]
    if "node" in names and carried != [names["node"]]:
        raise Failed(
            f"the instance profile {cloud.instance_profile} carries {', '.join(carried) or 'no role'}, not {names['node']}",
            APPLY,
        )
    if cloud.machine_roles.boundary is not None:
        return f"{', '.join(names.values())}; each launch gets a role below {cloud.machine_roles.path}"
    return (
        f"{', '.join(names.values())}; machines of all runs share {', '.join(carried)}: to keep runs apart, apply "
        "infra/terraform/base of this version, then: skytrain cloud init --force"
    )


def service_roles(preflight: Preflight) -> str:
    """Check the roles with which AWS itself starts machines. A new account has none of them until they are first used.

    With disks under a key of the account, their first use comes too late: the key must know the role before.
    """
    spot = preflight.plan is not None and any(offer.market == "spot" for offer in preflight.plan.offers)
    wanted = {"AWSServiceRoleForAutoScaling": "autoscaling.amazonaws.com"}
    wanted |= {"AWSServiceRoleForEC2Spot": "spot.amazonaws.com"} if spot else {}
    missing = [name for name in wanted if not _exists(preflight, name)]
    if not missing:
        return ", ".join(wanted)
    names = " and ".join(missing)
    create = "; ".join(f"aws iam create-service-linked-role --aws-service-name {wanted[name]}" for name in missing)
    if preflight.config.cloud.kms_key is None:
        raise NotChecked(f"{names}: not there yet; AWS makes them at the first launch, or: {create}")
    raise Failed(
        f"the account has no role {names}, which must use the key {preflight.config.cloud.kms_key} of the disks",
        f"create it once: {create}",
        link=SERVICE_ROLES_LINK,
    )


def _exists(preflight: Preflight, role: str) -> bool:
    try:
        find_role(preflight, role)
    except CloudError as error:
        if error.code != "NoSuchEntity":
            raise
        return False
    return True


def find_role(preflight: Preflight, name: str) -> dict[str, Any]:
    """Return a role. Raises NotChecked where the caller may not see it: AWS itself refuses a role that does not fit."""
    described: dict[str, Any] = _visible(preflight.session, "GetRole", RoleName=name)["Role"]
    return described


def _visible(session: AwsSession, operation: str, **named: str) -> dict[str, Any]:
    try:
        return session.perform(Call("iam", operation, named))
    except CloudError as error:
        if error.code.startswith("AccessDenied"):
            raise NotChecked(f"you may not see {', '.join(named.values())} (iam:{operation})") from None
        raise


def secrets(preflight: Preflight) -> str:
    """Check that the secrets of `cloud.secrets` exist. Their values are not read: only machines may."""
    places = preflight.config.cloud.secrets
    if not places:
        raise NotChecked("cloud.secrets names none")
    for name, place in sorted(places.items()):
        try:
            find_secret(preflight.session, place)
        except CloudError as error:
            raise Failed(
                f"cloud.secrets.{name}={place}: {error.problem}", error.fix, cause=error.cause, link=error.link
            ) from None
    return f"{', '.join(sorted(places))}: their secrets exist"


def trusts(role: dict[str, Any], service: str) -> bool:
    """Return whether a role, as IAM describes it, lets the service assume it."""
    return any(
        _allows(statement, service) for statement in _listed(role["AssumeRolePolicyDocument"].get("Statement", []))
    )


def _allows(statement: dict[str, Any], service: str) -> bool:
    if statement.get("Effect") != "Allow" or "sts:AssumeRole" not in _listed(statement.get("Action", [])):
        return False
    principal = statement.get("Principal", {})
    return principal == "*" or service in _listed(principal.get("Service", []))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
