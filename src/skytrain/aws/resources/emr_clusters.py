"""EMR clusters on EC2."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..errors import CloudError
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours

ALIVE = ["STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING"]


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    denied: CloudError | None = None
    for found in session.items(Call("emr", "ListClusters", {"ClusterStates": ALIVE}), "Clusters", region):
        try:
            cluster = session.perform(Call("emr", "DescribeCluster", {"ClusterId": found["Id"]}), region)["Cluster"]
        except CloudError as error:  # perhaps somebody else's: ours are found all the same
            denied = error
            continue
        tags = ours(cluster.get("Tags"))
        if tags is not None:
            created = found.get("Status", {}).get("Timeline", {}).get("CreationDateTime")
            yield CloudResource(
                kind=KIND.name,
                id=found["Id"],
                region=region,
                tags=tags,
                state=found["Status"]["State"],
                created_at=created,
            )
    if denied is not None:
        raise denied


def delete(resource: CloudResource) -> list[Call]:
    ids = [resource.id]
    unprotect = {"JobFlowIds": ids, "TerminationProtected": False}
    return [Call("emr", "SetTerminationProtection", unprotect), Call("emr", "TerminateJobFlows", {"JobFlowIds": ids})]


KIND = ResourceKind(
    name="EMR cluster",
    service="emr",
    order=20,
    find=find,
    delete=delete,
    reads=("elasticmapreduce:ListClusters", "elasticmapreduce:DescribeCluster"),
    deletes=("elasticmapreduce:SetTerminationProtection", "elasticmapreduce:TerminateJobFlows"),
)
