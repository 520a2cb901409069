"""Plays the nodes of a real API server: machines that are there, and what their kubelets report about pods."""

from __future__ import annotations

from typing import Any

from tests.support.control_plane import ControlPlane, KubeObject

ZONE = "us-east-2a"
INDEX = "batch.kubernetes.io/job-completion-index"


class Kubelets:
    """Nodes and the pods on them, in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.place = plane, f"/api/v1/namespaces/{namespace}"

    def add_node(self, name: str, instance_type: str, gpus: int, market: str = "spot", zone: str = ZONE) -> None:
        """A machine as Karpenter brings it: its labels, its taints, what it has."""
        labels = {
            "node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/zone": zone,
            "karpenter.sh/capacity-type": market, "kubernetes.io/hostname": name,
        }  # fmt: skip
        keys = [*(["nvidia.com/gpu"] if gpus else []), *(["skytrain/spot"] if market == "spot" else [])]
        taints = [{"key": key, "value": "true", "effect": "NoSchedule"} for key in keys]
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
        }
        assert self.plane.request("POST", "/api/v1/nodes", node).accepted
        size = {"cpu": "48", "memory": "192Gi", "ephemeral-storage": "500Gi", "pods": "110"}
        size |= {"nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": "1", "hugepages-2Mi": "5120Mi"} if gpus else {}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": None}
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        assert self.plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}).accepted
        # A new node is tainted until its controller, which is not here, finds it ready.
        assert self.plane.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}}).accepted

    def remove_nodes(self) -> None:
        assert self.plane.request("DELETE", "/api/v1/nodes").accepted

    def pods(self, phase: str | None = None) -> list[KubeObject]:
        found = self.plane.request("GET", f"{self.place}/pods").body["items"]
        chosen = [each for each in found if phase in (None, each["status"]["phase"])]
        return sorted(
            chosen, key=lambda pod: (pod["metadata"].get("annotations", {}).get(INDEX, ""), pod["metadata"]["name"])
        )

    def wait_for_pods(self, count: int, phase: str = "Pending", scheduled: bool = False) -> list[KubeObject]:
        def there() -> list[KubeObject] | None:
            found = [pod for pod in self.pods(phase) if not scheduled or pod["spec"].get("nodeName")]
            return found if len(found) == count else None

        found: list[KubeObject] = self.plane.wait(f"{count} pods, {phase}", there, 60.0)
        return found

    def bind(self, pods: list[KubeObject], nodes: list[str]) -> None:
        """As the scheduler does, where there is none."""
        for pod, node in zip(pods, nodes, strict=True):
            name = pod["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            assert self.plane.request("POST", f"{self.place}/pods/{name}/binding", binding).accepted

    def start(self, pod: KubeObject) -> None:
        ready = [{"type": name, "status": "True"} for name in ("Initialized", "ContainersReady", "Ready")]
        self._report(pod, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=True, conditions=ready)

    def fail_to_pull(self, pod: KubeObject, message: str) -> None:
        self._report(pod, "Pending", {"waiting": {"reason": "ImagePullBackOff", "message": message}})

    def end(self, pod: KubeObject, exit_code: int, message: str = "", disrupted: bool = False) -> None:
        reason = "Completed" if exit_code == 0 else "Error"
        ended = {"exitCode": exit_code, "reason": reason, "message": message,
                 "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"}  # fmt: skip
        phase = "Succeeded" if exit_code == 0 else "Failed"
        target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "spot"}
        self._report(pod, phase, {"terminated": ended}, conditions=[target] if disrupted else [])

    def finish_deletions(self) -> None:
        """A kubelet ends the containers of a pod that is deleted, and then removes it."""
        for pod in self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                self.end(pod, 143)
                self.plane.request("DELETE", f"{self.place}/pods/{pod['metadata']['name']}", gracePeriodSeconds="0")

    def _report(
        self, pod: KubeObject, phase: str, state: KubeObject, ready: bool = False, conditions: Any = ()
    ) -> None:
        container = pod["spec"]["containers"][0]
        about = {"name": container["name"], "image": container["image"], "imageID": "", "ready": ready,
                 "restartCount": 0, "state": state}  # fmt: skip
        status = {"phase": phase, "containerStatuses": [about]}
        if conditions:
            status["conditions"] = list(conditions)
        answer = self.plane.request("PATCH", f"{self.place}/pods/{pod['metadata']['name']}/status", {"status": status})
        gone = answer.status == 404 and "deletionTimestamp" in pod["metadata"]  # the garbage collector was faster
        assert answer.accepted or gone, answer.body
