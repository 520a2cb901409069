"""EKS clusters, with their node groups."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours

USD_PER_HOUR = 0.10  # of the control plane, while its version has standard support; nodes are instances


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for name in session.items(Call("eks", "ListClusters"), "clusters", region):
        cluster = session.perform(Call("eks", "DescribeCluster", {"name": name}), region)["cluster"]
        tags = ours(cluster.get("tags"))
        if tags is None or cluster.get("status") == "DELETING":
            continue
        groups = list(session.items(Call("eks", "ListNodegroups", {"clusterName": name}), "nodegroups", region))
        yield CloudResource(
            kind=KIND.name,
            id=name,
            region=region,
            tags=tags,
            state=cluster.get("status", ""),
            created_at=cluster.get("createdAt"),
            usd_per_hour=USD_PER_HOUR,
            facts={"nodegroups": groups},
        )


def delete(resource: CloudResource) -> list[Call]:
    groups = [
        Call("eks", "DeleteNodegroup", {"clusterName": resource.id, "nodegroupName": name})
        for name in resource.facts.get("nodegroups", [])
    ]
    return [*groups, Call("eks", "DeleteCluster", {"name": resource.id})]


KIND = ResourceKind(
    name="EKS cluster",
    service="eks",
    order=15,
    find=find,
    delete=delete,
    reads=("eks:ListClusters", "eks:DescribeCluster", "eks:ListNodegroups"),
    deletes=("eks:DeleteNodegroup", "eks:DeleteCluster"),
)
