"""AWS's errors as one message each: what failed, what to do, and an exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..config import EXIT_CODES, MissingExtra, SkytrainError
from ..planning import quota_code
from ..storage import partition_of
from .calls import Call
from .remedies import REMEDIES, Remedy, matching_remedy

Decode = Callable[[str], str | None]  # an encoded authorization message -> its JSON, or None
ENCODED = re.compile(r"\s*Encoded authorization failure message:\s*(\S+)")
DENIED = re.compile(
    r"(?P<who>arn:\S+) is not authorized to perform: (?P<action>\S+)(?: on resource: (?P<resource>\S+))?"
)
# AWS says which kind of policy decided: "... with an explicit deny in a service control policy", or "... because no
# permissions boundary allows the ec2:RunInstances action". AWS: "Troubleshoot access denied error messages" (IAM User Guide).
NO_POLICY = re.compile(r"because no (?P<kind>[\w -]+?) allows the ")
ORGANIZATION = ("service control policy", "resource control policy")
BOUNDARIES = {
    "permissions boundary": "the permissions boundary of this identity",
    "session policy": "the policy of this session",
    "VPC endpoint policy": "the policy of the VPC endpoint",
}


class CloudError(SkytrainError):
    """A call to AWS that failed. `code` is AWS's error code; `cause` names the row of the table of exit codes."""

    def __init__(self, problem: str, *, fix: str, cause: str = "preflight", code: str = "", link: str = "") -> None:
        self.problem = problem
        self.fix = fix
        self.cause = cause
        self.code = code
        self.link = link
        self.exit_code = EXIT_CODES[cause]
        super().__init__(f"{problem}\n  {fix}" + (f"\n  {link}" if link else ""))


@contextmanager
def cloud_errors(call: Call | None = None, region: str = "", decode: Decode | None = None) -> Iterator[None]:
    """Turn botocore's errors inside the block into CloudError."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError
    except ImportError:
        raise MissingExtra("boto3", "aws") from None
    try:
        yield
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise cloud_error(error, call, region, decode) from error


def cloud_error(
    error: Exception, call: Call | None = None, region: str = "", decode: Decode | None = None
) -> CloudError:
    """Return the CloudError of a botocore error. Its remedy is in `remedies.py`, by AWS's code."""
    # botocore's errors of a connection have a response that is None.
    response: dict[str, Any] = (getattr(error, "response", None) or {}).get("Error", {})
    code = response.get("Code", type(error).__name__)
    text = response.get("Message") or str(error)
    if code == "ResponseParserError":  # a proxy's page, whole
        text = "the answer is not AWS's: " + text.partition("\n")[0]
    remedy = matching_remedy(code, text)
    what = f"{call.service} {call.operation}" if call else "AWS"
    problem = f"{what}: {code}: {' '.join(ENCODED.sub('', text).split())}"
    if remedy is REMEDIES["UnauthorizedOperation"]:
        return _denied(problem, code, text, call, decode)
    fix = remedy.fix.format(region=region or "the region")
    link = remedy.link
    if remedy.cause == "quota":
        fix, link = _quota_fix(remedy, fix, call, region)
    return CloudError(problem, fix=fix, cause=remedy.cause, code=code, link=link)


def _denied(problem: str, code: str, text: str, call: Call | None, decode: Decode | None) -> CloudError:
    """Say which action on which resource was denied, and the policy statement that would allow it."""
    encoded = ENCODED.search(text)
    decoded = decode(encoded[1]) if encoded and decode else None
    action = call.action if call else ""
    resource = "*"
    denial = "explicit deny" in text
    if decoded is not None:
        said = json.loads(decoded)
        context = said.get("context", {})
        action, resource = context.get("action", action), context.get("resource", resource)
        denial = bool(said.get("explicitDeny"))
        who = context.get("principal", {}).get("arn", "this identity")
        reason = "a policy denies it" if denial else "no policy allows it"
        problem = f"{problem.partition(': ')[0]}: {who} may not {action} on {resource}: {reason}"
        if denial and (rule := _matched(said)):
            problem += f" (statement {rule})"
    elif match := DENIED.search(text):
        action = match["action"]
        resource = (match["resource"] or "*").rstrip(".")
    implicit = NO_POLICY.search(text)
    kind = implicit["kind"] if implicit else ""
    by_organization = next((policy for policy in ORGANIZATION if policy in (text if denial else kind)), None)
    if by_organization:
        fix = (
            f"your organization denies it, whatever this account allows: its administrators change the {by_organization} "
            f"for {action}, or name a region and types that it allows"
        )
    elif kind in BOUNDARIES:
        fix = f"{BOUNDARIES[kind]} must allow {action} too, whatever else allows it"
    elif denial:
        fix = f"the deny applies whatever is allowed: meet its conditions, or use another role, for {action}"
    else:
        statement = {"Effect": "Allow", "Action": action or "ACTION", "Resource": resource}
        fix = f"the role needs the policy statement {json.dumps(statement)}"
    if encoded and decoded is None:
        fix += " (sts:DecodeAuthorizationMessage would show the reason; this role may not call it)"
    return CloudError(problem, fix=fix, cause="credentials", code=code)


def _matched(decoded: dict[str, Any]) -> str:
    items = decoded.get("matchedStatements", {}).get("items", [])
    return ", ".join(str(item["statementId"]) for item in items if item.get("statementId"))


def _quota_fix(remedy: Remedy, fix: str, call: Call | None, region: str) -> tuple[str, str]:
    """Name the quota's code and page where the call says the instance type."""
    kind = find_instance_type(call.parameters) if call else None
    code = quota_code(kind, remedy.market) if kind and remedy.market else None
    if kind is None or code is None:
        return fix, remedy.link
    named = f"quota {code} ({kind.split('.')[0]}, {remedy.market}, in vCPUs)"
    return fix.replace("the quota", named), quota_page(region, "ec2", code)


def quota_page(region: str, service: str, code: str = "") -> str:
    """Return the console's page of a quota, or of all quotas of a service."""
    page = f"https://{region}.{partition_of(region).console}/servicequotas/home/services/{service}/quotas"
    return f"{page}/{code}" if code else page


def find_instance_type(parameters: Any) -> str | None:
    """Return the first instance type in a request body."""
    if isinstance(parameters, dict):
        type_name = parameters.get("InstanceType")
        if isinstance(type_name, str):
            return type_name
        parameters = list(parameters.values())
    if isinstance(parameters, list | tuple):
        return next((type_name for item in parameters if (type_name := find_instance_type(item))), None)
    return None
