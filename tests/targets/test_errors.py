"""AWS's errors: each has an exit code and one line that says what to do."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path

import pytest
from botocore.parsers import ResponseParserError

from skytrain.aws import Call, CloudError, cloud_errors, open_session, quota_page
from skytrain.aws.remedies import REMEDIES, remedies_table
from skytrain.config import EXIT_CODES
from skytrain.planning.images import images_table

from .conftest import StubbedSession, client_error

LAUNCH = Call("ec2", "RunInstances", {"MinCount": 2, "MaxCount": 2, "InstanceType": "g5.12xlarge"}, "run/1")
ENCODED = "You are not authorized to perform this operation. Encoded authorization failure message: abc123"


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("VcpuLimitExceeded", 4, ["L-DB2E81BA", "us-east-2.console.aws.amazon.com/servicequotas"]),
        ("MaxSpotInstanceCountExceeded", 4, ["L-3819A6DF", "--market on-demand"]),
        ("InsufficientInstanceCapacity", 5, ["another zone of us-east-2"]),
        ("SpotMaxPriceTooLow", 5, ["plan again"]),
        ("Unsupported", 5, ["another zone"]),
        ("RequestLimitExceeded", 5, ["again in a minute"]),
        ("ExpiredToken", 11, ["aws sso login"]),
        ("AuthFailure", 11, ["aws sso login"]),
        ("RequestExpired", 11, ["clock"]),
        ("InvalidAMIID.NotFound", 3, ["machine image", "skytrain doctor"]),
        ("OptInRequired", 3, ["enable us-east-2"]),
        ("LimitExceeded", 4, ["skytrain gc"]),
        ("SomethingNew", 3, ["SomethingNew: said AWS"]),
    ],
)
def test_an_error_of_aws_has_an_exit_code_and_a_remedy(
    stubbed: StubbedSession, code: str, exit_code: int, words: list[str]
) -> None:
    stubbed.stub("ec2").add_client_error("run_instances", **client_error(code))
    with pytest.raises(CloudError) as caught:
        stubbed.perform(LAUNCH)
    assert (caught.value.exit_code, caught.value.code) == (exit_code, code)
    assert all(word in str(caught.value) for word in ["ec2 RunInstances", "said AWS", *words])


def test_a_code_that_only_the_message_names_is_understood(stubbed: StubbedSession) -> None:
    told = "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count exceeded."
    stubbed.stub("autoscaling").add_client_error("set_desired_capacity", **client_error("ValidationError", told))
    grow = Call("autoscaling", "SetDesiredCapacity", {"AutoScalingGroupName": "g", "DesiredCapacity": 1})
    with pytest.raises(CloudError) as caught:
        stubbed.perform(grow)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("said", "exit_code", "fix"),
    [
        ("The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, run", 3, "to the paid plan"),
        ("You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket", 4, "L-3819A6DF|L-DB2E81BA|the quota"),
        ("Client.InternalError: Client error on launch", 3, "the key of the disks"),
        ("The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.", 3, "spot.amazonaws.com"),
        ("We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested", 5, "another zone"),
    ],
)  # fmt: skip
def test_words_of_ec2_have_a_remedy_under_any_code(
    stubbed: StubbedSession, said: str, exit_code: int, fix: str
) -> None:
    stubbed.stub("ec2").add_client_error("run_instances", **client_error("InvalidParameterCombination", said))
    with pytest.raises(CloudError, match=fix) as caught:
        stubbed.perform(LAUNCH)
    assert caught.value.exit_code == exit_code


def test_an_encoded_denial_is_decoded_to_the_missing_policy_statement(stubbed: StubbedSession) -> None:
    arn = "arn:aws:ec2:us-east-2:123456789012:instance/*"
    decoded = {
        "allowed": False, "explicitDeny": False, "matchedStatements": {"items": []},
        "context": {"principal": {"arn": "arn:aws:sts::1:assumed-role/viewer/ada"}, "action": "ec2:RunInstances", "resource": arn},
    }  # fmt: skip
    stubbed.stub("ec2").add_client_error("run_instances", **client_error("UnauthorizedOperation", ENCODED))
    stubbed.stub("sts").add_response(
        "decode_authorization_message", {"DecodedMessage": json.dumps(decoded)}, {"EncodedMessage": "abc123"}
    )
    with pytest.raises(CloudError) as caught:
        stubbed.perform(LAUNCH)
    assert caught.value.exit_code == 11
    assert "viewer/ada may not ec2:RunInstances on arn:aws:ec2" in str(caught.value)
    assert json.dumps({"Effect": "Allow", "Action": "ec2:RunInstances", "Resource": arn}) in str(caught.value)
    assert "abc123" not in str(caught.value)


def test_an_explicit_deny_names_its_statement_and_promises_nothing(stubbed: StubbedSession) -> None:
    decoded = {
        "explicitDeny": True,
        "matchedStatements": {"items": [{"statementId": "OnlyIMDSv2", "effect": "DENY"}]},
        "context": {"principal": {"arn": "arn:x"}, "action": "ec2:RunInstances", "resource": "arn:y"},
    }
    stubbed.stub("ec2").add_client_error("run_instances", **client_error("UnauthorizedOperation", ENCODED))
    stubbed.stub("sts").add_response("decode_authorization_message", {"DecodedMessage": json.dumps(decoded)})
    with pytest.raises(CloudError, match=r"a policy denies it \(statement OnlyIMDSv2\)") as caught:
        stubbed.perform(LAUNCH)
    assert "Effect" not in caught.value.fix


def test_a_denial_that_may_not_be_decoded_says_so(stubbed: StubbedSession) -> None:
    stubbed.stub("ec2").add_client_error("run_instances", **client_error("UnauthorizedOperation", ENCODED))
    stubbed.stub("sts").add_client_error("decode_authorization_message", **client_error("AccessDenied"))
    with pytest.raises(CloudError, match="sts:DecodeAuthorizationMessage") as caught:
        stubbed.perform(LAUNCH)
    assert '"Action": "ec2:RunInstances"' in caught.value.fix


def test_a_plain_denial_names_action_and_resource(stubbed: StubbedSession) -> None:
    told = "User: arn:aws:sts::1:assumed-role/node/i-1 is not authorized to perform: logs:CreateLogGroup on resource: arn:aws:logs:us-east-2:1:log-group:/x because no identity-based policy allows the logs:CreateLogGroup action"
    stubbed.stub("logs").add_client_error("create_log_group", **client_error("AccessDeniedException", told))
    with pytest.raises(CloudError) as caught:
        stubbed.perform(Call("logs", "CreateLogGroup", {"logGroupName": "/x"}))
    assert '"Action": "logs:CreateLogGroup", "Resource": "arn:aws:logs:us-east-2:1:log-group:/x"' in caught.value.fix


def test_without_credentials_every_call_ends_with_exit_11(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CloudError, match="AWS_PROFILE") as caught:
        _ = open_session("us-east-2").identity
    assert caught.value.exit_code == 11


def test_a_profile_that_does_not_exist_ends_with_exit_11(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CloudError, match="nobody") as caught:
        open_session()
    assert caught.value.exit_code == 11


def test_an_expired_sso_login_ends_with_exit_11(no_aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_aws.setenv("HOME", str(tmp_path))
    no_aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config = tmp_path / "config"
    config.write_text(
        "[profile work]\nsso_session = one\nsso_account_id = 123456789012\nsso_role_name = operator\nregion = us-east-2\n"
        "[sso-session one]\nsso_start_url = https://example.awsapps.com/start\nsso_region = us-east-2\n"
    )
    no_aws.setenv("AWS_CONFIG_FILE", str(config))
    no_aws.setenv("AWS_PROFILE", "work")
    with pytest.raises(CloudError, match="aws sso login") as caught:
        _ = open_session().identity
    assert caught.value.exit_code == 11


def test_without_a_region_the_message_says_how_to_set_one(no_aws: pytest.MonkeyPatch) -> None:
    with pytest.raises(CloudError, match=r"cloud\.region") as caught:
        open_session()
    assert caught.value.exit_code == 3


def test_a_page_of_a_proxy_in_place_of_an_answer_is_one_line() -> None:
    with pytest.raises(CloudError) as caught, cloud_errors(LAUNCH):
        raise ResponseParserError("Unable to parse response, invalid XML received:\nb'<html>busy</html>'")
    assert caught.value.exit_code == 3 and "check the network" in caught.value.fix
    assert "the answer is not AWS's" in caught.value.problem and "<html>" not in caught.value.problem


@pytest.mark.parametrize(
    ("code", "said", "fix"),
    [
        ("AccessDenied", "{denied} with an explicit deny in a service control policy", "your organization denies it"),
        ("AccessDenied", "{denied} because no service control policy allows the {action} action", "your organization denies it"),
        ("AccessDenied", "{denied} with an explicit deny in a resource control policy", "change the resource control policy"),
        ("AccessDenied", "{denied} because no permissions boundary allows the {action} action", "the permissions boundary of"),
        ("AccessDenied", "{denied} because no VPC endpoint policy allows the {action} action", "the policy of the VPC endpoint"),
        ("AccessDenied", "{denied} because no identity-based policy allows the {action} action", '"Action": "{action}"'),
        ("SignatureDoesNotMatch", "Signature expired: 20220127T001427Z is now earlier than 20220127T014428Z", "clock is wrong"),
        ("InvalidSignatureException", "Signature not yet current: 20220127T001427Z is still later than", "clock is wrong"),
        ("SignatureDoesNotMatch", "The request signature we calculated does not match", "aws sso login"),
    ],
)  # fmt: skip
def test_what_aws_says_in_words_decides_the_remedy(stubbed: StubbedSession, code: str, said: str, fix: str) -> None:
    action = "autoscaling:CreateAutoScalingGroup"
    denied = f"User: arn:aws:sts::123456789012:assumed-role/demo-operator/ada is not authorized to perform: {action}"
    text = said.format(denied=denied, action=action)
    stubbed.stub("autoscaling").add_client_error("create_auto_scaling_group", code, text)
    named = {"AutoScalingGroupName": "g", "MinSize": 0, "MaxSize": 1}
    with stubbed.stub("autoscaling"), pytest.raises(CloudError) as caught:
        stubbed.session.perform(Call("autoscaling", "CreateAutoScalingGroup", named))
    assert caught.value.exit_code == 11 and fix.replace("{action}", action) in caught.value.fix


def test_quotas_are_in_the_console_of_the_regions_partition() -> None:
    assert "cn-north-1.console.amazonaws.cn/servicequotas/" in quota_page("cn-north-1", "ec2", "L-1")
    assert quota_page("us-gov-west-1", "sagemaker").startswith("https://us-gov-west-1.console.amazonaws-us-gov.com/")


def test_the_docs_list_every_image_and_the_machines_that_it_serves() -> None:
    assert images_table() in (Path(__file__).parents[2] / "docs" / "launch.md").read_text()


def test_the_docs_hold_every_error_and_its_remedy() -> None:
    assert remedies_table() in (Path(__file__).parents[2] / "docs" / "aws.md").read_text()


def test_every_remedy_has_an_exit_code_and_a_line() -> None:
    for code, remedy in REMEDIES.items():
        assert EXIT_CODES[remedy.cause] in (3, 4, 5, 11), code
        assert remedy.fix.format(region="x") and "\n" not in remedy.fix


def test_a_connection_that_closes_without_an_answer_is_an_error_of_its_own(no_aws: pytest.MonkeyPatch) -> None:
    """As when a proxy or a load balancer drops the connection: botocore's error then has no response at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        ended = threading.Event()

        def close_every_connection() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    server.accept()[0].close()

        closing = threading.Thread(target=close_every_connection, daemon=True)
        closing.start()
        no_aws.setenv("AWS_ACCESS_KEY_ID", "key")
        no_aws.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        no_aws.setenv("AWS_MAX_ATTEMPTS", "1")
        no_aws.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(CloudError, match="TerminateInstances: ConnectionClosedError") as caught:
            open_session("us-east-2").perform(Call("ec2", "TerminateInstances", {"InstanceIds": ["i-1"]}))
        ended.set()
    assert caught.value.code == "ConnectionClosedError"
