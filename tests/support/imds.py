"""A stand-in for EC2's metadata service on loopback: version 2 only, with a token, as IMDS has it."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

TOKEN_HEADER = "X-aws-ec2-metadata-token"
HANG_SECONDS = 3.0  # longer than a client waits

Fault = Literal["busy", "empty", "garbage", "hang"]
"""busy: 503; empty: 200 without a body; garbage: 200 with something else; hang: no answer."""


class FakeMetadata:
    """`tree` maps paths below /latest/ to their text; tests change it as EC2 would."""

    def __init__(self, **facts: Any) -> None:
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        identity = {
            "instanceId": "i-0abc",
            "instanceType": "g5.12xlarge",
            "region": "us-east-1",
            "pendingTime": "2026-01-01T00:00:00Z",
            **facts,
        }
        self.tree = {
            "meta-data/instance-id": identity["instanceId"],
            "meta-data/instance-life-cycle": "spot",
            "dynamic/instance-identity/document": json.dumps(identity),
        }
        self.url = ""
        self.faults: list[Any] = []
        self.happened: Counter[str] = Counter()

    def fail(self, fault: Fault, times: int = 1_000_000, *, method: str | None = None) -> None:
        """The next requests (`method`: PUT asks for a token, GET for anything else) meet a fault, in order of injection."""
        self.faults.append([fault, times, method])

    def fault_for(self, method: str) -> Fault | None:
        for waiting in self.faults:
            if waiting[1] > 0 and waiting[2] in (None, method):
                waiting[1] -= 1
                self.happened[waiting[0]] += 1
                return waiting[0]
        return None

    def give_notice(self) -> None:
        self.tree["meta-data/spot/instance-action"] = json.dumps(
            {"action": "terminate", "time": "2026-01-01T00:02:00Z"}
        )

    def recommend_rebalance(self) -> None:
        self.tree["meta-data/events/recommendations/rebalance"] = json.dumps({"noticeTime": "2026-01-01T00:00:00Z"})


@contextmanager
def fake_metadata(**facts: Any) -> Iterator[FakeMetadata]:
    fake = FakeMetadata(**facts)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            return

        def answer(self, code: int, text: str = "") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def met_fault(self) -> bool:
            fault = fake.fault_for(self.command)
            if fault == "hang":
                time.sleep(HANG_SECONDS)
            elif fault == "busy":
                self.answer(503)
            elif fault == "empty":
                self.answer(200)
            elif fault == "garbage":
                self.answer(200, "<html>")
            return fault is not None

        def do_PUT(self) -> None:
            if self.met_fault():
                return
            token = secrets.token_hex(8)
            fake.tokens.add(token)
            self.answer(200 if self.path == "/latest/api/token" else 404, token)

        def do_GET(self) -> None:
            path = self.path.removeprefix("/latest/")
            fake.asked.append(path)
            if self.met_fault():
                return None
            if self.headers.get(TOKEN_HEADER) not in fake.tokens:
                return self.answer(401)
            found = fake.tree.get(path)
            return self.answer(404) if found is None else self.answer(200, found)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
