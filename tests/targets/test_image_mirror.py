"""`skytrain image mirror`: images copied by digest between two repositories of a real registry, which runs here."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.aws import RegistryRepository, find_registry_image, read_chart_image, read_lock
from skytrain.aws.registry import INDEXES, RegistryError
from skytrain.cli.main import app
from skytrain.config import SkytrainError
from skytrain.pipelines.image import find_mirrored, mirror
from skytrain.runs import Silent
from tests.support.kubernetes_manifests import KUBERNETES
from tests.support.s3 import free_ports
from tests.support.waiting import wait_until

CONFIGURATION = """\
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}/data
  delete:
    enabled: true
http:
  addr: 127.0.0.1:{port}
"""
LOGIN = """\
auth:
  htpasswd:
    realm: ECR
    path: {folder}/passwords
"""
PASSWORD = "secret"
HASHED = "AWS:$2b$05$vUNRiDs1r6RW9QtLFIMhX.3MSOwtM1G6HxTXCvWYNLHaHqPHR9roi"  # bcrypt
REGISTRY = shutil.which("docker-registry") or shutil.which("registry")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("registry"), CONFIGURATION) as address:
        yield address


@pytest.fixture
def closed_registry(tmp_path: Path) -> Iterator[str]:
    """A registry that wants a password, as ECR does."""
    (tmp_path / "passwords").write_text(HASHED + "\n")
    with serving(tmp_path, CONFIGURATION + LOGIN) as address:
        yield address


@contextlib.contextmanager
def serving(folder: Path, configuration: str) -> Iterator[str]:
    """The registry of the CNCF (Debian: docker-registry), with an empty folder."""
    if REGISTRY is None:
        pytest.skip("docker-registry is not installed")
    [port] = free_ports(1)
    file = folder / "config.yml"
    file.write_text(configuration.format(folder=folder, port=port))
    process = subprocess.Popen([REGISTRY, "serve", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).status == 200
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False

    try:
        wait_until(answers)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def push(repository: RegistryRepository, text: str, architecture: str = "amd64") -> str:
    """Push an image of one file and return its digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("hello")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    layer = gzip.compress(packed.getvalue(), mtime=0)
    rootfs = {"type": "layers", "diff_ids": [digest(packed.getvalue())]}
    config = json.dumps({"architecture": architecture, "os": "linux", "rootfs": rootfs}).encode()
    for blob in (layer, config):
        repository.put_blob(digest(blob), len(blob), io.BytesIO(blob))
    kinds = ("application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip")
    parts = [{"mediaType": kind, "digest": digest(body), "size": len(body)} for kind, body in zip(kinds, (config, layer), strict=True)]  # fmt: skip
    manifest = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": parts[0], "layers": parts[1:]}).encode()
    repository.put_manifest(digest(manifest), manifest)
    return digest(manifest)


def push_list(repository: RegistryRepository, images: dict[str, str], tag: str) -> str:
    entries = [
        {"mediaType": MANIFEST, "digest": name, "size": 1, "platform": {"os": "linux", "architecture": architecture}}
        for architecture, name in images.items()
    ]
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEXES[0], "manifests": entries}).encode()
    repository.put_manifest(tag, body)
    return digest(body)


@pytest.fixture
def files(registry: str, tmp_path: Path) -> tuple[Path, Path]:
    """A list of two images, one of which is for two platforms, and Karpenter's values."""
    tool, plain, karpenter = (RegistryRepository(f"{registry}/{name}") for name in ("team/tool", "plain", "controller"))
    both = push_list(tool, {"arm64": push(tool, "arm", "arm64"), "amd64": push(tool, "tool")}, "v1")
    lock = tmp_path / "kustomization.yaml"
    lock.write_text(
        "images:\n  # two platforms\n"
        f"  - name: tool\n    newName: {tool.repository}\n    newTag: v1\n    digest: {both}\n"
        f"  - name: plain\n    newName: {plain.repository}\n    digest: {push(plain, 'plain')}\n"
    )
    values = tmp_path / "values.yaml"
    text = (KUBERNETES / "karpenter/values.yaml").read_text()
    found = read_chart_image(KUBERNETES / "karpenter/values.yaml")
    text = text.replace(found.repository, karpenter.repository)
    values.write_text(text.replace(str(found.digest), push(karpenter, "karpenter")))
    return lock, values


def test_all_images_of_a_cluster_are_copied_by_digest_and_manifests_name_the_copies(
    registry: str, files: tuple[Path, Path]
) -> None:
    lock, values = files
    target = RegistryRepository(registry.replace("127.0.0.1", "localhost") + "/skytrain-demo")
    found = find_mirrored(lock, values, target)
    assert [one.locked.name for one in found] == ["tool", "plain", "karpenter"] and all(
        one.bytes > 100 for one in found
    )
    copied = mirror(found, lock, values, target, Silent())
    assert [*read_lock(lock), read_chart_image(values)] == copied
    assert {image.repository for image in copied} == {target.repository}
    for before, after in zip(found, copied, strict=True):
        image = find_registry_image(target, str(after.digest))  # as a node pulls it
        assert image.manifest == before.image.manifest and after.tag is not None
        for name, size in image.blobs.items():
            with target.blob(name) as body:
                content = body.read()
            assert (digest(content), len(content)) == (name, size)
    assert "# two platforms" in lock.read_text() and "serviceAccount:" in values.read_text()
    assert find_mirrored(lock, values, target) == []  # nothing is left to copy


def test_a_registry_that_wants_a_password_takes_the_one_of_ecr(closed_registry: str, files: tuple[Path, Path]) -> None:
    lock, values = files
    name = f"{closed_registry.replace('127.0.0.1', 'localhost')}/skytrain-demo"
    found = find_mirrored(lock, values, RegistryRepository(name))
    with pytest.raises(RegistryError, match="wants a login"):
        mirror(found, lock, values, RegistryRepository(name), Silent())
    with pytest.raises(RegistryError, match="401"):
        mirror(found, lock, values, RegistryRepository(name, "wrong"), Silent())
    mirror(found, lock, values, RegistryRepository(name, PASSWORD), Silent())
    assert {image.repository for image in read_lock(lock)} == {name}


def test_the_command_shows_what_it_would_copy_and_what_that_costs(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, values = files
    before = lock.read_text()
    monkeypatch.chdir(tmp_path)
    repository = "cloud.image_repository=123456789012.dkr.ecr.us-east-2.amazonaws.com/skytrain-demo"
    words = ["image", "mirror", repository, "--lock", str(lock), "--values", str(values), "--dry-run"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and "3 images" in done.output and "per month" in done.output
    assert all(name in done.output for name in ("tool", "plain", "karpenter")) and lock.read_text() == before


def test_a_copy_that_was_cut_off_is_finished_by_the_same_command(
    registry: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, values = files
    target = RegistryRepository(registry.replace("127.0.0.1", "localhost") + "/again")
    put = RegistryRepository.put_manifest
    left = [1]

    def cut_off(repository: RegistryRepository, tag: str, body: bytes) -> None:
        if not left[0]:
            raise RegistryError("the connection is closed")
        left[0] -= 1
        put(repository, tag, body)

    monkeypatch.setattr(RegistryRepository, "put_manifest", cut_off)
    with pytest.raises(RegistryError):
        mirror(find_mirrored(lock, values, target), lock, values, target, Silent())
    assert [image.repository == target.repository for image in read_lock(lock)] == [True, False]
    monkeypatch.setattr(RegistryRepository, "put_manifest", put)
    rest = find_mirrored(lock, values, target)
    assert [one.locked.name for one in rest] == ["plain", "karpenter"]
    mirror(rest, lock, values, target, Silent())
    assert find_mirrored(lock, values, target) == []


def test_what_a_registry_forges_or_lacks_is_refused(registry: str, files: tuple[Path, Path]) -> None:
    lock, values = files
    tool = RegistryRepository(f"{registry}/team/tool")
    arm = push_list(tool, {"arm64": push(tool, "arm", "arm64")}, "arm")
    with pytest.raises(RegistryError, match="not for linux/amd64"):
        find_registry_image(tool, arm)
    with pytest.raises(RegistryError, match="404"):
        find_registry_image(tool, digest(b"nothing"))
    with pytest.raises(RegistryError, match="400"):
        tool.put_blob(digest(b"expected"), 6, io.BytesIO(b"forged"))
    lock.write_text("\n".join(line for line in lock.read_text().splitlines() if "digest" not in line) + "\n")
    with pytest.raises(SkytrainError, match="no digest: tool, plain"):
        find_mirrored(lock, values, RegistryRepository("e.io/x"))
