"""`skytrain image` as it is typed: a stand-in for docker that writes down what it is asked, and moto's registry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import AwsSession, pushed_image
from skytrain.cli.main import main
from skytrain.pipelines import image as images
from skytrain.storage import open_store
from tests.targets.conftest import use_session

REPOSITORY = "123456789012.dkr.ecr.us-east-2.amazonaws.com/skytrain-demo"
BASE = "public.ecr.aws/deep-learning-containers/pytorch"
DIGEST = "sha256:" + "ab" * 32
DOCKER = """\
#!/bin/bash
printf '%s\\n' "$*" >> {asked}
case $1 in
  login) cat > {asked}.stdin; echo "$DOCKER_CONFIG" > {asked}.config; cat "$DOCKER_CONFIG/config.json" > {asked}.settings ;;
  image) echo '["elsewhere/pytorch@sha256:00", "{base}@{digest}"]' ;;
  version) [ ! -e {asked}.down ] || {{ echo "Cannot connect to the Docker daemon" >&2; exit 1; }} ;;
esac
"""


class Desk:
    """A checkout, an account and a docker."""

    def __init__(self, folder: Path, account: AwsSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch, self.ecr = folder, monkeypatch, account.client("ecr")
        self.store = open_store(str(folder / "objects"))
        self._asked = folder / "asked"
        self._git("init", "-q")
        (folder / "docker").mkdir()
        (folder / "docker/Dockerfile").write_text("ARG BASE_IMAGE\n")
        self._git("add", "docker")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
        (folder / "cloud").mkdir()
        (folder / "cloud/aws.yaml").write_text(
            f"# @package _global_\ndefaults: [none@cloud, _self_]\ncloud: {{project: demo, account: '123456789012', "
            f"region: us-east-2, image_repository: '{REPOSITORY}'}}\nstore: {{root: '{folder}/objects'}}\n"
        )
        programs, users = folder / "bin", folder / "users-docker"
        programs.mkdir()
        (programs / "docker").write_text(DOCKER.format(asked=self._asked, base=BASE, digest=DIGEST))
        (programs / "docker").chmod(0o755)
        users.mkdir()
        (users / "config.json").write_text('{"auths": {"mine": {}}, "credsStore": "desktop", "currentContext": "far"}')
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("DOCKER_CONFIG", str(users))
        use_session(monkeypatch, lambda *_: account)
        monkeypatch.chdir(folder)
        really_push = images.push_image

        def push(tag: str, registry: str, password: str) -> None:
            really_push(tag, registry, password)
            manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}
            self.ecr.put_image(
                repositoryName="skytrain-demo", imageManifest=json.dumps(manifest), imageTag=tag.rpartition(":")[2]
            )

        monkeypatch.setattr(images, "push_image", push)

    def _git(self, *words: str) -> None:
        subprocess.run(["git", "-C", str(self.folder), *words], check=True)

    def create_repository(self) -> None:
        self.ecr.create_repository(repositoryName="skytrain-demo")

    def __call__(self, *words: str) -> int:
        self._monkeypatch.setattr(sys, "argv", ["skytrain", "image", *words])
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    def asked(self, part: str = "") -> str:
        path = Path(f"{self._asked}{part}")
        return path.read_text() if path.exists() else ""

    def engine_is_down(self) -> None:
        Path(f"{self._asked}.down").touch()


@pytest.fixture
def desk(tmp_path: Path, account: AwsSession, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, account, monkeypatch)


def test_push_builds_from_a_digest_and_records_the_pushed_image_for_launches(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.create_repository()
    assert desk("push", "--yes", "--json") == 0
    told = capsys.readouterr()
    recorded = pushed_image(desk.store)
    assert recorded is not None and json.loads(told.out)["uri"] == recorded.uri
    held = desk.ecr.describe_images(repositoryName="skytrain-demo")["imageDetails"][0]
    assert recorded.uri == f"{REPOSITORY}@{held['imageDigest']}" and held["imageTags"] == [recorded.tag]
    build = next(line for line in desk.asked().splitlines() if line.startswith("build"))
    assert f"--build-arg BASE_IMAGE={BASE}@{DIGEST}" in build and "--platform linux/amd64" in build
    assert f"base.digest={DIGEST}" in build and recorded.revision[:12] in recorded.tag
    assert "account 123456789012" in told.err and "region us-east-2" in told.err


def test_the_password_goes_through_stdin_and_the_login_is_not_kept(desk: Desk) -> None:
    desk.create_repository()
    desk("push", "--yes")
    password = desk.asked(".stdin")
    assert password and password not in desk.asked()
    assert "login --username AWS --password-stdin 123456789012.dkr.ecr.us-east-2.amazonaws.com" in desk.asked()
    assert json.loads(desk.asked(".settings")) == {"currentContext": "far"}, "the engine is the user's, logins are not"
    assert not Path(desk.asked(".config").strip()).exists()


def test_an_image_that_the_repository_has_is_not_built_again(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.create_repository()
    desk("push", "--yes")
    first = pushed_image(desk.store)
    assert desk("push", "--yes") == 0
    assert desk.asked().count("\nbuild ") == 1 and "already" in capsys.readouterr().err
    again = pushed_image(desk.store)
    assert first is not None and again is not None and first.uri == again.uri


def _dirty(desk: Desk) -> None:
    (desk.folder / "docker/Dockerfile").write_text("FROM other\n")


def _without_docker(desk: Desk) -> None:
    (desk.folder / "bin/docker").unlink()


def _without_repository(desk: Desk) -> None:
    text = (desk.folder / "cloud/aws.yaml").read_text()
    (desk.folder / "cloud/aws.yaml").write_text(
        text.replace(REPOSITORY, "").replace("image_repository: ''", "owner: a")
    )


@pytest.mark.parametrize(
    ("spoil", "words", "message", "code"),
    [
        (_dirty, [], "not committed: docker/Dockerfile", 2),
        (_without_docker, [], "docker is not installed here", 3),
        (Desk.engine_is_down, [], "Cannot connect to the Docker daemon", 3),
        (_without_repository, [], "cloud.image_repository is not set", 2),
        (lambda _: None, ["cloud.image_repository=docker.io/me/x"], "not a repository of ECR", 2),
        (lambda _: None, ["--context", "cloud"], "has no docker/Dockerfile", 2),
        (lambda _: None, [], "RepositoryNotFoundException", 3),
    ],
)
def test_what_cannot_be_pushed_is_refused_before_anything_is_built(
    desk: Desk, spoil: Any, words: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(desk)
    assert desk("push", "--yes", *words) == code
    assert message in capsys.readouterr().err
    assert "build" not in desk.asked() and pushed_image(desk.store) is None


def test_build_needs_no_account_and_prints_the_name_alone(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk("build") == 0
    told = capsys.readouterr()
    assert told.out.startswith("skytrain:0.1.0-") and f"base {BASE}@{DIGEST}" in told.err
    assert "login" not in desk.asked() and "push" not in desk.asked()
