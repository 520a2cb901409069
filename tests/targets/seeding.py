"""A seeded AWS account in moto: in each region the same things, of ours and of others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.responses import EC2Response
from moto.sagemaker.models import sagemaker_backends
from moto.sagemaker.responses import SageMakerResponse

from skytrain.aws import AwsSession, Tags

POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}'
AMI = "ami-12c6146b"
ROLE = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/x"
PER_REGION = 21


def complete_moto(patch: pytest.MonkeyPatch) -> dict[str, dict[str, dict[str, str]]]:
    """Add the calls that moto lacks; returns the tags of placement groups, by region and name."""
    groups: dict[str, dict[str, dict[str, str]]] = {}

    def describe(self: Any) -> str:
        found = groups.get(self.region, {})
        wanted = self._get_param("Filter.1.Value.1") or next(iter(self._filters_from_querystring().values()), [""])[0]
        items = "".join(group_item(name, tags) for name, tags in found.items() if wanted in tags)
        return response("DescribePlacementGroups", f"<placementGroupSet>{items}</placementGroupSet>")

    def delete(self: Any) -> str:
        del groups[self.region][self._get_param("GroupName")]
        return response("DeletePlacementGroup", "<return>true</return>")

    def stop_training_job(self: Any) -> str:
        self.sagemaker_backend.training_jobs[self._get_param("TrainingJobName")].training_job_status = "Stopped"
        return "{}"

    patch.setattr(EC2Response, "describe_placement_groups", describe, raising=False)
    patch.setattr(EC2Response, "delete_placement_group", delete, raising=False)
    patch.setattr(SageMakerResponse, "stop_training_job", stop_training_job, raising=False)
    return groups


def group_item(name: str, tags: dict[str, str]) -> str:
    pairs = "".join(f"<item><key>{key}</key><value>{value}</value></item>" for key, value in tags.items())
    return f"<item><groupName>{name}</groupName><state>available</state><tagSet>{pairs}</tagSet></item>"


def response(action: str, body: str) -> str:
    return f'<{action}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">{body}</{action}Response>'


def seed(session: AwsSession, region: str, tags: Tags | None, name: str) -> None:
    """Create PER_REGION resources with these tags (None: somebody else's) and names that start with `name`."""
    pairs = tags.pairs() if tags else [{"Key": "Name", "Value": "theirs"}]
    mapping = {pair["Key"]: pair["Value"] for pair in pairs}

    def specs(*kinds: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]

    ec2 = session.client("ec2", region)
    subnet = ec2.describe_subnets()["Subnets"][0]
    sg = ec2.create_security_group(
        GroupName=name, Description=name, VpcId=subnet["VpcId"], TagSpecifications=specs("security-group")
    )["GroupId"]
    image = {"ImageId": AMI, "InstanceType": "g5.xlarge"}
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    ec2.run_instances(**image, **spot, MinCount=1, MaxCount=1, TagSpecifications=specs("instance"))
    volume = {"AvailabilityZone": f"{region}a", "Size": 100, "VolumeType": "gp3"}
    volume_id = ec2.create_volume(**volume, TagSpecifications=specs("volume"))["VolumeId"]
    ec2.create_snapshot(VolumeId=volume_id, TagSpecifications=specs("snapshot"))
    ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=specs("vpc"))  # of no kind that gc deletes
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=specs("elastic-ip"))
    ec2.create_network_interface(SubnetId=subnet["SubnetId"], Groups=[sg], TagSpecifications=specs("network-interface"))
    ec2.create_nat_gateway(
        SubnetId=subnet["SubnetId"], AllocationId=address["AllocationId"], TagSpecifications=specs("natgateway")
    )
    template = ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData=image, TagSpecifications=specs("launch-template")
    )["LaunchTemplate"]["LaunchTemplateId"]
    session.client("autoscaling", region).create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=0,
        LaunchTemplate={"LaunchTemplateId": template},
        VPCZoneIdentifier=subnet["SubnetId"],
        Tags=tags.for_group(name) if tags else [],
    )
    ec2.request_spot_instances(
        SpotPrice="0.001", LaunchSpecification=image, TagSpecifications=specs("spot-instances-request")
    )
    session.client("fsx", region).create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet["SubnetId"]],
        Tags=pairs,
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )
    seed_services(session, region, name, pairs, mapping)


def seed_services(session: AwsSession, region: str, name: str, pairs: Any, mapping: dict[str, str]) -> None:
    session.client("emr", region).run_job_flow(
        Name=name,
        Instances={"InstanceCount": 1, "MasterInstanceType": "m5.xlarge", "KeepJobFlowAliveWhenNoSteps": True},
        Tags=pairs,
        JobFlowRole="x",
        ServiceRole="y",
    )
    session.client("emr-serverless", region).create_application(
        name=name, releaseLabel="emr-7.0.0", type="SPARK", clientToken=name, tags=mapping
    )
    sagemaker = session.client("sagemaker", region)
    sagemaker.create_training_job(
        TrainingJobName=name,
        AlgorithmSpecification={"TrainingImage": "x", "TrainingInputMode": "File"},
        RoleArn=ROLE,
        OutputDataConfig={"S3OutputPath": "s3://x"},
        ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 10},
        StoppingCondition={"MaxRuntimeInSeconds": 100},
        Tags=pairs,
    )
    sagemaker_backends[DEFAULT_ACCOUNT_ID][region].training_jobs[name].training_job_status = "InProgress"
    variant = {"VariantName": "v", "ModelName": name, "InitialInstanceCount": 1, "InstanceType": "ml.t2.medium"}
    sagemaker.create_model(ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer={"Image": "x"})
    sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=pairs)
    eks = session.client("eks", region)
    eks.create_cluster(name=name, roleArn=ROLE, resourcesVpcConfig={"subnetIds": ["subnet-1"]}, tags=mapping)
    eks.create_nodegroup(clusterName=name, nodegroupName="n", subnets=["subnet-1"], nodeRole=ROLE)
    session.client("logs", region).create_log_group(logGroupName=f"/skytrain/{name}", tags=mapping)
    key = f"/skytrain/{name}/api_key"
    session.client("ssm", region).put_parameter(Name=key, Value="secret", Type="SecureString", Tags=pairs)
    session.client("scheduler", region).create_schedule_group(Name=name, Tags=pairs)
    iam, role, path = session.client("iam", region), f"{name}-{region}", f"/skytrain/{region}/demo/"
    policy = iam.create_policy(PolicyName=role, PolicyDocument=POLICY)["Policy"]["Arn"]
    iam.create_role(RoleName=role, Path=path, AssumeRolePolicyDocument=POLICY, Tags=pairs)
    iam.attach_role_policy(RoleName=role, PolicyArn=policy)
    iam.create_instance_profile(InstanceProfileName=role, Path=path)
    iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)


def hours_from_now(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)
