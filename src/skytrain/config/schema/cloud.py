"""Settings of the AWS account: where machines are rented, and what `skytrain cloud init` found there."""

from __future__ import annotations

from typing import Literal

from .declare import EXECUTION, setting, settings
from .eks import EksConfig
from .emr import EmrConfig
from .kinds import Seconds
from .sagemaker import SageMakerConfig
from .slurm import SlurmConfig


@settings
class SubnetsConfig:
    """Subnets by availability zone, such as {us-east-2a: subnet-0123}."""

    private: dict[str, str] = setting(EXECUTION, "Subnets for machines without public addresses.")
    public: dict[str, str] = setting(EXECUTION, "Subnets with a route to the internet.")
    nodes: Literal["private", "public"] = setting(EXECUTION, "Which of the two machines start in.")


@settings
class RolesConfig:
    """ARNs of the roles of the base."""

    operator: str | None = setting(EXECUTION, "For people and programs that launch and stop machines.")
    node: str | None = setting(EXECUTION, "For the machines of a run.")
    viewer: str | None = setting(EXECUTION, "For reading only.")
    prepare: str | None = setting(EXECUTION, "For machines and Spark jobs that prepare data.")
    emr_service: str | None = setting(EXECUTION, "For EMR itself, which starts the nodes of a cluster.")


@settings
class MachineRolesConfig:
    """The roles that `launch` creates, one for each launch: what the base says about them."""

    path: str | None = setting(EXECUTION, "Path of the roles and their instance profiles in IAM.")
    boundary: str | None = setting(
        EXECUTION, "ARN of their permissions boundary; null: machines of all runs share the roles of the base."
    )
    node: list[str] = setting(EXECUTION, "ARNs of the policies of machines that train.")
    prepare: list[str] = setting(EXECUTION, "Those of machines that prepare data.")
    serve: list[str] = setting(EXECUTION, "Those of machines that serve models.")
    sagemaker: list[str] = setting(EXECUTION, "Those that a training job of SageMaker has besides.")
    vault: list[str] = setting(EXECUTION, "Those that machines have besides whose launch names `cloud.secrets`.")


@settings
class CloudConfig:
    """The AWS account that machines are rented in; cloud=aws is the file that `skytrain cloud init` writes."""

    project: str | None = setting(
        EXECUTION, "Name of the project: a tag on everything that is created; null: no account is set up."
    )
    owner: str | None = setting(EXECUTION, "Who answers for it: a tag on everything; null: the caller's name in AWS.")
    account: str | None = setting(EXECUTION, "The account's number; commands refuse to work in another. null: any.")
    region: str | None = setting(EXECUTION, "Region of the machines; null: AWS_REGION, or the profile's.")
    bucket: str | None = setting(EXECUTION, "Bucket of the store.")
    kms_key: str | None = setting(EXECUTION, "ARN of the KMS key of the bucket, volumes and logs.")
    image_repository: str | None = setting(EXECUTION, "ECR repository of container images.")
    subnets: SubnetsConfig
    closed_network: bool = setting(EXECUTION, "Machines reach nothing but AWS: VPC endpoints and no NAT.")
    security_group: str | None = setting(EXECUTION, "Security group of the machines, open only to itself.")
    roles: RolesConfig
    machine_roles: MachineRolesConfig
    instance_profile: str | None = setting(
        EXECUTION,
        "Instance profile of the pattern for machines that train, with which `doctor` asks; of all machines that train "
        "where machine_roles.boundary is null.",
    )
    instance_families: list[str] = setting(EXECUTION, "Families that the operator may start; empty: not known.")
    readable_buckets: list[str] | None = setting(
        EXECUTION, "Buckets besides the store's that the machines' roles may read; null: not known."
    )
    log_groups: dict[str, str] = setting(EXECUTION, "CloudWatch log groups by purpose.")
    target: str | None = setting(
        EXECUTION,
        "Where `skytrain launch` runs jobs; cloud=ec2, cloud=sagemaker, cloud=slurm and so on set it. "
        "A target of your own: the path of its class.",
    )
    patience: Seconds = setting(EXECUTION, "Wait for machines of an offer before the plan's next offer is tried.")
    python: str | None = setting(EXECUTION, "Python of the machine image, whose torch is used; null: AWS's own.")
    python_version: str | None = setting(
        EXECUTION, "Version of that Python, for which packages are collected; null: that of the image."
    )
    packages: list[str] = setting(EXECUTION, "Further packages that machines install, for plug-in classes.")
    secrets: dict[str, str] = setting(
        EXECUTION,
        "Environment variables of the job and the secret that each gets, such as {HF_TOKEN: skytrain/hf}: a name of "
        "Secrets Manager (NAME#KEY of a JSON secret), or ssm:/NAME.",
    )
    cloudwatch: bool = setting(
        EXECUTION,
        "Machines that `skytrain launch` rents send their logs and metrics to the log group log_groups.nodes.",
    )
    slurm: SlurmConfig
    sagemaker: SageMakerConfig
    emr: EmrConfig
    emr_service_group: str | None = setting(
        EXECUTION, "Security group through which EMR reaches clusters in private subnets."
    )
    emr_security: str | None = setting(EXECUTION, "EMR security configuration of clusters: encrypted disks, IMDSv2.")
    eks: EksConfig
    prepare_profile: str | None = setting(
        EXECUTION, "Instance profile of machines that prepare data: they may write it."
    )
    serve_profile: str | None = setting(
        EXECUTION, "Instance profile of machines that serve models: they read exported models only."
    )
    reservation: str | None = setting(
        EXECUTION, "A capacity block that you have bought, cr-...: its machines are used, and no others."
    )
