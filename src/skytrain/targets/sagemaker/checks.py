"""What a SageMaker training job needs: a role that SageMaker may assume, quota of its own, an image that can be pulled."""

from __future__ import annotations

from ...aws import Call, CloudError, quota_page
from ...planning import load_catalog
from ..checks import Check, Failed, NotChecked, Preflight, account_checks
from ..checks.account import find_role, trusts
from .jobs import quota_of, training_quotas, used_instances
from .requests import ecr_image, job_role

SERVICE = "sagemaker.amazonaws.com"
APPLY = "set sagemaker = true in infra/terraform/base/terraform.tfvars, apply, then: skytrain cloud init --force"


def role(preflight: Preflight) -> str:
    """Check that SageMaker may assume the role of the containers."""
    arn = job_role(preflight.config.cloud)
    name = arn.rpartition("/")[2]
    described = find_role(preflight, name)
    if not trusts(described, SERVICE):
        raise Failed(f"the role {name} does not trust {SERVICE}: SageMaker cannot run containers with it", APPLY)
    return f"{name} trusts {SERVICE}"


def instance_type(preflight: Preflight) -> str:
    """Check that SageMaker has machines of the planned type, as far as this botocore knows."""
    wanted = f"ml.{preflight.offer.instance_type}"
    known = _training_types()
    if wanted not in known:
        family = wanted.rsplit(".", 1)[0]
        others = [name for name in known if name.startswith(f"{family}.")]
        raise Failed(
            f"SageMaker has no training machine {wanted}",
            f"plan another type: skytrain plan --instance NAME ({', '.join(others) or 'g5, g6e, p4d, p5 and others'})",
            cause="capacity",
        )
    return wanted


def quota(preflight: Preflight) -> str:
    """Check SageMaker's own quota of the type, which counts machines; EC2's do not apply."""
    offer = preflight.offer
    session = preflight.session
    wanted = preflight.config.cloud.sagemaker
    if wanted.training_plan is not None:
        raise NotChecked("machines of a training plan are reserved")
    name = f"ml.{offer.instance_type}"
    spot = offer.market == "spot"
    asked = f"{name} for {'spot ' if spot else ''}training job usage"
    known = quota_of(session, asked)
    if known is None:
        raise NotChecked(f"Service Quotas of {session.region} names no quota '{asked}'; look it up")
    code, held = known
    used = used_instances(session, name, spot)
    if held - used < offer.nodes:
        raise Failed(
            f"{offer.nodes} x {name}, {offer.market}: the quota '{asked}' is {held}, of which {used} are in use",
            f"request {used + offer.nodes} or more for {code} in {session.region}, or plan smaller or fewer machines",
            link=quota_page(session.region, "sagemaker", code),
            cause="quota",
        )
    return f"{offer.nodes} x {name}, {offer.market}: {held - used} of {held} are free ({code})"


def quotas(preflight: Preflight) -> str:
    """Name the machines with GPUs that the account may train on, without a plan that asks for one of them."""
    known = training_quotas(preflight.session)
    types = [one.type for one in load_catalog().instances]
    parts = []
    for market, kind in (("on demand", ""), ("spot", "spot ")):
        held = {type: known.get(f"ml.{type} for {kind}training job usage", 0) for type in types}
        named = [f"{count} x ml.{type}" for type, count in held.items() if count]
        parts.append(f"{market}: {', '.join(named) or 'none'}")
    if all(part.endswith(": none") for part in parts):
        raise Failed(
            f"SageMaker's quotas of all machines with GPUs are 0 in {preflight.session.region}",
            "request one in Service Quotas, such as 'ml.g5.12xlarge for spot training job usage'",
            link=quota_page(preflight.session.region, "sagemaker"),
            cause="quota",
        )
    return "; ".join(parts)


def image(preflight: Preflight) -> str:
    """Check that the image exists in ECR and that this account may pull it."""
    wanted = preflight.config.cloud.sagemaker
    session = preflight.session
    wanted_image = ecr_image(wanted)
    if wanted_image.region != session.region:
        raise Failed(
            f"the image is in {wanted_image.region}: SageMaker pulls images of its own region, {session.region}",
            f"use the image of {session.region}, or copy it there",
        )
    named = {
        "registryId": wanted_image.account,
        "repositoryName": wanted_image.name,
        "imageIds": [{"imageDigest": wanted_image.digest}],
    }
    try:
        answer = session.perform(Call("ecr", "BatchGetImage", named))
    except CloudError as error:
        raise Failed(f"the image cannot be pulled: {error.problem}", error.fix, cause=error.cause) from None
    if not answer.get("images"):
        reasons = [one.get("failureReason", one.get("failureCode", "")) for one in answer.get("failures", [])]
        raise Failed(
            f"{wanted_image.account}.dkr.ecr.{wanted_image.region}: {wanted_image.name} has no image {wanted_image.digest} ({'; '.join(reasons)})",
            "set cloud.sagemaker.image to one that it has: aws ecr describe-images --repository-name NAME",
        )
    return f"{wanted_image.name}@{wanted_image.digest[:19]}... in account {wanted_image.account}"


def _training_types() -> list[str]:
    import botocore.session

    model = botocore.session.Session().get_service_model("sagemaker")
    return list(model.shape_for("TrainingInstanceType").enum)


QUOTA_ACTIONS = ("servicequotas:ListServiceQuotas", "servicequotas:ListAWSDefaultServiceQuotas")
ACCOUNT = (
    "store", "account", "credentials", "clock", "region", "secrets", "bucket", "encryption", "plan", "subnets", "route to S3", "security group",
)  # fmt: skip
OWN: tuple[Check, ...] = (
    Check(name="role", run=role, group="AWS", needs=("credentials",), actions=("iam:GetRole",)),
    Check(name="type", run=instance_type, group="AWS"),
    Check(
        name="quota",
        run=quota,
        group="AWS",
        needs=("region", "type"),
        actions=(*QUOTA_ACTIONS, "sagemaker:ListTrainingJobs", "sagemaker:DescribeTrainingJob"),
    ),
    Check(name="image", run=image, group="AWS", needs=("region",), actions=("ecr:BatchGetImage",)),
)
ALL_QUOTAS = Check(name="quotas", run=quotas, group="AWS", needs=("region",), actions=QUOTA_ACTIONS)


def training_job_checks(*, planned: bool = True) -> tuple[Check, ...]:
    """Return the checks before a training job: the account's, then the job's own, or all quotas without a plan."""
    if planned:
        return (*account_checks(*ACCOUNT), *OWN)
    return (*account_checks(*ACCOUNT), *(check for check in OWN if check.name not in ("type", "quota")), ALL_QUOTAS)
