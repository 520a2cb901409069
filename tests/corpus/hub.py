"""A Hugging Face hub on loopback: the few answers that streaming a data set asks for, over a folder of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def loopback_hub(folder: Path, repo: str) -> Iterator[str]:
    """The address of a hub that holds one data set, `repo`, whose branch main is at COMMIT."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path in (f"/api/datasets/{repo}/revision/main", f"/api/datasets/{repo}/revision/{COMMIT}"):
                self.answer(json.dumps({"id": repo, "sha": COMMIT, "siblings": []}).encode())
            elif path.startswith((f"/api/datasets/{repo}/tree/{COMMIT}", f"/api/datasets/{repo}/paths-info/{COMMIT}")):
                self.answer(json.dumps(tree()).encode())
            elif path.startswith(f"/datasets/{repo}/resolve/{COMMIT}/"):
                self.file((folder / path.split(f"/{COMMIT}/", 1)[1]).read_bytes())
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.do_GET()

        def file(self, body: bytes) -> None:
            wanted = self.headers.get("Range")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                body = body[int(first) : int(last) + 1 if last else None]
            self.answer(body, 206 if wanted else 200, "application/octet-stream")

        def answer(self, body: bytes, status: int = 200, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", hashlib.sha1(body).hexdigest())
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    def tree() -> list[dict[str, object]]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [
            {
                "type": "file",
                "path": str(path.relative_to(folder)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in files
        ]

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
