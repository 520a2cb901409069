"""nginx in front of vLLM: what is open, what asks for the key, and what is refused; with nginx itself."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from skytrain.config import compose
from skytrain.pipelines.serve import ServeJob, ServeRequest
from skytrain.serving import (
    Endpoint,
    EndpointError,
    Proxy,
    ProxySettings,
    ServeRefused,
    check_port,
    find_nginx,
    given_certificate,
    make_certificate,
)
from skytrain.serving.proxy import POD_PROXY
from skytrain.targets.local import serve as local
from tests.serving.conftest import exported
from tests.serving.test_serve import served
from tests.support.vllm import vllm_python

KEY = "a-key"
MANIFESTS = Path(__file__).parents[2] / "infra/kubernetes"
# Paths of vLLM 0.32 that its key does not guard.
UNGUARDED = {
    "POST": ("/tokenize", "/detokenize", "/invocations", "/pooling", "/score", "/rerank", "/classify"),
    "GET": ("/version", "/docs", "/openapi.json", "/load", "/ping", "/server_info", "/tokenizer_info"),
}
# Ways to write a closed path so that it looks like an open one.
TRICKS = (
    "/v1/../tokenize",
    "/v1/%2e%2e/tokenize",
    "/v1/models/../../tokenize",
    "//tokenize",
    "/health/../tokenize",
    "/health%2f..%2ftokenize",
    "/v1/models;/../../tokenize",
    "/V1/completions",
    "/v1/completions/",
    "/v1/responses",
    "/v1/load_lora_adapter",
    "/v2/rerank",
    "/key",
    "/metrics/",
)


class Upstream(BaseHTTPRequestHandler):
    """Guards /v1 with its key, as vLLM does, and answers everything else; it notes what arrives."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str, str]] = []  # noqa: RUF012 - of one test at a time

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append((self.command, self.path, str(self.headers.get("Host"))))
        refused = self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {KEY}"
        answer = json.dumps({"error": "Unauthorized"} if refused else {"path": self.path, "bytes": len(body)}).encode()
        self.send_response(401 if refused else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - names of http.server


@pytest.fixture
def nginx() -> str:
    found = find_nginx()
    if found is None:
        pytest.skip("nginx is not installed: apt install nginx-light")
    return found


@pytest.fixture
def upstream() -> Iterator[int]:
    Upstream.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def port(nginx: str, upstream: int, tmp_path: Path) -> Iterator[int]:
    """The port of a proxy before `upstream`."""
    chosen = check_port("127.0.0.1", 0)
    proxy = Proxy(nginx, ProxySettings(f"127.0.0.1:{chosen}", upstream, str(tmp_path / "nginx")), tmp_path / "log")
    proxy.start()
    try:
        proxy.wait_until_it_listens("127.0.0.1", chosen)
        yield chosen
    finally:
        proxy.stop()


def ask(port: int, method: str, path: str, key: str | None = None, body: bytes = b"", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    if key is not None:
        connection.putheader("Authorization", f"Bearer {key}")
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    status = connection.getresponse().status
    connection.close()
    return status


def check_closed(port: int) -> None:
    """What an endpoint refuses: everything but a list, and the list without the key."""
    for method, paths in UNGUARDED.items():
        for path in paths:
            assert ask(port, method, path) == 404, path
            assert ask(port, method, path, KEY) == 404, path
    for path in TRICKS:
        assert ask(port, "POST", path) in (400, 404), path
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/v1/chat/completions")):
        assert ask(port, method, path, body=b"{}") == 401, path
        assert ask(port, method, path, KEY[:-1], body=b"{}") == 401, path
    assert ask(port, "GET", "/metrics") == 401
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
        assert ask(port, method, "/v1/models", KEY) >= 400, method
    assert ask(port, "POST", "/health") >= 400
    assert ask(port, "GET", "/health") == 200


def test_only_the_listed_paths_answer_and_all_but_health_ask_for_the_key(port: int) -> None:
    check_closed(port)
    reached = {path for _, path, _ in Upstream.asked}
    assert reached <= {"/health", "/v1/models", "/v1/completions", "/v1/chat/completions"}
    assert ask(port, "GET", "/v1/models", KEY) == 200
    assert ask(port, "POST", "/v1/completions", KEY, b"{}") == 200
    assert ask(port, "GET", "/metrics", KEY) == 200


def test_a_client_cannot_choose_the_host_that_the_server_sees(port: int) -> None:
    for host in ("evil.example", "x/v1?", "169.254.169.254"):
        ask(port, "GET", "/v1/models", KEY, Host=host)
    assert {host for _, _, host in Upstream.asked} <= {"127.0.0.1"}


def test_requests_have_limits(port: int) -> None:
    assert ask(port, "POST", "/v1/completions", KEY, b"x" * (1 << 20)) == 200
    with pytest.raises((AssertionError, OSError)):
        assert ask(port, "POST", "/v1/completions", KEY, b"x" * (5 << 20)) == 200
    assert ask(port, "POST", "/v1/completions", KEY, **{"X-Long": "x" * 20_000}) in (400, 494)
    text = ProxySettings("1", 2, "/tmp").config()
    for limit in ("client_header_timeout", "client_body_timeout", "send_timeout", "proxy_read_timeout", "limit_conn"):
        assert limit in text


@pytest.mark.parametrize("sized", ["Content-Length: 4000000", "Transfer-Encoding: chunked"])
def test_a_client_without_the_key_is_refused_before_its_request_is_taken_in(sized: str, port: int) -> None:
    """nginx holds what a request has sent so far: 256 connections of one client would fill a pod's memory."""
    for path in ("/v1/completions", "/v1/chat/completions"):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(20)
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{sized}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    with socket.create_connection(("127.0.0.1", port)) as connection:  # nobody asks for a key here
        connection.settimeout(20)
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: x\r\n{sized}\r\n\r\n".encode())
        connection.sendall(b"1000\r\n" + b"x" * 4096)  # a chunk's beginning, or that of 4 MB
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    assert ask(port, "POST", "/v1/completions", KEY, b"{}") == 200
    assert {path for _, path, _ in Upstream.asked} == {"/v1/models", "/v1/completions"}


def test_a_made_certificate_proves_the_endpoint_to_those_who_are_given_it(
    nginx: str, upstream: int, tmp_path: Path
) -> None:
    made, other = make_certificate(tmp_path / "tls", "0.0.0.0"), make_certificate(tmp_path / "other", "0.0.0.0")
    assert made.key.stat().st_mode & 0o077 == 0
    chosen = check_port("127.0.0.1", 0)
    settings = ProxySettings(f"127.0.0.1:{chosen}", upstream, str(tmp_path / "nginx"), made)
    proxy = Proxy(nginx, settings, tmp_path / "log")
    proxy.start()
    try:
        proxy.wait_until_it_listens("127.0.0.1", chosen)
        url = f"https://127.0.0.1:{chosen}"
        assert Endpoint(url, KEY, ca=made.certificate).post("/v1/completions", {})["path"] == "/v1/completions"
        for ca in (None, other.certificate):
            with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
                Endpoint(url, KEY, ca=ca).models()
        with pytest.raises(EndpointError, match="give a file of certificates"):
            Endpoint(url, KEY, ca=tmp_path / "none").models()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", chosen)) as plain, pytest.raises(ssl.SSLError):
            old.wrap_socket(plain)
    finally:
        proxy.stop()


def test_pods_run_the_same_configuration(nginx: str, tmp_path: Path) -> None:
    text = (MANIFESTS / "base/nginx.conf").read_text()
    assert text == POD_PROXY.config(), "write it again: POD_PROXY.config()"
    made = make_certificate(tmp_path / "tls", "vllm.skytrain-serving")
    here = replace(POD_PROXY, folder=str(tmp_path), tls=made)
    (tmp_path / "nginx.conf").write_text(here.config())
    done = subprocess.run([nginx, "-t", "-e", "stderr", "-c", str(tmp_path / "nginx.conf")], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_pods_answer_through_nginx_only() -> None:
    [deployment] = [
        each
        for each in yaml.safe_load_all((MANIFESTS / "base/serving.yaml").read_text())
        if each["kind"] == "Deployment"
    ]
    containers = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"]}
    assert "--host 127.0.0.1 --port 8001" in containers["vllm"]["args"][0] and "ports" not in containers["vllm"]
    assert [each["containerPort"] for each in containers["proxy"]["ports"]] == [8000, 9000]


def test_an_address_that_others_reach_needs_nginx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_nginx", lambda: None)
    for request in (ServeRequest("x", host="0.0.0.0", port=0), ServeRequest("x", port=0, tls=True)):
        with pytest.raises(ServeRefused, match="nginx is not installed"):
            local.LocalTarget().check(ServeJob(compose(), request))


@pytest.mark.slow
@pytest.mark.usefixtures("nginx")
def test_what_vllm_itself_leaves_open_is_closed(tmp_path: Path) -> None:
    """With vLLM: its unguarded paths answer on its own port without a key, and not through nginx."""
    folder = exported("gpt2", tmp_path / "model")
    words = [str(folder), "--name", "served", f"serve.python={vllm_python()}", "serve.cpu_cache_gib=1"]
    (tmp_path / "key").write_text(KEY)
    with served([*words, "serve.max_length=64", "--api-key-file", str(tmp_path / "key")], tmp_path) as server:
        outer = int(server.url.rpartition(":")[2])
        body = json.dumps({"model": "served", "prompt": "a", "max_tokens": 2}).encode()
        typed = {"Content-Type": "application/json"}
        inner = next(each for each in listening(server.process.pid) if each != outer and is_vllm(each))
        leaks = [path for path in ("/tokenize", "/invocations") if ask(inner, "POST", path, body=body, **typed) == 200]
        assert "/tokenize" in leaks, "the attack: vLLM answers without its key"
        check_closed(outer)
        assert ask(outer, "POST", "/v1/completions", KEY, body, **typed) == 200
        assert ask(outer, "POST", "/v1/completions", "wrong", body, **typed) == 401


COMPARED = """
import secrets
from starlette.datastructures import Headers
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

seen, real = [], secrets.compare_digest
secrets.compare_digest = lambda given, known: [seen.append({len(given), len(known)}), real(given, known)][1]
guard = AuthenticationMiddleware(None, ["the-key"])
for key in ("the-key", "the-kez", "t", "the-key-and-more"):
    print(key, guard.verify_token(Headers({"Authorization": f"Bearer {key}"})), seen.pop(), seen)
"""


@pytest.mark.slow
def test_vllm_compares_hashes_of_keys_in_constant_time() -> None:
    """The proxy has no key: how long an answer takes must not say how much of one is right, or how long it is."""
    done = subprocess.run([str(vllm_python()), "-c", COMPARED], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.endswith("[]")]
    assert said == [
        "the-key True {32} []",
        "the-kez False {32} []",
        "t False {32} []",
        "the-key-and-more False {32} []",
    ]


def is_vllm(port: int) -> bool:
    try:
        return ask(port, "GET", "/version") == 200
    except (OSError, http.client.HTTPException):
        return False


def listening(pid: int) -> list[int]:
    """Ports of 127.0.0.1 on which this process and its descendants listen."""
    from skytrain.jobs.processes import descendants

    inodes = set()
    for each in [pid, *descendants(pid)]:
        for link in Path(f"/proc/{each}/fd").glob("*"):
            try:
                inodes.add(str(link.readlink()))
            except OSError:
                continue
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_the_pages_curl_commands_reach_an_endpoint_behind_tls(nginx: str, upstream: int, tmp_path: Path) -> None:
    """With the certificate that the page makes: through a forwarded port, and by the load balancer's name."""
    page = (Path(__file__).parents[2] / "docs/eks.md").read_text()
    made = re.search(r"    (openssl req [^\n]*/CN=vllm \\\n[^\n]*)\n", page)
    asked = re.findall(r"^    (curl .*--cacert .*)$", page, re.MULTILINE)
    assert made is not None and len(asked) == 3 and any("--connect-to" in each for each in asked)
    subprocess.run(made[1], shell=True, cwd=tmp_path, check=True, capture_output=True)
    port = check_port("127.0.0.1", 0)
    tls = given_certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    proxy = Proxy(nginx, ProxySettings(f"127.0.0.1:{port}", upstream, str(tmp_path / "nginx"), tls), tmp_path / "log")
    proxy.start()
    try:
        proxy.wait_until_it_listens("127.0.0.1", port)
        for words in asked:
            command = words.replace("localhost:8443", f"localhost:{port}").replace("$HOST:443", f"localhost:{port}")
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env={**os.environ, "KEY": KEY}, capture_output=True
            )
            assert json.loads(done.stdout)["path"].startswith("/v1/"), (command, done.stderr)
    finally:
        proxy.stop()
