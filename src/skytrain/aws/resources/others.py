"""Whatever else carries our tags, by the tagging API: it is shown, and gc does not delete it."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ..tags import PROJECT
from ._kind import CloudResource, ResourceKind, ours

# What the other kinds find, as ARNs begin; the tagging API also names what is being deleted.
KNOWN = (
    "autoscaling:",
    "ec2:elastic-ip/",
    "ec2:instance/",
    "ec2:launch-template/",
    "ec2:natgateway/",
    "ec2:network-interface/",
    "ec2:placement-group/",
    "ec2:security-group/",
    "ec2:snapshot/",
    "ec2:spot-instance",
    "ec2:volume/",
    "eks:cluster/",
    "eks:nodegroup/",
    "elasticmapreduce:cluster/",
    "emr-serverless:/applications/",
    "fsx:file-system/",
    "logs:log-group:",
    "sagemaker:endpoint/",
    "sagemaker:training-job/",
    "scheduler:schedule-group/",
    "ssm:parameter/",
)


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    call = Call("resourcegroupstaggingapi", "GetResources", {"TagFilters": [{"Key": PROJECT}]})
    for found in session.items(call, "ResourceTagMappingList", region):
        tags = ours(found["Tags"])
        arn = found["ResourceARN"]
        _, _, service, _, _, name = arn.split(":", 5)
        if tags is not None and not f"{service}:{name}".startswith(KNOWN):
            yield CloudResource(KIND.name, arn, region, tags)


def delete(resource: CloudResource) -> list[Call]:
    return []


KIND = ResourceKind(
    name="other",
    service="resourcegroupstaggingapi",
    order=100,
    find=find,
    delete=delete,
    reads=("tag:GetResources",),
    deletes=(),
)
