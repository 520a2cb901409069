"""The evaluator that the table of permissions relies on, against IAM's documentation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.iam.conditions import conditions_hold
from tests.support.iam.policy import Authorization, Caller, Decision, decide

ROLE = Caller("arn:aws:iam::123456789012:role/someone")
OBJECT = "arn:aws:s3:::bucket/demo/run.json"


def policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(action: str | list[str] = "*", resource: str | list[str] = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: str = "*", resource: str = "*", **more: Any) -> dict[str, Any]:
    return {**allow(action, resource, **more), "Effect": "Deny"}


@pytest.mark.parametrize(
    ("operator", "wanted", "found", "holds"),
    [
        ("StringEquals", "a", "a", True),
        ("StringEquals", ["a", "b"], "b", True),
        ("StringEquals", "a", "A", False),
        ("StringEquals", "a", None, False),
        ("StringEquals", "a*", "a*", True),
        ("StringEquals", "a*", "ab", False),
        ("StringEqualsIfExists", "a", None, True),
        ("StringEqualsIfExists", "a", "b", False),
        ("StringEqualsIgnoreCase", "a", "A", True),
        ("StringNotEquals", ["a", "b"], "b", False),
        ("StringNotEquals", ["a", "b"], "c", True),
        ("StringNotEquals", "a", None, True),
        ("StringLike", "g5.*", "g5.xlarge", True),
        ("StringLike", "g5.*", "g5g.xlarge", False),
        ("StringLike", "p?", "p5", True),
        ("StringNotLike", "g5.*", "t3.nano", True),
        ("ForAllValues:StringEquals", ["a", "b"], ["a", "b"], True),
        ("ForAllValues:StringEquals", ["a", "b"], ["a", "c"], False),
        ("ForAllValues:StringEquals", "a", None, True),
        ("ForAnyValue:StringEquals", "a", ["a", "c"], True),
        ("ForAnyValue:StringEquals", "a", ["c"], False),
        ("ForAnyValue:StringEquals", "a", None, False),
        ("ForAnyValue:StringNotEquals", "a", None, False),
        ("Null", "true", None, True),
        ("Null", "true", "", False),
        ("Null", "false", "x", True),
        ("Null", "false", None, False),
        ("Bool", "true", "true", True),
        ("Bool", "true", None, False),
        ("BoolIfExists", "true", None, True),
        ("NumericLessThanEquals", "1", "1", True),
        ("NumericLessThanEquals", "1", "2", False),
        ("NumericLessThan", "1.2", "1.1", True),
        ("ArnLike", "arn:aws:iam::*:role/x", "arn:aws:iam::1:role/x", True),
        ("ArnEquals", "arn:aws:iam::1:role/*", "arn:aws:iam::1:role/a/b", True),
        ("ArnLike", "arn:*:role/x", "arn:aws:iam::1:role/x", False),
        ("ArnNotEquals", "arn:aws:kms:r:1:key/a", "arn:aws:kms:r:1:key/b", True),
    ],
)
def test_a_condition_operator_does_what_iam_documents(
    operator: str, wanted: str | list[str], found: str | list[str] | None, holds: bool
) -> None:
    assert conditions_hold({operator: {"a:Key": wanted}}, {} if found is None else {"A:key": found}) is holds


def test_all_operators_and_all_keys_must_hold() -> None:
    block = {"StringEquals": {"a:x": "1", "a:y": "2"}, "Bool": {"a:z": "true"}}
    assert conditions_hold(block, {"a:x": "1", "a:y": "2", "a:z": "true"})
    for missing in ("a:x", "a:y", "a:z"):
        context = {"a:x": "1", "a:y": "2", "a:z": "true"}
        del context[missing]
        assert not conditions_hold(block, context)


def test_an_operator_that_is_not_implemented_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="DateLessThan"):
        conditions_hold({"DateLessThan": {"aws:CurrentTime": "2030-01-01T00:00:00Z"}}, {})


def test_several_values_need_a_set_operator() -> None:
    with pytest.raises(ValueError, match="ForAllValues"):
        conditions_hold({"StringEquals": {"aws:TagKeys": "a"}}, {"aws:TagKeys": ["a", "b"]})


@pytest.mark.parametrize(
    ("policies", "decision"),
    [
        ([], Decision.NOT_ALLOWED),
        ([policy(allow("s3:GetObject"))], Decision.ALLOWED),
        ([policy(allow("S3:getobject"))], Decision.ALLOWED),
        ([policy(allow("s3:Get*"))], Decision.ALLOWED),
        ([policy(allow("s3:PutObject"))], Decision.NOT_ALLOWED),
        ([policy(allow()), policy(deny("s3:*"))], Decision.DENIED),
        ([policy(deny("s3:*"), allow())], Decision.DENIED),
        ([policy(allow("s3:GetObject", "arn:aws:s3:::bucket/demo/*"))], Decision.ALLOWED),
        ([policy(allow("s3:GetObject", "arn:aws:s3:::bucket/demo"))], Decision.NOT_ALLOWED),
        ([policy(allow("s3:GetObject", "arn:aws:s3:::bucket/other/*"))], Decision.NOT_ALLOWED),
        ([policy({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"})], Decision.ALLOWED),
        ([policy({"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"})], Decision.NOT_ALLOWED),
        ([policy({"Effect": "Allow", "Action": "*", "NotResource": OBJECT})], Decision.NOT_ALLOWED),
        ([policy(allow(), deny(Condition={"Bool": {"aws:SecureTransport": "false"}}))], Decision.ALLOWED),
        ([policy(allow(resource="arn:aws:s3:::bucket/${aws:PrincipalTag/skytrain:project}/*"))], Decision.ALLOWED),
        ([policy(allow(resource="arn:aws:s3:::bucket/${aws:PrincipalTag/team}/*"))], Decision.NOT_ALLOWED),
        ([policy(allow(resource="arn:aws:s3:::bucket/${aws:PrincipalTag/team, 'demo'}/*"))], Decision.ALLOWED),
        ([policy(allow(resource="arn:aws:s3:::bucket/${*}/*"))], Decision.NOT_ALLOWED),
    ],
)
def test_policies_decide_as_iam_documents(policies: list[dict[str, Any]], decision: Decision) -> None:
    asked = Authorization("s3:GetObject", OBJECT, {"aws:PrincipalTag/skytrain:project": "demo"})
    assert decide(asked, policies, ROLE) is decision


def test_a_wildcard_in_a_variables_value_is_a_plain_character() -> None:
    mine = policy(allow(resource="arn:aws:s3:::bucket/${aws:PrincipalTag/project}/*"))
    asked = Authorization("s3:GetObject", OBJECT, {"aws:PrincipalTag/project": "*"})
    assert decide(asked, [mine], ROLE) is Decision.NOT_ALLOWED


def test_a_bucket_policy_allows_by_itself_and_denies_over_all() -> None:
    asked = Authorization("s3:GetObject", OBJECT)
    granted = policy(allow(Principal={"AWS": ROLE.arn}))
    refused = policy(deny(Principal="*"))
    other = policy(allow(Principal={"AWS": "arn:aws:iam::123456789012:role/other"}))
    assert decide(asked, [], ROLE, granted) is Decision.ALLOWED
    assert decide(asked, [policy(allow())], ROLE, refused) is Decision.DENIED
    assert decide(asked, [], ROLE, other) is Decision.NOT_ALLOWED


def test_a_key_is_used_by_identity_policy_only_where_its_own_policy_says_so() -> None:
    asked = Authorization("kms:Decrypt", "arn:aws:kms:us-east-2:123456789012:key/1")
    to_account = policy(allow("kms:*", Principal={"AWS": "arn:aws:iam::123456789012:root"}))
    to_another = policy(allow("kms:*", Principal={"AWS": "arn:aws:iam::123456789012:role/admin"}))
    assert decide(asked, [policy(allow())], ROLE, to_account) is Decision.ALLOWED
    assert decide(asked, [policy(allow())], ROLE, to_another) is Decision.NOT_ALLOWED
    assert decide(asked, [], ROLE, to_account) is Decision.NOT_ALLOWED
