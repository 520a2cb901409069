"""Metrics of a running attempt for Prometheus: rank 0 answers GET /metrics in the text format 0.0.4.

Training only stores numbers in a dictionary. Another thread renders them when they are requested, so no step waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..config import MetricsConfig, variable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS = 5.0  # limit on a client sending its request
LOOPBACK = "127.0.0.1"
POD_ADDRESS = "POD_IP"  # set from the downward API by `launch cloud=eks`


@dataclass(frozen=True)
class PrometheusSeries:
    """A metric of Prometheus: its name, its meaning, and the factor by which Skytrain's metric is multiplied."""

    name: str
    meaning: str
    scale: float = 1.0
    kind: str = "gauge"


STEP_METRICS = {
    "train/loss": PrometheusSeries("skytrain_train_loss", "Training loss of the last logged step."),
    "train/lr": PrometheusSeries("skytrain_learning_rate", "Learning rate."),
    "train/grad_norm": PrometheusSeries("skytrain_grad_norm", "Norm of the gradient before clipping."),
    "val/loss": PrometheusSeries("skytrain_val_loss", "Loss on held-out tokens at the last validation."),
    "perf/tokens_per_s": PrometheusSeries("skytrain_tokens_per_second", "Training speed of all devices together."),
    "perf/step_ms": PrometheusSeries("skytrain_step_seconds", "Duration of an optimizer step.", 1e-3),
    "perf/mfu": PrometheusSeries(
        "skytrain_mfu_ratio", "Model FLOPs utilization, 0 to 1; absent for an unknown device."
    ),
    "perf/memory_gb": PrometheusSeries("skytrain_memory_bytes", "Peak memory of rank 0's device.", 1e9),
    "cost/projected_usd": PrometheusSeries(
        "skytrain_cost_projected_usd", "What the run is expected to cost when it is done."
    ),
}
OTHERS = {
    "step": PrometheusSeries("skytrain_step", "Last logged optimizer step."),
    "steps_planned": PrometheusSeries("skytrain_steps_planned", "Step at which the run ends."),
    "step_at": PrometheusSeries("skytrain_last_step_timestamp_seconds", "When the last step was logged."),
    "usd": PrometheusSeries("skytrain_cost_usd", "What the run has cost, over all attempts and machines."),
    "budget": PrometheusSeries("skytrain_budget_usd", "What the run may cost: budget.usd."),
    "commit_at": PrometheusSeries("skytrain_checkpoint_timestamp_seconds", "When the newest checkpoint was committed."),
    "commit_step": PrometheusSeries("skytrain_checkpoint_step", "Step of the newest checkpoint."),
    "restarts": PrometheusSeries("skytrain_restarts_total", "Attempts at the run before this one.", kind="counter"),
    "began_at": PrometheusSeries("skytrain_process_start_time_seconds", "When this attempt began to serve metrics."),
}


class MetricsPage:
    """The last value of each metric. Any thread may write or read."""

    def __init__(self, run: str, attempt: int, usd: Callable[[], float | None] = lambda: None) -> None:
        self._labels = {"run": run, "attempt": str(attempt)}
        self._usd = usd
        self._lock = threading.Lock()
        self._values: dict[str, tuple[PrometheusSeries, float]] = {}
        self._set(OTHERS, {"restarts": attempt, "began_at": time.time()})

    def expect(self, steps: int, budget_usd: float | None) -> None:
        """Record how far the run goes and what it may cost."""
        self._set(OTHERS, {"steps_planned": steps, **({} if budget_usd is None else {"budget": budget_usd})})

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record what was measured at a step."""
        self._set(STEP_METRICS, metrics)
        self._set(OTHERS, {"step": step, "step_at": time.time()})

    def committed(self, step: int, at: float | None = None) -> None:
        """Record a checkpoint that was committed at this Unix time, or now."""
        self._set(OTHERS, {"commit_step": step, "commit_at": time.time() if at is None else at})

    def _set(self, known: Mapping[str, PrometheusSeries], values: Mapping[str, float]) -> None:
        samples = {known[name].name: (known[name], float(value)) for name, value in values.items() if name in known}
        with self._lock:
            self._values.update(samples)

    def render(self) -> str:
        """Return the page."""
        usd = self._usd()
        if usd is not None:
            self._set(OTHERS, {"usd": usd})
        with self._lock:
            values = dict(sorted(self._values.items()))
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in self._labels.items())
        lines = []
        for name, (series, value) in values.items():
            lines += [f"# HELP {name} {series.meaning}", f"# TYPE {name} {series.kind}"]
            lines.append(f"{name}{{{labels}}} {_number(value * series.scale)}")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    """Write a number as Prometheus reads it; a diverged loss is NaN or +Inf."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


@contextmanager
def metrics_served(settings: MetricsConfig, page: MetricsPage, tell: Callable[[str], None]) -> Iterator[str | None]:
    """Serve the page for the time of this block; yields its URL, or None without a port.

    If the port cannot be opened, this is reported, and training continues without the page.
    """
    if settings.prometheus_port is None:
        yield None
        return
    address = settings.prometheus_address or variable(POD_ADDRESS) or LOOPBACK
    try:
        server = _Server((address, settings.prometheus_port), page)
    except (OSError, OverflowError) as error:
        tell(
            f"warning: no metrics for Prometheus: {address}:{settings.prometheus_port} cannot be opened: {error}\n"
            "  choose another metrics.prometheus_port or metrics.prometheus_address"
        )
        yield None
        return
    thread = threading.Thread(target=server.serve_forever, name="skytrain-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a client that does not finish its request must not hold up the end of training

    def __init__(self, at: tuple[str, int], page: MetricsPage) -> None:
        self.page = page
        super().__init__(at, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        return  # the client closed the connection


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
            return
        body = self.server.page.render().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return  # a scrape every few seconds is not worth a line
