"""Who may do what in the cluster, as a real API server decides it: a table of allowed and denied requests."""

from __future__ import annotations

import pytest

from tests.support.control_plane import ControlPlane

pytestmark = pytest.mark.slow
GROUPS = {"operator": "skytrain:operators", "viewer": "skytrain:viewers"}
ACCOUNTS = {
    "stranger": "ada@example.com",
    "train": "system:serviceaccount:skytrain-training:skytrain-train",
    "operator-account": "system:serviceaccount:skytrain-training:skytrain-operator",
    "training-default": "system:serviceaccount:skytrain-training:default",
    "serve": "system:serviceaccount:skytrain-serving:skytrain-serve",
    "prometheus": "system:serviceaccount:skytrain-monitoring:prometheus",
    "kube-state-metrics": "system:serviceaccount:skytrain-monitoring:kube-state-metrics",
    "grafana": "system:serviceaccount:skytrain-monitoring:grafana",
    "adapter": "system:serviceaccount:skytrain-monitoring:prometheus-adapter",
    "devices": "system:serviceaccount:skytrain-devices:devices",
    "autoscaler": "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
    "karpenter": "system:serviceaccount:kube-system:karpenter",  # its chart gives it more
}
TRAINER, METRICS = "trainer.kubeflow.org", "custom.metrics.k8s.io"
# Who; verbs; GROUP/RESOURCE[/SUBRESOURCE][:NAME], the core group without a word; namespaces (* for the whole cluster).
ALLOWED = """
operator          get,list,watch,create,patch,delete  batch/jobs                        training
operator          get,list,watch,create,patch,delete  /services                         training
operator          get,list,watch,create,patch,delete  /configmaps                       training
operator          get,list,watch,create,patch,delete  trainer.kubeflow.org/trainjobs    training
operator          get,list,watch,create,patch,delete  trainer.kubeflow.org/trainingruntimes training
operator          get,list,watch,delete               /pods                             training
operator          get                                 /pods/log                         training,serving,monitoring,devices
operator          get,list                            /events                           training,serving,monitoring,devices
operator          get,list                            /resourcequotas                   training,serving
operator          get,list,watch,patch,update         apps/deployments:vllm             serving
operator          get,patch,update                    apps/deployments/scale:vllm       serving
operator          patch,update                        /configmaps:vllm-model            serving
operator          get,list,watch,create,patch,delete  autoscaling/horizontalpodautoscalers serving
operator          get,list,watch                      /nodes                            *
viewer            get,list,watch                      /pods                             training,serving,monitoring,devices
viewer            get                                 /pods/log                         training,serving,monitoring,devices
viewer            get,list,watch                      batch/jobs                        training,serving,monitoring,devices
viewer            get,list,watch                      trainer.kubeflow.org/trainjobs    training
viewer            get,list,watch                      /nodes                            *
operator-account  get,list,create,patch,delete        batch/jobs                        training
operator-account  create,patch                        /services                         training
prometheus        get,list,watch                      /pods                             training,serving,monitoring,devices
kube-state-metrics list,watch                         batch/jobs                        training,serving
kube-state-metrics list,watch                         apps/deployments                  serving,monitoring
adapter           create                              authentication.k8s.io/tokenreviews *
adapter           list,watch                          /pods                             *
autoscaler        get,list                            custom.metrics.k8s.io/pods/vllm_num_requests_running serving
"""
DENIED = """
operator          get,list,watch,create,patch,delete  /secrets                          training,serving,monitoring,devices,*
operator          get                                 /secrets:vllm-api-key             serving
operator          create                              /pods                             training,serving,monitoring,devices
operator          patch,update                        /pods                             training,serving
operator          create,get                          /pods/exec                        training,serving
operator          create,get                          /pods/attach                      training,serving
operator          create,get                          /pods/portforward                 training,serving
operator          patch,update                        /pods/ephemeralcontainers         training,serving
operator          create,get                          /pods/proxy                       training,serving
operator          create,get                          /services/proxy                   training,serving
operator          create                              /serviceaccounts/token            training,serving,monitoring
operator          create,patch                        /serviceaccounts                  training,serving
operator          create,patch,delete                 /services                         serving,monitoring,devices
operator          patch,update                        /services/status                  training,serving
operator          create,patch                        discovery.k8s.io/endpointslices   training,serving
operator          create,delete                       apps/deployments                  training,serving
operator          patch                               apps/deployments:other            serving
operator          create                              apps/daemonsets                   training,serving,devices
operator          create                              apps/statefulsets                 training,serving,monitoring
operator          create,patch                        batch/cronjobs                    training
operator          create                              batch/jobs                        serving,monitoring,devices
operator          patch                               /configmaps:other                 serving
operator          create,patch,delete                 /resourcequotas                   training,serving
operator          create,patch,delete                 networking.k8s.io/networkpolicies training,serving
operator          create,patch,bind,escalate          rbac.authorization.k8s.io/roles   training,serving
operator          create,patch                        rbac.authorization.k8s.io/rolebindings training,serving
operator          create,patch,delete                 rbac.authorization.k8s.io/clusterroles *
operator          impersonate                         /users                            *
operator          impersonate                         /serviceaccounts                  training
operator          patch,delete                        admissionregistration.k8s.io/validatingadmissionpolicies *
operator          patch,delete                        /namespaces                       *
operator          patch,delete,create                 /nodes                            *
operator          get                                 /nodes/proxy                      *
operator          patch,create                        karpenter.sh/nodepools            *
operator          create                              certificates.k8s.io/certificatesigningrequests *
operator          list                                /pods                             kube-system,*
viewer            get,list                            /secrets                          training,serving,monitoring,devices,*
viewer            create,patch,delete                 batch/jobs                        training
viewer            delete                              /pods                             training
viewer            create                              /pods/exec                        training,serving
viewer            patch                               apps/deployments:vllm             serving
viewer            patch                               apps/deployments/scale:vllm       serving
viewer            create,patch,delete                 /configmaps                       training,serving
train             get,list,create                     /pods                             training
train             get,list                            /secrets                          training
train             get,list,create                     batch/jobs                        training
train             get,list                            /configmaps                       training
training-default  get,list                            /pods                             training
training-default  create                              batch/jobs                        training
serve             get,list                            /secrets                          serving
serve             get,list                            /pods                             serving
operator-account  get,list                            /secrets                          training,serving
operator-account  create                              /pods                             training
operator-account  create                              /pods/exec                        training
operator-account  get,list                            apps/deployments                  serving
operator-account  create                              /serviceaccounts/token            training
prometheus        get,list                            /secrets                          training,serving,monitoring,*
prometheus        list                                /pods                             kube-system,*
prometheus        get                                 /nodes/proxy                      *
prometheus        create                              /pods                             monitoring
kube-state-metrics list                               /secrets                          training,serving,monitoring,*
kube-state-metrics list                               /configmaps                       training,serving
grafana           list                                /pods                             training,monitoring
grafana           get                                 /secrets                          monitoring
adapter           list                                /secrets                          *
adapter           create                              /pods                             monitoring
devices           get,list                            /pods                             devices
devices           get                                 /nodes                            *
karpenter         get,list                            /secrets                          training,serving,monitoring,devices
stranger          get,list                            /pods                             training,serving
stranger          get,list                            batch/jobs                        training
stranger          get                                 /secrets                          serving
stranger          list                                /nodes                            *
"""


def decided(plane: ControlPlane, who: str, verb: str, what: str, place: str) -> bool:
    group, _, rest = what.partition("/")
    rest, _, name = rest.partition(":")
    resource, _, subresource = rest.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}
    if place != "*":
        attributes["namespace"] = place if place == "kube-system" else f"skytrain-{place}"
    user = {"user": f"{who}@example.com", "groups": [GROUPS[who]]} if who in GROUPS else {"user": ACCOUNTS[who]}
    parts = str(user["user"]).split(":")
    if parts[0] == "system":
        user["groups"] = ["system:serviceaccounts", f"system:serviceaccounts:{parts[2]}"]
    user["groups"] = [*user.get("groups", []), "system:authenticated"]
    review = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {**user, "resourceAttributes": attributes},
    }  # fmt: skip
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.accepted, answer.body
    return bool(answer.body["status"]["allowed"])


def questions(table: str) -> list[tuple[str, str, str, str]]:
    found = []
    for line in table.strip().splitlines():
        who, verbs, what, places = line.split()
        found += [(who, verb, what, place) for verb in verbs.split(",") for place in places.split(",")]
    return found


def test_everyone_may_do_what_the_table_allows_and_nothing_that_it_denies(plane: ControlPlane) -> None:
    asked = [(True, each) for each in questions(ALLOWED)] + [(False, each) for each in questions(DENIED)]
    assert len(asked) >= 300 and {each[0] for _, each in asked} == {*GROUPS, *ACCOUNTS}
    wrong = [(each, "denied" if allowed else "allowed") for allowed, each in asked if decided(plane, *each) != allowed]
    assert wrong == []


def test_an_operator_cannot_read_the_key_by_any_request(plane: ControlPlane) -> None:
    """The table in deeds: a Secret is there, and these are the ways to it that a review would try."""
    place = "/api/v1/namespaces/skytrain-serving"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "vllm-api-key"},
        "stringData": {"api-key": "x"},
    }
    plane.request("POST", f"{place}/secrets", secret)
    assert plane.request("GET", f"{place}/secrets/vllm-api-key").accepted
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "x"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}],
    }  # fmt: skip
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    tries = [
        ("GET", f"{place}/secrets/vllm-api-key", None),
        ("GET", f"{place}/secrets", None),
        ("GET", "/api/v1/secrets", None),
        ("POST", f"{place}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}),
        ("POST", f"{place}/serviceaccounts/skytrain-serve/token", token),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/skytrain-serving/rolebindings", binding),
        ("POST", f"{place}/pods/vllm-0/exec", None),
    ]
    for method, path, body in tries:
        answer = plane.request(method, path, body, user="ada")
        assert answer.status == 403 and answer.body["reason"] == "Forbidden", (path, answer.body)
