"""A real Kubernetes control plane on this machine: etcd and kube-apiserver, with controllers and a scheduler if they are there.

The binaries are found by KUBEBUILDER_ASSETS, the folder that `setup-envtest use -p path` prepares. Nothing runs pods: tests
play the kubelet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3

from .s3 import free_ports

VARIABLE = "KUBEBUILDER_ASSETS"
ADMISSION = "NodeRestriction,ExtendedResourceToleration"  # that EKS has on beside the defaults
START_SECONDS = 120.0
USERS = {
    "admin": ("system:masters",),
    "ada": ("skytrain:operators",),
    "vera": ("skytrain:viewers",),
    "eve": (),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
}
# No node sends heartbeats here: a controller would take every one for lost.
CONTROLLERS = "*,-node-lifecycle-controller,-taint-eviction-controller,-cloud-node-lifecycle-controller"

KubeObject = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the API server answered, with its warnings."""

    status: int
    body: KubeObject
    warnings: list[str]

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


@dataclass
class ControlPlane:
    """Its address and files, and requests to it."""

    folder: Path
    port: int
    binaries: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "certificates/apiserver.crt"

    @property
    def has_controllers(self) -> bool:
        return (self.binaries / "kube-controller-manager").exists()

    @property
    def has_scheduler(self) -> bool:
        return (self.binaries / "kube-scheduler").exists()

    def request(
        self, method: str, path: str, body: Any = None, *, user: str = "admin", **query: str
    ) -> Answer:  # fmt: skip
        """One request as a user of USERS, or impersonated as any other: system:serviceaccount:NAMESPACE:NAME."""
        content = {"PATCH": "application/merge-patch+json", "APPLY": "application/apply-patch+yaml"}
        headers = {"Content-Type": content.get(method, "application/json")}
        headers["Authorization"] = f"Bearer {user if user in USERS else 'admin'}"
        if user not in USERS:
            headers["Impersonate-User"] = user
        if method == "APPLY":
            query = {"fieldManager": "test", "force": "true", "fieldValidation": "Strict", **query}
        with urllib3.PoolManager(ca_certs=str(self.certificate)) as pool:
            answer = pool.request(
                "PATCH" if method == "APPLY" else method,
                f"{self.address}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=json.dumps(body) if body is not None else None,
                headers=headers,
                retries=False,
                timeout=30.0,
            )
        try:
            found = json.loads(answer.data)
        except ValueError:
            found = {"message": answer.data.decode(errors="replace")}
        return Answer(answer.status, found, answer.headers.getlist("Warning"))

    def kubectl(self, *words: str, text: str = "", user: str = "admin") -> subprocess.CompletedProcess[str]:
        program = self.binaries / "kubectl"
        command = [str(program) if program.exists() else "kubectl", f"--kubeconfig={self.kubeconfig(user)}", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)

    def kubeconfig(self, user: str) -> Path:
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.address, "certificate-authority": str(self.certificate)}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "local", "cluster": cluster}],
                    "users": [{"name": user, "user": {"token": user}}],
                    "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
                    "current-context": "local",
                }
            )
        )
        return path

    def start(self, name: str, *flags: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            program = str(self.binaries / name)
            self.processes.append(subprocess.Popen([program, *flags], stdout=log, stderr=log, cwd=self.folder))

    def wait(self, what: str, holds: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """Wait until something holds, and return it. Fails with the end of the logs."""
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            ended = [process.args for process in self.processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = {path.name: path.read_text()[-1500:] for path in self.folder.glob("*.log")}
                pytest.fail(f"{what}: not within {seconds:.0f} s; ended: {ended}; {logs}")
            time.sleep(0.1)
        return found


def binaries() -> Path:
    """The folder with the binaries. Skips, with the reason, where there is none."""
    folder = Path(os.environ.get(VARIABLE) or "/nonexistent")
    for name in ("etcd", "kube-apiserver"):
        if not (folder / name).exists():
            pytest.skip(
                f"{VARIABLE} names no folder with {name}: `setup-envtest use -p path` prepares one (docs/eks.md)"
            )
    if not (folder / "kubectl").exists() and not shutil.which("kubectl"):
        pytest.skip(f"there is no kubectl, neither in {VARIABLE} nor in PATH")
    return folder


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane of its own, empty; it ends with the block."""
    found = binaries()
    plane = ControlPlane(folder, free_ports(1)[0], found)
    try:
        _start(plane)
        yield plane
    finally:
        for process in reversed(plane.processes):  # its state is thrown away: no need to end in order
            process.kill()
            process.wait()


def _start(plane: ControlPlane) -> None:
    folder, (client, peer) = plane.folder, (free_ports(1)[0], free_ports(1)[0])
    urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
    plane.start(
        "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={urls['client']}", "--unsafe-no-fsync",
        f"--advertise-client-urls={urls['client']}", f"--listen-peer-urls={urls['peer']}",
        f"--initial-advertise-peer-urls={urls['peer']}", f"--initial-cluster=default={urls['peer']}",
    )  # fmt: skip
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    rows = [f'{name},{name},{name},"{",".join(groups)}"' for name, groups in USERS.items()]
    (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
    plane.start(
        "kube-apiserver", f"--etcd-servers={urls['client']}", f"--cert-dir={folder}/certificates",
        f"--secure-port={plane.port}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/16", "--allow-privileged=true",
        "--authorization-mode=Node,RBAC", f"--token-auth-file={folder}/tokens.csv",
        f"--enable-admission-plugins={ADMISSION}", "--service-account-issuer=https://127.0.0.1",
        f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
    )  # fmt: skip
    plane.wait("the API server", lambda: _is_ready(plane))
    common = ("--leader-elect=false", "--secure-port=0")
    if plane.has_controllers:
        own = plane.kubeconfig("system:kube-controller-manager")
        plane.start(
            "kube-controller-manager", f"--kubeconfig={own}", f"--controllers={CONTROLLERS}",
            f"--service-account-private-key-file={key}", f"--root-ca-file={plane.certificate}",
            "--use-service-account-credentials=true", *common,
        )  # fmt: skip
    if plane.has_scheduler:
        plane.start("kube-scheduler", f"--kubeconfig={plane.kubeconfig('system:kube-scheduler')}", *common)


def _is_ready(plane: ControlPlane) -> bool:
    if not plane.certificate.exists():
        return False
    try:
        ready = plane.request("GET", "/readyz").status == 200
        return ready and plane.request("GET", "/api/v1/namespaces/default").status == 200
    except urllib3.exceptions.HTTPError:
        return False


def definition(path: Path) -> KubeObject:
    """A CustomResourceDefinition made of one of our schemas: GROUP.KIND.VERSION.json."""
    group, kind, version = path.stem.rsplit(".", 2)
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    schema = _structural(json.loads(path.read_text()))
    metadata = schema["properties"].get("metadata", {})
    schema["properties"]["metadata"] = {  # of metadata a definition may limit the name, and nothing else
        "type": "object", **({"properties": metadata["properties"]} if "properties" in metadata else {}),
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced" if group == "trainer.kubeflow.org" else "Cluster",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }  # fmt: skip


def _structural(node: Any) -> Any:
    """JSON Schema as the API server takes it: there unknown fields are refused unless a schema says that they are kept."""
    if not isinstance(node, dict):
        return node
    if "const" in node:
        return {"type": "string", "enum": [node["const"]]}
    if isinstance(node.get("type"), list) or "anyOf" in node:
        return {"x-kubernetes-int-or-string": True}
    made = {
        name: value
        for name, value in node.items()
        if not name.startswith("$") and not (name == "additionalProperties" and value is False)
    }
    if "properties" in made:
        made["properties"] = {name: _structural(value) for name, value in made["properties"].items()}
    elif made.get("type") == "object" and "additionalProperties" not in made:
        made["x-kubernetes-preserve-unknown-fields"] = True
    for name in ("items", "additionalProperties"):
        if name in made:
            made[name] = _structural(made[name])
    return made
