"""The fixture `plane`: a real API server that has our manifests, with every component on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.support.control_plane import ControlPlane, control_plane, definition
from tests.support.kubernetes_manifests import KUBERNETES, Manifest, render, resolved_copy

CERTIFICATE = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=prometheus-adapter",
               "-keyout", "tls.key", "-out", "tls.crt")  # fmt: skip


@pytest.fixture(scope="session")
def applied(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The manifests as an administrator applies them: every component, digests, a certificate."""
    folder = tmp_path_factory.mktemp("manifests")
    overlay = resolved_copy(folder)
    subprocess.run(CERTIFICATE, cwd=folder / "components/autoscaling", check=True, capture_output=True)
    return render(overlay)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory, applied: list[Manifest]) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("control-plane")) as made:
        define_resources(made)
        told = apply(made, applied)
        assert told.returncode == 0, told.stderr
        (made.folder / "applied.txt").write_text(told.stdout + told.stderr)
        wait_for_policies(made)
        yield made


def define_resources(plane: ControlPlane) -> None:
    """Karpenter's and Kubeflow's definitions, from our schemas of them."""
    made = [definition(path) for path in sorted((KUBERNETES / "schemas").glob("*.json"))]
    told = plane.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(made))
    assert told.returncode == 0, told.stderr
    names = [f"crd/{each['metadata']['name']}" for each in made]
    told = plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    assert told.returncode == 0, told.stderr


def apply(plane: ControlPlane, manifests: list[Manifest]) -> subprocess.CompletedProcess[str]:
    """As the documentation does it."""
    return plane.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(manifests))


def wait_for_policies(plane: ControlPlane) -> None:
    """Admission policies and quotas hold a moment after they are created."""
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe"},
        "spec": {"clusterIP": "None", "externalIPs": ["192.0.2.1"], "ports": [{"port": 80}]},
    }  # fmt: skip
    path = "/api/v1/namespaces/skytrain-training/services"
    plane.wait("the policies", lambda: not plane.request("POST", path, service, dryRun="All").accepted, 60.0)
    if plane.has_controllers:
        path = "/api/v1/namespaces/{}/resourcequotas/limits"
        for namespace in ("skytrain-training", "skytrain-serving"):
            plane.wait("the quota", lambda where=namespace: _counted(plane, path.format(where)), 60.0)
        time.sleep(1.0)  # default service accounts
        return
    for namespace in ("skytrain-training", "skytrain-serving"):  # as the controller would
        path = f"/api/v1/namespaces/{namespace}/resourcequotas/limits"
        hard = plane.request("GET", path).body["spec"]["hard"]
        status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
        assert plane.request("PATCH", f"{path}/status", {"status": status}).accepted


def _counted(plane: ControlPlane, path: str) -> bool:
    return "used" in plane.request("GET", path).body.get("status", {})
