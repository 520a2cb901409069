"""Who may talk to whom in the cluster: a table of flows, decided over the rendered manifests."""

from __future__ import annotations

import pytest

from tests.infra.test_manifests import manifests as manifests  # the fixture
from tests.support.kubernetes_manifests import Manifest, pod_templates
from tests.support.network_policies import Address, Network, Peer, Pod

TRAINING = {"app.kubernetes.io/name": "skytrain", "app.kubernetes.io/component": "training", "skytrain/run": "gpt2"}
INTERNET, S3, IDENTITY_AGENT = Address("203.0.113.9"), Address("52.219.1.1"), Address("169.254.170.23")
METADATA, API_SERVER, OFFICE_IN_VPC = Address("169.254.169.254"), Address("10.42.3.7"), Address("10.42.200.9")
LOAD_BALANCER = Address("10.42.17.4")  # in one of its subnets


def peers(manifests: list[Manifest]) -> dict[str, Peer]:
    """The pods that the manifests start, those that `skytrain launch` starts, and the world around."""
    own: dict[str, Peer] = {
        name.split("/")[1]: Pod(each["namespace"], each["metadata"]["labels"])
        for name, each in pod_templates(manifests).items()
    }
    return own | {
        "trainer": Pod("skytrain-training", TRAINING),
        "other trainer": Pod("skytrain-training", {**TRAINING, "skytrain/run": "llama"}),
        "stray pod": Pod("skytrain-training", {"app": "stray"}),
        "stray in serving": Pod("skytrain-serving", {"app": "stray"}),
        "client": Pod("shop", {"app": "web"}),
        "stranger": Pod("other", {"app": "web"}),
        "impostor": Pod("other", {"app.kubernetes.io/name": "prometheus"}),
        "dns": Pod("kube-system", {"k8s-app": "kube-dns"}),
        "internet": INTERNET, "S3": S3, "identity agent": IDENTITY_AGENT, "instance metadata": METADATA,
        "API server": API_SERVER, "office in the VPC": OFFICE_IN_VPC, "load balancer": LOAD_BALANCER,
    }  # fmt: skip


ALLOWED = [
    ("trainer", "other trainer", 29500), ("trainer", "other trainer", 51234), ("trainer", "S3", 443),
    ("trainer", "identity agent", 80), ("prometheus", "trainer", 9464), ("prometheus", "vllm", 9000),
    ("prometheus", "dcgm-exporter", 9400), ("prometheus", "kube-state-metrics", 8080), ("prometheus", "API server", 443),
    ("grafana", "prometheus", 9090), ("prometheus-adapter", "prometheus", 9090), ("API server", "prometheus-adapter", 6443),
    ("client", "vllm", 8000), ("load balancer", "vllm", 8000), ("vllm", "S3", 443), ("vllm", "identity agent", 80),
    ("scheduled-training", "API server", 443), ("scheduled-training", "S3", 443), ("kube-state-metrics", "API server", 443),
]  # fmt: skip
DENIED = [
    ("trainer", "instance metadata", 80), ("trainer", "internet", 80), ("trainer", "internet", 22),
    ("trainer", "vllm", 8000), ("trainer", "prometheus", 9090), ("trainer", "grafana", 3000),
    ("internet", "trainer", 29500), ("office in the VPC", "trainer", 29500), ("stranger", "trainer", 29500),
    ("vllm", "trainer", 29500), ("stray pod", "trainer", 29500), ("trainer", "stray pod", 80), ("stray pod", "S3", 443),
    ("prometheus", "trainer", 29500), ("impostor", "trainer", 9464), ("grafana", "trainer", 9464),
    ("stranger", "vllm", 8000), ("internet", "vllm", 8000), ("client", "vllm", 22), ("stray in serving", "vllm", 8000),
    ("office in the VPC", "vllm", 8000), ("client", "vllm", 9000), ("load balancer", "vllm", 9000),
    ("prometheus", "vllm", 8000), ("client", "vllm", 8001), ("vllm", "office in the VPC", 443), ("vllm", "API server", 443),
    ("vllm", "internet", 80), ("vllm", "instance metadata", 80), ("vllm", "prometheus", 9090),
    ("grafana", "internet", 443), ("grafana", "API server", 443), ("stranger", "prometheus", 9090),
    ("stranger", "grafana", 3000), ("stranger", "dcgm-exporter", 9400), ("dcgm-exporter", "internet", 443),
    ("nvidia-device-plugin", "internet", 443), ("prometheus", "internet", 80), ("scheduled-training", "trainer", 29500),
]  # fmt: skip


@pytest.fixture(scope="module")
def network(manifests: list[Manifest]) -> Network:
    namespaces = {each["metadata"]["name"]: each["metadata"] for each in manifests if each["kind"] == "Namespace"}
    labels = {
        name: {**each.get("labels", {}), "kubernetes.io/metadata.name": name} for name, each in namespaces.items()
    }
    labels |= {name: {"kubernetes.io/metadata.name": name} for name in ("kube-system", "other")}
    labels["shop"] = {"kubernetes.io/metadata.name": "shop", "skytrain/serving-client": "true"}
    return Network([each for each in manifests if each["kind"] == "NetworkPolicy"], labels)


def test_every_flow_of_the_table_is_decided_as_it_says(network: Network, manifests: list[Manifest]) -> None:
    known = peers(manifests)
    allowed = {(a, b, port): network.allows(known[a], known[b], port) for a, b, port in [*ALLOWED, *DENIED]}
    assert [flow for flow in ALLOWED if not allowed[flow]] == [] and [flow for flow in DENIED if allowed[flow]] == []


def test_every_pod_of_ours_resolves_names_and_nothing_but_dns_answers(
    network: Network, manifests: list[Manifest]
) -> None:
    known = peers(manifests)
    for name in ("trainer", "vllm", "prometheus", "grafana", "scheduled-training"):
        assert network.allows(known[name], known["dns"], 53, "UDP"), name
        assert not network.allows(known[name], INTERNET, 53, "UDP"), name


def test_without_the_default_deny_the_stray_pod_would_reach_the_bucket(
    network: Network, manifests: list[Manifest]
) -> None:
    known = peers(manifests)
    open_network = Network(
        [each for each in network.policies if "podSelector" in each["spec"] and each["spec"]["podSelector"]],
        network.namespaces,
    )
    assert open_network.allows(known["stray pod"], S3, 443) and not network.allows(known["stray pod"], S3, 443)


@pytest.mark.parametrize(
    ("policies", "open_"),
    [
        ([], True),
        ([{"podSelector": {}, "policyTypes": ["Ingress"]}], False),
        ([{"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}], True),
        ([{"podSelector": {"matchLabels": {"a": "other"}}, "policyTypes": ["Ingress"]}], True),
        ([{"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}], False),
        ([{"podSelector": {}, "ingress": [{"ports": [{"port": 80, "endPort": 90}]}]}], True),
        ([{"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}]}], False),
        ([{"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}], True),
        ([{"podSelector": {}, "policyTypes": ["Ingress"]}, {"podSelector": {}, "ingress": [{}]}], True),
    ],
)  # fmt: skip
def test_the_evaluator_follows_the_documentation(policies: list[Manifest], open_: bool) -> None:
    made = [{"metadata": {"namespace": "one"}, "spec": spec} for spec in policies]
    network = Network(made, {"one": {}, "two": {}})
    assert network.allows(Pod("two", {"a": "b"}), Pod("one", {"a": "c"}), 85) is open_
