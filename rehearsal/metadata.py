"""EC2's instance metadata service of one host, version 2 only.

It listens at 169.254.169.254 in the host's network namespace, and is served by a thread of the rehearsal, which changes
its tree as EC2 would.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

ADDRESS = ("169.254.169.254", 80)
TOKEN = "X-aws-ec2-metadata-token"
TOKEN_SECONDS = "X-aws-ec2-metadata-token-ttl-seconds"
ROLE = "rehearsal-node"
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class InstanceFacts:
    """What an instance knows about itself."""

    id: str
    type: str
    zone: str
    address: str
    market: str
    image: str
    launched_at: datetime
    tags: Mapping[str, str]
    efa_devices: int = 0


class MetadataService:
    """`tree` maps paths below /latest/ to their text."""

    def __init__(self, facts: InstanceFacts, credentials: tuple[str, str]) -> None:
        self._credentials = credentials
        self._tokens = dict[str, float]()
        self._server: ThreadingHTTPServer | None = None
        self._answers = True
        region = facts.zone[:-1]
        identity = {
            "instanceId": facts.id,
            "instanceType": facts.type,
            "region": region,
            "availabilityZone": facts.zone,
            "imageId": facts.image,
            "privateIp": facts.address,
            "accountId": "123456789012",
            "pendingTime": zulu(facts.launched_at),
        }
        self.tree = {
            "dynamic/instance-identity/document": json.dumps(identity),
            "meta-data/instance-id": facts.id,
            "meta-data/instance-type": facts.type,
            "meta-data/instance-life-cycle": facts.market,
            "meta-data/ami-id": facts.image,
            "meta-data/local-ipv4": facts.address,
            "meta-data/placement/region": region,
            "meta-data/placement/availability-zone": facts.zone,
            "meta-data/iam/security-credentials/": ROLE,
            "meta-data/iam/security-credentials": ROLE,
            "meta-data/autoscaling/target-lifecycle-state": "InService",
            "meta-data/tags/instance": "\n".join(facts.tags),
            **{f"meta-data/tags/instance/{name}": value for name, value in facts.tags.items()},
        }

    # What EC2 announces.

    def spot_notice(self, in_seconds: float) -> None:
        at = zulu(datetime.now(UTC) + timedelta(seconds=in_seconds))
        self.tree["meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": at})
        self.tree["meta-data/spot/termination-time"] = at

    def rebalance(self) -> None:
        self.tree["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": zulu(datetime.now(UTC))})

    def lifecycle(self, state: str) -> None:
        self.tree["meta-data/autoscaling/target-lifecycle-state"] = state

    def maintenance(self, in_seconds: float) -> None:
        at = datetime.now(UTC) + timedelta(seconds=in_seconds)
        event = {"NotBefore": at.strftime("%d %b %Y %H:%M:%S GMT"), "Code": "system-reboot", "State": "active"}
        self.tree["meta-data/events/maintenance/scheduled"] = json.dumps([event])

    # The server.

    def start(self, namespace: str, *, answers: bool = True) -> None:
        """Listen in the host's namespace; without answers, connections are accepted and nothing is ever said."""
        self._server = in_namespace(namespace, self._listen)
        self._answers = answers
        if not answers:
            return
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            if self._answers:
                self._server.shutdown()
            self._server.server_close()

    def _listen(self) -> ThreadingHTTPServer:
        server = _Server(ADDRESS, type("Handler", (_Handler,), {"service": self}))
        server.daemon_threads = True
        server.block_on_close = False
        return server

    def new_token(self, seconds: int) -> str:
        token = secrets.token_urlsafe(32)
        self._tokens[token] = time.monotonic() + seconds
        return token

    def answer(self, path: str, token: str | None) -> tuple[int, str]:
        """Return status and text, as IMDSv2 answers."""
        if token is None or self._tokens.get(token, 0.0) < time.monotonic():
            return 401, ""
        if path == f"meta-data/iam/security-credentials/{ROLE}":
            return 200, json.dumps(self._role_credentials())
        found = self.tree.get(path)
        return (404, "") if found is None else (200, found)

    def _role_credentials(self) -> dict[str, Any]:
        now = datetime.now(UTC)
        # Without a session token: SeaweedFS knows fixed keys only.
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": self._credentials[0],
            "SecretAccessKey": self._credentials[1],
            "Token": "",
            "LastUpdated": zulu(now),
            "Expiration": zulu(now + timedelta(hours=6)),
        }


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own looks up a name, for which a host without DNS waits


class _Handler(BaseHTTPRequestHandler):
    service: MetadataService

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that no longer waits
            super().handle()

    def reply(self, status: int, text: str = "") -> None:
        self.send_response_only(status)
        self.send_header("Date", format_datetime(datetime.now(UTC), usegmt=True))
        self.send_header("Server", "EC2ws")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:
        seconds = int(self.headers.get(TOKEN_SECONDS) or 0)
        if self.path != "/latest/api/token" or not 1 <= seconds <= 21600:
            return self.reply(400)
        return self.reply(200, self.service.new_token(seconds))

    def do_GET(self) -> None:
        self.reply(*self.service.answer(self.path.removeprefix("/latest/"), self.headers.get(TOKEN)))

    def log_message(self, *_: object) -> None:
        return


def in_namespace(name: str, work: Any) -> Any:
    """Return what `work` returns in that network namespace; sockets that it opens stay there."""
    libc, found = ctypes.CDLL(None, use_errno=True), list[Any]()

    def enter() -> None:
        with Path("/run/netns", name).open() as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                found.append(OSError(ctypes.get_errno(), "setns"))
                return
            try:
                found.append(work())
            except OSError as error:
                found.append(error)

    thread = threading.Thread(target=enter)  # of its own: a namespace belongs to a thread
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def zulu(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
