"""What a Spark job on EMR needs: roles that EMR may assume, its service-linked roles, and quota."""

from __future__ import annotations

from collections import Counter

from ...aws import Call, CloudError, offered_zones, quota_page
from ...planning import Market, quota_code
from ...storage import partition_of
from ..checks import Check, Failed, NotChecked, Preflight, account_checks
from ..checks.account import find_role, trusts
from ..checks.quota import QUOTA_ACTIONS, held_vcpus, used_vcpus
from .jobs import SERVERLESS
from .requests import needed

APPLY = "set emr = true in infra/terraform/base/terraform.tfvars, apply, then: skytrain cloud init --force"
SERVICE_ROLES = {
    "emr-serverless": ("AWSServiceRoleForAmazonEMRServerless", "ops.emr-serverless.amazonaws.com"),
    "emr": ("AWSServiceRoleForEMRCleanup", "elasticmapreduce.amazonaws.com"),
}
VCPU_QUOTA = "Max concurrent vCPUs per account"


def emr_service(region: str) -> str:
    """Return EMR's name in policies, which ends in China as addresses there do."""
    partition = partition_of(region)
    return f"elasticmapreduce.{partition.addresses if partition.name == 'aws-cn' else 'amazonaws.com'}"


def role(preflight: Preflight) -> str:
    """Check that EMR may assume the roles of the job."""
    roles = preflight.config.cloud.roles
    if preflight.config.cloud.target == SERVERLESS:
        wanted = {needed(roles.prepare, "roles.prepare"): "emr-serverless.amazonaws.com"}
    else:
        wanted = {
            needed(roles.emr_service, "roles.emr_service"): emr_service(preflight.session.region),
            needed(roles.prepare, "roles.prepare"): "ec2.amazonaws.com",
        }
    for arn, service in wanted.items():
        name = arn.rpartition("/")[2]
        described = find_role(preflight, name)
        if not trusts(described, service):
            raise Failed(f"the role {name} does not trust {service}: EMR cannot use it", APPLY)
    return ", ".join(f"{arn.rpartition('/')[2]} trusts {service}" for arn, service in wanted.items())


def service_linked_role(preflight: Preflight) -> str:
    """Check the role that AWS itself needs; the operator may not create it."""
    name, service = SERVICE_ROLES[str(preflight.config.cloud.target)]
    try:
        find_role(preflight, name)
    except CloudError as error:
        if error.code != "NoSuchEntity":
            raise
        raise Failed(
            f"the account has no role {name}, which EMR needs",
            f"an administrator creates it once: aws iam create-service-linked-role --aws-service-name {service}",
        ) from None
    return name


def quota(preflight: Preflight) -> str:
    """Check the vCPUs: EMR Serverless has a quota of its own, the nodes of a cluster count as EC2's."""
    if preflight.config.cloud.target == SERVERLESS:
        return _serverless_quota(preflight)
    wanted = preflight.config.cloud.emr
    session = preflight.session
    nodes: list[tuple[str, int, Market]] = [
        (wanted.primary, 1, "on-demand"),
        (wanted.core, wanted.core_nodes, "on-demand"),
    ]
    if wanted.task_nodes:
        nodes.append((wanted.task, wanted.task_nodes, "spot"))
    kinds = sorted({kind for kind, _, _ in nodes})
    described = session.items(Call("ec2", "DescribeInstanceTypes", {"InstanceTypes": kinds}), "InstanceTypes")
    vcpus = {one["InstanceType"]: one["VCpuInfo"]["DefaultVCpus"] for one in described}
    need: Counter[tuple[str, Market]] = Counter()
    for kind, count, market in nodes:
        code = quota_code(kind, market)
        if code is None:
            raise NotChecked(f"{kind}: the quota of its family is not known; look it up")
        need[(code, market)] += count * vcpus[kind]
    said = []
    for (code, market), wants in need.items():
        held = held_vcpus(session, code)
        used = used_vcpus(session, code, market)
        if held - used < wants:
            raise Failed(
                f"the cluster needs {wants} vCPUs {market}; quota {code} is {held}, of which {used} are in use",
                f"request {used + wants} or more for {code} in {session.region}, or set cloud.emr.core_nodes and "
                "cloud.emr.task_nodes lower",
                link=quota_page(session.region, "ec2", code),
                cause="quota",
            )
        said.append(f"{wants} vCPUs {market}, {held - used} of {held} are free ({code})")
    return "; ".join(said)


def zones(preflight: Preflight) -> str:
    """Check that one zone with a subnet sells every type of node."""
    wanted = preflight.config.cloud.emr
    if preflight.config.cloud.target == SERVERLESS:
        raise NotChecked("EMR Serverless has no types of machines")
    types = sorted({wanted.primary, wanted.core, *([wanted.task] if wanted.task_nodes else [])})
    sold = [set(offered_zones(preflight.session, kind)) for kind in types]
    both = sorted(set.intersection(*sold) & set(preflight.subnets))
    if not both:
        raise Failed(
            f"no zone with a subnet ({', '.join(sorted(preflight.subnets))}) sells all of {', '.join(types)}",
            "set cloud.emr.primary, cloud.emr.core and cloud.emr.task to other types",
            cause="capacity",
        )
    return f"{', '.join(types)} in {', '.join(both)}"


def _serverless_quota(preflight: Preflight) -> str:
    wanted = preflight.config.cloud.emr
    session = preflight.session
    wants = ((wanted.executors or 1) + 1) * wanted.executor_cores
    vcpu_quota = None
    for operation in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
        for one in session.items(Call("service-quotas", operation, {"ServiceCode": "emr-serverless"}), "Quotas"):
            if one["QuotaName"] == VCPU_QUOTA and vcpu_quota is None:
                vcpu_quota = str(one["QuotaCode"]), int(one["Value"])
    if vcpu_quota is None:
        raise NotChecked(f"Service Quotas of {session.region} names no quota '{VCPU_QUOTA}'; look it up")
    code, held = vcpu_quota
    if held < wants:
        raise Failed(
            f"the job may use {wants} vCPUs; the quota '{VCPU_QUOTA}' of EMR Serverless is {held}",
            f"request {wants} or more for {code} in {session.region}, or set cloud.emr.executors="
            f"{max(1, held // wanted.executor_cores - 1)}",
            link=quota_page(session.region, "emr-serverless", code),
            cause="quota",
        )
    return f"up to {wants} vCPUs of {held} ({code})"


KNOWN = ("credentials", "region")
ACCOUNT = (
    "store", "account", "credentials", "clock", "region", "secrets", "bucket", "encryption", "subnets", "route to S3", "security group",
)  # fmt: skip
OWN: tuple[Check, ...] = (
    Check(name="role", run=role, group="AWS", needs=("credentials",), actions=("iam:GetRole",)),
    Check(
        name="service-linked role",
        run=service_linked_role,
        group="AWS",
        needs=("credentials",),
        actions=("iam:GetRole",),
    ),
    Check(
        name="quota",
        run=quota,
        group="AWS",
        needs=KNOWN,
        actions=(*QUOTA_ACTIONS, "servicequotas:ListAWSDefaultServiceQuotas"),
    ),
    Check(name="zones", run=zones, group="AWS", needs=KNOWN, actions=("ec2:DescribeInstanceTypeOfferings",)),
)


def spark_job_checks() -> tuple[Check, ...]:
    """Return the checks before a job on EMR: the account's, then the job's own."""
    return (*account_checks(*ACCOUNT), *OWN)
