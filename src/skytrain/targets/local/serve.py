"""Serve on this machine, with vLLM as a child process, until a signal ends it."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ...config import format_seconds, skytrain_cache_folder
from ...jobs import handled_signals
from ...runs import Reporter
from ...serving import (
    ApiKey,
    Endpoint,
    ServedModel,
    VllmServer,
    check_port,
    choose_api_key,
    find_gpus,
    find_vllm,
    server_settings,
)
from ..serving import EXPORTED, ServeJob, key_command, read_key

if TYPE_CHECKING:
    from ...export import Dtype

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WATCH_SECONDS = 0.5


class LocalTarget:
    """This machine."""

    name = "local"

    def check(self, job: ServeJob) -> Dtype:
        check_port(job.request.host, job.request.port)
        engine = find_vllm(job.config.serve.python)
        return EXPORTED[job.config.serve.dtype or ("float32" if engine.for_cpu else "bfloat16")]

    def serve(self, job: ServeJob, model: ServedModel, reporter: Reporter) -> int:
        request = job.request
        config = job.config.serve
        engine = find_vllm(config.python)
        port = check_port(request.host, request.port)
        settings = server_settings(model, engine, find_gpus(), config, (request.host, port))
        key = _key(job)
        rows = [("model", model.name), ("folder", str(model.folder)), *settings.chosen, ("vLLM", engine.version)]
        reporter.table("serve", rows)
        if request.dry_run:
            print(json.dumps({"command": settings.command, "environment": settings.environment}, indent=1))  # noqa: T201
            return 0
        log = skytrain_cache_folder() / "serving" / "logs" / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', model.name)}-{port}.log"
        reporter.note(f"log: {log}")
        server = VllmServer(settings, engine, key.value, log)
        reachable = (
            "127.0.0.1" if request.host in ("0.0.0.0", "") else "[::1]" if request.host == "::" else request.host
        )
        endpoint = Endpoint(f"http://{reachable}:{port}", key.value, timeout_seconds=10.0)
        with _stopping() as stopped:
            try:
                server.start()
                server.wait_until_ready(endpoint, config.start, _Waiting(reporter, stopped, config.start))
                _announce(endpoint.base, model, key, request.host)
                while not stopped.wait(WATCH_SECONDS):
                    server.check()
            finally:
                server.stop()
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


def _announce(base: str, model: ServedModel, key: ApiKey, host: str) -> None:
    """Print how to use the endpoint. A new key is shown here, and nowhere else."""
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
        f"curl {base}{path} -H \"Authorization: Bearer $SKYTRAIN_API_KEY\" -H 'Content-Type: application/json' -d '{json.dumps(body)}'",
        f"skytrain chat --url {base}",
        f"metrics: {base}/metrics; Ctrl-C ends the server",
    ]
    if host not in LOOPBACK:
        lines.append(f"{host} is reachable by others: /v1 asks for the key, /health and /metrics do not")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


TARGET = LocalTarget()
