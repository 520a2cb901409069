"""The bill of materials: what is installed, and what a bundle has."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from skytrain import __version__
from skytrain.cli.main import main
from skytrain.config import SkytrainError, compose
from skytrain.pipelines.sbom import bundle_sbom, installed_sbom
from skytrain.storage import open_store


def test_every_installed_package_is_listed_once_with_its_version() -> None:
    found = installed_sbom()
    listed = {each["name"]: each["version"] for each in found["components"]}
    assert len(listed) == len(found["components"]) and listed["skytrain"] == __version__
    assert listed["torch"] == metadata.version("torch")
    assert {each["purl"] for each in found["components"]} >= {f"pkg:pypi/boto3@{metadata.version('boto3')}"}
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert found == installed_sbom()


def test_the_packages_of_a_bundle_have_the_hashes_that_machines_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    store.write("bundles/0123/SHA256SUMS", f"{'a' * 64}  some_package-1.2-py3-none-any.whl\n".encode())
    words = ["skytrain", "image", "sbom", "--bundle", "bundles/0123", f"store.root={tmp_path}"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    [component] = json.loads(capsys.readouterr().out)["components"]
    assert (component["name"], component["version"]) == ("some-package", "1.2")
    assert component["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    with pytest.raises(SkytrainError, match="is not a bundle of packages"):
        bundle_sbom(compose([f"store.root={tmp_path}"]).config, "bundles/none")
