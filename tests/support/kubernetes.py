"""A Kubernetes API server on this machine: objects are checked against the schemas of Kubernetes, and jobs have pods.

It keeps state as the real one does: names are unique, deletion cascades to what an object owns, and a job replaces pods
that fail by its own failure policy. Faults are switched on by the test.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import kubernetes_validate

VERSIONS = ("1.35", "1.36")  # that EKS supports
SCHEMAS = Path(__file__).parents[2] / "infra/kubernetes/schemas"
INDEX = "batch.kubernetes.io/job-completion-index"
TOKEN = "a-token"
NAMESPACES = ("skytrain-training", "skytrain-serving")

KubeObject = dict[str, Any]


def check_object(item: KubeObject) -> None:
    """Raises AssertionError for an object that two versions of Kubernetes, or its own CRD, would refuse."""
    if "." in item["apiVersion"].partition("/")[0]:
        _check_custom(item)
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise AssertionError(f"{item['kind']} {'.'.join(map(str, error.path))}: {error.message}") from None


@functools.cache
def _schema(group: str, kind: str, version: str) -> Any:
    return json.loads((SCHEMAS / f"{group}.{kind}.{version}.json").read_text())


def _check_custom(item: KubeObject) -> None:
    group, _, version = item["apiVersion"].partition("/")
    try:
        jsonschema.validate(item, _schema(group, item["kind"], version))
    except jsonschema.ValidationError as error:
        raise AssertionError(f"{item['kind']} {'.'.join(map(str, error.path))}: {error.message}") from None
    for job in item["spec"].get("template", {}).get("spec", {}).get("replicatedJobs", []):
        check_object(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job["template"]["spec"]}
        )


@dataclass
class Faults:
    """What goes wrong next. `cut` and `unavailable` count requests; `refused` names kinds of objects."""

    unauthorized: bool = False
    refused: set[str] = field(default_factory=set)
    quota: str = ""
    cut: int = 0
    unavailable: int = 0
    expired_lists: int = 0
    page: int = 500
    held_rollouts: bool = False
    cut_watches: int = 0
    gone_watches: int = 0
    lost_answers: set[str] = field(default_factory=set)  # kinds that are created without an answer
    lost_logs: set[str] = field(default_factory=set)  # pods whose node does not answer


class LocalCluster:
    """The state of the cluster, and what a test does to its pods."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], KubeObject] = {}  # plural, namespace, name
        self.faults, self.requests, self.logs = Faults(), list[str](), dict[str, str]()
        self.lock, self._numbers = threading.RLock(), itertools.count(1)
        self.address = ""

    def all(self, plural: str) -> list[KubeObject]:
        return [item for (kind, _, _), item in sorted(self.objects.items()) if kind == plural]

    def add(self, plural: str, item: KubeObject) -> KubeObject:
        item = copy.deepcopy(item)
        metadata = item["metadata"]
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        metadata |= {
            "uid": str(uuid.uuid4()), "creationTimestamp": now, "resourceVersion": str(next(self._numbers)),
        }  # fmt: skip
        self.objects[plural, metadata["namespace"], metadata["name"]] = item
        if plural == "jobs":
            item["status"] = {}
            for index in range(item["spec"]["completions"]):
                self._add_pod(item, index)
        return item

    def _add_pod(self, job: KubeObject, index: int) -> None:
        template, name = job["spec"]["template"], f"{job['metadata']['name']}-{index}-{next(self._numbers):05x}"
        annotations = {**template["metadata"]["annotations"], INDEX: str(index)}
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
        }
        metadata = {
            "name": name, "namespace": job["metadata"]["namespace"], "labels": template["metadata"]["labels"],
            "annotations": annotations, "ownerReferences": [owner],
        }  # fmt: skip
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        check_object(pod)
        self.add("pods", {**pod, "status": {"phase": "Pending"}})

    def delete(self, plural: str, namespace: str, name: str) -> bool:
        item = self.objects.pop((plural, namespace, name), None)
        if item is None:
            return False
        for key, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences", [])
            if key in self.objects and any(owner["uid"] == item["metadata"]["uid"] for owner in owners):
                self.delete(*key)
        return True

    # What a test does, as the scheduler, a kubelet and the job controller would.

    def pods(self, phase: str | None = None) -> list[KubeObject]:
        return [pod for pod in self.all("pods") if phase in (None, pod["status"]["phase"])]

    def roll_out(self, deployment: KubeObject) -> None:
        """As the deployment controller does, unless a fault holds its pods back."""
        metadata, wanted = deployment["metadata"], deployment["spec"]["replicas"]
        metadata["generation"] = metadata.get("generation", 1) + 1
        deployment["status"] = {"observedGeneration": metadata["generation"]}
        ready = 0 if self.faults.held_rollouts else wanted
        deployment["status"] |= {"updatedReplicas": wanted, "availableReplicas": ready}

    def run_pods(self) -> None:
        for number, pod in enumerate(self.pods("Pending")):
            pod["spec"] = {**pod["spec"], "nodeName": f"node-{number}"}
            pod["status"] = {"phase": "Running", "podIP": f"10.0.0.{number + 1}"}

    def hold(self, message: str) -> None:
        """No node takes the pods."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        for pod in self.pods("Pending"):
            pod["status"]["conditions"] = [condition]

    def fail_to_pull(self, message: str) -> None:
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
        for pod in self.pods("Pending"):
            pod["status"]["containerStatuses"] = [{"name": "agent", "state": waiting}]

    def end_pod(self, pod: KubeObject, exit_code: int, message: str = "", disrupted: bool = False) -> None:
        """A container ends; the job's failure policy decides what follows."""
        ended = {"exitCode": exit_code, "reason": "Completed" if exit_code == 0 else "Error", "message": message}
        condition = [{"type": "DisruptionTarget", "status": "True"}] if disrupted else []
        pod["status"] = {
            "phase": "Succeeded" if exit_code == 0 else "Failed", "conditions": condition,
            "containerStatuses": [{"name": "agent", "state": {"terminated": ended}}],
        }  # fmt: skip
        owner, namespace = pod["metadata"]["ownerReferences"][0]["name"], pod["metadata"]["namespace"]
        job = self.objects["jobs", namespace, owner]
        status, spec = job["status"], job["spec"]
        if _target(status):
            self._end_failing(job)
            return
        if exit_code == 0:
            status["succeeded"] = status.get("succeeded", 0) + 1
            if status["succeeded"] == spec["completions"]:
                status["conditions"] = [{"type": "Complete", "status": "True"}]
            return
        action = _action(spec["podFailurePolicy"]["rules"], exit_code, disrupted)
        if action != "Ignore":
            status["failed"] = status.get("failed", 0) + 1
        if action == "FailJob" or status.get("failed", 0) > spec["backoffLimit"]:
            reason = "PodFailurePolicy" if action == "FailJob" else "BackoffLimitExceeded"
            said = f"Container agent for pod {namespace}/{pod['metadata']['name']} failed with exit code {exit_code}"
            status["conditions"] = [{"type": "FailureTarget", "status": "True", "reason": reason, "message": said}]
            self._end_failing(job)
            return
        self._add_pod(job, int(pod["metadata"]["annotations"][INDEX]))

    def _end_failing(self, job: KubeObject) -> None:
        """A job that fails deletes its other pods, and has failed when the last of them has ended."""
        running = self.pods("Running")
        for pod in running:
            pod["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat(timespec="seconds")
        if not running:
            job["status"]["conditions"].append({**_target(job["status"]), "type": "Failed"})


def _target(status: KubeObject) -> KubeObject:
    found = [each for each in status.get("conditions", []) if each["type"] == "FailureTarget"]
    return found[0] if found else {}


def _action(rules: list[KubeObject], exit_code: int, disrupted: bool) -> str:
    for rule in rules:
        if disrupted and any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", [])):
            return str(rule["action"])
        if exit_code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
    return "Count"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: LocalCluster

    def log_message(self, format: str, *args: Any) -> None:
        return

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        if query.get("watch", "").lower() == "true":
            with contextlib.suppress(ConnectionError):  # the client has seen enough
                self._watch(url.path, query)
            return
        with self.cluster.lock:
            answer = self._answer(url.path, query, body)
        if answer is None:  # the connection is cut
            self.close_connection = True
            self.connection.close()
            return
        status, said = answer
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, path: str, query: dict[str, str]) -> None:
        """Every object of the selection, and again when it has changed; faults end it early."""
        faults, sent = self.cluster.faults, dict[str, str]()
        self.cluster.requests.append(f"WATCH {path}")
        self.close_connection = True
        if faults.cut_watches:
            faults.cut_watches -= 1
            self.connection.close()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if faults.gone_watches:
            faults.gone_watches -= 1
            self._event("ERROR", _status(410, "Expired", "too old resource version")[1])
            return
        deadline = time.monotonic() + min(5.0, float(query.get("timeoutSeconds", "5")))
        words = path.strip("/").split("/")
        while time.monotonic() < deadline:
            with self.cluster.lock:
                found = self._selected(words[-1], words[-2], query)
                texts = {item["metadata"]["name"]: json.dumps(item) for item in found}
            for name, text in texts.items():
                if sent.get(name) != text:
                    self._event("MODIFIED" if name in sent else "ADDED", json.loads(text))
            sent = texts
            time.sleep(0.02)

    def _event(self, kind: str, item: KubeObject) -> None:
        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n" + (b"0\r\n\r\n" if kind == "ERROR" else b""))
        self.wfile.flush()

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _answer(self, path: str, query: dict[str, str], body: Any) -> tuple[int, Any] | None:
        faults = self.cluster.faults
        self.cluster.requests.append(f"{self.command} {path}")
        if faults.cut:
            faults.cut -= 1
            return None
        if faults.unavailable:
            faults.unavailable -= 1
            return _status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        if faults.unauthorized or self.headers.get("Authorization", "").removeprefix("Bearer ") != TOKEN:
            return _status(401, "Unauthorized", "Unauthorized")
        words = path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        namespace, plural, name, *rest = [*words[1:], ""]
        if namespace not in NAMESPACES and self.command == "POST":  # lists of a namespace that is not there are empty
            return _status(404, "NotFound", f'namespaces "{namespace}" not found')
        if plural in faults.refused:
            who = 'User "ada" cannot {} resource "{}" in API group "" in the namespace "{}"'
            return _status(403, "Forbidden", who.format(self.command.lower(), plural, namespace))
        if rest and rest[0] == "log" and name in faults.lost_logs:
            return _status(500, "InternalError", "no preferred addresses found; known addresses: []")
        if rest and rest[0] == "log":
            return 200, self._log(name, query)
        if self.command == "POST":
            return self._create(plural, namespace, query, body)
        if self.command == "GET" and not name:
            return self._list(plural, namespace, query)
        item = self.cluster.objects.get((plural, namespace, name))
        if item is None:
            return _status(404, "NotFound", f'{plural} "{name}" not found')
        if self.command == "DELETE":
            self.cluster.delete(plural, namespace, name)
            return _status(200, "", "deleted")
        if self.command == "PATCH":
            _merge(item, body)
            check_object({name: value for name, value in item.items() if name != "status"})
            if plural == "deployments":
                self.cluster.roll_out(item)
        return 200, item

    def _log(self, name: str, query: dict[str, str]) -> str:
        lines = self.cluster.logs.get(name, "").splitlines()
        return "\n".join(lines[-int(query.get("tailLines", "100")) :]) + "\n"

    def _create(self, plural: str, namespace: str, query: dict[str, str], body: KubeObject) -> tuple[int, Any] | None:
        faults, name = self.cluster.faults, body["metadata"]["name"]
        try:
            assert query.get("fieldValidation") == "Strict"
            check_object(body)
        except AssertionError as error:
            return _status(400, "BadRequest", str(error))
        if (plural, namespace, name) in self.cluster.objects:
            return _status(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if faults.quota and plural == "jobs":
            return _status(403, "Forbidden", f'jobs.batch "{name}" is forbidden: exceeded quota: {faults.quota}')
        if query.get("dryRun") == "All":
            return 201, body
        made = self.cluster.add(plural, body)
        return None if plural in faults.lost_answers else (201, made)

    def _selected(self, plural: str, namespace: str, query: dict[str, str]) -> list[KubeObject]:
        wanted = dict(word.split("=", 1) for word in query.get("labelSelector", "").split(",") if word)
        found = [
            item
            for item in self.cluster.all(plural)
            if item["metadata"]["namespace"] == namespace
            and wanted.items() <= item["metadata"].get("labels", {}).items()
        ]
        fields = dict(word.split("=", 1) for word in query.get("fieldSelector", "").split(",") if word)
        return [item for item in found if all(_at(item, path) == value for path, value in fields.items())]

    def _list(self, plural: str, namespace: str, query: dict[str, str]) -> tuple[int, Any]:
        found = self._selected(plural, namespace, query)
        start = int(query.get("continue", "0"))
        if start and self.cluster.faults.expired_lists:
            self.cluster.faults.expired_lists -= 1
            return _status(410, "Expired", "The provided continue parameter is too old")
        end = start + min(int(query["limit"]), self.cluster.faults.page)
        more = {"continue": str(end)} if end < len(found) else {}
        items = [_as_listed(item) for item in found[start:end]]
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": more, "items": items}


def _as_listed(item: KubeObject) -> KubeObject:
    """Objects of Kubernetes' own kinds have neither kind nor apiVersion in a list; custom ones do."""
    if "." in item["apiVersion"].partition("/")[0]:
        return item
    return {name: value for name, value in item.items() if name not in ("kind", "apiVersion")}


def _at(item: KubeObject, path: str) -> Any:
    for name in path.split("."):
        item = item.get(name, {})
    return item


def _status(code: int, reason: str, message: str) -> tuple[int, KubeObject]:
    kind = "Success" if code < 300 else "Failure"
    return code, {"kind": "Status", "status": kind, "code": code, "reason": reason, "message": message}


def _merge(item: KubeObject, change: KubeObject) -> None:
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(item.get(name), dict):
            _merge(item[name], value)
        elif value is None:
            item.pop(name, None)
        else:
            item[name] = value


@contextmanager
def local_cluster() -> Iterator[LocalCluster]:
    cluster = LocalCluster()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": cluster}))
    server.daemon_threads = True
    cluster.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()


def write_kubeconfig(path: Path, cluster: LocalCluster, token: str = TOKEN) -> None:
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "local", "cluster": {"server": cluster.address}}],
                "users": [{"name": "ada", "user": {"token": token}}],
                "contexts": [{"name": "local", "context": {"cluster": "local", "user": "ada"}}],
                "current-context": "local",
            }
        )
    )
