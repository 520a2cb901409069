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
            KIND.name,
            name,
            region,
            tags,
            cluster.get("status", ""),
            cluster.get("createdAt"),
            USD_PER_HOUR,
            {"nodegroups": groups},
        )


def delete(resource: CloudResource) -> list[Call]:
    groups = [
        Call("eks", "DeleteNodegroup", {"clusterName": resource.id, "nodegroupName": name})
        for name in resource.facts.get("nodegroups", [])
    ]
    return [*groups, Call("eks", "DeleteCluster", {"name": resource.id})]


KIND = ResourceKind(
    "EKS cluster",
    "eks",
    15,
    find,
    delete,
    ("eks:ListClusters", "eks:DescribeCluster", "eks:ListNodegroups"),
    ("eks:DeleteNodegroup", "eks:DeleteCluster"),
)
