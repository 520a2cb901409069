"""The manifests, rendered by kustomize: schemas of two Kubernetes versions, CRDs, and what a security review asks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from skytrain.aws.preview import FOLDER as PREVIEW_FOLDER
from skytrain.config import compose
from skytrain.planning import load_catalog
from tests.infra.test_scanners import checkov
from tests.support.kubernetes_manifests import KUBERNETES, Manifest, identity, pod_templates, render, resolved_copy
from tests.support.terraform import EKS

CUSTOM = {"EC2NodeClass": "karpenter.k8s.aws.EC2NodeClass.v1", "NodePool": "karpenter.sh.NodePool.v1"}
GOLDEN = Path(__file__).parents[1] / "cloud" / "golden"
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


@pytest.fixture(scope="package")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """Every component on, every digest resolved."""
    return render(resolved_copy(tmp_path_factory.mktemp("kubernetes")))


@pytest.mark.parametrize("version", ["1.35", pytest.param("1.36", marks=pytest.mark.slow)])
def test_every_object_is_valid_in_supported_versions_of_kubernetes(manifests: list[Manifest], version: str) -> None:
    builtin = [each for each in manifests if each["kind"] not in CUSTOM]
    assert len(builtin) >= 75
    for each in builtin:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{identity(each)}: {error.message}")


def test_custom_resources_are_valid_by_the_schemas_of_their_definitions(manifests: list[Manifest]) -> None:
    custom = [each for each in manifests if each["kind"] in CUSTOM]
    assert sorted(identity(each) for each in custom) == [
        "EC2NodeClass skytrain-gpu", "NodePool skytrain-gpu-on-demand", "NodePool skytrain-gpu-spot",
    ]  # fmt: skip
    for each in custom:
        schema = json.loads((KUBERNETES / "schemas" / f"{CUSTOM[each['kind']]}.json").read_text())
        assert "v1.14.1" in schema["$comment"] and "Apache-2.0" in schema["$comment"]
        jsonschema.Draft202012Validator(schema).validate(each)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate({**each, "spec": {**each["spec"], "misspelt": 1}})


def test_karpenter_has_a_hard_limit_of_gpus_everywhere_and_never_disrupts_training(manifests: list[Manifest]) -> None:
    pools = [each["spec"] for each in manifests if each["kind"] == "NodePool"]
    assert [pool["limits"] for pool in pools] == [{"nvidia.com/gpu": "16"}] * 2
    assert all(pool["disruption"]["consolidationPolicy"] == "WhenEmpty" for pool in pools)
    (quota,) = [each for each in manifests if identity(each) == "ResourceQuota skytrain-training/limits"]
    assert quota["spec"]["hard"]["requests.nvidia.com/gpu"] == "16"


def test_one_list_of_families_decides_what_karpenter_starts_and_what_launch_accepts(manifests: list[Manifest]) -> None:
    declared = re.search(
        r"instance_families = optional\(list\(string\), (\[.*?\])\)", (EKS / "variables.tf").read_text()
    )
    assert declared
    families = set(json.loads(declared[1]))
    asked = [
        set(one["values"])
        for pool in manifests
        if pool["kind"] == "NodePool"
        for one in pool["spec"]["template"]["spec"]["requirements"]
        if one["key"] == "karpenter.k8s.aws/instance-family"
    ]
    assert asked == [families, families]
    assert set(compose(["cloud=eks"], [PREVIEW_FOLDER]).config.cloud.eks.instance_families) == families


def test_nodes_of_karpenter_are_prepared_for_efa_like_those_of_the_node_groups(manifests: list[Manifest]) -> None:
    (node_class,) = [each["spec"] for each in manifests if each["kind"] == "EC2NodeClass"]
    script = re.search(r"efa_script = <<-EOT\n(.*?)EOT", (EKS / "launch_templates.tf").read_text(), re.S)
    assert script
    for line in script[1].splitlines():
        assert line.strip() in node_class["userData"]
    assert node_class["metadataOptions"]["httpTokens"] == "required"
    assert node_class["metadataOptions"]["httpPutResponseHopLimit"] == 1


def test_the_efa_plugin_runs_on_exactly_the_types_that_have_efa(manifests: list[Manifest], tmp_path: Path) -> None:
    pod = pod_templates(manifests)["DaemonSet skytrain-devices/efa-device-plugin"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert set(term["matchExpressions"][0]["values"]) == {
        each.type for each in load_catalog(tmp_path).instances if each.efa_interfaces
    }


def test_pods_outside_the_devices_namespace_meet_pod_security_restricted(manifests: list[Manifest]) -> None:
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for each in manifests
        if each["kind"] == "Namespace"
    }
    assert [name for name, level in levels.items() if level != "restricted"] == ["skytrain-devices"]
    checked = 0
    for name, template in pod_templates(manifests).items():
        if levels[template["namespace"]] == "restricted":
            assert restricted_violations(template["spec"]) == [], name
            checked += 1
    assert checked == 6


def restricted_violations(pod: dict[str, Any]) -> list[str]:
    """What https://kubernetes.io/docs/concepts/security/pod-security-standards/ forbids, of what manifests here can say."""
    shared, found = pod.get("securityContext", {}), []
    volumes = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    found += [f"volume {each['name']}" for each in pod.get("volumes", ()) if not set(each) - {"name"} <= volumes]
    found += [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        own = {**shared, **container.get("securityContext", {})}
        rules = {
            "runAsNonRoot": own.get("runAsNonRoot") is True and own.get("runAsUser", 1) != 0,
            "seccomp": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "escalation": own.get("allowPrivilegeEscalation") is False and not own.get("privileged"),
            "capabilities": own.get("capabilities", {}).get("drop") == ["ALL"]
            and set(own["capabilities"].get("add", ())) <= {"NET_BIND_SERVICE"},
            "host ports": not any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [f"{container['name']}: {rule}" for rule, holds in rules.items() if not holds]
    return found


def test_every_pod_has_its_own_service_account_limits_and_images_by_digest(manifests: list[Manifest]) -> None:
    accounts = {
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in manifests
        if each["kind"] == "ServiceAccount"
    }
    assert all(each["automountServiceAccountToken"] is False for each in manifests if each["kind"] == "ServiceAccount")
    with_token = set()
    for name, template in pod_templates(manifests).items():
        pod = template["spec"]
        assert (template["namespace"], pod["serviceAccountName"]) in accounts, name
        with_token |= {name.split("/")[1]} if pod["automountServiceAccountToken"] else set()
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            assert DIGEST.search(container["image"]), (name, container["image"])
            assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
    assert with_token == {"prometheus", "kube-state-metrics", "prometheus-adapter", "scheduled-training"}


def test_references_between_objects_lead_somewhere(manifests: list[Manifest]) -> None:
    """Secrets that people create are the exception, and the documentation creates them."""
    have = {identity(each) for each in manifests}
    by_people = {"Secret skytrain-serving/vllm-api-key", "Secret skytrain-serving/vllm-tls"}
    for name, template in pod_templates(manifests).items():
        place, pod = template["namespace"], {"volumes": [], **template["spec"]}
        wanted = {f"ConfigMap {place}/{v['configMap']['name']}" for v in pod["volumes"] if "configMap" in v}
        wanted |= {f"Secret {place}/{v['secret']['secretName']}" for v in pod["volumes"] if "secret" in v}
        wanted |= {
            f"PersistentVolumeClaim {place}/{v['persistentVolumeClaim']['claimName']}"
            for v in pod["volumes"]
            if "persistentVolumeClaim" in v
        }
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            wanted |= {f"ConfigMap {place}/{e['configMapRef']['name']}" for e in container.get("envFrom", ())}
            refs = [
                each["valueFrom"].get("configMapKeyRef") for each in container.get("env", ()) if "valueFrom" in each
            ]
            wanted |= {f"ConfigMap {place}/{each['name']}" for each in refs if each}
            mounted = {each["name"] for each in container.get("volumeMounts", ())}
            claims = {each["metadata"]["name"] for each in _claims(manifests, name)}
            assert mounted <= {each["name"] for each in pod["volumes"]} | claims, name
        assert wanted - have <= by_people, name


def _claims(manifests: list[Manifest], name: str) -> list[Manifest]:
    found = [each["spec"].get("volumeClaimTemplates", []) for each in manifests if identity(each) == name]
    return list(found[0])


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("eks-*.yaml")), ids=lambda path: path.stem)
def test_the_jobs_of_launch_fit_the_namespace_that_they_run_in(manifests: list[Manifest], path: Path) -> None:
    have = {identity(each) for each in manifests}
    (policy,) = [
        each["spec"] for each in manifests if identity(each) == "NetworkPolicy skytrain-training/training-peers"
    ]
    (template,) = [found for each in yaml.safe_load_all(path.read_text()) for found in _pod_templates_in(each)]
    pod = template["spec"]
    assert restricted_violations(pod) == []
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert f"ServiceAccount skytrain-training/{pod['serviceAccountName']}" in have
    assert pod["automountServiceAccountToken"] is False
    assert all(DIGEST.search(container["image"]) for container in pod["containers"])
    tolerated = {each["key"] for each in pod["tolerations"]} if "cpu-smoke" not in path.stem else {"nvidia.com/gpu"}
    assert "nvidia.com/gpu" in tolerated and ("skytrain/spot" in tolerated) == (path.stem == "eks-spot")
    (port,) = [port for container in pod["containers"] for port in container["ports"] if port["name"] == "metrics"]
    assert port["containerPort"] == 9464


def _pod_templates_in(node: Any) -> Iterator[Manifest]:
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}) if isinstance(node.get("spec"), dict) else False:
            yield node
        for value in node.values():
            yield from _pod_templates_in(value)
    elif isinstance(node, list):
        for each in node:
            yield from _pod_templates_in(each)


def test_terraform_writes_every_value_that_the_overlay_needs() -> None:
    env = (KUBERNETES / "overlays/example/values/cluster.env").read_text()
    needed = {line.split("=")[0] for line in env.splitlines()}
    written = set(re.findall(r'^\s+"([A-Z_]+)=', (EKS / "outputs.tf").read_text(), re.M))
    assert needed == written
    sources = "".join(path.read_text() for path in KUBERNETES.glob("components/*/kustomization.yaml"))
    assert set(re.findall(r"fieldPath: data\.([A-Z_]+)", sources)) <= needed


def _admission(manifests: list[Manifest], name: str) -> tuple[Manifest, Manifest]:
    by_identity = {identity(each): each.get("spec", {}) for each in manifests}
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    policy, binding = (by_identity[f"{kind} {name}"] for kind in kinds)
    assert binding["policyName"] == name
    return policy, binding


def test_operators_cannot_make_a_pod_that_reads_the_api_key(manifests: list[Manifest]) -> None:
    """Whoever can start a command beside the key can read it from the log; no role reads Secrets either."""
    for each in manifests:
        if each["kind"] in ("Role", "ClusterRole"):
            assert not any({"secrets", "pods/exec", "*"} & set(rule["resources"]) for rule in each["rules"]
                           if "resources" in rule), identity(each)  # fmt: skip
    (role,) = [each for each in manifests if identity(each) == "Role skytrain-serving/operator"]
    writes = [rule for rule in role["rules"] if {"create", "patch", "update", "delete"} & set(rule["verbs"])]
    named = {(resource, *rule.get("resourceNames", ["any"])) for rule in writes for resource in rule["resources"]}
    assert named == {
        ("deployments", "vllm"), ("deployments/scale", "vllm"), ("configmaps", "vllm-model"),
        ("horizontalpodautoscalers", "any"),
    }  # fmt: skip
    policy, binding = _admission(manifests, "skytrain-serving-pods")
    assert policy["failurePolicy"] == "Fail" and binding["validationActions"] == ["Deny"]
    compared = set(re.findall(r"\bo\.\??(\w+) == c\.", policy["validations"][0]["expression"]))
    spec = pod_templates(manifests)["Deployment skytrain-serving/vllm"]["spec"]
    used = {name for container in spec["containers"] for name in container}
    assert used - compared == {"resources", "imagePullPolicy"}
    assert not any("envFrom" in each for each in [*spec["containers"], *spec["initContainers"]])


def test_operators_choose_neither_service_accounts_nor_addresses_in_training(manifests: list[Manifest]) -> None:
    """They create no pods themselves; policies limit the pods of their jobs, and every Service."""
    (role,) = [each for each in manifests if identity(each) == "Role skytrain-training/operator"]
    pods = {verb for rule in role["rules"] if "pods" in rule["resources"] for verb in rule["verbs"]}
    assert pods == {"get", "list", "watch", "delete"}
    limited = set()
    for name in ("skytrain-services", "skytrain-operator-jobs", "skytrain-operator-trainjobs"):
        policy, binding = _admission(manifests, name)
        assert policy["failurePolicy"] == "Fail" and binding["validationActions"] == ["Deny"]
        limited |= {each for rule in policy["matchConstraints"]["resourceRules"] for each in rule["resources"]}
    assert limited == {"services", "jobs", "trainingruntimes", "trainjobs"}


def test_a_scheduled_launch_hands_its_own_image_to_the_pods(manifests: list[Manifest]) -> None:
    [container] = pod_templates(manifests)["CronJob skytrain-training/scheduled-training"]["spec"]["containers"]
    image = next(each["value"] for each in container["env"] if each["name"] == "IMAGE")
    assert image == container["image"] and "@sha256:" in image and "cloud.eks.image=$(IMAGE)" in container["args"]


def test_the_api_server_refuses_images_without_a_digest(manifests: list[Manifest]) -> None:
    """Its pattern and its reach; test_api_server.py lets a real API server evaluate it."""
    policy, binding = _admission(manifests, "skytrain-images-by-digest")
    pattern = re.search(r"image\.matches\('(.*?)'\)", policy["validations"][0]["expression"])
    assert pattern and policy["failurePolicy"] == "Fail" and binding["validationActions"] == ["Deny"]
    assert re.search(pattern[1], f"a/b:1@sha256:{0:064}") and not re.search(pattern[1], "a/b:latest")
    selected = binding["matchResources"]["namespaceSelector"]["matchLabels"].items()
    assert all(selected <= each["metadata"]["labels"].items() for each in manifests if each["kind"] == "Namespace")


@pytest.mark.slow
def test_checkov_finds_nothing_in_the_manifests(manifests: list[Manifest], tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    report = checkov("-f", str(path), "--framework", "kubernetes")
    assert report["summary"]["passed"] >= 800
    reasons = [each["check_result"]["suppress_comment"] for each in report["results"]["skipped_checks"]]
    assert reasons and all(len(reason) >= 20 for reason in reasons), reasons
