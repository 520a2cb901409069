"""Which permissions a call to AWS needs: actions, resources and condition keys, as the service reference lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from skytrain.aws import Call

from .policy import Authorization

Tags = Mapping[str, str]
OF_AMAZON = "amazon"


@dataclass(frozen=True)
class Account:
    """What exists: tags by ARN, owners of images, launch templates by name, and the base's bucket and key."""

    number: str
    region: str
    bucket: str
    key: str
    node_role: str
    tags: Mapping[str, Tags] = field(default_factory=dict)
    image_owners: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    iam_paths: Mapping[str, str] = field(default_factory=dict)  # of roles and profiles that do not lie directly below /
    boundaries: Mapping[str, str] = field(default_factory=dict)  # of roles, by name

    def arn(self, service: str, resource: str, region: str | None = None) -> str:
        return f"arn:aws:{service}:{self.region if region is None else region}:{self.number}:{resource}"

    def iam(self, kind: str, name: str) -> str:
        """The ARN of a role or an instance profile. IAM knows the path only of what exists."""
        return f"arn:aws:iam::{self.number}:{kind}{self.iam_paths.get(name, '/')}{name}"

    def existing(self, action: str, arn: str, **more: str) -> Authorization:
        """A permission on something that exists, with its tags."""
        tags = {f"aws:ResourceTag/{name}": value for name, value in self.tags.get(arn, {}).items()}
        return Authorization(action, arn, {**tags, **more})


def authorizations(call: Call, account: Account) -> list[Authorization]:
    """Every permission that the call needs; a request succeeds only with all of them."""
    call.body()  # botocore's own validation: a request that AWS would not understand proves nothing
    special = _SPECIAL.get((call.service, call.operation))
    if special:
        return list(special(call, account))
    if call.service == "s3":
        return list(_s3(call, account))
    named = _NAMED.get((call.service, call.operation))
    if named:
        parameter, service, pattern = named
        values = call.parameters[parameter]
        return [
            account.existing(call.action, account.arn(service, pattern.format(value)))
            for value in ([values] if isinstance(values, str) else values)
        ]
    assert not call.mutates or call.operation in _NO_RESOURCE, f"no resource is known for {call.action}"
    return [Authorization(call.action)]


_GROUP = "autoScalingGroup:*:autoScalingGroupName/{}"
# (service, operation) -> parameter that names the resource, service of its ARN, rest of its ARN.
_NAMED: dict[tuple[str, str], tuple[str, str, str]] = {
    ("ec2", "TerminateInstances"): ("InstanceIds", "ec2", "instance/{}"),
    ("ec2", "StopInstances"): ("InstanceIds", "ec2", "instance/{}"),
    ("ec2", "DeleteSnapshot"): ("SnapshotId", "ec2", "snapshot/{}"),
    ("ec2", "DeleteVolume"): ("VolumeId", "ec2", "volume/{}"),
    ("ec2", "DeleteSecurityGroup"): ("GroupId", "ec2", "security-group/{}"),
    ("ec2", "AuthorizeSecurityGroupIngress"): ("GroupId", "ec2", "security-group/{}"),
    ("ec2", "DeleteNetworkInterface"): ("NetworkInterfaceId", "ec2", "network-interface/{}"),
    ("ec2", "ReleaseAddress"): ("AllocationId", "ec2", "elastic-ip/{}"),
    ("ec2", "DeletePlacementGroup"): ("GroupName", "ec2", "placement-group/{}"),
    ("ec2", "CancelSpotInstanceRequests"): ("SpotInstanceRequestIds", "ec2", "spot-instances-request/{}"),
    ("ec2", "ModifyInstanceMetadataOptions"): ("InstanceId", "ec2", "instance/{}"),
    ("ec2", "DescribeInstanceAttribute"): ("InstanceId", "ec2", "instance/{}"),
    ("ec2", "DeleteNatGateway"): ("NatGatewayId", "ec2", "natgateway/{}"),
    ("ec2", "DisassociateAddress"): ("AssociationId", "ec2", "elastic-ip/{}"),
    ("autoscaling", "SetDesiredCapacity"): ("AutoScalingGroupName", "autoscaling", _GROUP),
    ("autoscaling", "CompleteLifecycleAction"): ("AutoScalingGroupName", "autoscaling", _GROUP),
    ("autoscaling", "RecordLifecycleActionHeartbeat"): ("AutoScalingGroupName", "autoscaling", _GROUP),
    # The group of the instance, whose name the request does not have.
    ("autoscaling", "TerminateInstanceInAutoScalingGroup"): ("InstanceId", "autoscaling", _GROUP),
    ("autoscaling", "DeleteAutoScalingGroup"): ("AutoScalingGroupName", "autoscaling", _GROUP),
    ("autoscaling", "DeleteScheduledAction"): ("AutoScalingGroupName", "autoscaling", _GROUP),
    ("fsx", "DeleteFileSystem"): ("FileSystemId", "fsx", "file-system/{}"),
    ("eks", "DeleteCluster"): ("name", "eks", "cluster/{}"),
    ("eks", "DeleteNodegroup"): ("clusterName", "eks", "nodegroup/{}/x/1"),
    ("emr", "SetTerminationProtection"): ("JobFlowIds", "elasticmapreduce", "cluster/{}"),
    ("emr", "TerminateJobFlows"): ("JobFlowIds", "elasticmapreduce", "cluster/{}"),
    ("emr-serverless", "StartApplication"): ("applicationId", "emr-serverless", "/applications/{}"),
    ("emr-serverless", "DeleteApplication"): ("applicationId", "emr-serverless", "/applications/{}"),
    ("emr-serverless", "StopApplication"): ("applicationId", "emr-serverless", "/applications/{}"),
    ("emr-serverless", "CancelJobRun"): ("applicationId", "emr-serverless", "/applications/{}"),
    ("sagemaker", "StopTrainingJob"): ("TrainingJobName", "sagemaker", "training-job/{}"),
    ("scheduler", "DeleteScheduleGroup"): ("Name", "scheduler", "schedule-group/{}"),
    ("sagemaker", "DeleteEndpoint"): ("EndpointName", "sagemaker", "endpoint/{}"),
    ("logs", "DeleteLogGroup"): ("logGroupName", "logs", "log-group:{}"),
    ("logs", "PutLogEvents"): ("logGroupName", "logs", "log-group:{}:log-stream:x"),
    ("logs", "CreateLogStream"): ("logGroupName", "logs", "log-group:{}:log-stream:x"),
    ("logs", "FilterLogEvents"): ("logGroupName", "logs", "log-group:{}:log-stream:x"),
    ("ecr", "PutImage"): ("repositoryName", "ecr", "repository/{}"),
    ("ecr", "BatchGetImage"): ("repositoryName", "ecr", "repository/{}"),
}
_NO_RESOURCE = ("CreateUser",)


def _s3(call: Call, account: Account) -> Iterator[Authorization]:
    bucket, key = call.parameters["Bucket"], call.parameters.get("Key")
    arn = f"arn:aws:s3:::{bucket}"
    keys = [item["Key"] for item in call.parameters.get("Delete", {}).get("Objects", [])] or ([key] if key else [])
    context = {"aws:SecureTransport": "true", "s3:TlsVersion": "1.3"}
    for parameter, name in _S3_CONTEXT.items():
        if parameter in call.parameters:
            context[name] = call.parameters[parameter]
    yield from (Authorization(call.action, f"{arn}/{each}", context) for each in keys)
    if not keys:
        yield Authorization(call.action, arn, context)
    if bucket == account.bucket and call.operation in ("GetObject", "PutObject"):
        used = "kms:Decrypt" if call.operation == "GetObject" else "kms:GenerateDataKey"
        yield Authorization(used, account.key, {"kms:ViaService": f"s3.{account.region}.amazonaws.com"})


_S3_CONTEXT = {
    "Prefix": "s3:prefix",
    "ServerSideEncryption": "s3:x-amz-server-side-encryption",
    "SSEKMSKeyId": "s3:x-amz-server-side-encryption-aws-kms-key-id",
    "StorageClass": "s3:x-amz-storage-class",
    "SSECustomerAlgorithm": "s3:x-amz-server-side-encryption-customer-algorithm",
}


def _run_instances(call: Call, account: Account) -> Iterator[Authorization]:
    named = call.parameters.get("LaunchTemplate", {}).get("LaunchTemplateName")
    if named:
        yield account.existing("ec2:RunInstances", account.arn("ec2", f"launch-template/{named}"))
    yield from _launch({**account.templates.get(named, {}), **call.parameters}, account, "RunInstances")


def _launch(data: Mapping[str, Any], account: Account, action: str) -> Iterator[Authorization]:
    """What starting a machine needs, for the data of a launch template or the parameters of RunInstances."""
    tags = {each["ResourceType"]: _pairs(each["Tags"]) for each in data.get("TagSpecifications", [])}
    metadata, run = data.get("MetadataOptions", {}), "ec2:RunInstances"
    profile = data.get("IamInstanceProfile", {}).get("Name")
    context = {
        "ec2:InstanceType": data["InstanceType"],
        "ec2:MetadataHttpTokens": metadata.get("HttpTokens", "optional"),
    }
    if "HttpPutResponseHopLimit" in metadata:
        context["ec2:MetadataHttpPutResponseHopLimit"] = str(metadata["HttpPutResponseHopLimit"])
    if profile:
        context["ec2:InstanceProfile"] = account.iam("instance-profile", profile)
        role = account.iam("role", profile) if profile in account.iam_paths else account.node_role
        yield Authorization("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})
    yield Authorization(run, account.arn("ec2", "instance/*"), {**context, **_requested(tags.get("instance", {}))})
    for mapping in data.get("BlockDeviceMappings", []):
        encrypted = str(mapping["Ebs"].get("Encrypted", False)).lower()
        volume = {"ec2:Encrypted": encrypted, **_requested(tags.get("volume", {}))}
        yield Authorization(run, account.arn("ec2", "volume/*"), volume)
        if encrypted == "true":
            yield Authorization(
                "kms:CreateGrant",
                account.key,
                {"kms:ViaService": f"ec2.{account.region}.amazonaws.com", "kms:GrantIsForAWSResource": "true"},
            )
    yield from _network(data, account, _requested(tags.get("network-interface", {})))
    image = f"arn:aws:ec2:{account.region}::image/{data['ImageId']}"
    yield Authorization(run, image, {"ec2:Owner": account.image_owners.get(data["ImageId"], OF_AMAZON)})
    if "KeyName" in data:
        yield account.existing(run, account.arn("ec2", f"key-pair/{data['KeyName']}"))
    if "GroupName" in data.get("Placement", {}):
        yield account.existing(run, account.arn("ec2", f"placement-group/{data['Placement']['GroupName']}"))
    if data.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
        yield Authorization(run, account.arn("ec2", "spot-instances-request/*"))
    for kind, given in tags.items():
        yield Authorization(
            "ec2:CreateTags", account.arn("ec2", f"{kind}/*"), {"ec2:CreateAction": action, **_requested(given)}
        )


def _network(data: Mapping[str, Any], account: Account, tags: Mapping[str, Any]) -> Iterator[Authorization]:
    plain = {"SubnetId": data.get("SubnetId"), "Groups": data.get("SecurityGroupIds", [])}
    for interface in data.get("NetworkInterfaces", [plain]):
        context = dict(tags)
        if "AssociatePublicIpAddress" in interface:
            context["ec2:AssociatePublicIpAddress"] = str(interface["AssociatePublicIpAddress"]).lower()
        yield Authorization("ec2:RunInstances", account.arn("ec2", "network-interface/*"), context)
        if interface.get("SubnetId"):
            yield account.existing("ec2:RunInstances", account.arn("ec2", f"subnet/{interface['SubnetId']}"))
        for group in interface.get("Groups", []):
            yield account.existing("ec2:RunInstances", account.arn("ec2", f"security-group/{group}"))


def _create_group(call: Call, account: Account) -> Iterator[Authorization]:
    """Auto Scaling checks the caller's ec2:RunInstances and iam:PassRole against the group's template."""
    wanted = call.parameters.get("LaunchTemplate") or {}
    context = _requested(_pairs(call.parameters.get("Tags", [])))
    if "LaunchConfigurationName" in call.parameters:
        context["autoscaling:LaunchConfigurationName"] = call.parameters["LaunchConfigurationName"]
    elif wanted:
        fixed = wanted.get("Version", "$Default") not in ("$Default", "$Latest")
        context["autoscaling:LaunchTemplateVersionSpecified"] = str(fixed).lower()
    context |= _sizes(call)
    group = account.arn("autoscaling", _GROUP.format(call.parameters["AutoScalingGroupName"]))
    yield Authorization("autoscaling:CreateAutoScalingGroup", group, context)
    if wanted:
        template = account.arn("ec2", f"launch-template/{wanted['LaunchTemplateName']}")
        yield account.existing("ec2:RunInstances", template)
        yield from _launch(account.templates[wanted["LaunchTemplateName"]], account, "RunInstances")
        for subnet in call.parameters.get("VPCZoneIdentifier", "").split(","):
            yield account.existing("ec2:RunInstances", account.arn("ec2", f"subnet/{subnet}"))


def _delete_template(call: Call, account: Account) -> Iterator[Authorization]:
    named = call.parameters.get("LaunchTemplateId") or call.parameters["LaunchTemplateName"]
    yield account.existing(call.action, account.arn("ec2", f"launch-template/{named}"))


def _update_group(call: Call, account: Account) -> Iterator[Authorization]:
    group = account.arn("autoscaling", _GROUP.format(call.parameters["AutoScalingGroupName"]))
    context = {}
    if "LaunchConfigurationName" in call.parameters:
        context["autoscaling:LaunchConfigurationName"] = call.parameters["LaunchConfigurationName"]
    if "LaunchTemplate" in call.parameters:
        fixed = call.parameters["LaunchTemplate"]["Version"] not in ("$Default", "$Latest")
        context["autoscaling:LaunchTemplateVersionSpecified"] = str(fixed).lower()
    yield account.existing(call.action, group, **context, **_sizes(call))


def _sizes(call: Call) -> dict[str, Any]:
    """The keys of a group's size, and of the types of machines that its own policy names besides the template's."""
    mixed = call.parameters.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", [])
    types = [each["InstanceType"] for each in mixed]
    size = {"autoscaling:MaxSize": str(call.parameters["MaxSize"])} if "MaxSize" in call.parameters else {}
    return {**size, **({"autoscaling:InstanceTypes": types} if types else {})}


def _budget(call: Call, account: Account) -> Iterator[Authorization]:
    yield Authorization(
        "budgets:ViewBudget", account.arn("budgets", f"budget/{call.parameters['BudgetName']}", region="")
    )


def _key(call: Call, account: Account) -> Iterator[Authorization]:
    yield Authorization(call.action, call.parameters["KeyId"])


def _service_linked_role(call: Call, account: Account) -> Iterator[Authorization]:
    service = call.parameters["AWSServiceName"]
    name = {"autoscaling.amazonaws.com": "AWSServiceRoleForAutoScaling"}.get(service, "AWSServiceRoleForOther")
    role = account.arn("iam", f"role/aws-service-role/{service}/{name}", region="")
    yield Authorization(call.action, role, {"iam:AWSServiceName": service})


def _created(kind: str) -> Any:
    """An EC2 resource created with tags: the action itself, and ec2:CreateTags with what creates it."""

    def needed(call: Call, account: Account) -> Iterator[Authorization]:
        tags = {each["ResourceType"]: _pairs(each["Tags"]) for each in call.parameters.get("TagSpecifications", [])}
        arn, given = account.arn("ec2", f"{kind}/*"), _requested(tags.get(kind, {}))
        yield Authorization(call.action, arn, given)
        if tags.get(kind):
            yield Authorization("ec2:CreateTags", arn, {"ec2:CreateAction": call.operation, **given})

    return needed


def _create_tags(call: Call, account: Account) -> Iterator[Authorization]:
    for resource in call.parameters["Resources"]:
        given = _requested(_pairs(call.parameters["Tags"]))
        found = account.existing(call.action, account.arn("ec2", f"instance/{resource}"))
        yield Authorization(found.action, found.resource, {**found.context, **given})


def _start_session(call: Call, account: Account) -> Iterator[Authorization]:
    yield account.existing(call.action, account.arn("ec2", f"instance/{call.parameters['Target']}"))
    document = call.parameters.get("DocumentName", "SSM-SessionManagerRunShell")
    owner = "" if document.startswith("AWS-") else account.number
    yield Authorization(call.action, f"arn:aws:ssm:{account.region}:{owner}:document/{document}")


def _get_parameter(call: Call, account: Account) -> Iterator[Authorization]:
    name = call.parameters.get("Name") or call.parameters["Path"]
    owner = "" if name.startswith("/aws/service/") else account.number
    found = account.existing(call.action, f"arn:aws:ssm:{account.region}:{owner}:parameter{name.rstrip('/')}")
    yield found


def _own_parameter(call: Call, account: Account) -> Iterator[Authorization]:
    yield account.existing(call.action, account.arn("ssm", f"parameter{call.parameters['Name']}"))


def _put_parameter(call: Call, account: Account) -> Iterator[Authorization]:
    """A new parameter: the action itself, its tags, and the key that encrypts it."""
    arn = account.arn("ssm", f"parameter{call.parameters['Name']}")
    given = _requested(_pairs(call.parameters.get("Tags", [])))
    yield Authorization(call.action, arn, given)
    if given:
        yield Authorization("ssm:AddTagsToResource", arn, given)
    if "KeyId" in call.parameters:
        via = {"kms:ViaService": f"ssm.{account.region}.amazonaws.com"}
        yield Authorization("kms:Encrypt", call.parameters["KeyId"], via)


def _training_job(call: Call, account: Account) -> Iterator[Authorization]:
    asked, tags = call.parameters, _requested(_pairs(call.parameters.get("Tags", [])))
    arn = account.arn("sagemaker", f"training-job/{asked['TrainingJobName']}")
    context: dict[str, Any] = {**tags, "sagemaker:InstanceTypes": [asked["ResourceConfig"]["InstanceType"]]}
    if "VpcConfig" in asked:
        context["sagemaker:VpcSubnets"] = asked["VpcConfig"]["Subnets"]
    if "VolumeKmsKeyId" in asked["ResourceConfig"]:
        context["sagemaker:VolumeKmsKey"] = asked["ResourceConfig"]["VolumeKmsKeyId"]
    yield Authorization(call.action, arn, context)
    if tags:
        yield Authorization("sagemaker:AddTags", arn, {**tags, "sagemaker:TaggingAction": "CreateTrainingJob"})
    yield Authorization("iam:PassRole", asked["RoleArn"], {"iam:PassedToService": "sagemaker.amazonaws.com"})


def _application(call: Call, account: Account) -> Iterator[Authorization]:
    arn, given = account.arn("emr-serverless", "/*"), _requested(call.parameters.get("tags", {}))
    yield Authorization(call.action, arn, given)
    if given:
        yield Authorization("emr-serverless:TagResource", arn, given)
    network = call.parameters.get("networkConfiguration", {})
    via = {"aws:CalledViaLast": "ops.emr-serverless.amazonaws.com"}
    named = [f"subnet/{each}" for each in network.get("subnetIds", [])]
    named += [f"security-group/{each}" for each in network.get("securityGroupIds", [])]
    for resource in [*named, "network-interface/*"] if named else []:
        yield Authorization("ec2:CreateNetworkInterface", account.arn("ec2", resource), via)


def _job_run(call: Call, account: Account) -> Iterator[Authorization]:
    asked = call.parameters
    yield account.existing(call.action, account.arn("emr-serverless", f"/applications/{asked['applicationId']}"))
    yield Authorization(
        "iam:PassRole", asked["executionRoleArn"], {"iam:PassedToService": "emr-serverless.amazonaws.com"}
    )
    if asked.get("tags"):
        arn = account.arn("emr-serverless", f"/applications/{asked['applicationId']}/jobruns/*")
        yield Authorization("emr-serverless:TagResource", arn, _requested(asked["tags"]))


def _cluster(call: Call, account: Account) -> Iterator[Authorization]:
    asked, arn = call.parameters, account.arn("elasticmapreduce", "cluster/*")
    tags = _requested({tag["Key"]: tag["Value"] for tag in asked.get("Tags", [])})
    yield Authorization(call.action, "*", tags)  # RunJobFlow knows no resources
    if tags:
        yield Authorization("elasticmapreduce:AddTags", arn, tags)
    yield Authorization("iam:PassRole", asked["ServiceRole"], {"iam:PassedToService": "elasticmapreduce.amazonaws.com"})
    profile = account.iam("role", asked["JobFlowRole"])
    yield Authorization("iam:PassRole", profile, {"iam:PassedToService": "ec2.amazonaws.com"})


def _tag_application(call: Call, account: Account) -> Iterator[Authorization]:
    found = account.existing(call.action, call.parameters["resourceArn"])
    yield Authorization(found.action, found.resource, {**found.context, **_requested(call.parameters["tags"])})


_KNOW_BOUNDARIES = ("AttachRolePolicy", "DetachRolePolicy", "PutRolePolicy", "DeleteRolePermissionsBoundary")


def _role(call: Call, account: Account) -> Iterator[Authorization]:
    name = call.parameters["RoleName"]
    more = {"iam:PolicyARN": call.parameters["PolicyArn"]} if "PolicyArn" in call.parameters else {}
    if name in account.boundaries and call.operation in _KNOW_BOUNDARIES:
        more["iam:PermissionsBoundary"] = account.boundaries[name]
    given = _requested(_pairs(call.parameters.get("Tags", [])))
    found = account.existing(call.action, account.iam("role", name), **more)
    yield Authorization(found.action, found.resource, {**found.context, **given})


def _create_role(call: Call, account: Account) -> Iterator[Authorization]:
    asked = call.parameters
    arn = f"arn:aws:iam::{account.number}:role{asked.get('Path', '/')}{asked['RoleName']}"
    given = _requested(_pairs(asked.get("Tags", [])))
    bound = {"iam:PermissionsBoundary": asked["PermissionsBoundary"]} if "PermissionsBoundary" in asked else {}
    yield Authorization(call.action, arn, {**given, **bound})
    if given:
        yield Authorization("iam:TagRole", arn, given)


def _profile(call: Call, account: Account) -> Iterator[Authorization]:
    asked = call.parameters
    name = asked["InstanceProfileName"]
    arn = account.iam("instance-profile", name)
    if "Path" in asked:
        arn = f"arn:aws:iam::{account.number}:instance-profile{asked['Path']}{name}"
    yield Authorization(call.action, arn)
    if call.operation == "AddRoleToInstanceProfile":
        role = account.iam("role", asked["RoleName"])
        yield Authorization("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"})


_SPECIAL = {
    ("ec2", "RunInstances"): _run_instances,
    ("ec2", "CreateLaunchTemplate"): _created("launch-template"),
    ("ec2", "DeleteLaunchTemplate"): _delete_template,
    ("ec2", "CreatePlacementGroup"): _created("placement-group"),
    ("ec2", "CreateVolume"): _created("volume"),
    ("ec2", "CreateTags"): _create_tags,
    ("autoscaling", "CreateAutoScalingGroup"): _create_group,
    ("autoscaling", "PutScheduledUpdateGroupAction"): _update_group,
    ("autoscaling", "UpdateAutoScalingGroup"): _update_group,
    ("ssm", "StartSession"): _start_session,
    ("ssm", "GetParameter"): _get_parameter,
    ("ssm", "PutParameter"): _put_parameter,
    ("ssm", "DeleteParameter"): _own_parameter,
    ("ssm", "GetParametersByPath"): _get_parameter,
    ("sagemaker", "CreateTrainingJob"): _training_job,
    ("emr-serverless", "CreateApplication"): _application,
    ("emr-serverless", "StartJobRun"): _job_run,
    ("emr", "RunJobFlow"): _cluster,
    ("emr-serverless", "TagResource"): _tag_application,
    ("budgets", "DescribeBudget"): _budget,
    ("kms", "DescribeKey"): _key,
    ("kms", "Decrypt"): _key,
    ("iam", "CreateServiceLinkedRole"): _service_linked_role,
    ("iam", "GetRole"): _role,
    ("iam", "GetInstanceProfile"): _profile,
    ("iam", "CreateRole"): _create_role,
    **{("iam", name): _role for name in ("AttachRolePolicy", "DetachRolePolicy", "DeleteRole", "TagRole", "UntagRole")},
    **{("iam", name): _role for name in ("PutRolePolicy", "UpdateAssumeRolePolicy", "DeleteRolePermissionsBoundary")},
    **{("iam", name): _role for name in ("ListRoleTags", "ListAttachedRolePolicies", "ListInstanceProfilesForRole")},
    **{("iam", name): _profile for name in ("CreateInstanceProfile", "DeleteInstanceProfile")},
    **{("iam", name): _profile for name in ("AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile")},
}


def _pairs(tags: list[dict[str, Any]]) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in tags}


def _requested(tags: Tags) -> dict[str, Any]:
    """The condition keys of tags in a request."""
    keys = {"aws:TagKeys": list(tags)} if tags else {}
    return {**{f"aws:RequestTag/{name}": value for name, value in tags.items()}, **keys}
