"""Which statements of a policy apply to a request, and what they decide together.

An explicit deny wins; then an allow is needed. A resource's own policy may allow by itself, except for KMS keys, where
identity policies count only because the key's policy hands the decision to the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .conditions import Context, UnknownVariable, arn_like, conditions_hold, like, substituted

Policy = Mapping[str, Any]


class Decision(Enum):
    ALLOWED = "allowed"
    NOT_ALLOWED = "no statement allows it"
    DENIED = "explicitly denied"


@dataclass(frozen=True)
class Authorization:
    """One permission that a request needs: an action on one resource, with the request's condition keys."""

    action: str
    resource: str = "*"
    context: Context = field(default_factory=dict)


@dataclass(frozen=True)
class Caller:
    """Who asks: the ARN of a role, or a service such as ec2.amazonaws.com."""

    arn: str = ""
    service: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)  # of the role
    boundary: Policy | None = None  # the role's permissions boundary
    vpc: str = ""  # where EC2 gave the role's credentials to a machine

    @property
    def context(self) -> dict[str, str]:
        if not self.arn:
            return {}
        tags = {f"aws:PrincipalTag/{key}": value for key, value in self.tags.items()}
        given = {"aws:Ec2InstanceSourceVpc": self.vpc} if self.vpc else {}
        return {"aws:PrincipalArn": self.arn, "aws:PrincipalAccount": self.arn.split(":")[4], **tags, **given}


def decide(
    asked: Authorization, identity: Iterable[Policy], caller: Caller, resource_policy: Policy | None = None
) -> Decision:
    """Decide a request within one account."""
    asked = Authorization(asked.action, asked.resource, {**caller.context, **asked.context})
    own = [statement for policy in identity for statement in _applying(policy, asked)]
    if caller.boundary is not None:
        bound = [each["Effect"] for each in _applying(caller.boundary, asked)]
        if "Deny" in bound:
            return Decision.DENIED
        if "Allow" not in bound:
            return Decision.NOT_ALLOWED
    theirs = list(_applying(resource_policy, asked)) if resource_policy else []
    direct = [each for each in theirs if _names(each, caller)]
    if any(each["Effect"] == "Deny" for each in [*own, *direct]):
        return Decision.DENIED
    if any(each["Effect"] == "Allow" for each in direct):
        return Decision.ALLOWED
    delegated = any(each["Effect"] == "Allow" and _names_account(each, caller) for each in theirs)
    needs_delegation = asked.action.startswith("kms:") and resource_policy is not None
    if any(each["Effect"] == "Allow" for each in own) and (delegated or not needs_delegation):
        return Decision.ALLOWED
    return Decision.NOT_ALLOWED


def _applying(policy: Policy, asked: Authorization) -> Iterable[Mapping[str, Any]]:
    assert policy["Version"] == "2012-10-17", "an older version has no policy variables"
    statements = policy["Statement"]
    for statement in [statements] if isinstance(statements, Mapping) else statements:
        unknown = statement.keys() - _ELEMENTS
        assert not unknown, f"elements {unknown} are not implemented"
        if (
            _any_action(statement, asked.action)
            and _any_resource(statement, asked)
            and conditions_hold(statement.get("Condition", {}), asked.context)
        ):
            yield statement


_ELEMENTS = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition", "Principal"}


def _any_action(statement: Mapping[str, Any], action: str) -> bool:
    name = "Action" if "Action" in statement else "NotAction"
    found = any(like(action.lower(), each.lower()) for each in _list(statement[name]))
    return found == (name == "Action")


def _any_resource(statement: Mapping[str, Any], asked: Authorization) -> bool:
    if "Resource" not in statement and "NotResource" not in statement:
        return True  # a trust policy
    name = "Resource" if "Resource" in statement else "NotResource"
    found = any(_resource_matches(asked, each) for each in _list(statement[name]))
    return found == (name == "Resource")


def _resource_matches(asked: Authorization, wanted: str) -> bool:
    try:
        glob = substituted(wanted, asked.context)
    except UnknownVariable:
        return False
    return glob == "*" or arn_like(asked.resource, glob)


def _names(statement: Mapping[str, Any], caller: Caller) -> bool:
    """Whether the statement is about this caller by name, and not about its whole account."""
    principal = statement["Principal"]
    if principal == "*":
        return True
    if caller.service:
        return caller.service in _list(principal.get("Service", []))
    return any(each in ("*", caller.arn) for each in _list(principal.get("AWS", [])))


def _names_account(statement: Mapping[str, Any], caller: Caller) -> bool:
    principal = statement["Principal"]
    if not caller.arn or principal == "*":
        return False
    account = caller.arn.split(":")[4]
    return any(each == account or each.endswith(f":iam::{account}:root") for each in _list(principal.get("AWS", [])))


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
