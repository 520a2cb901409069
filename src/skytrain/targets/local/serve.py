"""Serve on this machine, with vLLM as a child process, until a signal ends it."""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ...config import format_seconds, skytrain_cache_folder
from ...jobs import handled_signals
from ...runs import Reporter
from ...serving import (
    ApiKey,
    Certificate,
    Endpoint,
    KeptServer,
    Proxy,
    ProxySettings,
    ServedModel,
    ServeRefused,
    VllmServer,
    check_port,
    choose_api_key,
    find_gpus,
    find_nginx,
    find_vllm,
    given_certificate,
    make_certificate,
    server_settings,
)
from ..serving import EXPORTED, ServeJob, ServeRequest, key_command, read_key

if TYPE_CHECKING:
    from ...export import Dtype

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WITHOUT_NGINX = (
    "nginx is not installed: on this machine, /tokenize, /metrics and other paths of vLLM answer without the key"
)
WATCH_SECONDS = 0.5


class LocalTarget:
    """This machine."""

    name = "local"
    reads = ("host", "port", "api_key_file", "tls", "certificate", "certificate_key")
    cloud = None

    def check(self, job: ServeJob) -> Dtype:
        request = job.request
        check_port(request.host, request.port)
        if find_nginx() is None and (request.host not in LOOPBACK or request.tls or request.certificate):
            raise ServeRefused(
                f"nginx is not installed: without it, /tokenize and other paths of vLLM answer without the key\n"
                f"  install it (apt install nginx), or leave --host and --tls out: only this machine reaches {LOOPBACK[0]}"
            )
        if (request.certificate is None) != (request.certificate_key is None):
            raise ServeRefused("--certificate and --certificate-key belong together\n  give both, or none")
        engine = find_vllm(job.config.serve.python)
        return EXPORTED[job.config.serve.dtype or ("float32" if engine.for_cpu else "bfloat16")]

    def serve(self, job: ServeJob, model: ServedModel, reporter: Reporter) -> int:
        request = job.request
        config = job.config.serve
        engine = find_vllm(config.python)
        port = check_port(request.host, request.port)
        nginx = find_nginx()
        inner = ("127.0.0.1", check_port("127.0.0.1", 0)) if nginx else (request.host, port)
        settings = server_settings(model, engine, find_gpus(), config, inner)
        key = _key(job)
        rows = [("model", model.name), ("folder", str(model.folder)), *settings.chosen, ("vLLM", engine.version)]
        reporter.table("serve", rows)
        if request.dry_run:
            print(json.dumps({"command": settings.command, "environment": settings.environment}, indent=1))  # noqa: T201
            return 0
        log = skytrain_cache_folder() / "serving" / "logs" / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', model.name)}-{port}.log"
        reporter.note(f"log: {log}")
        server = VllmServer(settings, engine, key.value, log)
        direct = Endpoint(f"http://{_reachable(inner[0])}:{inner[1]}", key.value, timeout_seconds=10.0)
        with _stopping() as stopped, ExitStack() as stack:
            stack.callback(server.stop)
            server.start()
            server.wait_until_ready(direct, config.start, _Waiting(reporter, stopped, config.start))
            endpoint = direct
            servers: list[KeptServer] = [server]
            if nginx is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skytrain-nginx-")))
                tls = _certificate(request, folder)
                scheme = "https" if tls else "http"
                ca = tls.certificate if tls is not None and tls.made else None
                endpoint = Endpoint(f"{scheme}://{_reachable(request.host)}:{port}", key.value, 10.0, ca)
                proxy = Proxy(
                    nginx,
                    ProxySettings(_listen(request.host, port), inner[1], str(folder), tls),
                    log.with_suffix(".nginx"),
                )
                stack.callback(proxy.stop)
                proxy.start()
                proxy.wait_until_it_listens(_reachable(request.host), port)
                servers.append(proxy)
            else:
                reporter.note(WITHOUT_NGINX)
            _announce(endpoint, model, key, request.host)
            while not stopped.wait(WATCH_SECONDS):
                for each in servers:
                    each.check()
        reporter.note("stopped")
        return 0


def _key(job: ServeJob) -> ApiKey:
    parameter = job.config.serve.key_parameter
    if parameter is None:
        key = choose_api_key(job.request.api_key_file)
        assert key is not None
        return key
    from ...aws import open_session

    value = read_key(open_session(job.config.cloud.region, job.config.cloud.account), parameter)
    return ApiKey(value, parameter, key_command(parameter, job.config.cloud.region))


def _reachable(host: str) -> str:
    """Return an address by which this machine reaches a server that listens on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host in ("::", "::1") else host  # noqa: S104 - compared, not bound


def _listen(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '0.0.0.0'}:{port}"  # noqa: S104 - what the user asked for; it needs the key


def _certificate(request: ServeRequest, folder: Path) -> Certificate | None:
    """Return the certificate that is given, or made; None without TLS."""
    if request.certificate is not None and request.certificate_key is not None:
        return given_certificate(request.certificate, request.certificate_key)
    wanted = request.host not in LOOPBACK if request.tls is None else request.tls
    return make_certificate(skytrain_cache_folder() / "serving" / "tls", request.host) if wanted else None


class _Waiting:
    """Shows that the server starts, and gives up when the user does."""

    def __init__(self, reporter: Reporter, stopped: threading.Event, limit: float) -> None:
        self._reporter = reporter
        self._stopped = stopped
        self._limit = limit

    def __call__(self, seconds: float, line: str) -> None:
        if self._stopped.is_set():
            raise KeyboardInterrupt
        self._reporter.progress(
            "start", min(seconds, self._limit - 1), None, f"{format_seconds(round(seconds))}, {line}"[:160]
        )


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Let SIGTERM, SIGINT and SIGHUP set an event, so that the server is always ended in order; not SIGHUP under nohup."""
    stopped = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        stopped.set()

    stopping = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} & set(handled_signals())
    before = {each: signal.signal(each, note) for each in stopping}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(endpoint: Endpoint, model: ServedModel, key: ApiKey, host: str) -> None:
    """Print how to use the endpoint. A new key is shown here, and nowhere else."""
    base = endpoint.base
    proof = (f" --cacert {endpoint.ca}", f" --ca {endpoint.ca}") if endpoint.ca else ("", "")
    path = "/v1/completions"
    body = {"model": model.name, "prompt": "Once upon a time", "max_tokens": 32}
    if model.chat:
        path = "/v1/chat/completions"
        body = {"model": model.name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}
    origin = f"from {key.origin}" if key.origin else "new, shown only here"
    again = f"$({key.read_with})" if key.read_with else key.value
    lines = [
        f"serving {model.name} at {base}/v1",
        f"API key: {key.value if not key.origin else '***'} ({origin})",
        "",
        *([] if key.origin == "SKYTRAIN_API_KEY" else [f"export SKYTRAIN_API_KEY={again}"]),
        f"curl{proof[0]} {base}{path} -H \"Authorization: Bearer $SKYTRAIN_API_KEY\" -H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        f"skytrain chat --url {base}{proof[1]}",
        f"metrics: {base}/metrics; Ctrl-C ends the server",
    ]
    if host not in LOOPBACK:
        lines.append(f"{host} is reachable by others: everything but /health asks for the key")
        if base.startswith("http:"):
            lines.append("without TLS, everybody on the way reads the key and the texts")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


TARGET = LocalTarget()
