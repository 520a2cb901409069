"""Requests to a Kubernetes API server as plain objects, through the `kubernetes` client.

An EKS cluster is reached with the credentials of AWS: its address and certificate come from DescribeCluster, and the token is
a presigned request to STS, as `aws eks get-token` makes it. Any other cluster is reached by a kubeconfig.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...aws import AwsSession, Call, CloudError, cloud_errors
from ...config import EksConfig, MissingExtra, SkytrainError, variable
from ...storage import Patience, Retry

KubeObject = dict[str, Any]
TOKEN_PREFIX = "k8s-aws-v1."
TOKEN_HEADER = "x-k8s-aws-id"
TOKEN_SECONDS = 600.0  # EKS takes a token for 15 minutes
URL_SECONDS = 60
REQUEST_SECONDS = 30.0
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"  # Kubernetes sets it in every pod
OUTAGE = Retry(seconds=60.0, first_wait_seconds=0.5, longest_wait_seconds=10.0)
PLURALS = {"Job": "jobs", "Service": "services", "ConfigMap": "configmaps", "Pod": "pods", "TrainJob": "trainjobs",
           "TrainingRuntime": "trainingruntimes", "Deployment": "deployments", "Event": "events",
           "ResourceQuota": "resourcequotas", "Secret": "secrets", "HorizontalPodAutoscaler": "horizontalpodautoscalers", "Node": "nodes"}  # fmt: skip


class KubeError(CloudError):
    """A request that Kubernetes refused or did not answer. `status` is the HTTP status, 0 without an answer."""

    def __init__(self, problem: str, *, fix: str, cause: str = "preflight", status: int = 0, reason: str = "") -> None:
        super().__init__(problem, fix=fix, cause=cause, code=reason)
        self.status = status


@dataclass(frozen=True)
class KubeKind:
    """The objects of one kind in one namespace, as part of a path."""

    version: str  # batch/v1; v1 for the core
    kind: str
    namespace: str

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> KubeKind:
        return cls(item["apiVersion"], item["kind"], item["metadata"]["namespace"])

    def path(self, name: str = "") -> str:
        root = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        where = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{where}/{PLURALS[self.kind]}" + (f"/{quote(name)}" if name else "")


class KubeCluster:
    """A cluster. Requests that only read are tried again while the server does not answer; others are sent once."""

    def __init__(self, api: Any, name: str, wait: Callable[[float], None] = time.sleep) -> None:
        self._api = api
        self.name = name
        self._wait = wait

    def get(self, kind: KubeKind, name: str) -> KubeObject | None:
        """Return the object; None if there is none."""
        try:
            return self._json("GET", kind.path(name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def items(self, kind: KubeKind, **query: str) -> list[KubeObject]:
        """Return the objects that match, in all pages: labelSelector=..., fieldSelector=..."""
        items: list[KubeObject] = []
        more = ""
        while True:
            pages = {"limit": "500", **({"continue": more} if more else {})}
            try:
                page = self._json("GET", kind.path(), {**query, **pages})
            except KubeError as error:
                if error.status != 410 or not more:  # the rest of an old list is gone: from the start
                    raise
                items = []
                more = ""
                continue
            # Objects in a list do not say what they are: the list does.
            items += [{"apiVersion": kind.version, "kind": kind.kind, **item} for item in page["items"]]
            more = page.get("metadata", {}).get("continue", "")
            if not more:
                return items

    def create(self, item: KubeObject, *, dry_run: bool = False) -> KubeObject:
        """Create an object; fields that the cluster does not know are refused. A dry run only checks it."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._json("POST", KubeKind.of(item).path(), query, item)

    def patch(self, kind: KubeKind, name: str, change: Mapping[str, Any]) -> KubeObject:
        return self._json("PATCH", kind.path(name), {}, dict(change), "application/merge-patch+json")

    def delete(self, kind: KubeKind, name: str) -> bool:
        """Delete an object and what it owns; False if there was none."""
        try:
            self._json("DELETE", kind.path(name), {"propagationPolicy": "Background"})
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    def log(self, namespace: str, pod: str, lines: int | None) -> str:
        """Return the end of what a pod's container has written."""
        query = {"tailLines": str(lines)} if lines else {}
        path = f"{KubeKind('v1', 'Pod', namespace).path(pod)}/log"
        return self._once("GET", path, query, None, "")  # a failure is mostly the node's, which may be gone for good

    def watch_pods(self, namespace: str, selector: str, seconds: float) -> Iterator[KubeObject]:
        """Yield the pods of a selection, and each again whenever it changes, for so many seconds.

        A watch that expires (410 Gone) or is cut off begins again, with all pods as they are then.
        """
        from kubernetes.client import CoreV1Api
        from kubernetes.client.exceptions import ApiException
        from kubernetes.watch import Watch
        from urllib3.exceptions import HTTPError

        deadline = time.monotonic() + seconds
        patience = Patience(OUTAGE)
        while (left := deadline - time.monotonic()) > 0:
            try:
                pods = CoreV1Api(self._api).list_namespaced_pod
                for event in Watch().stream(
                    pods, namespace, label_selector=selector, timeout_seconds=max(1, int(left))
                ):
                    patience.recovered()
                    yield event["raw_object"]
                if time.monotonic() < deadline - 1:
                    self._wait(1.0)  # the server ends watches early: not as fast as it can
            except ApiException as error:
                wait = patience.failed() if error.status in (0, 410, 429, 500, 502, 503, 504) else None
                if wait is None:
                    raise refusal(self.name, "a watch of pods", int(error.status or 0), str(error.body or "")) from None
                self._wait(wait)
            except (HTTPError, OSError) as error:
                if (wait := patience.failed()) is None:
                    raise KubeError(
                        f"cluster {self.name} does not answer: {error}", fix="is its endpoint reachable from here?"
                    ) from None
                self._wait(wait)

    def _json(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None,
              content: str = "application/json") -> KubeObject:  # fmt: skip
        text = self._text(method, path, query or {}, body, content)
        try:
            answer: KubeObject = json.loads(text)
        except ValueError:
            raise KubeError(
                f"cluster {self.name}: the answer to {method} {path} is not JSON: {text[:80]!r}",
                fix="check the address of the cluster: something else answers there",
            ) from None
        return answer

    def _text(self, method: str, path: str, query: Mapping[str, str], body: Any = None,
              content: str = "application/json") -> str:  # fmt: skip
        patience = Patience(OUTAGE)
        while True:
            try:
                return self._once(method, path, query, body, content)
            except KubeError as error:
                transient = error.status in (0, 429, 500, 502, 503, 504)
                wait = patience.failed() if transient and (method == "GET" or error.status in (429, 503)) else None
                if wait is None:
                    raise
                self._wait(wait)

    def _once(self, method: str, path: str, query: Mapping[str, str], body: Any, content: str) -> str:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*", **({"Content-Type": content} if body is not None else {})}
        sent = self._api.param_serialize(
            method=method, resource_path=path, query_params=list(query.items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            response = self._api.call_api(*sent, _request_timeout=REQUEST_SECONDS)
            data = response.read()
        except (HTTPError, OSError, ApiException) as error:
            reason = getattr(error, "reason", None) or error
            raise KubeError(
                f"cluster {self.name} does not answer {method} {path}: {reason}",
                fix="is its endpoint reachable from here? A private one is reached from the VPC, or through a VPN",
            ) from error
        text = (data or b"").decode(errors="replace")
        if not 200 <= response.status < 300:
            raise refusal(self.name, f"{method} {path}", response.status, text)
        return text


def refusal(cluster: str, request: str, status: int, text: str) -> KubeError:
    """Return the error of a request that the server refused: what it said, and what to do."""
    try:
        said: dict[str, Any] = json.loads(text)
    except ValueError:
        said = {}
    message = said.get("message") or text.strip()[:300] or "no message"
    reason = said.get("reason", "")
    problem = f"cluster {cluster} refused {request}: {status} {message}"
    fix = "follow the message"
    cause = "usage" if status in (400, 409, 422) else "preflight"
    if status == 401:
        cause = "credentials"
        fix = "the cluster does not know this identity: an access entry for its role (infra/terraform/eks), or another profile"
    elif status == 403 and "exceeded quota" in message:
        cause = "quota"
        fix = "the namespace's ResourceQuota is used up: end another run, plan fewer GPUs, or raise it"
    elif status == 403:
        cause = "credentials"
        fix = "the role needs the group skytrain:operators in the cluster (infra/kubernetes)"
    elif status == 404:
        fix = "is the namespace there (infra/kubernetes), and for cloud.eks.job_kind=trainjob Kubeflow Trainer v2?"
    elif status == 409:
        fix = "an object of that name exists already: choose another run=NAME, or end the run that owns it"
    return KubeError(problem, fix=fix, cause=cause, status=status, reason=reason)


def open_cluster(eks: EksConfig, session: Callable[[], AwsSession]) -> KubeCluster:
    """Connect to the cluster of the settings; nothing is sent to it yet. Raises SkytrainError for bad settings."""
    try:
        from kubernetes import client, config as kube_config
    except ImportError:
        raise MissingExtra("kubernetes", "eks") from None
    if eks.cluster is not None and eks.kubeconfig is not None:
        raise SkytrainError("cloud.eks.cluster and cloud.eks.kubeconfig are both set\n  leave out one of them")
    settings = client.Configuration()
    settings.retries = False  # ours are enough
    if eks.cluster is not None:
        _configure(settings, eks.cluster, session())
        return KubeCluster(client.ApiClient(settings), eks.cluster)
    if eks.kubeconfig is None and variable(IN_CLUSTER):
        kube_config.load_incluster_config(client_configuration=settings)
        return KubeCluster(client.ApiClient(settings), "of this pod")
    if eks.kubeconfig is None:
        raise SkytrainError(
            "no cluster is set\n  cloud.eks.cluster=NAME for an EKS cluster, or cloud.eks.kubeconfig=FILE; "
            "`aws eks list-clusters` shows the names"
        )
    path = Path(eks.kubeconfig).expanduser()
    try:
        kube_config.load_kube_config(str(path), context=eks.context, client_configuration=settings)
    except (kube_config.ConfigException, OSError) as error:
        raise SkytrainError(
            f"cloud.eks.kubeconfig={eks.kubeconfig}: {error}\n  `kubectl config get-contexts` shows what it has"
        ) from None
    return KubeCluster(client.ApiClient(settings), eks.context or path.name)


def _configure(settings: Any, name: str, session: AwsSession) -> None:
    try:
        cluster = session.perform(Call("eks", "DescribeCluster", {"name": name}))["cluster"]
    except CloudError as error:
        if error.code != "ResourceNotFoundException":
            raise
        raise CloudError(
            f"there is no EKS cluster {name} in {session.region}", code=error.code,
            fix="check cloud.eks.cluster and cloud.region: `aws eks list-clusters` shows those of a region",
        ) from None  # fmt: skip
    if cluster["status"] not in ("ACTIVE", "UPDATING"):
        raise CloudError(
            f"the EKS cluster {name} is {cluster['status'].lower()}",
            fix="wait until it is active, then the same command",
        )
    settings.host = cluster["endpoint"]
    settings.ca_cert_data = base64.b64decode(cluster["certificateAuthority"]["data"]).decode()
    token = EksToken(session, name)
    settings.api_key_prefix["BearerToken"] = "Bearer"
    settings.api_key["BearerToken"] = token.current()

    def refresh(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = token.current()

    settings.refresh_api_key_hook = refresh


class EksToken:
    """A bearer token for an EKS cluster, made again before it expires."""

    def __init__(self, session: AwsSession, cluster: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._cluster = cluster
        self._clock = clock
        self._token = ""
        self._made = 0.0
        self._lock = threading.Lock()

    def current(self) -> str:
        with self._lock:
            if not self._token or self._clock() - self._made > TOKEN_SECONDS:
                self._token, self._made = eks_token(self._session, self._cluster), self._clock()
            return self._token


def eks_token(session: AwsSession, cluster: str) -> str:
    """Return a token: a presigned GetCallerIdentity whose signature covers the cluster's name. Nothing is sent."""
    sts = session.client("sts")

    def name_cluster(request: Any, **_: Any) -> None:
        request.headers[TOKEN_HEADER] = cluster

    event = "before-sign.sts.GetCallerIdentity"
    sts.meta.events.register(event, name_cluster)
    try:
        with cloud_errors():
            url = sts.generate_presigned_url("get_caller_identity", ExpiresIn=URL_SECONDS, HttpMethod="GET")
    finally:
        sts.meta.events.unregister(event, name_cluster)
    return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
