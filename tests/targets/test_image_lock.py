"""Digests of images: asked from a registry on this machine, kept in kustomize's file, and wanted in every manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.aws import LockedImage, read_lock, render_manifests, resolve_lock, tag_digest, write_lock
from skytrain.aws.registry import RegistryError
from skytrain.cli.main import app
from skytrain.config import SkytrainError
from tests.support.kubernetes_manifests import KUBERNETES, resolved_copy

LOCK = KUBERNETES / "components/images/kustomization.yaml"
BODY = b'{"mediaType": "application/vnd.oci.image.index.v1+json"}'
DIGEST = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


class Registry(BaseHTTPRequestHandler):
    """One public image, `team/tool:1.0`, behind anonymous tokens, as Docker Hub has them."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/token":
            self._send(200, json.dumps({"token": "anybody"}).encode())
        elif self.headers.get("Authorization") != "Bearer anybody":
            here = f"http://127.0.0.1:{self.server.server_address[1]}"
            challenge = f'Bearer realm="{here}/token",service="here",scope="repository:team/tool:pull"'
            self._send(401, b"", {"WWW-Authenticate": challenge})
        elif path == "/v2/team/tool/manifests/1.0":
            assert "oci.image.index" in self.headers["Accept"]
            self._send(200, BODY, {"Docker-Content-Digest": DIGEST})
        elif path == "/v2/team/tool/manifests/forged":
            self._send(200, BODY + b" ", {"Docker-Content-Digest": DIGEST})
        else:
            self._send(404, b"")

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_tag_is_the_hash_of_what_the_registry_sends(registry: str) -> None:
    assert tag_digest(f"{registry}/team/tool", "1.0") == DIGEST
    with pytest.raises(RegistryError, match="404"):
        tag_digest(f"{registry}/team/tool", "2.0")
    with pytest.raises(RegistryError, match="but what it sent is"):
        tag_digest(f"{registry}/team/tool", "forged")
    with pytest.raises(RegistryError, match="cannot be reached"):
        tag_digest("127.0.0.1:1/team/tool", "1.0")
    with pytest.raises(RegistryError, match="private repository"):
        tag_digest("123456789012.dkr.ecr.us-east-2.amazonaws.com/x", "1.0")


def test_the_list_keeps_its_comments_and_order_when_digests_change(tmp_path: Path) -> None:
    copy = tmp_path / "kustomization.yaml"
    shutil.copy(LOCK, copy)
    before = read_lock(copy)
    write_lock(copy, before)
    assert copy.read_text() == LOCK.read_text()
    asked: list[str] = []
    told: list[str] = []

    def digest_of(repository: str, tag: str) -> str:
        asked.append(f"{repository}:{tag}")
        return DIGEST

    after = resolve_lock(before, digest_of, told.append)
    write_lock(copy, after)
    assert read_lock(copy) == after and [each.name for each in after] == [each.name for each in before]
    assert {each.name for each in after if each.digest is None} == {"skytrain"}
    assert len(asked) == len(before) - 1 and len(told) == sum(each.digest is not None for each in before)
    comments = [line for line in LOCK.read_text().splitlines() if line.strip().startswith("#")]
    assert comments == [line for line in copy.read_text().splitlines() if line.strip().startswith("#")]


def test_an_image_is_set_by_tag_by_digest_or_both() -> None:
    image = LockedImage("skytrain", "skytrain", "unset", None)
    assert image.set(f"r.io:5000/a/b@{DIGEST}") == LockedImage("skytrain", "r.io:5000/a/b", None, DIGEST)
    assert image.set(f"r.io/a:v1@{DIGEST}") == LockedImage("skytrain", "r.io/a", "v1", DIGEST)
    assert image.set("r.io:5000/a:v1") == LockedImage("skytrain", "r.io:5000/a", "v1", None)
    with pytest.raises(SkytrainError, match="give a tag or a digest"):
        image.set("r.io/a")


def test_the_command_resolves_sets_and_refuses_what_is_missing(tmp_path: Path, registry: str) -> None:
    lock = tmp_path / "images.yaml"
    lock.write_text("images:\n  # ours\n  - name: skytrain\n    newName: skytrain\n    newTag: unset\n"
                    f"  - name: tool\n    newName: {registry}/team/tool\n    newTag: \"1.0\"\n")  # fmt: skip
    missing = CliRunner().invoke(app, ["image", "resolve", "--lock", str(lock)])
    assert isinstance(missing.exception, SkytrainError) and "no digest: skytrain" in str(missing.exception)
    assert read_lock(lock)[1].digest == DIGEST and 'newTag: "1.0"' in lock.read_text()  # what was found is kept
    done = CliRunner().invoke(
        app, ["image", "resolve", "--lock", str(lock), "--set", f"skytrain=e.io/s@{DIGEST}", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert [each["digest"] for each in json.loads(done.stdout)] == [DIGEST, DIGEST]
    unknown = CliRunner().invoke(app, ["image", "resolve", "--lock", str(lock), "--set", "other=a:1"])
    assert "no image other" in str(unknown.exception)


def test_manifests_with_an_image_without_a_digest_are_refused(tmp_path: Path) -> None:
    if not (shutil.which("kubectl") or shutil.which("kustomize")):
        pytest.skip("neither kubectl nor kustomize is installed")
    with pytest.raises(SkytrainError, match="skytrain:unset") as refused:
        render_manifests(KUBERNETES / "overlays/example")
    assert "efa-k8s-device-plugin:v0.5.20" in str(refused.value) and "vllm" in str(refused.value)
    assert "@sha256:" in render_manifests(resolved_copy(tmp_path))
    with pytest.raises(SkytrainError, match="failed"):
        render_manifests(tmp_path / "nowhere")
