"""FSx for Lustre file systems."""

from __future__ import annotations

from collections.abc import Iterator

from ..calls import Call
from ..session import AwsSession
from ._kind import CloudResource, ResourceKind, ours, per_month

# us-east-2, dollars per GB and month; persistent ones by their throughput per TiB.
SCRATCH_USD_PER_GB = 0.14
PERSISTENT_USD_PER_GB = {125: 0.145, 250: 0.21, 500: 0.34, 1000: 0.60}


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for found in session.items(Call("fsx", "DescribeFileSystems"), "FileSystems", region):
        tags = ours(found.get("Tags"))
        if tags is None or found.get("Lifecycle") == "DELETING":
            continue
        throughput = found.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
        price = SCRATCH_USD_PER_GB if throughput is None else PERSISTENT_USD_PER_GB.get(throughput)
        gb = found.get("StorageCapacity", 0)
        yield CloudResource(
            kind=KIND.name,
            id=found["FileSystemId"],
            region=region,
            tags=tags,
            state=found.get("Lifecycle", ""),
            created_at=found.get("CreationTime"),
            usd_per_hour=None if price is None else per_month(price * gb),
            facts={"gb": gb},
        )


def delete(resource: CloudResource) -> list[Call]:
    return [Call("fsx", "DeleteFileSystem", {"FileSystemId": resource.id}, token_key=resource.id)]


KIND = ResourceKind(
    name="file system",
    service="fsx",
    order=40,
    find=find,
    delete=delete,
    reads=("fsx:DescribeFileSystems",),
    deletes=("fsx:DeleteFileSystem",),
)
