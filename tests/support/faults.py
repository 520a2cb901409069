"""A proxy that stands between a client and an S3 server, and does what networks do to them."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self

ERRORS = {
    "slow_down": (503, "SlowDown", "Please reduce your request rate."),
    "internal_error": (500, "InternalError", "We encountered an internal error."),
    "conflict": (409, "ConditionalRequestConflict", "A conflicting conditional operation is in progress."),
    "no_such_upload": (404, "NoSuchUpload", "The specified multipart upload does not exist."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "skewed": (
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
    ),
    "other_region": (
        301,
        "PermanentRedirect",
        "The bucket you are attempting to access must be addressed using another endpoint.",
    ),
}
"""What AWS says in place of the server."""

Kind = Literal[
    "slow_down",
    "internal_error",
    "conflict",
    "no_such_upload",
    "denied",
    "expired",
    "skewed",
    "other_region",
    "reset",
    "lost_answer",
    "cut",
    "stall",
    "wrong_bytes",
    "damaged_request",
    "latency",
]
"""Beside ERRORS, what happens to a request:

reset            the connection dies before the server hears of it
lost_answer      the server does it, then the connection dies
cut              half of the answer's body, then the connection ends
stall            no answer, and the connection stays open for longer than the client waits
wrong_bytes      one bit of the answer's body is changed
damaged_request  one bit of the request's body is changed
latency          the answer comes 50 ms late
"""

LATENCY_SECONDS = 0.05
STALL_SECONDS = 2.0


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    at: float = field(default_factory=time.monotonic)


@dataclass
class Fault:
    kind: Kind
    times: int
    when: Callable[[Request], bool]


@dataclass
class FaultProxy:
    """`with FaultProxy(port) as proxy: proxy.inject("cut", times=2)`; the endpoint is `proxy.url`."""

    upstream_port: int
    address: str = "127.0.0.1"  # at which it listens
    region: str | None = None  # of its buckets; None: as the server says, and SeaweedFS's have none
    requests: list[Request] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(
        self, kind: Kind, times: int = 1_000_000, when: Callable[[Request], bool] = lambda request: True
    ) -> None:
        with self._lock:
            self._faults.append(Fault(kind, times, when))

    def clear(self) -> None:
        """The network is good again."""
        with self._lock:
            self._faults.clear()

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self._server.server_port}"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer((self.address, 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False  # clients keep idle connections open for longer than we wait
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault_for(self, request: Request) -> Kind | None:
        """The fault that this request meets; each injected fault is used up in the order of its injection."""
        with self._lock:
            self.requests.append(request)
            for fault in self._faults:
                if fault.times > 0 and fault.when(request):
                    fault.times -= 1
                    self.happened[fault.kind] += 1
                    return fault.kind
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True  # the client went away, as clients and whole hosts may

    def relay(self) -> None:
        assert "transfer-encoding" not in self.headers, "this proxy reads bodies by their length"
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        request = Request(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        fault = self.proxy.fault_for(request)
        if fault == "stall":
            time.sleep(STALL_SECONDS)
        if fault in ("reset", "stall"):
            return self.reset()
        if fault in ERRORS:
            return self.refuse(*ERRORS[fault])
        if fault == "damaged_request":
            body = with_one_bit_changed(body)
        status, headers, answer = self.ask_server(body)
        if self.proxy.region is not None and self.path.endswith("?location"):
            answer = f"<LocationConstraint>{self.proxy.region}</LocationConstraint>".encode()
        if fault == "lost_answer":
            return self.reset()
        if fault == "latency":
            time.sleep(LATENCY_SECONDS)
        if fault == "wrong_bytes":
            answer = with_one_bit_changed(answer)
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(answer[: len(answer) // 2])
            self.close_connection = True  # no reset: that would also take back bytes which the client has not read yet
            return
        self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = relay  # noqa: N815

    def ask_server(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        server = HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=60)
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("connection", "expect"):
                server.putheader(name, value)
        server.endheaders(body)
        response = server.getresponse()
        ours = (
            ("connection", "transfer-encoding")
            if self.command == "HEAD"
            else ("connection", "transfer-encoding", "content-length")
        )
        headers = [(name, value) for name, value in response.getheaders() if name.lower() not in ours]
        answer = response.read()
        server.close()
        return response.status, headers, answer

    def refuse(self, status: int, code: str, message: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        """Drop the connection with a TCP reset, not a polite end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def log_message(self, *_: object) -> None:
        pass


def with_one_bit_changed(body: bytes) -> bytes:
    if not body:
        return body
    changed = bytearray(body)
    changed[len(body) // 2] ^= 1
    return bytes(changed)
