"""The metrics page of a run: its text, its server, and a real Prometheus that reads it while a run trains."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import MetricsConfig
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import MetricsPage, Silent, metrics_served
from tests.support.s3 import free_ports
from tests.support.tiny import tiny_config

SAMPLE = re.compile(r'(?P<name>[a-z_]+)\{run="(?P<run>(?:[^"\\]|\\.)*)",attempt="(?P<attempt>\d+)"\} (?P<value>\S+)')
PATIENCE_SECONDS = 60


def parse(text: str) -> dict[str, float]:
    """The samples of a page; each must follow its HELP and TYPE, and the page end with a newline."""
    assert text.endswith("\n")
    lines, found = text.splitlines(), dict[str, float]()
    for about, kind, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        match = SAMPLE.fullmatch(sample)
        assert match, sample
        name = match["name"]
        assert about.startswith(f"# HELP {name} ") and kind in (f"# TYPE {name} gauge", f"# TYPE {name} counter")
        found[name] = float(match["value"])
    return found


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def test_a_page_has_each_metric_once_in_its_base_unit() -> None:
    page = MetricsPage("gpt2", 2, usd=lambda: 1.25)
    page.expect(300, 150.0)
    page.record(10, {"train/loss": 4.0, "perf/step_ms": 500.0, "perf/memory_gb": 2.0, "eval/other": 1.0})
    page.record(20, {"train/loss": 3.5, "perf/mfu": 0.4})
    page.committed(10, at=1_700_000_000.0)
    found = parse(page.render())
    assert found["skytrain_train_loss"] == 3.5 and found["skytrain_step"] == 20
    assert found["skytrain_step_seconds"] == 0.5 and found["skytrain_memory_bytes"] == 2e9
    assert found["skytrain_cost_usd"] == 1.25 and found["skytrain_budget_usd"] == 150.0
    assert found["skytrain_checkpoint_timestamp_seconds"] == 1_700_000_000.0 and found["skytrain_checkpoint_step"] == 10
    assert found["skytrain_restarts_total"] == 2 and found["skytrain_steps_planned"] == 300
    assert found["skytrain_mfu_ratio"] == 0.4 and not any("other" in name for name in found)


def test_names_of_runs_are_escaped_and_a_diverged_loss_stays_readable() -> None:
    page = MetricsPage('odd "run"\\\nname', 0)
    page.record(1, {"train/loss": math.nan, "val/loss": math.inf})
    found = parse(page.render())
    assert math.isnan(found["skytrain_train_loss"]) and found["skytrain_val_loss"] == math.inf
    assert r'run="odd \"run\"\\\nname"' in page.render() and "skytrain_cost_usd" not in found


def test_a_port_in_use_is_told_and_training_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told: list[str] = []
        settings = MetricsConfig(taken.getsockname()[1], None)
        with metrics_served(settings, MetricsPage("gpt2", 0), told.append) as url:
            assert url is None
    assert "no metrics for Prometheus" in told[0] and "metrics.prometheus_port" in told[0]


def test_only_the_page_is_served_and_at_the_pods_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_IP", "127.0.0.2")
    with metrics_served(MetricsConfig(free_ports(1)[0], None), MetricsPage("gpt2", 0), print) as url:
        assert url is not None and url.startswith("http://127.0.0.2:")
        assert parse(get(url))["skytrain_restarts_total"] == 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url.replace("/metrics", "/other"))
        with pytest.raises(urllib.error.URLError):
            get(url.replace("127.0.0.2", "127.0.0.1"))
    with pytest.raises(urllib.error.URLError):
        get(url)


class Scraper(Silent):
    """A reporter that reads the page at a step, from inside the run."""

    def __init__(self, port: int, at_step: int) -> None:
        self.url, self.at_step, self.pages = f"http://127.0.0.1:{port}/metrics", at_step, list[str]()

    def progress(self, what: str, done: float, *rest: Any) -> None:
        if what == "train" and done == self.at_step:
            self.pages.append(get(self.url))


def test_rank_0_serves_the_metrics_of_a_run_and_of_its_resumption(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    settings = (
        f"metrics.prometheus_port={port}", "run=seen", "trainer.steps=6", "trainer.checkpoint_every=3",
        "trainer.log_every=1", "trainer.validate_every=null", "budget.usd=5", "budget.usd_per_hour=36",
    )  # fmt: skip
    config = tiny_config(tmp_path, *settings, "trainer.stop_at_step=4")
    prepare(config, Silent())
    first = Scraper(port, 4)
    train(config, reporter=first)
    found = parse(first.pages[0])
    assert found["skytrain_step"] == 4 and found["skytrain_tokens_per_second"] > 0
    assert found["skytrain_budget_usd"] == 5 and 0 < found["skytrain_cost_usd"] < 5
    assert found["skytrain_restarts_total"] == 0

    again = Scraper(port, 5)
    train(tiny_config(tmp_path, *settings), reporter=again)
    found = parse(again.pages[0])
    assert found["skytrain_restarts_total"] == 1 and found["skytrain_checkpoint_step"] == 4
    assert found["skytrain_checkpoint_timestamp_seconds"] < found["skytrain_last_step_timestamp_seconds"]
    with pytest.raises(urllib.error.URLError):
        get(again.url)


@pytest.mark.slow
def test_prometheus_itself_scrapes_the_page(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("the Debian package prometheus is not installed")
    page, listen = MetricsPage("gpt2", 1, usd=lambda: 2.5), free_ports(1)[0]
    page.record(7, {"train/loss": 3.25, "perf/mfu": math.nan})
    with metrics_served(MetricsConfig(free_ports(1)[0], None), page, print) as url:
        assert url is not None
        target = urllib.parse.urlsplit(url).netloc
        jobs = [{"job_name": "trainer", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))
        server = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address=127.0.0.1:{listen}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            names = ("up", "skytrain_train_loss", "skytrain_cost_usd", "skytrain_restarts_total", "skytrain_mfu_ratio")
            found = {name: ask(listen, name) for name in names}
        finally:
            server.terminate()
            server.wait()
    assert found["up"]["value"][1] == "1" and found["skytrain_train_loss"]["value"][1] == "3.25"
    assert found["skytrain_cost_usd"]["value"][1] == "2.5" and found["skytrain_mfu_ratio"]["value"][1] == "NaN"
    assert found["skytrain_train_loss"]["metric"]["run"] == "gpt2"
    assert found["skytrain_restarts_total"]["value"][1] == "1"


def ask(port: int, name: str) -> dict[str, Any]:
    """The newest sample of a metric, as soon as Prometheus has one."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={name}", timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
            if found:
                return dict(found[0])
        except OSError:  # it is starting
            pass
        time.sleep(0.2)
    raise AssertionError(f"Prometheus has no {name} after {PATIENCE_SECONDS} s")
