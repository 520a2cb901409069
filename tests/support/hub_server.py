"""A Hugging Face hub on loopback that takes uploads: repositories, large files by their hash, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubContents:
    """What clients have stored, and how the hub behaves."""

    token: str
    large_bytes: int = 2000  # files from this size on are uploaded apart from the commit
    failing_uploads: int = 0  # how many of the next uploads are refused (by 400: after 500 the client waits long)
    private: dict[str, bool] = field(default_factory=dict)  # by repository
    objects: dict[str, bytes] = field(default_factory=dict)  # large files by sha256
    files: dict[str, bytes] = field(default_factory=dict)  # of the commit, by path
    uploads: list[str] = field(default_factory=list)  # hashes in the order in which they arrived
    commits: int = 0


class UploadHandler(BaseHTTPRequestHandler):
    hub: HubContents

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self.answer({"error": "no token"}, 401)
        elif self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
            self.hub.private[name] = bool(wanted.get("private") or wanted.get("visibility") == "private")
            self.answer({"url": f"{self.address}/{name}", "id": name})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self.answer({"files": [{"path": file["path"], **self.mode(file)} for file in files]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            self.answer({"transfer": "basic", "objects": [self.lfs(each) for each in json.loads(body)["objects"]]})
        elif "/commit/" in self.path:
            repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            self.commit(repository, [json.loads(line) for line in body.splitlines()])
        else:
            self.answer({"errors": [], "warnings": []})

    def mode(self, file: dict) -> dict:
        large = file["size"] >= self.hub.large_bytes
        return {"uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def lfs(self, wanted: dict) -> dict:
        found = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] in self.hub.objects:
            return found
        return {**found, "actions": {"upload": {"href": f"{self.address}/objects/{wanted['oid']}"}}}

    def commit(self, repository: str, lines: list[dict]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.hub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.files[value["path"]] = self.hub.objects[value["oid"]]
        self.hub.commits += 1
        self.answer({"commitUrl": f"{self.address}/{repository}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})

    def do_PUT(self) -> None:
        body, digest = self.rfile.read(int(self.headers["Content-Length"])), self.path.rpartition("/")[2]
        if self.hub.failing_uploads:
            self.hub.failing_uploads -= 1
            self.answer({"error": "the hub is busy"}, 400)
            return
        assert hashlib.sha256(body).hexdigest() == digest
        self.hub.objects[digest] = body
        self.hub.uploads.append(digest)
        self.answer({})

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]

    def answer(self, value: dict, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def upload_hub(hub: HubContents) -> Iterator[str]:
    """The address of a hub that takes what is uploaded."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (UploadHandler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class PublishedModel:
    """A repository that clients download from, and how it behaves."""

    name: str
    files: dict[str, bytes]
    license: str = "apache-2.0"
    token: str | None = None  # that requests must have; None: the repository is public
    large_bytes: int = 2000  # files from this size on have a sha256, others the hash of git
    breaks_after: int | None = None  # the next download of a large file ends after so many bytes
    downloads: list[tuple[str, str | None]] = field(default_factory=list)  # file and range, in their order


class DownloadHandler(UploadHandler):
    model: PublishedModel

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        published = self.model
        if published.token and self.headers.get("Authorization") != f"Bearer {published.token}":
            self.send_response(401)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("X-Error-Message", "Access to this model is restricted")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith(f"/api/models/{published.name}"):
            self.answer(
                {
                    "id": published.name,
                    "sha": COMMIT,
                    "cardData": {"license": published.license},
                    "siblings": [self.sibling(name, data) for name, data in published.files.items()],
                }
            )
        elif self.path.startswith(f"/{published.name}/resolve/{COMMIT}/"):
            self.file(self.path.partition(f"/resolve/{COMMIT}/")[2])
        else:
            self.answer({"error": "Repository not found"}, 404)

    def sibling(self, name: str, data: bytes) -> dict:
        found = {"rfilename": name, "size": len(data), "blobId": self.git_sha1(data)}
        if len(data) >= self.model.large_bytes:
            found["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return found

    @staticmethod
    def git_sha1(data: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def file(self, name: str) -> None:
        data = self.model.files[name]
        large = len(data) >= self.model.large_bytes
        part = self.headers.get("Range")
        start = int(part.removeprefix("bytes=").partition("-")[0]) if part else 0
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest() if large else self.git_sha1(data)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.model.downloads.append((name, part))
        if large and self.model.breaks_after is not None:
            self.wfile.write(data[start : start + self.model.breaks_after])
            self.model.breaks_after = None
            self.close_connection = True
            return
        self.wfile.write(data[start:])


@contextmanager
def download_hub(model: PublishedModel) -> Iterator[str]:
    """The address of a hub that has one model."""
    handler = type("Handler", (DownloadHandler,), {"model": model})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
