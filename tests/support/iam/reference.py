"""Compares policies with AWS's Service Authorization Reference, as the package policy_sentry ships it.

A program of its own, run by a Python that has policy_sentry. It reads a JSON object from stdin, role -> list of policies,
and prints a JSON list of findings: [kind, role, Sid, action, detail].

  no such action            the action does not exist
  takes no resource         the action knows no resources, and the statement names some: it never applies
  no such resource          none of the statement's resources is of a type that the action works on
  no such key               a condition key that the action does not know for a type of resource of the statement: an
                            allow then never applies, a deny always or never
  dependent action          an action that AWS asks for together with this one, and no policy of the role allows
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from policy_sentry.querying.actions import get_action_data
from policy_sentry.querying.all import get_all_actions

# Keys of every request, or of every request that a service makes for someone: AWS's page of global condition keys.
GLOBAL = {
    "aws:calledvialast", "aws:ec2instancesourcevpc", "aws:multifactorauthpresent", "aws:principalaccount", "aws:principalarn", "aws:requestedregion",
    "aws:securetransport", "aws:sourceaccount", "aws:sourcearn", "aws:viaawsservice",
}  # fmt: skip
Finding = tuple[str, str, str, str, str]
EXISTING = {action.lower(): action for action in get_all_actions()}


def findings(roles: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[Finding]:
    for role, policies in roles.items():
        statements = [each for policy in policies for each in policy["Statement"]]
        allowed = [name for each in statements if each["Effect"] == "Allow" for name in listed(each["Action"])]
        for statement in statements:
            for pattern in listed(statement["Action"]):
                for kind, action, detail in of_action(statement, pattern, allowed):
                    yield kind, role, statement["Sid"], action, detail


def of_action(statement: Mapping[str, Any], pattern: str, allowed: list[str]) -> Iterator[tuple[str, str, str]]:
    names = [EXISTING[each] for each in fnmatch.filter(EXISTING, pattern.lower())]
    if not names:
        yield "no such action", pattern, ""
    for name in names:
        service, _, action = name.partition(":")
        rows = get_action_data(service, action)[service]
        typed = [row for row in rows if row["resource_arn_format"] != "*"]
        resources = listed(statement["Resource"])
        if not typed and "*" not in resources:
            yield "takes no resource", name, resources[0]
            continue
        meant = [row for row in typed if any(overlaps(each, row["resource_arn_format"]) for each in resources)]
        if typed and not meant:
            yield "no such resource", name, resources[0]
            continue
        for row in meant or rows:
            known = [*(key.lower() for key in row["condition_keys"]), *GLOBAL]
            for key in keys_of(statement):
                if not any(key == each or is_template(key, each) for each in known):
                    yield "no such key", name, f"{key} of {row['resource_arn_format'].rpartition(':')[2]}"
        if statement["Effect"] == "Allow":
            for needed in {each for row in meant or rows for each in row["dependent_actions"]}:
                if not any(fnmatch.fnmatch(needed.lower(), each.lower()) for each in allowed):
                    yield "dependent action", name, needed


def keys_of(statement: Mapping[str, Any]) -> set[str]:
    return {key.lower() for operator in statement.get("Condition", {}).values() for key in operator}


def is_template(key: str, template: str) -> bool:
    """Whether a key is one of those that `aws:RequestTag/${TagKey}` stands for."""
    return "/" in template and "/" in key and key.split("/")[0] == template.split("/")[0] and "${" in template.lower()


def overlaps(resource: str, template: str) -> bool:
    """Whether some ARN is both of the policy's resource and of the reference's type."""
    if resource == "*":
        return True
    wanted, known = resource.split(":", 5), re.sub(r"\$\{[^}]*\}", "*", template).split(":", 5)
    if len(wanted) != 6 or len(known) != 6:
        return False
    return all(_meet(one, other) for one, other in zip(wanted, known, strict=True))


def _meet(one: str, other: str) -> bool:
    """Whether two patterns with * have a common text."""
    if not one or not other:
        return not one.strip("*") and not other.strip("*")
    if one[0] == "*":
        return _meet(one[1:], other) or _meet(one, other[1:])
    if other[0] == "*":
        return _meet(one, other[1:]) or _meet(one[1:], other)
    return one[0] == other[0] and _meet(one[1:], other[1:])


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


if __name__ == "__main__":
    print(json.dumps(sorted(set(findings(json.load(sys.stdin))))))
