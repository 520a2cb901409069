"""The connection to AWS: credentials and region by AWS's rules, one retry policy, and the sending of a `Call`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..config import MissingExtra, aws_region
from ..storage import aws_client_config, partition_of
from .calls import Call
from .errors import CloudError, cloud_errors

FIRST_REGION = "us-east-1"  # which every account has
# What a region that the account has not enabled says to valid credentials.
UNKNOWN_CREDENTIALS = ("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure")
REGIONS_LINK = "https://docs.aws.amazon.com/accounts/latest/reference/manage-acct-regions.html"


@dataclass(frozen=True)
class AwsIdentity:
    """The caller's identity, from STS."""

    account: str
    arn: str

    @property
    def name(self) -> str:
        """Return the user, or the name of the role's session: the default owner of what is created."""
        return self.arn.rpartition("/")[2]


class AwsSession:
    """Clients of one account, one per service and region. `region` is where calls go unless they name another.

    `account` is the only one that `identity` accepts; None accepts any.
    """

    def __init__(self, session: Any, region: str, account: str | None = None) -> None:
        self._session = session
        self.region = region
        self._account = account
        self._clients: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()  # boto3 makes clients in one thread at a time

    def client(self, service: str, region: str | None = None) -> Any:
        """Return boto3's client, for what a `Call` cannot express; errors are the caller's (`cloud_errors`)."""
        key = (service, region or self.region)
        with self._making, cloud_errors():
            if key not in self._clients:
                self._clients[key] = self._session.client(service, region_name=key[1], config=aws_client_config())
            return self._clients[key]

    def offers(self, service: str, region: str) -> bool:
        """Return False only if botocore knows the region and not the service in it.

        Partitions (China, GovCloud) have separate lists, and a region may be newer than the installed botocore. An
        unknown region is asked, because a skipped region would look like one where nothing is left.
        """
        with cloud_errors():
            partition = self._session.get_partition_for_region(region)
        in_service, in_ec2 = (self._session.get_available_regions(name, partition) for name in (service, "ec2"))
        return not in_service or region in in_service or region not in in_ec2

    @cached_property
    def identity(self) -> AwsIdentity:
        """Return the caller.

        Raises CloudError (exit 11) without valid credentials, or with those of another account.
        """
        try:
            answer = self.perform(Call("sts", "GetCallerIdentity"))
        except CloudError as error:
            if error.code in UNKNOWN_CREDENTIALS and self._is_known_in(FIRST_REGION):
                raise CloudError(
                    f"the credentials are valid in {FIRST_REGION}, and {self.region} does not know them: this account has "
                    "not enabled the region",
                    fix=f"enable it (aws account enable-region --region-name {self.region}; it takes minutes to hours), "
                    "or set cloud.region to another",
                    link=REGIONS_LINK,
                ) from error
            raise
        caller = AwsIdentity(answer["Account"], answer["Arn"])
        if self._account is not None and caller.account != self._account:
            raise CloudError(
                f"the credentials belong to account {caller.account} ({caller.name}), but cloud.account is {self._account}",
                fix="choose the profile of that account: export AWS_PROFILE=NAME",
                cause="credentials",
            )
        return caller

    def _is_known_in(self, region: str) -> bool:
        """Return whether another region knows the credentials. Only AWS's largest partition has regions to enable."""
        if self.region == region or partition_of(self.region).name != "aws":
            return False
        try:
            self.perform(Call("sts", "GetCallerIdentity"), region)
        except CloudError:
            return False
        return True

    def perform(self, call: Call, region: str | None = None) -> dict[str, Any]:
        """Send the call and return the answer. AWS's errors become CloudError with a remedy."""
        body = call.body()
        client = self.client(call.service, region)
        with cloud_errors(call, region or self.region, self._decode):
            answer: dict[str, Any] = getattr(client, _method(call))(**body)
        return answer

    def items(self, call: Call, key: str, region: str | None = None) -> Iterator[Any]:
        """Yield the elements of `key` of all pages of the answer."""
        body = call.body()
        client = self.client(call.service, region)
        if not client.can_paginate(_method(call)):
            yield from self.perform(call, region).get(key, [])
            return
        with cloud_errors(call, region or self.region, self._decode):
            for page in client.get_paginator(_method(call)).paginate(**body):
                yield from page.get(key, [])

    def _decode(self, encoded: str) -> str | None:
        """Decode an authorization failure message; None if this is not allowed either."""
        try:
            decode = Call("sts", "DecodeAuthorizationMessage", {"EncodedMessage": encoded})
            return str(self.perform(decode)["DecodedMessage"])
        except CloudError:
            return None


def open_session(region: str | None = None, account: str | None = None) -> AwsSession:
    """Open a session with the credentials that AWS's own tools would use; nothing is sent yet.

    The region is, in this order: `region` (cloud.region), AWS_REGION, AWS_DEFAULT_REGION, the profile's. `account` is
    cloud.account: whoever asks for the caller's identity, as every question before a change does, is refused in another.
    """
    try:
        import boto3
    except ImportError:
        raise MissingExtra("boto3", "aws") from None
    with cloud_errors():
        session = boto3.Session()
        chosen = region or aws_region() or session.region_name
    if not chosen:
        raise CloudError("no AWS region is set", fix="set cloud.region=us-east-2 (for example), or AWS_REGION")
    return AwsSession(session, chosen, account)


def _method(call: Call) -> str:
    from botocore import xform_name

    name: str = xform_name(call.operation)
    return name
