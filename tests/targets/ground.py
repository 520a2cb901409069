"""An account as the Terraform base leaves it, in moto, and the configuration that `cloud init` would write for it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from skytrain.aws import AwsSession
from skytrain.aws.machine_images import image_parameter
from skytrain.config import CloudConfig, MachineRolesConfig, compose
from skytrain.config.schema import RolesConfig, SubnetsConfig
from skytrain.planning import Plan
from skytrain.planning.images import BASE_LINE
from skytrain.targets import Preflight

GPU_IMAGES = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-{}-ubuntu-24.04/latest/ami-id"
CONFIG = cache(lambda: compose().config)
ROLES_PATH = "/skytrain/us-east-2/demo/"
POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}'
TRUST = '{"Version": "2012-10-17", "Statement": []}'


class Ground:
    """The base's resources. Tests damage one of them and look at what `doctor` says."""

    def __init__(self, session: AwsSession) -> None:
        self.session, ec2 = session, session.client("ec2")
        self.vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.subnets = {
            zone: ec2.create_subnet(VpcId=self.vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
            for zone, block in (("us-east-2a", "10.0.0.0/24"), ("us-east-2b", "10.0.1.0/24"))
        }
        table = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [self.vpc]}])["RouteTables"][0]
        self.route_table = table["RouteTableId"]
        self.endpoint = ec2.create_vpc_endpoint(
            VpcId=self.vpc, ServiceName="com.amazonaws.us-east-2.s3", RouteTableIds=[self.route_table]
        )["VpcEndpoint"]["VpcEndpointId"]
        self.gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        ec2.create_route(RouteTableId=self.route_table, DestinationCidrBlock="0.0.0.0/0", GatewayId=self.gateway)
        self.group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=self.vpc)["GroupId"]
        ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=[self.to_itself])
        ec2.authorize_security_group_egress(GroupId=self.group, IpPermissions=[self.to_itself])
        self._roles()
        session.client("s3").create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": session.region}
        )
        self.image = ec2.register_image(Name="Deep Learning AMI", Architecture="x86_64")["ImageId"]
        self.plain_image = ec2.register_image(Name="Deep Learning Base AMI", Architecture="x86_64")["ImageId"]
        published = {GPU_IMAGES.format("2.11"): "ami-0old", GPU_IMAGES.format("2.12"): self.image}
        self.publish({**published, image_parameter(BASE_LINE): self.plain_image})

    @property
    def to_itself(self) -> dict[str, Any]:
        return {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}

    def _roles(self) -> None:
        iam = self.session.client("iam")
        arns = {
            kind: iam.create_role(RoleName=f"demo-{kind}", AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
            for kind in ("operator", "node", "viewer")
        }
        self.roles = RolesConfig(**arns, prepare=None, emr_service=None)
        iam.create_instance_profile(InstanceProfileName="demo-node")
        iam.add_role_to_instance_profile(InstanceProfileName="demo-node", RoleName="demo-node")
        made = {
            name: iam.create_policy(PolicyName=f"demo-{name}", PolicyDocument=POLICY)["Policy"]["Arn"]
            for name in ("machines", "node-policy", "prepare-policy", "serve-policy")
        }
        kinds = {kind: [made[f"{kind}-policy"]] for kind in ("node", "prepare", "serve")}
        self.machine_roles = {**kinds, "path": ROLES_PATH, "boundary": made["machines"], "sagemaker": [], "vault": []}
        for name in ("demo-prepare", "demo-serve"):
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
            iam.create_instance_profile(InstanceProfileName=name)
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)

    def withdraw(self, name: str) -> None:
        from moto.ssm.models import ssm_backends

        del ssm_backends["123456789012"]["us-east-2"]._parameters[name]

    def publish(self, images: Mapping[str, str]) -> None:
        """Add public parameters: only AWS itself may write below /aws/, so past moto's front door."""
        from moto.ssm.models import Parameter, ssm_backends

        for name, value in images.items():
            ssm_backends["123456789012"]["us-east-2"]._parameters[name].append(
                Parameter(
                    account_id="123456789012", name=name, value=value, parameter_type="String", description="",
                    allowed_pattern=None, keyid=None, last_modified_date=datetime.datetime.now().timestamp(), version=1,
                    data_type="text",
                )
            )  # fmt: skip

    @property
    def cloud(self) -> CloudConfig:
        return replace(
            CONFIG().cloud,
            project="demo",
            account="123456789012",
            region="us-east-2",
            subnets=SubnetsConfig(self.subnets, {}, "private"),
            security_group=self.group,
            roles=self.roles,
            machine_roles=MachineRolesConfig(**self.machine_roles),
            instance_profile="demo-node",
            prepare_profile="demo-prepare",
            serve_profile="demo-serve",
        )

    def open(self, region: str | None, account: str | None) -> AwsSession:
        self.session._account = account
        return self.session

    def preflight(self, plan: Plan | None = None, **changed: Any) -> Preflight:
        return Preflight(replace(CONFIG(), cloud=replace(self.cloud, **changed)), plan, self.open)
