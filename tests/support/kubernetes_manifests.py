"""Renders the manifests of infra/kubernetes, with every component, as a person would."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = Path(__file__).parents[2] / "infra" / "kubernetes"
Manifest = dict[str, Any]


def render(overlay: Path) -> list[Manifest]:
    """The objects of an overlay. Skips, with the reason, where there is neither kubectl nor kustomize."""
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", str(overlay)]
    elif shutil.which("kustomize"):
        command = ["kustomize", "build", str(overlay)]
    else:
        pytest.skip("neither kubectl (1.27 or newer) nor kustomize is installed: https://kubectl.docs.kubernetes.io")
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not result.returncode, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def resolved_copy(folder: Path) -> Path:
    """A copy with every component on, a certificate, and a digest (of zeros) wherever one is still to be resolved."""
    shutil.copytree(KUBERNETES, folder, dirs_exist_ok=True)
    for name in ("tls.crt", "tls.key"):
        (folder / "components/autoscaling" / name).write_text(f"-----BEGIN {name}-----\n")
    overlay = folder / "overlays/example"
    text = (overlay / "kustomization.yaml").read_text()
    assert "  # - ../../components/autoscaling" in text
    (overlay / "kustomization.yaml").write_text(
        text.replace("  # - ../../components/autoscaling", "  - ../../components/autoscaling")
    )
    lock = folder / "components/images/kustomization.yaml"
    component = yaml.safe_load(lock.read_text())
    for image in component["images"]:
        image.setdefault("digest", f"sha256:{0:064}")
    lock.write_text(yaml.safe_dump(component))
    return overlay


def identity(manifest: Manifest) -> str:
    place = manifest["metadata"].get("namespace")
    return f"{manifest['kind']} {place + '/' if place else ''}{manifest['metadata']['name']}"


def pod_templates(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pod template of each workload, by the workload's identity."""
    found = {}
    for each in manifests:
        spec = each.get("spec", {})
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec and "containers" in spec["template"].get("spec", {}):
            found[identity(each)] = {**spec["template"], "namespace": each["metadata"]["namespace"]}
    return found
