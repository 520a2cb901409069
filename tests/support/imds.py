"""A stand-in for EC2's metadata service on loopback: version 2 only, with a token, as IMDS has it."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_HEADER = "X-aws-ec2-metadata-token"


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

        def do_PUT(self) -> None:
            token = secrets.token_hex(8)
            fake.tokens.add(token)
            self.answer(200 if self.path == "/latest/api/token" else 404, token)

        def do_GET(self) -> None:
            path = self.path.removeprefix("/latest/")
            fake.asked.append(path)
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
