"""Optional CloudWatch output: log lines, and metrics as EMF lines, from which CloudWatch extracts metrics."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..config import MissingExtra, SkytrainError, aws_region

NAMESPACE = "Skytrain"
TIMEOUT_SECONDS = 5.0
# Limits of one PutLogEvents call: 10,000 events and 1 MiB, where each event counts 26 bytes more than its text.
MAX_EVENTS, MAX_BYTES, EVENT_BYTES, LINE_BYTES = 10_000, 1_000_000, 26, 250_000


def log_group(run: str) -> str:
    return "/skytrain/" + re.sub(r"[^A-Za-z0-9._/#-]", "_", run)


class CloudWatch:
    """One rank's log stream in the run's log group."""

    def __init__(self, run: str, attempt: int, rank: int, client: Any | None = None) -> None:
        self._group, self._stream, self._run = log_group(run), f"attempt-{attempt}/rank-{rank}", run
        self._client = client or _client()
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, str]] = []
        self._made = False

    def log(self, text: str) -> None:
        with self._lock:
            self._waiting.append((time.time_ns() // 1_000_000, text[:LINE_BYTES]))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.log(emf_line(self._run, step, values, time.time_ns() // 1_000_000))

    def flush(self) -> None:
        import botocore.exceptions

        try:
            if not self._made:
                self._make()
            while batch := self._next_batch():
                # Events must be in chronological order, and the clock may have been set back between two lines.
                events = [{"timestamp": at, "message": text} for at, text in sorted(batch, key=lambda event: event[0])]
                self._client.put_log_events(logGroupName=self._group, logStreamName=self._stream, logEvents=events)
                with self._lock:
                    del self._waiting[: len(batch)]
        except botocore.exceptions.BotoCoreError as error:
            raise SkytrainError(f"CloudWatch {self._group} is out of reach: {error}") from error
        except botocore.exceptions.ClientError as error:
            raise SkytrainError(
                f"CloudWatch {self._group} does not take the log: {error}\n  this role needs logs:CreateLogGroup, logs:CreateLogStream and logs:PutLogEvents"
            ) from error

    def _next_batch(self) -> list[tuple[int, str]]:
        with self._lock:
            size, batch = 0, list[tuple[int, str]]()
            for at, text in self._waiting[:MAX_EVENTS]:
                size += len(text.encode()) + EVENT_BYTES
                if batch and size > MAX_BYTES:
                    break
                batch.append((at, text or " "))  # CloudWatch rejects empty events
            return batch

    def _make(self) -> None:
        exists = self._client.exceptions.ResourceAlreadyExistsException
        for make, names in (
            (self._client.create_log_group, {"logGroupName": self._group}),
            (self._client.create_log_stream, {"logGroupName": self._group, "logStreamName": self._stream}),
        ):
            try:
                make(**names)
            except exists:
                continue
        self._made = True


def emf_line(run: str, step: int, values: Mapping[str, float], at_ms: int) -> str:
    values = {name: value for name, value in values.items() if math.isfinite(value)}  # JSON has no NaN or infinity
    metrics = [{"Name": name} for name in values]
    meta = {
        "Timestamp": at_ms,
        "CloudWatchMetrics": [{"Namespace": NAMESPACE, "Dimensions": [["run"]], "Metrics": metrics}],
    }
    return json.dumps({"_aws": meta, "run": run, "step": step, **values})


def _client() -> Any:
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
    except ImportError:
        raise MissingExtra("boto3", "aws") from None
    # Keep this short: a checkpoint commit waits for it, and a failed upload is retried every few seconds anyway.
    patience = botocore.config.Config(
        connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, retries={"total_max_attempts": 1}
    )
    try:
        # boto3 reads only AWS_DEFAULT_REGION, unlike AWS's other tools and Skytrain's store.
        return boto3.client("logs", region_name=aws_region(), config=patience)
    except botocore.exceptions.BotoCoreError as error:  # no region, a profile that does not exist
        raise SkytrainError(f"trainer.loggers: cloudwatch cannot be used: {error}\n  set AWS_REGION") from None
