"""`skytrain serve --target eks` as an operator, against a real API server with its deployment controller."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from skytrain.aws import cloud_files
from skytrain.config import compose
from skytrain.targets import cluster_of
from skytrain.targets.eks import serve as eks
from tests.support.cluster import apply
from tests.support.control_plane import ControlPlane
from tests.support.kubelet import Kubelets
from tests.support.kubernetes_manifests import Manifest

from .test_serve_eks import OUTPUTS, Notes

pytestmark = pytest.mark.slow
DATA = {"MODEL_SOURCE": "s3://bucket/demo/exports/m", "MODEL_NAME": "m", "MAX_MODEL_LEN": "64", "TENSOR_PARALLEL": "2"}


@pytest.fixture
def kubelets(
    plane: ControlPlane, applied: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kubelets]:
    """A node with GPUs, and a user's folder whose kubeconfig is an operator's."""
    if not plane.has_controllers:
        pytest.skip("KUBEBUILDER_ASSETS has no kube-controller-manager: nothing rolls a Deployment out")
    for path, text in cloud_files(OUTPUTS, "ada").items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copy(plane.kubeconfig("ada"), tmp_path / "kubeconfig")
    monkeypatch.chdir(tmp_path)
    kubelets = Kubelets(plane, eks.NAMESPACE)
    kubelets.add_node("gpu-0", "g6e.12xlarge", 4, market="on-demand")
    try:
        yield kubelets
    finally:
        forced = ("apply", "--server-side", "--force-conflicts", "-f", "-")  # as it was
        assert plane.kubectl(*forced, text=yaml.safe_dump_all(applied)).returncode == 0
        plane.wait("no pods", lambda: kubelets.finish_deletions() or not kubelets.pods(), 60.0)
        kubelets.remove_nodes()


def test_an_operator_rolls_a_model_out_and_stops_it_and_manifests_are_applied_meanwhile(
    plane: ControlPlane, applied: list[Manifest], kubelets: Kubelets
) -> None:
    config = compose(["cloud=eks", "cloud.eks.kubeconfig=kubeconfig"], [Path()]).config
    cluster, said = cluster_of(config), Notes()
    eks.deploy(cluster, DATA, "0" * 64)
    [pod] = kubelets.wait_for_pods(1)
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"

    def come_up(_: float) -> None:
        for each in kubelets.pods("Pending"):
            if not plane.has_scheduler:
                kubelets.bind([each], ["gpu-0"])
            kubelets.start(each)

    eks.wait_until_ready(cluster, 60.0, said, come_up)
    assert eks.serving_state(config).text == "m: 1 of 1 pods answer"

    refused = apply(plane, applied)  # it would end the model
    assert refused.returncode == 1 and ".spec.replicas" in refused.stderr and ".data.MODEL_NAME" in refused.stderr
    newer = yaml.safe_dump_all(applied).replace("--max-model-len", "--disable-log-stats --max-model-len")
    told = plane.kubectl("apply", "--server-side", "-f", "-", text=eks.keep_served(newer, cluster))
    assert told.returncode == 0 and not told.stderr, told.stderr
    found = plane.request("GET", f"/apis/apps/v1/namespaces/{eks.NAMESPACE}/deployments/vllm").body
    container = found["spec"]["template"]["spec"]["containers"][0]
    assert found["spec"]["replicas"] == 1 and "--disable-log-stats" in container["args"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    eks.wait_until_ready(cluster, 60.0, said, come_up)
    assert eks.serving_state(config).text == "m: 1 of 1 pods answer"

    assert eks.stop_serving(config) and not eks.stop_serving(config)
    plane.wait("no pods", lambda: kubelets.finish_deletions() or not kubelets.pods(), 60.0)
    assert eks.serving_state(config).text == "nothing is served"
