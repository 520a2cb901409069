"""The table of permissions: requests, and whether each of the five roles may make them.

A row is one line: what is asked, the request, and the roles that may make it. Every request is checked by botocore.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from skytrain.aws import Call, Tags
from skytrain.config import MachineRolesConfig, compose
from skytrain.targets.machine_roles import machine_role
from tests.support.iam.requests import Account

OPERATOR, NODE, PREPARE, SERVE, VIEWER = "operator", "node", "prepare", "serve", "viewer"
NOBODY: tuple[str, ...] = ()
EVERYBODY = (OPERATOR, NODE, PREPARE, VIEWER)  # but machines of endpoints, which answer strangers
PEOPLE = (OPERATOR, VIEWER)
RUNNERS = (OPERATOR, NODE, PREPARE)
MACHINES = (NODE, PREPARE, SERVE)

PROJECT, OTHER = "demo", "other"
NUMBER, REGION = "123456789012", "us-east-2"
BUCKET = f"skytrain-{PROJECT}-{NUMBER}-{REGION}"
KEY = f"arn:aws:kms:{REGION}:{NUMBER}:key/11111111-2222-3333-4444-555555555555"
OTHER_KEY = f"arn:aws:kms:{REGION}:{NUMBER}:key/99999999-2222-3333-4444-555555555555"
PROFILE = f"skytrain-{PROJECT}-{REGION}-node"
NODE_ROLE = f"arn:aws:iam::{NUMBER}:role/{PROFILE}"
PREPARE_PROFILE = f"skytrain-{PROJECT}-{REGION}-prepare"
PREPARE_ROLE = f"arn:aws:iam::{NUMBER}:role/{PREPARE_PROFILE}"
SERVE_PROFILE = f"skytrain-{PROJECT}-{REGION}-serve"
SERVE_ROLE = f"arn:aws:iam::{NUMBER}:role/{SERVE_PROFILE}"
ROLES_PATH = f"/skytrain/{REGION}/{PROJECT}/"
BOUNDARY = f"arn:aws:iam::{NUMBER}:policy/machines"  # as the mocked provider names it
OWN_ROLE = "skytrain-demo-gpt2-0123456789"  # of a launch of ours
GROUP = "sg-0123456789abcdef0"
EXPIRES = datetime(2026, 12, 1, tzinfo=UTC)
OURS = Tags(PROJECT, "ada", "gpt2", EXPIRES)
THEIRS = Tags(OTHER, "bob", "llama", EXPIRES)
PARTIAL = Tags(PROJECT, "ada", "gpt2")  # never expires
LOGS = f"/skytrain/{PROJECT}/nodes"


def machine_tags(run: str, joined: Sequence[str] = (), sweep: str | None = None) -> dict[str, str]:
    """The tags of the role of a launch's machines, as the launch makes them."""
    account = replace(
        compose().config.cloud,
        machine_roles=MachineRolesConfig(
            path=ROLES_PATH, boundary=BOUNDARY, node=["x"], prepare=["x"], serve=["x"], sagemaker=[], vault=[]
        ),
    )
    role = machine_role(account, "train", "00001", replace(OURS, run=run), joined=joined, sweep=sweep)
    assert role is not None
    return {tag["Key"]: tag["Value"] for tag in role.calls[0].parameters["Tags"]}


@dataclass(frozen=True)
class Row:
    asked: str
    call: Call
    allowed: tuple[str, ...]


def machine(subnet: str, **changed: Any) -> dict[str, Any]:
    """The launch data of a training machine; `None` removes an entry."""
    data: dict[str, Any] = {
        "ImageId": "ami-0123456789abcdef0",
        "InstanceType": "g6e.12xlarge",
        "IamInstanceProfile": {"Name": PROFILE},
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {"VolumeSize": 200, "VolumeType": "gp3", "Encrypted": True, "KmsKeyId": KEY},
            }
        ],
        "NetworkInterfaces": [
            {"DeviceIndex": 0, "SubnetId": subnet, "Groups": [GROUP], "AssociatePublicIpAddress": False}
        ],
        "InstanceInitiatedShutdownBehavior": "terminate",
        "InstanceMarketOptions": {"MarketType": "spot"},
        "UserData": base64.b64encode(b"#!/bin/bash\nshutdown -h +60\n").decode(),
        "TagSpecifications": OURS.specifications("instance", "volume", "network-interface"),
    }
    return {name: value for name, value in {**data, **changed}.items() if value is not None}


def efa(subnet: str) -> list[dict[str, Any]]:
    """p4d: the first card carries IP traffic, all four carry EFA."""
    first = {"NetworkCardIndex": 0, "DeviceIndex": 0, "SubnetId": subnet, "Groups": [GROUP], "InterfaceType": "efa"}
    others = [{**first, "NetworkCardIndex": card, "DeviceIndex": 1} for card in range(1, 4)]
    return [first, *others]


def existing(subnet: str) -> Account:
    """An account with something of ours, of another project, of the base, and of nobody."""
    ec2, groups = f"arn:aws:ec2:{REGION}:{NUMBER}:", f"arn:aws:autoscaling:{REGION}:{NUMBER}:autoScalingGroup:*:"
    ours, theirs, base = OURS.mapping(), THEIRS.mapping(), Tags(PROJECT, "ml-team").mapping()
    arns: dict[str, Mapping[str, str]] = {
        f"{ec2}instance/i-ours": ours,
        f"{ec2}instance/i-theirs": theirs,
        f"{ec2}instance/i-endpoint": replace(OURS, run="serve-tiny").mapping(),
        f"{ec2}instance/i-llama": replace(OURS, run="llama").mapping(),
        f"{ec2}instance/i-base": base,
        f"{ec2}volume/vol-ours": ours,
        f"{ec2}volume/vol-theirs": theirs,
        f"{ec2}launch-template/gpt2": ours,
        f"{ec2}launch-template/lt-ours": ours,
        f"{ec2}launch-template/theirs": theirs,
        f"{ec2}placement-group/gpt2": ours,
        f"{ec2}placement-group/theirs": theirs,
        f"{ec2}security-group/{GROUP}": base,
        f"{ec2}security-group/sg-ours": ours,
        f"{ec2}spot-instances-request/sir-ours": ours,
        f"{ec2}elastic-ip/eipalloc-base": base,
        f"{ec2}natgateway/nat-base": base,
        f"{ec2}subnet/{subnet}": base,
        f"{ec2}network-interface/eni-ours": ours,
        f"{groups}autoScalingGroupName/gpt2": ours,
        f"{groups}autoScalingGroupName/llama": replace(OURS, run="llama").mapping(),
        f"{groups}autoScalingGroupName/theirs": theirs,
        f"arn:aws:iam::{NUMBER}:role{ROLES_PATH}{OWN_ROLE}": ours,
        f"arn:aws:fsx:{REGION}:{NUMBER}:file-system/fs-0123456789a": ours,
        f"arn:aws:fsx:{REGION}:{NUMBER}:file-system/fs-0123456789b": theirs,
        f"arn:aws:eks:{REGION}:{NUMBER}:cluster/ours": ours,
        f"arn:aws:elasticmapreduce:{REGION}:{NUMBER}:cluster/j-OURS": ours,
        f"arn:aws:emr-serverless:{REGION}:{NUMBER}:/applications/ours": ours,
        f"arn:aws:emr-serverless:{REGION}:{NUMBER}:/applications/theirs": theirs,
        f"arn:aws:sagemaker:{REGION}:{NUMBER}:training-job/ours": ours,
        f"arn:aws:sagemaker:{REGION}:{NUMBER}:training-job/theirs": theirs,
        f"arn:aws:sagemaker:{REGION}:{NUMBER}:endpoint/ours": ours,
        f"arn:aws:logs:{REGION}:{NUMBER}:log-group:/skytrain/demo/old-run": ours,
        f"arn:aws:logs:{REGION}:{NUMBER}:log-group:{LOGS}": base,
    }
    template = machine(subnet)
    templates = {
        "gpt2": template,
        "theirs": template,
        "efa": machine(
            subnet, InstanceType="p4d.24xlarge", NetworkInterfaces=efa(subnet), Placement={"GroupName": "gpt2"}
        ),
        "imdsv1": machine(subnet, MetadataOptions={"HttpTokens": "optional"}),
        "untagged": machine(subnet, TagSpecifications=None),
    }
    arns |= {f"{ec2}launch-template/{name}": ours for name in ("efa", "imdsv1", "untagged")}
    owners = {"ami-0community0000000": "444455556666", "ami-0ours000000000000": NUMBER}
    return Account(
        number=NUMBER,
        region=REGION,
        bucket=BUCKET,
        key=KEY,
        node_role=NODE_ROLE,
        tags=arns,
        image_owners=owners,
        templates=templates,
        iam_paths={OWN_ROLE: ROLES_PATH, "unfinished": ROLES_PATH, "theirs": f"/skytrain/{REGION}/{OTHER}/"},
        boundaries={OWN_ROLE: BOUNDARY},
    )


def run(subnet: str, **changed: Any) -> Call:
    data = {"MinCount": 1, "MaxCount": 1, **machine(subnet, **changed)}
    return Call("ec2", "RunInstances", data, token_key="gpt2/0")


def group(subnet: str, template: str = "gpt2", version: str = "1", tags: Tags | None = OURS, most: int = 2) -> Call:
    data = {
        "AutoScalingGroupName": "gpt2",
        "MinSize": 0,
        "MaxSize": most,
        "DesiredCapacity": 2,
        "VPCZoneIdentifier": subnet,
        "LaunchTemplate": {"LaunchTemplateName": template, "Version": version},
        "Tags": tags.for_group("gpt2") if tags else [],
    }
    return Call("autoscaling", "CreateAutoScalingGroup", data)


def _s3(operation: str, **parameters: Any) -> Call:
    return Call("s3", operation, {"Bucket": BUCKET, **parameters})


def store_rows() -> Iterator[Row]:
    """Actions and S3 prefixes alone decide these; they also run against moto with enforcement on."""
    yield Row("read training data", _s3("GetObject", Key="demo/tokens/pile/1/manifest.json"), EVERYBODY)
    yield Row("read a run", _s3("GetObject", Key="demo/runs/gpt2/run.json"), EVERYBODY)
    yield Row("see whether a run exists", _s3("HeadObject", Key="demo/runs/gpt2/run.json"), EVERYBODY)
    yield Row("write a checkpoint", _s3("PutObject", Key="demo/runs/gpt2/checkpoints/x", Body=b"x"), RUNNERS)
    yield Row("write another run", _s3("PutObject", Key="demo/runs/llama/run.json", Body=b"x"), (OPERATOR,))
    yield Row("write a run with our prefix", _s3("PutObject", Key="demo/runs/gpt2-b/x", Body=b"x"), (OPERATOR,))
    yield Row("delete another run's checkpoint", _s3("DeleteObject", Key="demo/runs/llama/x"), (OPERATOR,))
    yield Row("write its data's run", _s3("PutObject", Key="demo/runs/prepare-pile/x", Body=b""), (OPERATOR, PREPARE))
    yield Row("write a sweep", _s3("PutObject", Key="demo/sweeps/lr/trial.json", Body=b"x"), (OPERATOR, NODE))
    yield Row("write a trial of it", _s3("PutObject", Key="demo/runs/lr-001/run.json", Body=b"x"), (OPERATOR, NODE))
    turn = "demo/sweeps/lr-2-weight_decay/answer.json"
    yield Row("write a turn of a sweep over several axes", _s3("PutObject", Key=turn, Body=b"x"), (OPERATOR, NODE))
    trial = "demo/runs/lr-2-weight_decay-001/run.json"
    yield Row("write a trial of a turn", _s3("PutObject", Key=trial, Body=b"x"), (OPERATOR, NODE))
    begins = "demo/runs/lr-124m-pile-0123abcd/run.json"
    yield Row("write a run that begins like the sweep", _s3("PutObject", Key=begins, Body=b"x"), (OPERATOR,))
    named = "demo/sweeps/lr-schedules/answer.json"
    yield Row("write a sweep that begins like it", _s3("PutObject", Key=named, Body=b"x"), (OPERATOR,))
    inside = "demo/runs/lr-124m/commands/x-lr-000/b.json"
    yield Row("write into a run that begins like it", _s3("PutObject", Key=inside, Body=b"x"), (OPERATOR,))
    inside = "demo/sweeps/lr-124m/ledger/x-lr/1.json"
    yield Row("write into a sweep that begins like it", _s3("PutObject", Key=inside, Body=b"x"), (OPERATOR,))
    yield Row("write another sweep", _s3("PutObject", Key="demo/sweeps/batch/1.json", Body=b"x"), (OPERATOR,))
    yield Row("delete an old checkpoint", _s3("DeleteObject", Key="demo/runs/gpt2/checkpoints/x"), RUNNERS)
    yield Row(
        "overwrite training data", _s3("PutObject", Key="demo/tokens/pile/1/shard", Body=b"x"), (OPERATOR, PREPARE)
    )
    yield Row("delete training data", _s3("DeleteObject", Key="demo/tokens/pile/1/shard"), (OPERATOR, PREPARE))
    given = "demo/launches/gpt2/00001/config.tar.gz"
    yield Row("read what a launch gives its machines", _s3("GetObject", Key=given), EVERYBODY)
    served = "demo/launches/serve-tiny/00001/config.tar.gz"
    yield Row("read what an endpoint is given", _s3("GetObject", Key=served), (*EVERYBODY, SERVE))
    yield Row("replace what a launch gives its machines", _s3("PutObject", Key=given, Body=b"x"), (OPERATOR,))
    yield Row("delete what a launch gives its machines", _s3("DeleteObject", Key=given), (OPERATOR,))
    yield Row("replace a package", _s3("PutObject", Key="demo/bundles/0123/x.whl", Body=b"x"), (OPERATOR,))
    endpoint = "demo/runs/serve-tiny/meeting/boot/i-1.json"
    yield Row("write the run of an endpoint", _s3("PutObject", Key=endpoint, Body=b"x"), (OPERATOR, SERVE))
    other = "demo/runs/serve-other/meeting/boot/i-1.json"
    yield Row("write the run of another endpoint", _s3("PutObject", Key=other, Body=b"x"), (OPERATOR,))
    yield Row("read the run of another endpoint", _s3("GetObject", Key=other), EVERYBODY)
    yield Row("read an exported model", _s3("GetObject", Key="demo/exports/tiny/config.json"), (*EVERYBODY, SERVE))
    yield Row("write beside the folders", _s3("PutObject", Key="demo/runs.json", Body=b"x"), (OPERATOR,))
    yield Row("read another project", _s3("GetObject", Key="other/runs/llama/run.json"), NOBODY)
    yield Row("read a project with our prefix", _s3("GetObject", Key="demo2/runs/x/run.json"), NOBODY)
    yield Row("write another project", _s3("PutObject", Key="other/runs/llama/x", Body=b"x"), NOBODY)
    yield Row("delete from another project", _s3("DeleteObject", Key="other/runs/llama/x"), NOBODY)
    yield Row("read another bucket", Call("s3", "GetObject", {"Bucket": "payroll", "Key": "demo/runs/x"}), NOBODY)
    yield Row("delete the bucket", _s3("DeleteBucket"), NOBODY)
    yield Row("remove the bucket's own policy", _s3("DeleteBucketPolicy"), NOBODY)


def listing_rows() -> Iterator[Row]:
    yield Row("list a run", _s3("ListObjectsV2", Prefix="demo/runs/gpt2/"), EVERYBODY)
    yield Row("list the project", _s3("ListObjectsV2", Prefix="demo/"), EVERYBODY)
    yield Row("list what begins like the project", _s3("ListObjectsV2", Prefix="demo"), NOBODY)
    yield Row("list the bucket", _s3("ListObjectsV2"), NOBODY)
    yield Row("list another project", _s3("ListObjectsV2", Prefix="other/"), NOBODY)
    yield Row("ask whose the bucket is", _s3("GetBucketLocation", ExpectedBucketOwner=NUMBER), PEOPLE)
    yield Row("find incomplete uploads", _s3("ListMultipartUploads"), PEOPLE)
    yield Row("abort an upload", _s3("AbortMultipartUpload", Key="demo/runs/gpt2/x", UploadId="1"), RUNNERS)
    encrypted = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": KEY}
    yield Row("write with our key", _s3("PutObject", Key="demo/runs/gpt2/x", Body=b"", **encrypted), RUNNERS)
    other = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": OTHER_KEY}
    yield Row("write with another key", _s3("PutObject", Key="demo/runs/gpt2/x", Body=b"", **other), NOBODY)
    weak = {"ServerSideEncryption": "AES256"}
    yield Row("write without our key", _s3("PutObject", Key="demo/runs/gpt2/x", Body=b"", **weak), NOBODY)
    kept = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
    yield Row("write with a key of one's own", _s3("PutObject", Key="demo/runs/gpt2/x", Body=b"", **kept), NOBODY)
    for kind in ("GLACIER", "DEEP_ARCHIVE"):
        archived = _s3("PutObject", Key="demo/runs/gpt2/x", Body=b"", StorageClass=kind)
        yield Row(f"write into an archive: {kind}", archived, NOBODY)


def start_rows(subnet: str) -> Iterator[Row]:
    kinds = ("instance", "volume", "network-interface")
    open_disk = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200, "Encrypted": False}}]
    public = [{"DeviceIndex": 0, "SubnetId": subnet, "Groups": [GROUP], "AssociatePublicIpAddress": True}]
    v1 = {"HttpTokens": "optional", "HttpPutResponseHopLimit": 1}
    hops = {"HttpTokens": "required", "HttpPutResponseHopLimit": 2}
    elsewhere = [{"DeviceIndex": 0, "SubnetId": "subnet-elsewhere", "Groups": [GROUP]}]
    open_group = [{"DeviceIndex": 0, "SubnetId": subnet, "Groups": ["sg-default"]}]
    for asked, call, allowed in [
        ("start a machine", run(subnet), (OPERATOR,)),
        ("start it on demand", run(subnet, InstanceMarketOptions=None), (OPERATOR,)),
        ("start a CPU machine", run(subnet, InstanceType="c7i.4xlarge"), (OPERATOR,)),
        ("start from an image of ours", run(subnet, ImageId="ami-0ours000000000000"), (OPERATOR,)),
        ("start without tags", run(subnet, TagSpecifications=None), NOBODY),
        (
            "start with a tag missing",
            run(subnet, TagSpecifications=PARTIAL.specifications(*kinds)),
            NOBODY,
        ),
        (
            "start with an untagged volume",
            run(subnet, TagSpecifications=OURS.specifications(kinds[0], kinds[2])),
            NOBODY,
        ),
        ("start with an untagged interface", run(subnet, TagSpecifications=OURS.specifications(*kinds[:2])), NOBODY),
        (
            "start as another project",
            run(subnet, TagSpecifications=THEIRS.specifications(*kinds)),
            NOBODY,
        ),
        ("start with IMDSv1", run(subnet, MetadataOptions=v1), NOBODY),
        ("start without metadata options", run(subnet, MetadataOptions=None), NOBODY),
        ("start with two hops", run(subnet, MetadataOptions=hops), NOBODY),
        ("start a family that is not listed", run(subnet, InstanceType="u-24tb1.112xlarge"), NOBODY),
        ("start a family with a listed prefix", run(subnet, InstanceType="g5g.xlarge"), NOBODY),
        ("start with an open disk", run(subnet, BlockDeviceMappings=open_disk), NOBODY),
        ("start with a public address", run(subnet, NetworkInterfaces=public), NOBODY),
        ("start in another network", run(subnet, NetworkInterfaces=elsewhere), NOBODY),
        ("start in another group", run(subnet, NetworkInterfaces=open_group), NOBODY),
        ("start without the profile", run(subnet, IamInstanceProfile=None), NOBODY),
        ("start with another profile", run(subnet, IamInstanceProfile={"Name": "admin"}), NOBODY),
        ("start with a key pair", run(subnet, KeyName="laptop"), NOBODY),
        ("start a community image", run(subnet, ImageId="ami-0community0000000"), NOBODY),
    ]:
        yield Row(asked, call, allowed)


def template_rows(subnet: str) -> Iterator[Row]:
    data = {"LaunchTemplateName": "gpt2", "LaunchTemplateData": machine(subnet)}
    tagged = {**data, "TagSpecifications": OURS.specifications("launch-template")}
    cluster = {"GroupName": "gpt2", "Strategy": "cluster"}
    kept = {**cluster, "TagSpecifications": OURS.specifications("placement-group")}
    fixed, latest = ({"LaunchTemplateName": "gpt2", "Version": version} for version in ("2", "$Latest"))
    kill = {"AutoScalingGroupName": "gpt2", "ScheduledActionName": "kill", "DesiredCapacity": 0, "StartTime": EXPIRES}
    for asked, call, allowed in [
        ("create a template", Call("ec2", "CreateLaunchTemplate", tagged, "gpt2"), (OPERATOR,)),
        ("create an untagged template", Call("ec2", "CreateLaunchTemplate", data, "gpt2"), NOBODY),
        ("create a placement group", Call("ec2", "CreatePlacementGroup", kept), (OPERATOR,)),
        ("create an untagged placement group", Call("ec2", "CreatePlacementGroup", cluster), NOBODY),
        ("create a group", group(subnet), (OPERATOR,)),
        ("create a group with EFA", group(subnet, "efa"), (OPERATOR,)),
        ("create a group from another project's template", group(subnet, "theirs"), NOBODY),
        ("create a group with IMDSv1", group(subnet, "imdsv1"), NOBODY),
        ("create a group of untagged machines", group(subnet, "untagged"), NOBODY),
        ("create a group that follows the latest template", group(subnet, version="$Latest"), NOBODY),
        ("create an untagged group", group(subnet, tags=None), NOBODY),
        ("create a group of a thousand machines", group(subnet, most=1000), NOBODY),
        ("raise a group's limit to a thousand", _scheduled("UpdateAutoScalingGroup", MaxSize=1000), NOBODY),
        ("create a group with a tag missing", group(subnet, tags=PARTIAL), NOBODY),
        ("create a group as another project", group(subnet, tags=THEIRS), NOBODY),
        ("create a group elsewhere", group("subnet-elsewhere"), NOBODY),
        ("set the kill time", Call("autoscaling", "PutScheduledUpdateGroupAction", kill), (OPERATOR,)),
        (
            "set another project's kill time",
            Call("autoscaling", "PutScheduledUpdateGroupAction", {**kill, "AutoScalingGroupName": "theirs"}),
            NOBODY,
        ),
        (
            "raise a group's limit to a thousand at a time",
            Call("autoscaling", "PutScheduledUpdateGroupAction", {**kill, "MaxSize": 1000}),
            NOBODY,
        ),
        ("remove the kill time", _scheduled("DeleteScheduledAction", ScheduledActionName="kill"), (OPERATOR,)),
        ("raise a group's limit", _scheduled("UpdateAutoScalingGroup", MaxSize=64), (OPERATOR,)),
        ("raise another's limit", _scheduled("UpdateAutoScalingGroup", name="theirs", MaxSize=64), NOBODY),
        ("change a group's template", _scheduled("UpdateAutoScalingGroup", LaunchTemplate=fixed), (OPERATOR,)),
        ("let a group follow the latest template", _scheduled("UpdateAutoScalingGroup", LaunchTemplate=latest), NOBODY),
        (
            "give a group an old launch configuration",
            _scheduled("UpdateAutoScalingGroup", LaunchConfigurationName="x"),
            NOBODY,
        ),
        ("scale a group", _scheduled("SetDesiredCapacity", DesiredCapacity=0), RUNNERS),
        ("scale another's group", _scheduled("SetDesiredCapacity", name="theirs", DesiredCapacity=9), NOBODY),
        ("delete a group", _scheduled("DeleteAutoScalingGroup", ForceDelete=True), RUNNERS),
        ("delete another's group", _scheduled("DeleteAutoScalingGroup", name="theirs"), NOBODY),
        ("scale another run's group", _scheduled("SetDesiredCapacity", name="llama", DesiredCapacity=0), (OPERATOR,)),
        ("delete another run's group", _scheduled("DeleteAutoScalingGroup", name="llama"), (OPERATOR,)),
    ]:
        yield Row(asked, call, allowed)


def _scheduled(operation: str, name: str = "gpt2", **parameters: Any) -> Call:
    return Call("autoscaling", operation, {"AutoScalingGroupName": name, **parameters})


def end_rows() -> Iterator[Row]:
    def ec2(operation: str, **parameters: Any) -> Call:
        return Call("ec2", operation, parameters)

    def user_data(machine: str) -> Call:
        return ec2("DescribeInstanceAttribute", InstanceId=machine, Attribute="userData")

    for asked, call, allowed in [
        ("terminate a machine", ec2("TerminateInstances", InstanceIds=["i-ours"]), RUNNERS),
        (
            "terminate a machine of an endpoint",
            ec2("TerminateInstances", InstanceIds=["i-endpoint"]),
            (OPERATOR, SERVE),
        ),
        ("terminate a machine of another run", ec2("TerminateInstances", InstanceIds=["i-llama"]), (OPERATOR,)),
        ("terminate another's machine", ec2("TerminateInstances", InstanceIds=["i-theirs"]), NOBODY),
        ("terminate ours and another's", ec2("TerminateInstances", InstanceIds=["i-ours", "i-theirs"]), NOBODY),
        ("terminate what has no run", ec2("TerminateInstances", InstanceIds=["i-base"]), NOBODY),
        ("terminate an untagged machine", ec2("TerminateInstances", InstanceIds=["i-nobody"]), NOBODY),
        ("make a machine ours", ec2("CreateTags", Resources=["i-nobody"], Tags=OURS.pairs()), NOBODY),
        ("retag another's machine", ec2("CreateTags", Resources=["i-theirs"], Tags=OURS.pairs()), NOBODY),
        ("read a machine's start script", user_data("i-ours"), PEOPLE),
        ("read another's start script", user_data("i-theirs"), NOBODY),
        ("read the start script of what has no tags", user_data("i-nobody"), NOBODY),
        (
            "turn IMDSv1 on again",
            ec2("ModifyInstanceMetadataOptions", InstanceId="i-ours", HttpTokens="optional"),
            NOBODY,
        ),
        ("delete a volume", ec2("DeleteVolume", VolumeId="vol-ours"), (OPERATOR,)),
        ("delete another's volume", ec2("DeleteVolume", VolumeId="vol-theirs"), NOBODY),
        ("delete a template", ec2("DeleteLaunchTemplate", LaunchTemplateId="lt-ours"), RUNNERS),
        ("delete a placement group", ec2("DeletePlacementGroup", GroupName="gpt2"), RUNNERS),
        ("delete another's placement group", ec2("DeletePlacementGroup", GroupName="theirs"), NOBODY),
        ("delete a run's security group", ec2("DeleteSecurityGroup", GroupId="sg-ours"), (OPERATOR,)),
        ("delete the base's security group", ec2("DeleteSecurityGroup", GroupId=GROUP), NOBODY),
        ("delete an interface", ec2("DeleteNetworkInterface", NetworkInterfaceId="eni-ours"), (OPERATOR,)),
        ("cancel a spot request", ec2("CancelSpotInstanceRequests", SpotInstanceRequestIds=["sir-ours"]), (OPERATOR,)),
        ("release the NAT's address", ec2("ReleaseAddress", AllocationId="eipalloc-base"), NOBODY),
        ("delete the NAT gateway", ec2("DeleteNatGateway", NatGatewayId="nat-base"), NOBODY),
        (
            "delete a file system",
            Call("fsx", "DeleteFileSystem", {"FileSystemId": "fs-0123456789a"}, "gc"),
            (OPERATOR,),
        ),
        (
            "delete another's file system",
            Call("fsx", "DeleteFileSystem", {"FileSystemId": "fs-0123456789b"}, "gc"),
            NOBODY,
        ),
        ("delete a cluster", Call("eks", "DeleteCluster", {"name": "ours"}), (OPERATOR,)),
        ("end an EMR cluster", Call("emr", "TerminateJobFlows", {"JobFlowIds": ["j-OURS"]}), (OPERATOR,)),
        (
            "delete an EMR application",
            Call("emr-serverless", "DeleteApplication", {"applicationId": "ours"}),
            (OPERATOR,),
        ),
        ("stop a SageMaker job", Call("sagemaker", "StopTrainingJob", {"TrainingJobName": "ours"}), (OPERATOR,)),
        ("stop another's job", Call("sagemaker", "StopTrainingJob", {"TrainingJobName": "theirs"}), NOBODY),
        ("delete an endpoint", Call("sagemaker", "DeleteEndpoint", {"EndpointName": "ours"}), (OPERATOR,)),
        (
            "delete a run's log group",
            Call("logs", "DeleteLogGroup", {"logGroupName": "/skytrain/demo/old-run"}),
            (OPERATOR,),
        ),
        ("delete the base's log group", Call("logs", "DeleteLogGroup", {"logGroupName": LOGS}), NOBODY),
    ]:
        yield Row(asked, call, allowed)


def account_rows(subnet: str) -> Iterator[Row]:
    events = [{"timestamp": 1, "message": "x"}]
    allow_all = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    admin = {"RoleName": PROFILE, "PolicyArn": "arn:aws:iam::aws:policy/AdministratorAccess"}
    port = {"Target": "i-ours", "DocumentName": "AWS-StartPortForwardingSession"}
    script = {"Target": "i-ours", "DocumentName": "AWS-RunShellScript"}
    month = {"Start": "2026-11-01", "End": "2026-12-01"}
    budget = f"skytrain-{PROJECT}-{REGION}"
    cost = {"TimePeriod": month, "Granularity": "DAILY", "Metrics": ["UnblendedCost"]}
    for asked, call, allowed in [
        ("write our log", _logs("PutLogEvents", logStreamName="x", logEvents=events), MACHINES),
        ("open our log", _logs("CreateLogStream", logStreamName="x"), MACHINES),
        (
            "write another's log",
            _logs("PutLogEvents", "/skytrain/other/nodes", logStreamName="x", logEvents=events),
            NOBODY,
        ),
        ("read our log", _logs("FilterLogEvents"), PEOPLE),
        ("read another's log", _logs("FilterLogEvents", "/aws/lambda/payroll"), NOBODY),
        ("open a shell", Call("ssm", "StartSession", {"Target": "i-ours"}), (OPERATOR,)),
        ("forward a port", Call("ssm", "StartSession", port), (OPERATOR,)),
        ("open a shell on another's machine", Call("ssm", "StartSession", {"Target": "i-theirs"}), NOBODY),
        ("open a shell on what has no run", Call("ssm", "StartSession", {"Target": "i-base"}), NOBODY),
        ("run a document in a session", Call("ssm", "StartSession", script), NOBODY),
        (
            "find an image",
            Call("ssm", "GetParameter", {"Name": "/aws/service/deeplearning/ami/x86_64/x/latest/ami-id"}),
            PEOPLE,
        ),
        ("read a secret parameter", Call("ssm", "GetParameter", {"Name": "/payroll/password"}), NOBODY),
        ("read the start scripts of templates", Call("ec2", "DescribeLaunchTemplateVersions"), (OPERATOR,)),
        ("read old start scripts", Call("autoscaling", "DescribeLaunchConfigurations"), NOBODY),
        ("read start scripts of fleets", Call("ec2", "DescribeSpotFleetRequests"), NOBODY),
        ("see machines", Call("ec2", "DescribeInstances"), (*EVERYBODY, SERVE)),
        ("see groups", Call("autoscaling", "DescribeAutoScalingGroups"), (*EVERYBODY, SERVE)),
        ("see everything tagged", Call("resourcegroupstaggingapi", "GetResources"), PEOPLE),
        ("see quotas", Call("service-quotas", "ListServiceQuotas", {"ServiceCode": "ec2"}), PEOPLE),
        ("see prices", Call("pricing", "GetProducts", {"ServiceCode": "AmazonEC2"}), PEOPLE),
        ("see costs", Call("ce", "GetCostAndUsage", cost), PEOPLE),
        ("see the budget", Call("budgets", "DescribeBudget", {"AccountId": NUMBER, "BudgetName": budget}), PEOPLE),
        ("see log groups", Call("logs", "DescribeLogGroups"), PEOPLE),
        ("see which machines a shell reaches", Call("ssm", "DescribeInstanceInformation"), PEOPLE),
        ("see the key", Call("kms", "DescribeKey", {"KeyId": KEY}), PEOPLE),
        ("use the key directly", Call("kms", "Decrypt", {"KeyId": KEY, "CiphertextBlob": b"x"}), NOBODY),
        ("log in to the registry", Call("ecr", "GetAuthorizationToken"), RUNNERS),
        ("let AWS make Auto Scaling's role", _service_role("autoscaling.amazonaws.com"), (OPERATOR,)),
        ("let AWS make another service's role", _service_role("ecs.amazonaws.com"), NOBODY),
        ("see the node role", Call("iam", "GetRole", {"RoleName": PROFILE}), PEOPLE),
        ("see another role", Call("iam", "GetRole", {"RoleName": "admin"}), NOBODY),
        ("explain a refusal", Call("sts", "DecodeAuthorizationMessage", {"EncodedMessage": "x"}), PEOPLE),
        ("make the node role powerful", Call("iam", "AttachRolePolicy", admin), NOBODY),
        ("create a user", Call("iam", "CreateUser", {"UserName": "backdoor"}), NOBODY),
        (
            "open a port",
            Call("ec2", "AuthorizeSecurityGroupIngress", {"GroupId": GROUP, "IpPermissions": allow_all}),
            NOBODY,
        ),
        ("push an image", _image("PutImage", imageManifest="{}"), (OPERATOR,)),
        ("pull an image", _image("BatchGetImage", imageIds=[{"imageTag": "1"}]), RUNNERS),
        ("start SageMaker while it is off", job(subnet), NOBODY),
    ]:
        yield Row(asked, call, allowed)


def role_rows(subnet: str) -> Iterator[Row]:
    """Roles of launches: with our tags, below the boundary and the path, with the policies of the patterns only."""

    def iam(operation: str, **parameters: Any) -> Call:
        return Call("iam", operation, parameters)

    def create(path: str = ROLES_PATH, tags: Tags | None = OURS, **changed: Any) -> Call:
        given = {"PermissionsBoundary": BOUNDARY, **({"Tags": tags.pairs()} if tags else {}), **changed}
        return iam("CreateRole", RoleName="new", Path=path, AssumeRolePolicyDocument="{}", **given)

    own, policy = {"RoleName": OWN_ROLE}, f"arn:aws:iam::{NUMBER}:policy/"
    profile = {"InstanceProfileName": OWN_ROLE}
    whose = {"Key": "skytrain:run", "Value": "llama"}
    for asked, call, allowed in [
        ("create a role", create(), (OPERATOR,)),
        ("create a role without tags", create(tags=None), NOBODY),
        ("create a role of another project", create(tags=THEIRS), NOBODY),
        ("create a role on another project's path", create(path=f"/skytrain/{REGION}/{OTHER}/"), NOBODY),
        ("create a role outside the path", create(path="/"), NOBODY),
        ("create a role below another boundary", create(PermissionsBoundary=f"{policy}other"), NOBODY),
        ("attach a pattern's policy", iam("AttachRolePolicy", PolicyArn=f"{policy}node_store", **own), (OPERATOR,)),
        ("attach a person's policy", iam("AttachRolePolicy", PolicyArn=f"{policy}operator_store", **own), NOBODY),
        ("attach what is shared", iam("AttachRolePolicy", PolicyArn=f"{policy}shared_store", **own), NOBODY),
        (
            "attach all rights",
            iam("AttachRolePolicy", PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess", **own),
            NOBODY,
        ),
        (
            "attach to a role without the boundary",
            iam("AttachRolePolicy", RoleName="unfinished", PolicyArn=f"{policy}node_store"),
            NOBODY,
        ),
        ("write a policy of one's own", iam("PutRolePolicy", PolicyName="x", PolicyDocument="{}", **own), NOBODY),
        ("remove the boundary", iam("DeleteRolePermissionsBoundary", **own), NOBODY),
        ("change whom a role trusts", iam("UpdateAssumeRolePolicy", PolicyDocument="{}", **own), NOBODY),
        ("give a role to another run", iam("TagRole", Tags=[*OURS.pairs(), whose], **own), NOBODY),
        ("take a role's tags", iam("UntagRole", TagKeys=["skytrain:run"], **own), NOBODY),
        ("create a profile", iam("CreateInstanceProfile", Path=ROLES_PATH, **profile), (OPERATOR,)),
        ("create a profile outside the path", iam("CreateInstanceProfile", Path="/", **profile), NOBODY),
        ("put a role into a profile", iam("AddRoleToInstanceProfile", **profile, **own), (OPERATOR,)),
        ("put another role into a profile", iam("AddRoleToInstanceProfile", RoleName="admin", **profile), NOBODY),
        ("start with the role of a launch", run(subnet, IamInstanceProfile={"Name": OWN_ROLE}), (OPERATOR,)),
        ("start with a role of another project", run(subnet, IamInstanceProfile={"Name": "theirs"}), NOBODY),
        ("delete a role", iam("DeleteRole", **own), (OPERATOR,)),
        ("delete another's role", iam("DeleteRole", RoleName="theirs"), NOBODY),
        ("delete the operator's role", iam("DeleteRole", RoleName=f"skytrain-{PROJECT}-{REGION}-operator"), NOBODY),
        ("see roles", iam("ListRoles"), PEOPLE),
        ("see whose a role is", iam("ListRoleTags", **own), PEOPLE),
    ]:
        yield Row(asked, call, allowed)


def _logs(operation: str, name: str = LOGS, **parameters: Any) -> Call:
    return Call("logs", operation, {"logGroupName": name, **parameters})


def _service_role(service: str) -> Call:
    return Call("iam", "CreateServiceLinkedRole", {"AWSServiceName": service})


def _image(operation: str, **parameters: Any) -> Call:
    return Call("ecr", operation, {"repositoryName": "skytrain-demo", **parameters})


def job(subnet: str, tags: Tags | None = OURS, role: str = NODE_ROLE, **resources: Any) -> Call:
    """A SageMaker training job."""
    machines = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 200}
    data = {
        "TrainingJobName": "ours",
        "RoleArn": role,
        "AlgorithmSpecification": {"TrainingImage": "x", "TrainingInputMode": "File"},
        "ResourceConfig": {**machines, **resources},
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/demo/runs/gpt2"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "VpcConfig": {"Subnets": [subnet], "SecurityGroupIds": [GROUP]},
        "Tags": tags.pairs() if tags else [],
    }
    return Call("sagemaker", "CreateTrainingJob", data)


def all_rows(subnet: str) -> list[Row]:
    """Every row of the base with its default switches."""
    return [
        *store_rows(),
        *listing_rows(),
        *start_rows(subnet),
        *template_rows(subnet),
        *end_rows(),
        *account_rows(subnet),
        *role_rows(subnet),
    ]
