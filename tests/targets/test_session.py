"""Sessions: identity, region, pages."""

from __future__ import annotations

import boto3
import pytest
from botocore.stub import Stubber

from skytrain.aws import AwsSession, Call, CloudError, open_session


def test_the_region_is_the_settings_then_the_environments(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert open_session().region == "eu-west-1"
    no_aws.setenv("AWS_REGION", "us-west-2")
    assert (open_session().region, open_session("us-east-2").region) == ("us-west-2", "us-east-2")


def test_the_caller_is_known_by_account_and_name(account: AwsSession) -> None:
    assert account.identity.account == "123456789012"
    assert account.identity.name and "/" not in account.identity.name


def test_all_pages_of_an_answer_are_read(account: AwsSession) -> None:
    logs = account.client("logs")
    for number in range(60):  # the service returns at most 50 at once
        logs.create_log_group(logGroupName=f"/demo/{number}")
    found = list(account.items(Call("logs", "DescribeLogGroups"), "logGroups"))
    assert len(found) == 60


def test_a_call_may_go_to_another_region(account: AwsSession) -> None:
    account.perform(Call("logs", "CreateLogGroup", {"logGroupName": "/there"}), "us-west-2")
    assert list(account.items(Call("logs", "DescribeLogGroups"), "logGroups")) == []
    assert len(list(account.items(Call("logs", "DescribeLogGroups"), "logGroups", "us-west-2"))) == 1


def test_credentials_of_another_account_than_the_configured_one_are_refused(account: AwsSession) -> None:
    strict = AwsSession(account._session, account.region, "999999999999")
    with pytest.raises(CloudError, match=r"account 123456789012 .* cloud\.account is 999999999999") as caught:
        _ = strict.identity
    assert caught.value.exit_code == 11


@pytest.mark.parametrize(
    ("service", "region", "offered"),
    [
        ("ec2", "us-east-2", True),
        ("ec2", "us-gov-west-1", True),
        ("ec2", "cn-north-1", True),
        ("ec2", "us-east-99", True),  # newer than botocore
        ("sagemaker", "us-iso-west-1", False),
    ],
)
def test_a_region_is_skipped_only_where_a_service_is_known_to_be_absent(
    account: AwsSession, service: str, region: str, offered: bool
) -> None:
    assert account.offers(service, region) is offered


@pytest.mark.parametrize(("known", "exit_code", "words"), [(True, 3, "enable-region"), (False, 11, "aws sso login")])
def test_a_region_that_is_not_enabled_is_told_from_wrong_credentials(
    no_aws: pytest.MonkeyPatch, known: bool, exit_code: int, words: str
) -> None:
    session = AwsSession(boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"), "ap-southeast-7")
    here, there = (Stubber(session.client("sts", region)) for region in (None, "us-east-1"))
    here.add_client_error("get_caller_identity", "InvalidClientTokenId", "The security token is invalid")
    if known:
        there.add_response(
            "get_caller_identity", {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/ada"}
        )
    else:
        there.add_client_error("get_caller_identity", "InvalidClientTokenId", "The security token is invalid")
    with here, there, pytest.raises(CloudError) as caught:
        _ = session.identity
    assert caught.value.exit_code == exit_code and words in caught.value.fix
