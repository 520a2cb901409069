"""Multipart uploads that nobody completed, in our buckets. Objects and buckets themselves are never touched."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ..calls import Call
from ..session import AwsSession
from ..tags import PROJECT
from ._kind import CloudResource, ResourceKind, ours

ABANDONED = timedelta(days=1)  # as the lifecycle rule of the base: a younger one may still be in progress


def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
    wanted = {"TagFilters": [{"Key": PROJECT}], "ResourceTypeFilters": ["s3"]}
    call = Call("resourcegroupstaggingapi", "GetResources", wanted)
    for bucket in session.items(call, "ResourceTagMappingList", region):
        tags = ours(bucket["Tags"])
        name = bucket["ResourceARN"].rpartition(":")[2]
        if tags is None or "/" in name:
            continue
        for found in session.items(Call("s3", "ListMultipartUploads", {"Bucket": name}), "Uploads", region):
            if datetime.now(UTC) - found["Initiated"] > ABANDONED:
                facts = {"bucket": name, "key": found["Key"], "upload": found["UploadId"]}
                # The size of its parts would take a request for each upload; the price is that of stored data.
                url = f"s3://{name}/{found['Key']}"
                yield CloudResource(
                    kind=KIND.name,
                    id=url,
                    region=region,
                    tags=tags,
                    state="abandoned",
                    created_at=found["Initiated"],
                    facts=facts,
                )


def delete(resource: CloudResource) -> list[Call]:
    facts = resource.facts
    named = {"Bucket": facts["bucket"], "Key": facts["key"], "UploadId": facts["upload"]}
    return [Call("s3", "AbortMultipartUpload", named)]


KIND = ResourceKind(
    name="multipart upload",
    service="s3",
    order=90,
    find=find,
    delete=delete,
    reads=("tag:GetResources", "s3:ListBucketMultipartUploads"),
    deletes=("s3:AbortMultipartUpload",),
    leftover=True,
)
