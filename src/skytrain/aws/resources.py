"""The kinds of AWS resources that `gc` knows: how Skytrain's are found, what they cost, and what deletes them.

`KINDS` at the end is the table. Most kinds are one listing of their service, which `listing` describes; a kind that
needs more has its own function. Prices are those of us-east-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from ..planning import HOURS_PER_MONTH, Market, load_catalog, unit_prices
from .calls import Call
from .errors import CloudError
from .session import AwsSession
from .tags import PROJECT, Tags, project_filter, read_tags

VOLUME_TYPES = ("gp3", "gp2", "io1", "io2", "st1", "sc1", "standard")
ABANDONED = timedelta(days=1)  # an upload younger than this may be in progress; the base's lifecycle rule agrees
GROUP_TAG = "aws:autoscaling:groupName"
MOST_NAMES = 50  # of groups in one question
KEYS_ROOT = "/skytrain/"  # path of the parameters that contain API keys
ROLES_ROOT = "/skytrain/"  # path of the roles of launches; their region follows
IDLE_APPLICATION = ("CREATED", "STOPPED")  # costs nothing
ACTIVE_JOB = ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "QUEUED")
# Prefixes of the ARNs that the other kinds find. The tagging API also lists what is being deleted.
KNOWN_ARNS = (
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
    "iam:instance-profile/",
    "iam:role/",
    "logs:log-group:",
    "sagemaker:endpoint/",
    "sagemaker:training-job/",
    "scheduler:schedule-group/",
    "ssm:parameter/",
)


@dataclass(frozen=True)
class CloudResource:
    """One resource that carries Skytrain's tags."""

    kind: str
    id: str
    region: str
    tags: Tags
    state: str = ""
    created_at: datetime | None = None
    usd_per_hour: float | None = None  # None if unknown
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the kind needs to describe or delete it

    @property
    def usd_per_month(self) -> float | None:
        return None if self.usd_per_hour is None else self.usd_per_hour * HOURS_PER_MONTH


Answer = Mapping[str, Any]  # one item of a service's listing
Find = Callable[[AwsSession, str], Iterator[CloudResource]]
Delete = Callable[[CloudResource], list[Call]]


@dataclass(frozen=True)
class ResourceKind:
    """One kind of resource. Kinds are deleted in ascending `order`: containers before what they contain."""

    name: str
    service: str  # skipped in regions where the service does not exist
    order: int
    find: Find
    delete: Delete
    reads: tuple[str, ...]  # IAM actions of `find`
    deletes: tuple[str, ...]  # IAM actions of `delete`; empty if gc only lists the kind
    leftover: bool = False  # everything of this kind is garbage, whoever owns it


def listing(
    kind: str,
    call: Call,
    items: str,
    *,
    id: str,
    tags: str | Callable[[AwsSession, Answer, str], Any] = "Tags",
    keep: Callable[[Answer], bool] = lambda item: True,
    state: str | Callable[[Answer], str] | None = None,
    created: str | None = None,
    usd_per_hour: float | Callable[[Answer], float | None] | None = None,
    facts: Callable[[Answer], Mapping[str, Any]] = lambda item: {},
) -> Find:
    """Return the search of a kind that one listing of its service finds.

    `id`, `tags`, `state` and `created` are keys of an item; a function where an item does not have it as it is.
    AWS's filters are not trusted: only a resource with Skytrain's tags counts.
    """

    def find(session: AwsSession, region: str) -> Iterator[CloudResource]:
        for item in session.items(call, items, region):
            if not keep(item):
                continue
            listed = item.get(tags) if isinstance(tags, str) else tags(session, item, region)
            ours = listed if isinstance(listed, Tags) else read_tags(listed)
            if ours is not None:
                yield CloudResource(
                    kind=kind,
                    id=item[id],
                    region=region,
                    tags=ours,
                    state=item.get(state, "") if isinstance(state, str) else state(item) if state else "",
                    created_at=item.get(created) if created else None,
                    usd_per_hour=usd_per_hour(item) if callable(usd_per_hour) else usd_per_hour,
                    facts=facts(item),
                )

    return find


def ec2_listing(kind: str, operation: str, items: str, *, id: str, **more: Any) -> Find:
    """Return the search of a kind of EC2, which filters by tag itself."""
    return listing(kind, Call("ec2", operation, {"Filters": [project_filter()]}), items, id=id, **more)


def per_month(usd: float) -> float:
    """Return the dollars per hour of something that is priced by the month."""
    return usd / HOURS_PER_MONTH


def delete_by(service: str, operation: str, name: str, *, with_token: bool = False) -> Delete:
    """Return the deletion of a kind that one request deletes by its id, whose parameter is `name`."""

    def delete(resource: CloudResource) -> list[Call]:
        return [Call(service, operation, {name: resource.id}, token_key=resource.id if with_token else "")]

    return delete


def keep_all(resource: CloudResource) -> list[Call]:
    """Delete nothing: Terraform or a person removes these."""
    return []


def scale_to_zero(resource: CloudResource) -> Call:
    """Return the request of `skytrain stop`: the group stays, and its instances end."""
    sizes = {"MinSize": 0, "DesiredCapacity": 0}
    return Call("autoscaling", "UpdateAutoScalingGroup", {"AutoScalingGroupName": resource.id, **sizes})


def _find_instances(session: AwsSession, region: str) -> Iterator[CloudResource]:
    yield from _list_instances(session, region, project_filter(), lambda group: None)


def _list_instances(
    session: AwsSession, region: str, chosen: Mapping[str, Any], owner: Callable[[str | None], Tags | None]
) -> Iterator[CloudResource]:
    """Yield the instances of a filter. `owner` gives the tags of a group's instances, whatever is written on them."""
    alive = ["pending", "running", "shutting-down", "stopping", "stopped"]
    filters = [chosen, {"Name": "instance-state-name", "Values": alive}]
    catalog = load_catalog()
    for reservation in session.items(Call("ec2", "DescribeInstances", {"Filters": filters}), "Reservations", region):
        for item in reservation["Instances"]:
            group = next((tag["Value"] for tag in item.get("Tags", []) if tag["Key"] == GROUP_TAG), None)
            written = read_tags(item.get("Tags"))
            tags = owner(group) or written
            if tags is not None and written is not None and written.project != tags.project:
                continue  # it is somebody else's, in a group of the same name
            state = item["State"]["Name"]
            if tags is None or state == "shutting-down":  # no longer billed, and cannot be terminated once more
                continue
            market: Market = "spot" if item.get("InstanceLifecycle") == "spot" else "on-demand"
            price = catalog.price(item["InstanceType"], region, market)
            running = state in ("pending", "running")
            yield CloudResource(
                kind="instance",
                id=item["InstanceId"],
                region=region,
                tags=tags,
                state=state,
                created_at=item.get("LaunchTime"),
                usd_per_hour=0.0 if not running else price.usd_per_hour_max if price else None,
                facts={
                    "type": item["InstanceType"],
                    "market": market,
                    "zone": item.get("Placement", {}).get("AvailabilityZone"),
                    "group": group,
                    "address": item.get("PrivateIpAddress"),
                },
            )


def _volume_usd(volume: Answer) -> float | None:
    # Provisioned throughput and operations beyond the free ones are not counted.
    kind = volume.get("VolumeType")
    return per_month(unit_prices()[kind].usd * volume["Size"]) if kind in VOLUME_TYPES else None


def _file_system_usd(system: Answer) -> float | None:
    throughput = system.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
    kind = "scratch" if throughput is None else f"persistent2-{throughput}"
    price = unit_prices().get(f"fsx-lustre-{kind}")
    return None if price is None else per_month(price.usd * system.get("StorageCapacity", 0))


def _release_address(address: CloudResource) -> list[Call]:
    association = address.facts.get("association")
    detach = [Call("ec2", "DisassociateAddress", {"AssociationId": association})] if association else []
    return [*detach, Call("ec2", "ReleaseAddress", {"AllocationId": address.id})]


def find_groups(session: AwsSession, region: str, owners: Mapping[str, Tags]) -> Iterator[CloudResource]:
    """Yield the Auto Scaling groups of these names and their instances, with the tags given here.

    People may remove or edit the tags of a group. They cannot do that to its name, nor to the name of the group on an
    instance, which is a tag of AWS's own. Run y of project demo-x has groups of the same names as run x-y of demo: what
    carries the tag of another project is left out.
    """

    def ours(session: AwsSession, group: Answer, region: str) -> Tags | None:
        tags = owners[group["AutoScalingGroupName"]]
        written = read_tags(group.get("Tags"))
        return tags if written is None or written.project == tags.project else None

    names = sorted(owners)
    for some in (names[start : start + MOST_NAMES] for start in range(0, len(names), MOST_NAMES)):
        groups = Call("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": some})
        yield from _group_listing(groups, ours)(session, region)
        yield from _list_instances(
            session, region, {"Name": f"tag:{GROUP_TAG}", "Values": some}, lambda group: owners.get(group or "")
        )


def _group_listing(call: Call, tags: str | Callable[[AwsSession, Answer, str], Any] = "Tags") -> Find:
    return listing(
        "Auto Scaling group",
        call,
        "AutoScalingGroups",
        id="AutoScalingGroupName",
        tags=tags,
        keep=lambda group: not group.get("Status"),  # a status is set while it is deleted
        state=lambda group: f"{group['DesiredCapacity']} wanted",
        created="CreatedTime",
        usd_per_hour=0.0,  # its instances are listed separately
        facts=lambda group: {"wanted": group["DesiredCapacity"], "most": group["MaxSize"]},
    )


def _delete_auto_scaling_group(group: CloudResource) -> list[Call]:
    return [Call("autoscaling", "DeleteAutoScalingGroup", {"AutoScalingGroupName": group.id, "ForceDelete": True})]


def _find_eks_clusters(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for name in session.items(Call("eks", "ListClusters"), "clusters", region):
        cluster = session.perform(Call("eks", "DescribeCluster", {"name": name}), region)["cluster"]
        tags = read_tags(cluster.get("tags"))
        if tags is None or cluster.get("status") == "DELETING":
            continue
        groups = list(session.items(Call("eks", "ListNodegroups", {"clusterName": name}), "nodegroups", region))
        yield CloudResource(
            kind="EKS cluster",
            id=name,
            region=region,
            tags=tags,
            state=cluster.get("status", ""),
            created_at=cluster.get("createdAt"),
            usd_per_hour=unit_prices()["eks-cluster"].usd_per_hour,  # the control plane; nodes are instances
            facts={"nodegroups": groups},
        )


def _delete_eks_cluster(cluster: CloudResource) -> list[Call]:
    groups = [
        Call("eks", "DeleteNodegroup", {"clusterName": cluster.id, "nodegroupName": name})
        for name in cluster.facts.get("nodegroups", [])
    ]
    return [*groups, Call("eks", "DeleteCluster", {"name": cluster.id})]


def _find_emr_clusters(session: AwsSession, region: str) -> Iterator[CloudResource]:
    alive = ["STARTING", "BOOTSTRAPPING", "RUNNING", "WAITING"]
    denied: CloudError | None = None
    for item in session.items(Call("emr", "ListClusters", {"ClusterStates": alive}), "Clusters", region):
        try:
            cluster = session.perform(Call("emr", "DescribeCluster", {"ClusterId": item["Id"]}), region)["Cluster"]
        except CloudError as error:  # perhaps somebody else's: Skytrain's are found regardless
            denied = error
            continue
        tags = read_tags(cluster.get("Tags"))
        if tags is not None:
            yield CloudResource(
                kind="EMR cluster",
                id=item["Id"],
                region=region,
                tags=tags,
                state=item["Status"]["State"],
                created_at=item.get("Status", {}).get("Timeline", {}).get("CreationDateTime"),
            )
    if denied is not None:
        raise denied


def _delete_emr_cluster(cluster: CloudResource) -> list[Call]:
    ids = [cluster.id]
    unprotect = {"JobFlowIds": ids, "TerminationProtected": False}
    return [Call("emr", "SetTerminationProtection", unprotect), Call("emr", "TerminateJobFlows", {"JobFlowIds": ids})]


def job_runs_of(session: AwsSession, application: str, region: str) -> list[dict[str, Any]]:
    """Return the job runs of an application of EMR Serverless; none of one that is gone by now."""
    asked = Call("emr-serverless", "ListJobRuns", {"applicationId": application})
    try:
        return list(session.items(asked, "jobRuns", region))
    except CloudError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise


def _find_emr_applications(session: AwsSession, region: str) -> Iterator[CloudResource]:
    denied: CloudError | None = None
    for item in session.items(Call("emr-serverless", "ListApplications"), "applications", region):
        if item["state"] == "TERMINATED":
            continue
        call = Call("emr-serverless", "GetApplication", {"applicationId": item["id"]})
        try:
            tags = read_tags(session.perform(call, region)["application"].get("tags"))
        except CloudError as error:  # gone by now, or somebody else's: Skytrain's are found regardless
            denied = denied if error.code == "ResourceNotFoundException" else error
            continue
        if tags is not None:
            # An application with a job that has not ended cannot be stopped.
            jobs = [one["id"] for one in job_runs_of(session, item["id"], region) if one["state"] in ACTIVE_JOB]
            yield CloudResource(
                kind="EMR application",
                id=item["id"],
                region=region,
                tags=tags,
                state=item["state"],
                created_at=item.get("createdAt"),
                usd_per_hour=0.0 if item["state"] in IDLE_APPLICATION else None,
                facts={"name": item.get("name"), "jobs": jobs},
            )
    if denied is not None:
        raise denied


def _delete_emr_application(application: CloudResource) -> list[Call]:
    named = {"applicationId": application.id}
    stop = [] if application.state in IDLE_APPLICATION else [Call("emr-serverless", "StopApplication", named)]
    cancel = [
        Call("emr-serverless", "CancelJobRun", {**named, "jobRunId": job}) for job in application.facts.get("jobs", [])
    ]
    return [*cancel, *stop, Call("emr-serverless", "DeleteApplication", named)]


def _sagemaker_tags(arn: str) -> Callable[[AwsSession, Answer, str], Any]:
    """Return how the tags of a SageMaker item are asked for, whose key `arn` names it."""

    def tags(session: AwsSession, item: Answer, region: str) -> Iterable[Mapping[str, Any]]:
        return list(session.items(Call("sagemaker", "ListTags", {"ResourceArn": item[arn]}), "Tags", region))

    return tags


def _schedule_tags(session: AwsSession, group: Answer, region: str) -> Any:
    return session.perform(Call("scheduler", "ListTagsForResource", {"ResourceArn": group["Arn"]}), region).get("Tags")


def _parameter_tags(session: AwsSession, parameter: Answer, region: str) -> Any:
    asked = Call("ssm", "ListTagsForResource", {"ResourceType": "Parameter", "ResourceId": parameter["Name"]})
    return session.perform(asked, region).get("TagList")


def delete_role(name: str, policies: Iterable[str], profiles: Iterable[str]) -> list[Call]:
    """Return the requests that delete a role; the role last, by which the rest is found."""
    calls = []
    for profile in profiles:
        named = {"InstanceProfileName": profile}
        calls.append(Call("iam", "RemoveRoleFromInstanceProfile", {**named, "RoleName": name}))
        calls.append(Call("iam", "DeleteInstanceProfile", named))
    calls += [Call("iam", "DetachRolePolicy", {"RoleName": name, "PolicyArn": policy}) for policy in policies]
    return [*calls, Call("iam", "DeleteRole", {"RoleName": name})]


def _find_machine_roles(session: AwsSession, region: str) -> Iterator[CloudResource]:
    """Yield the roles that launches in this region have created. IAM has no regions: the path says it."""
    for role in session.items(Call("iam", "ListRoles", {"PathPrefix": f"{ROLES_ROOT}{region}/"}), "Roles", region):
        named = {"RoleName": role["RoleName"]}
        tags = read_tags(list(session.items(Call("iam", "ListRoleTags", named), "Tags", region)))
        if tags is None:
            continue
        policies = session.items(Call("iam", "ListAttachedRolePolicies", named), "AttachedPolicies", region)
        profiles = session.items(Call("iam", "ListInstanceProfilesForRole", named), "InstanceProfiles", region)
        yield CloudResource(
            kind="machine role",
            id=role["RoleName"],
            region=region,
            tags=tags,
            created_at=role.get("CreateDate"),
            usd_per_hour=0.0,
            facts={
                "policies": [each["PolicyArn"] for each in policies],
                "profiles": [each["InstanceProfileName"] for each in profiles],
            },
        )


def _delete_machine_role(role: CloudResource) -> list[Call]:
    return delete_role(role.id, role.facts.get("policies", ()), role.facts.get("profiles", ()))


def _tagged(session: AwsSession, region: str, types: str | None = None) -> Iterator[tuple[str, Tags]]:
    """Yield the ARN and the tags of what the tagging API knows to be ours, all or of some types."""
    wanted: dict[str, Any] = {"TagFilters": [{"Key": PROJECT}]}
    if types is not None:
        wanted["ResourceTypeFilters"] = [types]
    call = Call("resourcegroupstaggingapi", "GetResources", wanted)
    for item in session.items(call, "ResourceTagMappingList", region):
        tags = read_tags(item["Tags"])
        if tags is not None:
            yield item["ResourceARN"], tags


def _find_log_groups(session: AwsSession, region: str) -> Iterator[CloudResource]:
    """Yield our log groups. An account may have thousands: the tagging API names ours."""
    for arn, tags in _tagged(session, region, "logs"):
        name = arn.removesuffix(":*").partition(":log-group:")[2]
        if not name:
            continue
        described = Call("logs", "DescribeLogGroups", {"logGroupNamePrefix": name})
        for group in session.items(described, "logGroups", region):
            if group["logGroupName"] == name:
                stored = group.get("storedBytes", 0)
                yield CloudResource(
                    kind="log group",
                    id=name,
                    region=region,
                    tags=tags,
                    created_at=datetime.fromtimestamp(group["creationTime"] / 1000, UTC),
                    usd_per_hour=per_month(unit_prices()["cloudwatch-logs"].usd * stored / 1e9),
                    facts={"bytes": stored},
                )


def _find_multipart_uploads(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for arn, tags in _tagged(session, region, "s3"):
        bucket = arn.rpartition(":")[2]
        if "/" in bucket:
            continue
        for upload in session.items(Call("s3", "ListMultipartUploads", {"Bucket": bucket}), "Uploads", region):
            if datetime.now(UTC) - upload["Initiated"] > ABANDONED:
                # The size of its parts would take a request for each upload; the price is that of stored data.
                yield CloudResource(
                    kind="multipart upload",
                    id=f"s3://{bucket}/{upload['Key']}",
                    region=region,
                    tags=tags,
                    state="abandoned",
                    created_at=upload["Initiated"],
                    facts={"bucket": bucket, "key": upload["Key"], "upload": upload["UploadId"]},
                )


def _abort_upload(upload: CloudResource) -> list[Call]:
    facts = upload.facts
    named = {"Bucket": facts["bucket"], "Key": facts["key"], "UploadId": facts["upload"]}
    return [Call("s3", "AbortMultipartUpload", named)]


def _find_others(session: AwsSession, region: str) -> Iterator[CloudResource]:
    for arn, tags in _tagged(session, region):
        _, _, service, _, _, name = arn.split(":", 5)
        if not f"{service}:{name}".startswith(KNOWN_ARNS):
            yield CloudResource("other", arn, region, tags)


def _cancel_spot_request(request: CloudResource) -> list[Call]:
    return [Call("ec2", "CancelSpotInstanceRequests", {"SpotInstanceRequestIds": [request.id]})]


def _terminate_instance(instance: CloudResource) -> list[Call]:
    return [Call("ec2", "TerminateInstances", {"InstanceIds": [instance.id]})]


# In the order in which they are deleted.
_TABLE = (
    ResourceKind(
        name="schedule group",
        service="scheduler",
        order=10,
        find=listing(
            "schedule group",
            Call("scheduler", "ListScheduleGroups"),
            "ScheduleGroups",
            id="Name",
            tags=_schedule_tags,
            keep=lambda group: group["Name"] != "default" and group.get("State") != "DELETING",
            state="State",
            created="CreationDate",
            usd_per_hour=0.0,
        ),
        delete=delete_by("scheduler", "DeleteScheduleGroup", "Name", with_token=True),
        reads=("scheduler:ListScheduleGroups", "scheduler:ListTagsForResource"),
        deletes=("scheduler:DeleteScheduleGroup", "scheduler:DeleteSchedule"),
    ),
    ResourceKind(
        name="EKS cluster",
        service="eks",
        order=15,
        find=_find_eks_clusters,
        delete=_delete_eks_cluster,
        reads=("eks:ListClusters", "eks:DescribeCluster", "eks:ListNodegroups"),
        deletes=("eks:DeleteNodegroup", "eks:DeleteCluster"),
    ),
    ResourceKind(
        name="Auto Scaling group",  # before its instances, which it would replace
        service="autoscaling",
        order=20,
        find=_group_listing(Call("autoscaling", "DescribeAutoScalingGroups", {"Filters": [project_filter()]})),
        delete=_delete_auto_scaling_group,
        reads=("autoscaling:DescribeAutoScalingGroups",),
        deletes=("autoscaling:DeleteAutoScalingGroup",),
    ),
    ResourceKind(
        name="EMR application",
        service="emr-serverless",
        order=20,
        find=_find_emr_applications,
        delete=_delete_emr_application,
        reads=("emr-serverless:ListApplications", "emr-serverless:GetApplication", "emr-serverless:ListJobRuns"),
        deletes=("emr-serverless:CancelJobRun", "emr-serverless:StopApplication", "emr-serverless:DeleteApplication"),
    ),
    ResourceKind(
        name="EMR cluster",
        service="emr",
        order=20,
        find=_find_emr_clusters,
        delete=_delete_emr_cluster,
        reads=("elasticmapreduce:ListClusters", "elasticmapreduce:DescribeCluster"),
        deletes=("elasticmapreduce:SetTerminationProtection", "elasticmapreduce:TerminateJobFlows"),
    ),
    ResourceKind(
        name="SageMaker endpoint",
        service="sagemaker",
        order=20,
        find=listing(
            "SageMaker endpoint",
            Call("sagemaker", "ListEndpoints"),
            "Endpoints",
            id="EndpointName",
            tags=_sagemaker_tags("EndpointArn"),
            keep=lambda endpoint: endpoint["EndpointStatus"] != "Deleting",
            state="EndpointStatus",
            created="CreationTime",
        ),
        delete=delete_by("sagemaker", "DeleteEndpoint", "EndpointName"),
        reads=("sagemaker:ListEndpoints", "sagemaker:ListTags"),
        deletes=("sagemaker:DeleteEndpoint",),
    ),
    ResourceKind(
        name="SageMaker job",
        service="sagemaker",
        order=20,
        find=listing(
            "SageMaker job",
            Call("sagemaker", "ListTrainingJobs", {"StatusEquals": "InProgress"}),
            "TrainingJobSummaries",
            id="TrainingJobName",
            tags=_sagemaker_tags("TrainingJobArn"),
            keep=lambda job: job["TrainingJobStatus"] == "InProgress",
            state="TrainingJobStatus",
            created="CreationTime",
        ),
        delete=delete_by("sagemaker", "StopTrainingJob", "TrainingJobName"),
        reads=("sagemaker:ListTrainingJobs", "sagemaker:ListTags"),
        deletes=("sagemaker:StopTrainingJob",),
    ),
    ResourceKind(
        name="spot request",
        service="ec2",
        order=25,
        find=listing(
            "spot request",
            Call(
                "ec2",
                "DescribeSpotInstanceRequests",
                {"Filters": [project_filter(), {"Name": "state", "Values": ["open", "active"]}]},
            ),
            "SpotInstanceRequests",
            id="SpotInstanceRequestId",
            keep=lambda request: request["State"] in ("open", "active"),
            state="State",
            created="CreateTime",
            usd_per_hour=0.0,  # its instance is listed separately
        ),
        delete=_cancel_spot_request,
        reads=("ec2:DescribeSpotInstanceRequests",),
        deletes=("ec2:CancelSpotInstanceRequests",),
    ),
    ResourceKind(
        name="instance",
        service="ec2",
        order=30,
        find=_find_instances,
        delete=_terminate_instance,
        reads=("ec2:DescribeInstances",),
        deletes=("ec2:TerminateInstances",),
    ),
    ResourceKind(
        name="file system",
        service="fsx",
        order=40,
        find=listing(
            "file system",
            Call("fsx", "DescribeFileSystems"),
            "FileSystems",
            id="FileSystemId",
            keep=lambda system: system.get("Lifecycle") != "DELETING",
            state="Lifecycle",
            created="CreationTime",
            usd_per_hour=_file_system_usd,
            facts=lambda system: {"gb": system.get("StorageCapacity", 0)},
        ),
        delete=delete_by("fsx", "DeleteFileSystem", "FileSystemId", with_token=True),
        reads=("fsx:DescribeFileSystems",),
        deletes=("fsx:DeleteFileSystem",),
    ),
    ResourceKind(
        name="address",
        service="ec2",
        order=50,
        find=ec2_listing(
            "address",
            "DescribeAddresses",
            "Addresses",
            id="AllocationId",
            state=lambda address: "in use" if address.get("AssociationId") else "unused",
            usd_per_hour=unit_prices()["public-ipv4"].usd_per_hour,  # whether it is used or not
            facts=lambda address: {"association": address.get("AssociationId")},
        ),
        delete=_release_address,
        reads=("ec2:DescribeAddresses",),
        deletes=("ec2:DisassociateAddress", "ec2:ReleaseAddress"),
    ),
    ResourceKind(
        name="snapshot",
        service="ec2",
        order=50,
        find=listing(
            "snapshot",
            Call("ec2", "DescribeSnapshots", {"OwnerIds": ["self"], "Filters": [project_filter()]}),
            "Snapshots",
            id="SnapshotId",
            state="State",
            created="StartTime",
            # For the volume's size, which is the largest that a snapshot can be.
            usd_per_hour=lambda snapshot: per_month(unit_prices()["ebs-snapshot"].usd * snapshot["VolumeSize"]),
        ),
        delete=delete_by("ec2", "DeleteSnapshot", "SnapshotId"),
        reads=("ec2:DescribeSnapshots",),
        deletes=("ec2:DeleteSnapshot",),
    ),
    ResourceKind(
        name="volume",
        service="ec2",
        order=50,
        find=ec2_listing(
            "volume",
            "DescribeVolumes",
            "Volumes",
            id="VolumeId",
            keep=lambda volume: volume["State"] != "deleting",
            state="State",
            created="CreateTime",
            usd_per_hour=_volume_usd,
            facts=lambda volume: {"gb": volume["Size"], "type": volume.get("VolumeType")},
        ),
        delete=delete_by("ec2", "DeleteVolume", "VolumeId"),
        reads=("ec2:DescribeVolumes",),
        deletes=("ec2:DeleteVolume",),
    ),
    ResourceKind(
        name="network interface",
        service="ec2",
        order=55,
        find=ec2_listing(
            "network interface",
            "DescribeNetworkInterfaces",
            "NetworkInterfaces",
            id="NetworkInterfaceId",
            tags="TagSet",
            # AWS deletes the interfaces that it manages itself, with what they belong to.
            keep=lambda interface: not interface.get("RequesterManaged"),
            state="Status",
            usd_per_hour=0.0,
        ),
        delete=delete_by("ec2", "DeleteNetworkInterface", "NetworkInterfaceId"),
        reads=("ec2:DescribeNetworkInterfaces",),
        deletes=("ec2:DeleteNetworkInterface",),
    ),
    ResourceKind(
        name="launch template",
        service="ec2",
        order=60,
        find=ec2_listing(
            "launch template",
            "DescribeLaunchTemplates",
            "LaunchTemplates",
            id="LaunchTemplateId",
            created="CreateTime",
            usd_per_hour=0.0,
            facts=lambda template: {"name": template.get("LaunchTemplateName")},
        ),
        delete=delete_by("ec2", "DeleteLaunchTemplate", "LaunchTemplateId"),
        reads=("ec2:DescribeLaunchTemplates",),
        deletes=("ec2:DeleteLaunchTemplate",),
    ),
    ResourceKind(
        name="placement group",
        service="ec2",
        order=60,
        find=ec2_listing(
            "placement group",
            "DescribePlacementGroups",
            "PlacementGroups",
            id="GroupName",
            keep=lambda group: group.get("State") != "deleting",
            state="State",
            usd_per_hour=0.0,
        ),
        delete=delete_by("ec2", "DeletePlacementGroup", "GroupName"),
        reads=("ec2:DescribePlacementGroups",),
        deletes=("ec2:DeletePlacementGroup",),
    ),
    ResourceKind(
        name="security group",
        service="ec2",
        order=70,
        find=ec2_listing(
            "security group",
            "DescribeSecurityGroups",
            "SecurityGroups",
            id="GroupId",
            keep=lambda group: group["GroupName"] != "default",  # a VPC's default group cannot be deleted
            usd_per_hour=0.0,
            facts=lambda group: {"name": group["GroupName"]},
        ),
        delete=delete_by("ec2", "DeleteSecurityGroup", "GroupId"),
        reads=("ec2:DescribeSecurityGroups",),
        deletes=("ec2:DeleteSecurityGroup",),
    ),
    ResourceKind(
        name="log group",
        service="logs",
        order=80,
        find=_find_log_groups,
        delete=delete_by("logs", "DeleteLogGroup", "logGroupName"),
        reads=("tag:GetResources", "logs:DescribeLogGroups"),
        deletes=("logs:DeleteLogGroup",),
    ),
    ResourceKind(
        name="API key",
        service="ssm",
        order=90,
        find=listing(
            "API key",
            Call(
                "ssm",
                "DescribeParameters",
                {"ParameterFilters": [{"Key": "Name", "Option": "BeginsWith", "Values": [KEYS_ROOT]}]},
            ),
            "Parameters",
            id="Name",
            tags=_parameter_tags,
            created="LastModifiedDate",
            usd_per_hour=0.0,
        ),
        delete=delete_by("ssm", "DeleteParameter", "Name"),
        reads=("ssm:DescribeParameters", "ssm:ListTagsForResource"),
        deletes=("ssm:DeleteParameter",),
    ),
    ResourceKind(
        name="machine role",
        service="iam",
        order=90,
        find=_find_machine_roles,
        delete=_delete_machine_role,
        reads=(
            "iam:ListRoles",
            "iam:ListRoleTags",
            "iam:ListAttachedRolePolicies",
            "iam:ListInstanceProfilesForRole",
        ),
        deletes=(
            "iam:RemoveRoleFromInstanceProfile",
            "iam:DeleteInstanceProfile",
            "iam:DetachRolePolicy",
            "iam:DeleteRole",
        ),
    ),
    ResourceKind(
        name="multipart upload",
        service="s3",
        order=90,
        find=_find_multipart_uploads,
        delete=_abort_upload,
        reads=("tag:GetResources", "s3:ListBucketMultipartUploads"),
        deletes=("s3:AbortMultipartUpload",),
        leftover=True,
    ),
    ResourceKind(
        name="NAT gateway",
        service="ec2",
        order=100,
        find=listing(
            "NAT gateway",
            Call(
                "ec2",
                "DescribeNatGateways",
                {"Filter": [project_filter(), {"Name": "state", "Values": ["pending", "available"]}]},
            ),
            "NatGateways",
            id="NatGatewayId",
            keep=lambda gateway: gateway["State"] in ("pending", "available"),
            state="State",
            created="CreateTime",
            usd_per_hour=lambda gateway: unit_prices()["nat-gateway"].usd_per_hour,  # without the data that passes
        ),
        delete=keep_all,
        reads=("ec2:DescribeNatGateways",),
        deletes=(),
    ),
    ResourceKind(
        name="other",
        service="resourcegroupstaggingapi",
        order=100,
        find=_find_others,
        delete=keep_all,
        reads=("tag:GetResources",),
        deletes=(),
    ),
)
KINDS: Mapping[str, ResourceKind] = {kind.name: kind for kind in _TABLE}
