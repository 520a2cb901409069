"""Decides connections by NetworkPolicies as Kubernetes documents them.

A pod that no policy selects for a direction is open in that direction; a selected one is open to what any of its
policies allows, and to nothing else. Policies add up and never subtract. A connection between two pods needs the
egress of the one and the ingress of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Literal

Direction = Literal["Ingress", "Egress"]


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: Mapping[str, str]
    address: str = "10.42.1.1"
    named_ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Address:
    """Something that is no pod of the cluster: a node, a service of AWS, a person's machine."""

    address: str


Peer = Pod | Address


@dataclass(frozen=True)
class Network:
    policies: Sequence[Mapping[str, Any]]
    namespaces: Mapping[str, Mapping[str, str]]  # labels by namespace

    def allows(self, source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
        return self._open("Egress", source, target, target, port, protocol) and self._open(
            "Ingress", target, source, target, port, protocol
        )

    def _open(self, way: Direction, pod: Peer, other: Peer, target: Peer, port: int, protocol: str) -> bool:
        if not isinstance(pod, Pod):
            return True  # policies bind pods only
        specs = [each["spec"] for each in self.policies if self._selects(each, pod, way)]
        rules = [rule for spec in specs for rule in spec.get(way.lower()) or ()]
        key = "from" if way == "Ingress" else "to"
        return not specs or any(
            self._peer_matches(rule.get(key), pod, other) and _port_matches(rule.get("ports"), target, port, protocol)
            for rule in rules
        )

    def _selects(self, policy: Mapping[str, Any], pod: Pod, way: Direction) -> bool:
        spec = policy["spec"]
        types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
        return (
            policy["metadata"]["namespace"] == pod.namespace
            and way in types
            and matches(spec["podSelector"], pod.labels)
        )

    def _peer_matches(self, peers: Sequence[Mapping[str, Any]] | None, pod: Pod, other: Peer) -> bool:
        if not peers:
            return True
        return any(self._one_peer(peer, pod, other) for peer in peers)

    def _one_peer(self, peer: Mapping[str, Any], pod: Pod, other: Peer) -> bool:
        if "ipBlock" in peer:
            block = peer["ipBlock"]
            inside = ip_address(other.address) in ip_network(block["cidr"])
            # A block is for addresses outside the cluster; VPC CNI does not match pods by it.
            excepted = any(ip_address(other.address) in ip_network(each) for each in block.get("except", ()))
            return isinstance(other, Address) and inside and not excepted
        if not isinstance(other, Pod):
            return False
        if "namespaceSelector" in peer:
            placed = matches(peer["namespaceSelector"], self.namespaces[other.namespace])
        else:
            placed = other.namespace == pod.namespace
        return placed and matches(peer.get("podSelector", {}), other.labels)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if unknown := set(selector) - {"matchLabels"}:
        raise NotImplementedError(f"selectors with {unknown} are not decided here")
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _port_matches(ports: Sequence[Mapping[str, Any]] | None, target: Peer, port: int, protocol: str) -> bool:
    if not ports:
        return True
    names = target.named_ports if isinstance(target, Pod) else {}
    return any(
        each.get("protocol", "TCP") == protocol
        and ("port" not in each or names.get(each["port"], each["port"]) == port or _in_range(each, port))
        for each in ports
    )


def _in_range(entry: Mapping[str, Any], port: int) -> bool:
    return "endPort" in entry and int(entry["port"]) <= port <= int(entry["endPort"])
