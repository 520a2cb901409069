"""AWS's error codes, each with its exit code and the line that says what to do. To add one, add a row."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..config import EXIT_CODES
from ..planning import Market

DOCS = "https://docs.aws.amazon.com/"


@dataclass(frozen=True)
class Remedy:
    """The remedy for an error. `cause` is a row of the table of exit codes; `{region}` in `fix` is filled in."""

    cause: str
    fix: str
    link: str = ""
    market: Market | None = None  # of a quota


_SIGN_IN = Remedy(
    "credentials",
    "sign in again (`aws sso login`, or new keys), then run the same command; `aws sts get-caller-identity` shows who you are",
    DOCS + "cli/latest/userguide/cli-chap-authentication.html",
)
_CONFIGURE = Remedy(
    "credentials",
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure sso`, or give this machine a role",
    DOCS + "cli/latest/userguide/cli-chap-authentication.html",
)
_NOT_ALLOWED = Remedy("credentials", "the role needs a policy that allows it")
_NO_CAPACITY = Remedy(
    "capacity",
    "AWS has no capacity now: try another zone of {region}, another type (`skytrain plan` lists them), or later",
    DOCS + "AWSEC2/latest/UserGuide/troubleshooting-launch.html",
)
_THROTTLED = Remedy(
    "capacity",
    "AWS limits how often this account may call; all retries are used up: run the same command again in a minute",
    DOCS + "ec2/latest/devguide/ec2-api-throttling.html",
)
_FAILING = Remedy("capacity", "AWS's service fails at the moment: run the same command again in a minute")
_UNREACHABLE = Remedy(
    "preflight",
    "check the network, AWS_REGION and AWS_ENDPOINT_URL; in a closed network the service needs a VPC endpoint",
)
_CLOCK = Remedy(
    "credentials", "this machine's clock is wrong: set it (`chronyc makestep`, or `timedatectl set-ntp true`)"
)
_QUOTA_PAGE = DOCS + "servicequotas/latest/userguide/request-quota-increase.html"


def _gone(what: str) -> Remedy:
    return Remedy("preflight", f"{what} does not exist in {{region}}: `skytrain doctor` names what is missing")


REMEDIES: dict[str, Remedy] = {
    # Quotas, counted in vCPUs.
    "VcpuLimitExceeded": Remedy("quota", "request a higher value of the quota, or use fewer or smaller machines", _QUOTA_PAGE, "on-demand"),
    "MaxSpotInstanceCountExceeded": Remedy(
        "quota",
        "request a higher value of the quota, cancel open spot requests (they count), or plan with --market on-demand",
        _QUOTA_PAGE,
        "spot",
    ),
    "InstanceLimitExceeded": Remedy("quota", "request a higher value of the quota", _QUOTA_PAGE, "on-demand"),
    "ResourceLimitExceeded": Remedy("quota", "request a higher value of the quota that the message names", _QUOTA_PAGE),
    "LimitExceededException": Remedy("quota", "request a higher value of the quota, or remove what is unused: skytrain gc", _QUOTA_PAGE),
    "ServiceQuotaExceededException": Remedy("quota", "request a higher value of the quota, or remove what is unused: skytrain gc", _QUOTA_PAGE),
    "LimitExceeded": Remedy("quota", "request a higher value of the quota, or remove what is unused: skytrain gc", _QUOTA_PAGE),
    "ParameterLimitExceeded": Remedy("quota", "request a higher value of the quota, or remove what is unused: skytrain gc", _QUOTA_PAGE),
    "VolumeLimitExceeded": Remedy("quota", "request a higher value of the quota, or remove what is unused: skytrain gc", _QUOTA_PAGE),
    # Capacity and price.
    "InsufficientInstanceCapacity": _NO_CAPACITY,
    "InsufficientHostCapacity": _NO_CAPACITY,
    "InsufficientReservedInstanceCapacity": _NO_CAPACITY,
    "InsufficientCapacity": _NO_CAPACITY,
    "InsufficientCapacityException": _NO_CAPACITY,
    "UnfulfillableCapacity": _NO_CAPACITY,
    "SpotMaxPriceTooLow": Remedy("capacity", "the spot price has risen above the plan's maximum: plan again (`skytrain plan`)"),
    "Unsupported": Remedy("capacity", "this zone does not offer it: choose another zone of {region}, or another type"),
    "InsufficientFreeAddressesInSubnet": Remedy("preflight", "the subnet has too few free addresses: use another subnet or zone"),
    # Throttling, after botocore's own retries.
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "TooManyRequestsException": _THROTTLED,
    "SlowDown": _THROTTLED,
    # Failures of AWS itself, after botocore's own retries.
    "InternalError": _FAILING,
    "InternalFailure": _FAILING,
    "InternalServerError": _FAILING,
    "ServiceUnavailable": _FAILING,
    "ServiceUnavailableException": _FAILING,
    "Unavailable": _FAILING,
    # Credentials.
    "ExpiredToken": _SIGN_IN,
    "ExpiredTokenException": _SIGN_IN,
    "TokenRefreshRequired": _SIGN_IN,
    "TokenRetrievalError": _SIGN_IN,
    "SSOTokenLoadError": _SIGN_IN,
    "UnauthorizedSSOTokenError": _SIGN_IN,
    "CredentialRetrievalError": _SIGN_IN,
    "InvalidClientTokenId": _SIGN_IN,
    "UnrecognizedClientException": _SIGN_IN,
    "InvalidAccessKeyId": _SIGN_IN,
    "AuthFailure": _SIGN_IN,
    "SignatureDoesNotMatch": _SIGN_IN,
    "InvalidSignatureException": _SIGN_IN,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "NoCredentialsError": _CONFIGURE,
    "PartialCredentialsError": _CONFIGURE,
    "NoAuthTokenError": _CONFIGURE,
    "MissingAuthenticationToken": _CONFIGURE,
    "ProfileNotFound": Remedy("credentials", "set AWS_PROFILE to a name that `aws configure list-profiles` prints, or unset it"),
    "ConfigParseError": Remedy("credentials", "correct ~/.aws/config (or AWS_CONFIG_FILE)"),
    "UnauthorizedOperation": _NOT_ALLOWED,
    "AccessDenied": _NOT_ALLOWED,
    "AccessDeniedException": _NOT_ALLOWED,
    "NotAuthorized": _NOT_ALLOWED,
    # The account.
    "OptInRequired": Remedy("preflight", "enable {region} or subscribe to the service in the console, then try again"),
    "PendingVerification": Remedy("preflight", "AWS is still verifying this account for {region}: usually minutes, at most 4 hours"),
    "Blocked": Remedy("preflight", "AWS has blocked the account: contact AWS Support"),
    "NoRegionError": Remedy("preflight", "set cloud.region=us-east-2 (for example), or AWS_REGION"),
    "EndpointConnectionError": _UNREACHABLE,
    "ConnectTimeoutError": _UNREACHABLE,
    "ReadTimeoutError": _UNREACHABLE,
    "ConnectionClosedError": _UNREACHABLE,
    "HTTPClientError": _UNREACHABLE,
    "SSLError": _UNREACHABLE,
    "ProxyConnectionError": _UNREACHABLE,
    "ResponseParserError": _UNREACHABLE,
    # What a request refers to.
    "InvalidAMIID.NotFound": _gone("the machine image"),
    "InvalidAMIID.Unavailable": _gone("the machine image"),
    "InvalidSubnetID.NotFound": _gone("the subnet"),
    "InvalidGroup.NotFound": _gone("the security group"),
    "InvalidLaunchTemplateId.NotFound": _gone("the launch template"),
    "InvalidInstanceID.NotFound": _gone("the instance"),
    "NoSuchBucket": _gone("the bucket"),
    "InvalidParameterCombination": Remedy("preflight", "the settings contradict each other, as the message says; --dry-run prints the request"),
    "KMS.NotFoundException": _gone("the KMS key"),
    "KMS.DisabledException": Remedy("preflight", "enable the KMS key, or set store.kms_key to another"),
}  # fmt: skip
UNKNOWN = Remedy("preflight", "the message is AWS's own; --debug shows the traceback")
# Auto Scaling, EC2 Fleet and SageMaker report these inside the text of their own errors.
NAMED_IN_MESSAGES = (
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "InsufficientInstanceCapacity",
    "UnfulfillableCapacity",
    "UnauthorizedOperation",
)
# What AWS says in words only. STS and others answer with the code of a wrong key when the clocks differ; new accounts may
# be on a plan that rents a few small types; Auto Scaling's history has EC2's message without its code.
IN_WORDS = {
    r"Signature (expired|not yet current): ": _CLOCK,
    "not eligible for Free Tier": Remedy(
        "preflight",
        "the account is on AWS's free plan, which rents small machines only: upgrade it to the paid plan (console: Billing and Cost Management)",
        DOCS + "awsaccountbilling/latest/aboutv2/free-tier-plans.html",
    ),
    "requested more vCPU capacity": REMEDIES["VcpuLimitExceeded"],
    r"Client\.InternalError|InvalidKMSKey": Remedy(
        "preflight",
        "EC2 could not use the key of the disks (cloud.kms_key): it must be enabled, and its policy must let AWS's roles for Auto Scaling and "
        "spot machines use it, as infra/terraform/base writes it",
        DOCS + "autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html",
    ),
    "permission to create the service-linked role": Remedy(
        "preflight", "create it once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
    ),
    r"do not have sufficient \S+ capacity": _NO_CAPACITY,
}  # fmt: skip


def may_pass(code: str) -> bool:
    """Return whether an error passes by itself, so that the same request may succeed in a moment."""
    return REMEDIES.get(code) in (_THROTTLED, _FAILING, _UNREACHABLE)


def matching_remedy(code: str, message: str) -> Remedy:
    """Return the remedy of an AWS error, by its words, its code or a code that its message names."""
    for words, remedy in IN_WORDS.items():
        if re.search(words, message):
            return remedy
    named = next((word for word in NAMED_IN_MESSAGES if word in message), "")
    return REMEDIES.get(code) or REMEDIES.get(named) or UNKNOWN


def fix_of_words(message: str, region: str) -> str | None:
    """Return what to do about something that AWS says without a code; None where the words are not known."""
    remedy = matching_remedy("", message)
    return None if remedy is UNKNOWN else remedy.fix.format(region=region)


def remedies_table() -> str:
    """Return the table in Markdown, for the docs."""
    codes: dict[Remedy, list[str]] = {}
    for code, remedy in REMEDIES.items():
        codes.setdefault(remedy, []).append(code)
    rows = [
        f"| {EXIT_CODES[remedy.cause]} | {', '.join(f'`{code}`' for code in named)} | {remedy.fix.format(region='the region')} |"
        for remedy, named in codes.items()
    ]
    return "\n".join(["| exit | AWS says | what to do |", "| --- | --- | --- |", *rows])
