"""What an EC2 instance knows about itself, by IMDSv2: its kind and price class, its launch, and notices of its end."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

ENDPOINT = "http://169.254.169.254"
TIMEOUT_SECONDS = 2.0
TOKEN_SECONDS = 21600  # the longest that IMDS gives
DMI = Path("/sys/class/dmi/id")


@dataclass(frozen=True)
class Notice:
    """EC2's word that this instance will be taken away (`at`), or is likely to be."""

    kind: Literal["spot", "rebalance"]
    text: str


@dataclass(frozen=True)
class Instance:
    id: str
    type: str
    region: str
    market: Literal["spot", "on-demand"]
    launched_at: datetime | None


class Metadata:
    """One instance's metadata service. Every request carries a token: version 1, which any program can trick, is not used."""

    def __init__(self, endpoint: str) -> None:
        self._base = endpoint.rstrip("/") + "/latest/"
        # Never through a proxy: the address means this very machine.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._token: str | None = None

    def get(self, path: str) -> str | None:
        """The text at `path`, None where there is none. Raises OSError when the service does not answer."""
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
                self._token = None  # it ran out
        raise AssertionError("the second answer was returned or raised")

    def _request(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._base + path, method=method, headers=headers)
        try:
            with self._open(request, timeout=TIMEOUT_SECONDS) as answer:
                return str(answer.read().decode())
        except http.client.HTTPException as error:  # cut short, or not HTTP at all
            raise OSError(f"{self._base}: {error!r}") from error

    def instance(self) -> Instance | None:
        """None where this is no EC2 instance after all."""
        document = self.get("dynamic/instance-identity/document")
        if document is None:
            return None
        facts: dict[str, Any] = json.loads(document)
        launched = facts.get("pendingTime")
        spot = self.get("meta-data/instance-life-cycle") == "spot"
        return Instance(
            id=facts["instanceId"],
            type=facts["instanceType"],
            region=facts["region"],
            market="spot" if spot else "on-demand",
            launched_at=datetime.fromisoformat(launched) if launched else None,
        )

    def notice(self) -> Notice | None:
        """The most serious notice there is."""
        action = self.get("meta-data/spot/instance-action")
        if action is not None:
            facts = json.loads(action)
            return Notice(
                "spot", f"EC2 will {facts.get('action', 'end')} this instance at {facts.get('time', 'any moment')}"
            )
        if self.get("meta-data/events/recommendations/rebalance") is not None:
            return Notice("rebalance", "EC2 expects to interrupt this instance before long")
        return None


def find_metadata() -> Metadata | None:
    """This instance's metadata service; None off EC2, where asking would cost seconds and answer nothing.

    AWS's own variables decide first: AWS_EC2_METADATA_SERVICE_ENDPOINT and AWS_EC2_METADATA_DISABLED.
    """
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or (ENDPOINT if _on_ec2() else None)
    if endpoint is None:
        return None
    metadata = Metadata(endpoint)
    try:
        metadata.get("meta-data/instance-id")
    except OSError:  # a container that may not reach it, or a variable that leads nowhere
        return None
    return metadata


def _on_ec2() -> bool:
    for name in ("sys_vendor", "board_vendor", "bios_vendor"):
        try:
            if (DMI / name).read_text().strip() == "Amazon EC2":
                return True
        except OSError:
            continue
    return False
