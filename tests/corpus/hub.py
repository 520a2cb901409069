"""A Hugging Face hub on loopback: the few answers that streaming a data set asks for, over a folder of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class HubFolder:
    """What the hub holds: one repository, but for what lies in the folder `files_at`, which is served apart."""

    folder: Path
    repo: str
    files_at: str | None
    kind: str = "datasets"  # or "models"
    token: str | None = None  # a gated repository: what a request must carry

    def tree(self) -> list[dict[str, object]]:
        outside = self.folder / (self.files_at or "none of it")
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and not path.is_relative_to(outside))
        return [
            {
                "type": "file",
                "path": str(path.relative_to(self.folder)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in files
        ]


class HubServer(ThreadingHTTPServer):
    def __init__(self, hub: HubFolder) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.hub = hub


class HubHandler(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        api, files = (
            f"/api/{hub.kind}/{hub.repo}",
            f"/datasets/{hub.repo}" if hub.kind == "datasets" else f"/{hub.repo}",
        )
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(b'{"error": "restricted"}', 401, error="GatedRepo")
        elif path in (f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self.answer(json.dumps({"id": hub.repo, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith((f"{api}/tree/{COMMIT}", f"{api}/paths-info/{COMMIT}")):
            self.answer(json.dumps(hub.tree()).encode())
        elif path.startswith(f"{files}/resolve/{COMMIT}/"):
            self.file((hub.folder / path.split(f"/{COMMIT}/", 1)[1]).read_bytes())
        elif hub.files_at and path.startswith(f"/{hub.files_at}/") and (hub.folder / path[1:]).is_file():
            self.file((hub.folder / path[1:]).read_bytes())
        else:
            self.answer(b"{}", 404, error="RepoNotFound" if path.startswith("/api/") else "EntryNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def file(self, body: bytes) -> None:
        wanted = self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1, len(body)) if last else len(body)
            piece = f"bytes {first}-{end - 1}/{len(body)}"
            etag = hashlib.sha1(body).hexdigest()
            self.answer(body[int(first) : end], 206, "application/octet-stream", etag, piece)
        else:
            self.answer(body, kind="application/octet-stream")

    def answer(
        self,
        body: bytes,
        status: int = 200,
        kind: str = "application/json",
        etag: str | None = None,
        piece: str | None = None,
        error: str | None = None,
    ) -> None:
        self.send_response(status)
        if error:
            self.send_header("X-Error-Code", error)
        if piece:
            self.send_header("Content-Range", piece)
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag or hashlib.sha1(body).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def loopback_hub(
    folder: Path, repo: str, files_at: str | None = None, kind: str = "datasets", token: str | None = None
) -> Iterator[str]:
    """The address of a hub that holds one data set or model, `repo`, whose branch main is at COMMIT.

    What lies in the folder `files_at` is not part of it: the same server has it at `/files_at/...`.
    """
    server = HubServer(HubFolder(folder=folder, repo=repo, files_at=files_at, kind=kind, token=token))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
