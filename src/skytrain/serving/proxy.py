"""nginx in front of a server: only the listed paths answer, over TLS, with limits on sizes and times.

vLLM's key guards /v1 and nothing else: /tokenize, /invocations, /metrics and others answer everybody. vLLM compares keys in
constant time, so this proxy has no key: it passes the header on, and to paths that vLLM guards. infra/kubernetes runs the
same configuration beside vLLM in every pod.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from ..config import SkytrainError, child_environment
from .engine import ServeRefused
from .server import KeptServer

ALLOWED = {"/v1/models": "GET", "/v1/completions": "POST", "/v1/chat/completions": "POST"}  # vLLM asks for the key
OPEN = "/health"  # answers everybody, with an empty body
METRICS = "/metrics"
REQUEST_SIZE = "4m"  # more than the longest prompt of any model here
EMPTY_SIZE = "1k"  # of requests that need no body, such as those that ask for no key
ANSWER_SECONDS = 600  # between two parts of an answer
CERTIFICATE_DAYS = 30
LISTEN_SECONDS = 30.0
LOOK_SECONDS = 0.05
NAMES = ("nginx", "/usr/sbin/nginx", "/usr/local/nginx/sbin/nginx")

CONFIG = """\
# Written by Skytrain. Only the listed paths reach vLLM, by exactly these names: /v1/../tokenize is /tokenize, and 404.
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  server_tokens off;
  default_type application/json;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size {empty};
  client_body_buffer_size {empty};
  client_header_timeout 10s;
  client_body_timeout 30s;
  send_timeout 60s;
  keepalive_timeout 30s;
  large_client_header_buffers 4 8k;
  limit_conn_zone $binary_remote_addr zone=clients:1m;
  limit_conn clients 256;
  proxy_http_version 1.1;
  proxy_buffering off;
  proxy_connect_timeout 5s;
  proxy_read_timeout {answer}s;
  proxy_set_header Host 127.0.0.1;
  proxy_set_header Connection "";
  server {{
    listen {listen};
{tls}    error_page 404 405 @closed;
    error_page 401 @keyless;
    location = {open} {{ limit_except GET {{ deny all; }} proxy_pass http://127.0.0.1:{upstream}{open}; }}
{locations}
{metrics}    location / {{ return 404; }}
    location @closed {{ return 404 '{{"error": "not found"}}'; }}
    location @keyless {{ return 401 '{{"error": "Unauthorized"}}'; }}
  }}
{metrics_server}}}
"""
# nginx takes in a request's body before it passes it on, for each of a client's connections. So vLLM is asked first whether
# the key is right, by a request without a body, and what asks for no key takes none: who has no key fills no memory.
LOCATION = """\
    location = {path} {{ auth_request /key; {body}limit_except {method} {{ deny all; }} proxy_pass http://127.0.0.1:{upstream}{path}; }}"""
BODY = "client_max_body_size {size}; client_body_buffer_size {size}; "
KEY_LOCATION = """\
    location = /key {{ internal; client_max_body_size {size}; proxy_pass http://127.0.0.1:{upstream}/v1/models; proxy_pass_request_body off; proxy_set_header Content-Length ""; proxy_set_header Host 127.0.0.1; proxy_set_header Connection ""; }}"""
TLS = """\
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
"""
# Of one endpoint.
GUARDED_METRICS = """\
    location = /metrics {{ auth_request /key; limit_except GET {{ deny all; }} proxy_pass http://127.0.0.1:{upstream}/metrics; }}
"""
# Of pods: a port of its own, which the network policy opens to Prometheus only.
METRICS_SERVER = """\
  server {{
    listen {port};
    location = /metrics {{ limit_except GET {{ deny all; }} proxy_pass http://127.0.0.1:{upstream}/metrics; }}
    location / {{ return 404; }}
  }}
"""


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path
    made: bool = False  # by us: clients have to be given it


@dataclass(frozen=True)
class ProxySettings:
    """Where nginx listens, and what it stands in front of."""

    listen: str  # HOST:PORT, or a port
    upstream: int  # vLLM's port on 127.0.0.1
    folder: str  # for its files
    tls: Certificate | None = None
    metrics_port: int | None = None  # on which metrics need no key; None: with the key, on the same port

    def config(self) -> str:
        """Return nginx's configuration."""
        locations = [
            LOCATION.format(
                path=path,
                method=method,
                upstream=self.upstream,
                body=BODY.format(size=REQUEST_SIZE) if method == "POST" else "",
            )
            for path, method in ALLOWED.items()
        ]
        tls = TLS.format(certificate=self.tls.certificate, key=self.tls.key) if self.tls else ""
        own = METRICS_SERVER.format(port=self.metrics_port, upstream=self.upstream) if self.metrics_port else ""
        return CONFIG.format(
            folder=self.folder,
            empty=EMPTY_SIZE,
            answer=ANSWER_SECONDS,
            listen=f"{self.listen} ssl" if self.tls else self.listen,
            tls=tls,
            open=OPEN,
            upstream=self.upstream,
            locations="\n".join([*locations, KEY_LOCATION.format(upstream=self.upstream, size=REQUEST_SIZE)]),
            metrics="" if own else GUARDED_METRICS.format(upstream=self.upstream),
            metrics_server=own,
        )


class Proxy(KeptServer):
    """nginx as a child process, which ends with this one."""

    def __init__(self, nginx: str, settings: ProxySettings, log: Path) -> None:
        folder = Path(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "nginx.conf"
        file.write_text(settings.config(), encoding="utf-8")
        command = (nginx, "-e", "stderr", "-p", str(folder), "-c", str(file))
        super().__init__("nginx", command, child_environment(), log)

    def wait_until_it_listens(self, host: str, port: int) -> None:
        """Wait for its port. Raises ServerEnded with its log if it ends instead, as with a certificate it cannot use."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        until = time.monotonic() + LISTEN_SECONDS
        while True:
            self.check()
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if probe.connect_ex((host.strip("[]"), port)) == 0:
                    return
            if time.monotonic() > until:
                raise ServeRefused(f"nginx does not listen on {host}:{port}\n  its log: {self.log}")
            time.sleep(LOOK_SECONDS)


def find_nginx() -> str | None:
    """Return the program, which may be outside the PATH of ordinary users."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def given_certificate(certificate: Path, key: Path) -> Certificate:
    """Return a certificate of the user. Raises ServeRefused if a file cannot be read."""
    for file in (certificate, key):
        if not os.access(file, os.R_OK):
            raise ServeRefused(f"{file} cannot be read\n  give the files of a certificate and its key")
    return Certificate(certificate.resolve(), key.resolve())


def make_certificate(folder: Path, host: str) -> Certificate:
    """Make a certificate for this computer, signed by itself. Clients check it by its file: `skytrain chat --ca FILE`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ServeRefused("a certificate is made with openssl, which is not installed\n  give one: --certificate FILE")
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / "certificate.pem", folder / "key.pem", made=True)
    names = {"DNS:localhost", f"DNS:{platform.node()}", "IP:127.0.0.1", "IP:0:0:0:0:0:0:0:1"}
    if host not in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        numeric = host.replace(".", "").isdigit() or ":" in host
        names.add(f"{'IP' if numeric else 'DNS'}:{host}")
    command = [
        openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", str(CERTIFICATE_DAYS), "-subj", "/CN=skytrain", "-addext", f"subjectAltName={','.join(sorted(names))}",
        "-keyout", str(made.key), "-out", str(made.certificate),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)
    if done.returncode:
        raise SkytrainError(f"openssl made no certificate: {done.stderr.strip()[-300:]}")
    return made


# In the pods of infra/kubernetes, whose base/nginx.conf is this configuration.
POD_PROXY = ProxySettings(
    listen="8000",
    upstream=8001,
    folder="/tmp",  # noqa: S108 - of a pod
    tls=Certificate(Path("/tls/tls.crt"), Path("/tls/tls.key")),
    metrics_port=9000,
)
