"""Calls: checked before they are sent, the same when repeated, printable without secrets."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest

from skytrain.aws import Call, render_calls
from skytrain.aws.calls import InvalidCall

HF_TOKEN = "hf_" + "a" * 34


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (Call("ec3", "RunInstances"), "Unknown service"),
        (Call("ec2", "StartTheMachines"), "StartTheMachines"),
        (Call("ec2", "TerminateInstances", {"InstanceIDs": ["i-1"]}), "InstanceIDs"),
        (Call("ec2", "TerminateInstances", {"InstanceIds": "i-1"}), "InstanceIds"),
        (Call("ec2", "TerminateInstances"), "Missing required parameter"),
        (Call("sts", "GetCallerIdentity", {"Who": "me"}), "Who"),
    ],
)
def test_a_request_that_the_service_model_rejects_is_found_before_it_is_sent(call: Call, problem: str) -> None:
    with pytest.raises(InvalidCall, match=problem):
        call.body()


def test_a_repeated_call_carries_the_same_client_token_and_another_key_another() -> None:
    parameters = {"MinCount": 1, "MaxCount": 1}
    first, again, other = (Call("ec2", "RunInstances", parameters, key).body() for key in ("run/1", "run/1", "run/2"))
    assert first["ClientToken"] == again["ClientToken"] != other["ClientToken"]
    assert len(first["ClientToken"]) <= 36


def test_a_mutating_call_that_takes_a_client_token_needs_a_key() -> None:
    with pytest.raises(InvalidCall, match="token_key"):
        Call("ec2", "RunInstances", {"MinCount": 1, "MaxCount": 1}).body()


def test_reading_calls_are_told_from_mutating_ones() -> None:
    assert Call("ec2", "RunInstances").mutates and Call("s3", "PutObject").mutates
    assert not Call("ec2", "DescribeInstances").mutates and not Call("s3", "HeadObject").mutates


def test_the_iam_action_is_the_one_that_policies_name() -> None:
    assert Call("ec2", "RunInstances").action == "ec2:RunInstances"
    assert Call("s3", "ListObjectsV2").action == "s3:ListBucket"
    assert Call("service-quotas", "GetServiceQuota").action == "servicequotas:GetServiceQuota"


def test_a_dry_run_prints_the_exact_body_with_secrets_masked() -> None:
    script = base64.b64encode(f"export HF_TOKEN={HF_TOKEN}\n".encode()).decode()
    launch = Call("ec2", "RunInstances", {"MinCount": 1, "MaxCount": 2, "UserData": script}, "run/1")
    secret = Call("ssm", "PutParameter", {"Name": "/x/hf_token", "Value": "swordfish", "Type": "SecureString"})
    job = Call("sagemaker", "CreateTrainingJob", {
        "TrainingJobName": "a", "RoleArn": "arn:aws:iam::123456789012:role/node",
        "OutputDataConfig": {"S3OutputPath": "s3://b"}, "StoppingCondition": {},
        "ResourceConfig": {"VolumeSizeInGB": 1},
        "Environment": {"WANDB_API_KEY": "swordfish", "NOTE": f"uses {HF_TOKEN}", "NCCL_DEBUG": "WARN"},
    })  # fmt: skip
    schedule = Call("autoscaling", "PutScheduledUpdateGroupAction", {
        "AutoScalingGroupName": "g", "ScheduledActionName": "kill", "DesiredCapacity": 0,
        "StartTime": datetime(2026, 1, 2, 3, tzinfo=UTC),
    })  # fmt: skip
    text = render_calls([launch, secret, job, schedule])
    assert "swordfish" not in text and HF_TOKEN not in text
    shown = json.loads(text)
    assert HF_TOKEN not in base64.b64decode(shown[0]["parameters"]["UserData"]).decode()
    assert shown[0]["parameters"] | {"UserData": script} == launch.body()
    assert shown[1]["parameters"] == {"Name": "/x/hf_token", "Value": "****", "Type": "SecureString"}
    assert shown[2]["parameters"]["Environment"] == {
        "WANDB_API_KEY": "****", "NOTE": "uses ****", "NCCL_DEBUG": "WARN",
    }  # fmt: skip
    assert shown[3]["parameters"]["StartTime"] == "2026-01-02T03:00:00+00:00"
