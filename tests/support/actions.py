"""The IAM actions that each command needs, from the calls it makes; policies and the docs follow this table."""

from __future__ import annotations

from skytrain.aws import KINDS
from skytrain.targets.checks import CHECKS
from skytrain.targets.checks.quota import QUOTA_ACTIONS
from skytrain.targets.emr.checks import OWN as EMR
from skytrain.targets.sagemaker.checks import OWN as SAGEMAKER

ACCOUNT = ("sts:GetCallerIdentity", "ec2:DescribeRegions")
MACHINES = (*KINDS["instance"].reads, *KINDS["Auto Scaling group"].reads)
API_KEYS = KINDS["API key"]
STORE_READS = ("s3:GetObject", "s3:ListBucket", "kms:Decrypt")
STORE_WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "kms:GenerateDataKey")


def _all(name: str) -> tuple[str, ...]:
    return tuple(sorted({action for kind in KINDS.values() for action in getattr(kind, name)}))


DOCTOR = tuple(dict.fromkeys([*(action for one in CHECKS for action in one.actions), *STORE_READS, *STORE_WRITES]))
ROLE = KINDS["machine role"]
OWN_ROLE = (
    "iam:CreateRole",
    "iam:TagRole",
    "iam:AttachRolePolicy",
    "iam:CreateInstanceProfile",
    "iam:AddRoleToInstanceProfile",
    "iam:PassRole",
    *ROLE.deletes,
)
GROUP = (
    *OWN_ROLE,
    "ec2:CreateLaunchTemplate",
    "ec2:CreatePlacementGroup",
    "autoscaling:CreateAutoScalingGroup",
    "autoscaling:PutScheduledUpdateGroupAction",
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DeleteAutoScalingGroup",
    "ec2:DeleteLaunchTemplate",
    "ec2:DeletePlacementGroup",
)
TRAINING_JOB = (
    *(action for one in SAGEMAKER for action in one.actions),
    "pricing:GetProducts",
    "sagemaker:CreateTrainingJob",
    "sagemaker:AddTags",
    *OWN_ROLE,
)
EMR_READS = (
    "sts:GetCallerIdentity",
    "emr-serverless:ListApplications",
    "emr-serverless:ListJobRuns",
    "emr-serverless:GetJobRun",
    "elasticmapreduce:ListClusters",
    "elasticmapreduce:ListSteps",
    *STORE_READS,
)
EMR_JOB = (
    *(action for one in EMR for action in one.actions),
    *EMR_READS,
    "emr-serverless:CreateApplication",
    "emr-serverless:TagResource",
    "emr-serverless:StartJobRun",
    "ec2:CreateNetworkInterface",
    "elasticmapreduce:RunJobFlow",
    "elasticmapreduce:AddTags",
    *OWN_ROLE,
)
EMR_STOP = (
    *EMR_READS,
    "emr-serverless:CancelJobRun",
    "elasticmapreduce:TerminateJobFlows",
    "s3:PutObject",
    "kms:GenerateDataKey",
)
ENDPOINT_KEY = ("ssm:PutParameter", "ssm:AddTagsToResource", "kms:Encrypt", *API_KEYS.deletes)
JOB_READS = ("sts:GetCallerIdentity", "sagemaker:DescribeTrainingJob", *STORE_READS)
FOLLOW = (*ACCOUNT, *MACHINES)
COMMAND_ACTIONS: dict[str, tuple[str, ...]] = {
    "doctor": DOCTOR,
    "launch": tuple(dict.fromkeys([*DOCTOR, *GROUP, *FOLLOW, "autoscaling:SetDesiredCapacity"])),
    "serve --target ec2": tuple(
        dict.fromkeys([*DOCTOR, *GROUP, *FOLLOW, "autoscaling:SetDesiredCapacity", *ENDPOINT_KEY])
    ),
    "launch cloud=sagemaker": tuple(dict.fromkeys([*DOCTOR, *TRAINING_JOB])),
    "launch cloud=eks": (
        "sts:GetCallerIdentity",
        "eks:DescribeCluster",
        *QUOTA_ACTIONS,
        "iam:GetRole",
        *STORE_READS,
        "s3:PutObject",
        "kms:GenerateDataKey",
    ),
    "status cloud=sagemaker": JOB_READS,
    "logs cloud=sagemaker": (*JOB_READS, "logs:FilterLogEvents"),
    "stop cloud=sagemaker": (*JOB_READS, "sagemaker:StopTrainingJob", "s3:PutObject", "kms:GenerateDataKey"),
    "image mirror": (
        "sts:GetCallerIdentity",
        "ecr:GetAuthorizationToken",
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:InitiateLayerUpload",
        "ecr:UploadLayerPart",
        "ecr:CompleteLayerUpload",
        "ecr:PutImage",
    ),
    "image push": (
        "sts:GetCallerIdentity",
        "ecr:GetAuthorizationToken",
        "ecr:DescribeImages",
        "ecr:BatchCheckLayerAvailability",
        "ecr:InitiateLayerUpload",
        "ecr:UploadLayerPart",
        "ecr:CompleteLayerUpload",
        "ecr:PutImage",
        "s3:PutObject",
        "kms:GenerateDataKey",
    ),
    "launch prepare cloud=emr": tuple(dict.fromkeys([*DOCTOR, *EMR_JOB])),
    "status cloud=emr": EMR_READS,
    "logs cloud=emr": EMR_READS,
    "stop cloud=emr": EMR_STOP,
    "catalog refresh": ("ec2:DescribeInstanceTypes", "ec2:DescribeSpotPriceHistory", "pricing:GetProducts"),
    "store copy": (*STORE_READS, *STORE_WRITES),
    "logs": STORE_READS,
    "logs cloud=ec2": (*STORE_READS, "autoscaling:DescribeAutoScalingGroups", "logs:FilterLogEvents"),
    "status": (*FOLLOW, *STORE_READS),
    "stop": (
        *ACCOUNT,
        *MACHINES,
        "autoscaling:UpdateAutoScalingGroup",
        "ec2:TerminateInstances",
        *API_KEYS.reads,
        *API_KEYS.deletes,
        *ROLE.reads,
        *ROLE.deletes,
        *STORE_READS,
        "s3:PutObject",
        "kms:GenerateDataKey",
    ),
    "shell": (
        *ACCOUNT,
        *MACHINES,
        *API_KEYS.reads,
        *ROLE.reads,
        "ssm:StartSession",
        "ssm:ResumeSession",
        "ssm:TerminateSession",
    ),
    "costs": ("ce:GetCostAndUsage", "ec2:DescribeInstances", *STORE_READS),  # who may not write is told so
    "costs cloud=emr": (*EMR_READS, "elasticmapreduce:ListInstances", "ce:GetCostAndUsage"),
    "gc": (*ACCOUNT, *_all("reads"), *STORE_READS),
    "gc --delete": (*_all("deletes"), "s3:DeleteObject"),
}


def command_actions_table() -> str:
    """Return the table in Markdown, for the docs."""
    rows = [
        f"| `{command}` | {', '.join(f'`{action}`' for action in actions)} |"
        for command, actions in COMMAND_ACTIONS.items()
    ]
    return "\n".join(["| command | IAM actions |", "| --- | --- |", *rows])
