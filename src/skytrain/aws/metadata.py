"""EC2 instance metadata by IMDSv2: instance type, market, launch time and interruption notices."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..config import metadata_endpoint, metadata_is_disabled
from ..storage import Patience, Retry

T = TypeVar("T")

ENDPOINT = "http://169.254.169.254"
TIMEOUT_SECONDS = 2.0
TOKEN_SECONDS = 21600  # the maximum that IMDS allows
MAINTENANCE_SECONDS = 600.0  # time before scheduled maintenance at which a run stops; until then it waits for a spare
DMI = Path("/sys/class/dmi/id")
# Retries of the request at the start of an attempt: AWS throttles the service (503), and a container's route may be late.
START_RETRY = Retry(seconds=20.0, first_wait_seconds=0.1, longest_wait_seconds=2.0)


@dataclass(frozen=True)
class Notice:
    """EC2's notice that this instance will end, or is at elevated risk of it."""

    kind: Literal["spot", "lifecycle", "maintenance", "rebalance"]
    text: str
    at_once: bool = True  # save and stop now; otherwise save, and leave when another machine can take over


@dataclass(frozen=True)
class Ec2Instance:
    id: str
    type: str
    region: str
    market: Literal["spot", "on-demand"]
    launched_at: datetime | None
    read_at: datetime | None = None  # when this was read, by the metadata service's clock


class Metadata:
    """Client of the instance metadata service. Uses IMDSv2 tokens only: IMDSv1 is open to request forgery."""

    def __init__(self, endpoint: str) -> None:
        self._base = endpoint.rstrip("/") + "/latest/"
        # Never use a proxy: the address is link-local.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._token: str | None = None
        self._date: datetime | None = None  # Date header of the last response

    def get(self, path: str) -> str | None:
        """Return the text at `path`, or None if it does not exist. Raises OSError if the service does not respond."""
        for last in (False, True):
            if self._token is None:
                self._token = self._request(
                    "PUT", "api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
                )
            try:
                return self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or last:
                    raise
                self._token = None  # expired
        raise AssertionError("the second answer was returned or raised")

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._base + path, method=method, headers=headers)  # noqa: S310 - an http address of this machine
        try:
            with self._open(request, timeout=TIMEOUT_SECONDS) as answer:
                text = str(answer.read().decode())
                self._date = _date(answer.headers.get("Date"))
        except (http.client.HTTPException, UnicodeDecodeError) as error:  # truncated, or not HTTP
            raise OSError(f"{request.full_url}: {error!r}") from error
        if not text.strip():  # a missing path is a 404, so an empty response is a service failure
            raise OSError(f"{request.full_url}: the answer is empty")
        return text

    def instance(self) -> Ec2Instance | None:
        """Return this instance, or None if it is not on EC2. Retries for `START_RETRY`, then raises OSError."""
        return patiently(self._instance, START_RETRY)

    def _instance(self) -> Ec2Instance | None:
        document = self.get("dynamic/instance-identity/document")
        if document is None:
            return None
        spot = self.get("meta-data/instance-life-cycle") == "spot"
        try:
            facts: dict[str, Any] = json.loads(document)
            launched = facts.get("pendingTime")
            return Ec2Instance(
                id=facts["instanceId"],
                type=facts["instanceType"],
                region=facts["region"],
                market="spot" if spot else "on-demand",
                launched_at=datetime.fromisoformat(launched) if launched else None,
                read_at=self._date,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OSError(f"the instance identity document cannot be read: {error!r}") from error

    def notice(self) -> Notice | None:
        """Return the most serious current notice. Raises OSError if the service does not respond."""
        answers = [ask() for ask in (self._spot, self._lifecycle, self._maintenance, self._rebalance)]
        notices = [notice for notice in answers if notice is not None]
        return next((notice for notice in notices if notice.at_once), notices[0] if notices else None)

    def _spot(self) -> Notice | None:
        action = self.get("meta-data/spot/instance-action")
        if action is None:
            return None
        try:
            facts = dict(json.loads(action))
        except (ValueError, TypeError) as error:
            raise OSError(f"the spot notice cannot be read: {action[:100]!r}") from error
        return Notice(
            "spot", f"EC2 will {facts.get('action', 'end')} this instance at {facts.get('time', 'any moment')}"
        )

    def _lifecycle(self) -> Notice | None:
        """Return the state that the instance's Auto Scaling group, if it has one, is moving it to."""
        state = self.get("meta-data/autoscaling/target-lifecycle-state")
        if state is None or state.strip() == "InService":
            return None
        return Notice("lifecycle", f"its Auto Scaling group is moving this instance to {state.strip()}")

    def _maintenance(self) -> Notice | None:
        text = self.get("meta-data/events/maintenance/scheduled")
        if text is None:
            return None
        try:
            events = [event for event in json.loads(text) if event.get("State", "active") == "active"]
            starts = {parsedate_to_datetime(event["NotBefore"]): str(event.get("Code", "event")) for event in events}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OSError(f"the scheduled maintenance cannot be read: {text[:100]!r}") from error
        if not starts:
            return None
        first = min(starts)
        soon = self._date is not None and (first - self._date).total_seconds() <= MAINTENANCE_SECONDS
        return Notice("maintenance", f"EC2 has scheduled {starts[first]} of this instance for {first}", at_once=soon)

    def _rebalance(self) -> Notice | None:
        if self.get("meta-data/events/recommendations/rebalance") is None:
            return None
        return Notice("rebalance", "EC2 expects to interrupt this instance before long", at_once=False)


def _date(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None


def patiently(ask: Callable[[], T], retry: Retry) -> T:
    """Return the result of `ask`, retrying on OSError until `retry` is exhausted."""
    patience = Patience(retry)
    while True:
        try:
            return ask()
        except OSError:
            wait = patience.failed()
            if wait is None:
                raise
            time.sleep(wait)


def find_metadata() -> Metadata | None:
    """Return this instance's metadata service, even if it does not respond now; None (without a request) off EC2.

    AWS_EC2_METADATA_SERVICE_ENDPOINT and AWS_EC2_METADATA_DISABLED take precedence.
    """
    if metadata_is_disabled():
        return None
    named = metadata_endpoint()
    if named is None:
        return Metadata(ENDPOINT) if on_ec2() else None
    metadata = Metadata(named)
    try:
        metadata.get("meta-data/instance-id")
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError | socket.gaierror) and not on_ec2():
            return None  # the variable's endpoint is not reachable
    except OSError:
        pass  # the service exists but failed; the next call tries again
    return metadata


def on_ec2() -> bool:
    """Return whether the machine's firmware identifies it as an EC2 instance."""
    for name in ("sys_vendor", "board_vendor", "bios_vendor"):
        try:
            if (DMI / name).read_text().strip() == "Amazon EC2":
                return True
        except OSError:
            continue
    return False
