"""Prometheus' configuration, alert rules and the dashboard: every metric they name is one that somebody exports."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from skytrain.runs.prometheus import OTHERS, STEP_METRICS
from tests.support.kubernetes_manifests import KUBERNETES
from tests.support.tools import debian_tool

MONITORING = KUBERNETES / "base" / "monitoring"
# DCGM exporter 4.8.2's default counters (github.com/NVIDIA/dcgm-exporter d5e5f51, etc/default-counters.csv), vLLM
# 0.31's and kube-state-metrics 2.19's documented names: those that we use.
EXPORTED_BY_OTHERS = {
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "kube_pod_status_phase",
    "vllm:num_requests_running", "vllm:num_requests_waiting",
}  # fmt: skip
EXPORTED_BY_THE_TRAINER = {series.name for series in (*STEP_METRICS.values(), *OTHERS.values())}
_NAME = re.compile(r"\b(DCGM_\w+|kube_\w+|vllm:\w+|skytrain_\w+)")


def queries() -> Iterator[str]:
    dashboard = json.loads((MONITORING / "skytrain.json").read_text())
    yield from (target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    yield from (variable["query"] for variable in dashboard["templating"]["list"])
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_every_query_names_metrics_that_exist() -> None:
    named = {name for query in queries() for name in _NAME.findall(query)}
    assert named <= EXPORTED_BY_OTHERS | EXPORTED_BY_THE_TRAINER
    assert named >= EXPORTED_BY_OTHERS  # the list holds nothing that is unused
    assert all(_NAME.search(query) for query in queries())


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    assert all(set(rule["annotations"]) == {"summary", "fix"} and rule["labels"]["severity"] for rule in rules)
    tests = yaml.safe_load((MONITORING / "alerts.test.yml").read_text())["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules}


def test_panels_neither_overlap_nor_share_a_number() -> None:
    panels = json.loads((MONITORING / "skytrain.json").read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and len({panel["id"] for panel in panels}) == len(panels)
    assert max(x for x, _ in cells) == 23  # Grafana's width


@pytest.mark.slow
def test_prometheus_accepts_the_configuration_and_the_rules_fire_as_tested(
    tmp_path: Path,
) -> None:
    promtool = str(debian_tool("prometheus", "promtool"))
    said = subprocess.run(
        [promtool, "test", "rules", "alerts.test.yml"], cwd=MONITORING, capture_output=True, text=True
    )
    assert not said.returncode and "SUCCESS" in said.stdout, said.stdout + said.stderr
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text().replace("/etc/prometheus/", f"{tmp_path}/"))
    for job in config["scrape_configs"]:  # Debian builds Prometheus without Kubernetes: the rest is checked
        if job.pop("kubernetes_sd_configs", None):
            job["static_configs"] = [{"targets": ["localhost:1"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "alerts.yml").write_text((MONITORING / "alerts.yml").read_text())
    check = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    said = subprocess.run(check, capture_output=True, text=True)
    assert not said.returncode, said.stdout + said.stderr
    broken = (tmp_path / "alerts.yml").read_text().replace("> 7200", "> 720000")
    (tmp_path / "alerts.yml").write_text(broken)
    (tmp_path / "alerts.test.yml").write_text((MONITORING / "alerts.test.yml").read_text())
    assert subprocess.run([promtool, "test", "rules", "alerts.test.yml"], cwd=tmp_path, capture_output=True).returncode
