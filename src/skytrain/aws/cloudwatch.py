"""CloudWatch: log lines, and metrics as EMF lines, from which CloudWatch extracts metrics; and reading them back.

Lines wait in memory, up to a limit, and a separate thread sends them: no step and no checkpoint waits for CloudWatch.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import Config, MissingExtra, SkytrainError, aws_region
from ..storage import Patience, Retry
from .calls import Call
from .errors import CloudError
from .session import AwsSession

NAMESPACE = "Skytrain"
TIMEOUT_SECONDS = 5.0
# Limits of one PutLogEvents call: 10,000 events, 1 MiB, where each event counts 26 bytes more than its text, and 24 hours.
MAX_EVENTS = 10_000
MAX_BYTES = 1_000_000
EVENT_BYTES = 26
LINE_BYTES = 250_000
MAX_SPAN_MS = 23 * 3600 * 1000
WAITING_BYTES = 8_000_000  # limit on lines that CloudWatch has not taken yet; beyond it the oldest are dropped
AFTER_FAILURE = Retry(seconds=math.inf, first_wait_seconds=5.0, longest_wait_seconds=60.0)
# Each metric of a run costs about $0.30 a month, so only what people plot; all others are fields of the same line.
CHARTED = frozenset({"train/loss", "val/loss", "perf/tokens_per_s", "perf/mfu", "cost/usd"})
MAX_METRICS = 100  # in one EMF directive


@dataclass(frozen=True)
class LogDestination:
    """A log group, and the start of the names of a run's streams in it."""

    group: str
    prefix: str
    region: str | None
    creates_group: bool = False  # nodes of the base may not create it: Terraform made theirs


def log_destination(config: Config, run: str, *, on_ec2: bool) -> LogDestination | None:
    """Return where a run logs: the base's group on machines that `launch` rents; None: nowhere."""
    cloud = config.cloud
    plain = re.sub(r"[^A-Za-z0-9._/#-]", "_", run)
    asked = "cloudwatch" in config.trainer.loggers
    group = cloud.log_groups.get("nodes")
    if group is not None and (asked or (cloud.cloudwatch and cloud.target == "ec2" and on_ec2)):
        return LogDestination(group, f"{plain}/", cloud.region)
    return LogDestination(f"/skytrain/{plain}", "", cloud.region, creates_group=True) if asked else None


class CloudWatch:
    """One log stream. `flush` sends the waiting lines, and raises SkytrainError if CloudWatch does not take them."""

    def __init__(self, destination: LogDestination, stream: str, run: str, client: Any | None = None) -> None:
        self._destination = destination
        self._run = run
        self._stream = destination.prefix + stream
        self._client = client or _client(destination.region)
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, str, int]] = deque()  # time in ms, text, bytes
        self._bytes = self._dropped = 0
        self._made = False
        self._failure: SkytrainError | None = None  # the last one, until something is sent
        self._patience = Patience(AFTER_FAILURE)
        self._retry_at = 0.0

    def log(self, text: str) -> None:
        """Add a line; never waits."""
        raw = (text or " ").encode()  # CloudWatch rejects empty events
        text = raw[:LINE_BYTES].decode(errors="ignore")
        with self._lock:
            self._append(text, min(len(raw), LINE_BYTES))
            while self._bytes > WAITING_BYTES:
                self._bytes -= self._waiting.popleft()[2]
                self._dropped += 1

    def _append(self, text: str, size: int) -> None:
        self._waiting.append((time.time_ns() // 1_000_000, text, size + EVENT_BYTES))
        self._bytes += size + EVENT_BYTES

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.log(emf_line(self._run, step, values, time.time_ns() // 1_000_000))

    def flush(self) -> None:
        if self._failure is not None and time.monotonic() < self._retry_at:
            raise self._failure
        try:
            self._send()
        except SkytrainError as error:
            self._failure, self._retry_at = error, time.monotonic() + (self._patience.failed() or 0.0)
            raise
        self._failure = None
        self._patience.recovered()

    def _send(self) -> None:
        import botocore.exceptions

        group = self._destination.group
        try:
            if not self._made:
                self._make()
            while batch := self._next_batch():
                # Events must be in chronological order, and the clock may have been set back between two lines.
                events = [{"timestamp": at, "message": text} for at, text, _ in sorted(batch, key=lambda one: one[0])]
                self._client.put_log_events(logGroupName=group, logStreamName=self._stream, logEvents=events)
                self._forget(batch)
        except botocore.exceptions.BotoCoreError as error:
            raise SkytrainError(f"CloudWatch {group} cannot be reached: {error}") from error
        except botocore.exceptions.ClientError as error:
            self._made = False
            needed = "logs:CreateLogStream and logs:PutLogEvents"
            rights = f"logs:CreateLogGroup, {needed}" if self._destination.creates_group else needed
            raise SkytrainError(
                f"CloudWatch {group} does not take the log: {error}\n  this role needs {rights}"
            ) from error

    def _next_batch(self) -> list[tuple[int, str, int]]:
        with self._lock:
            if self._dropped:
                text = f"{self._dropped} lines before this one were dropped: CloudWatch did not take them in time"
                self._dropped = 0
                self._append(text, len(text))
            size = 0
            batch = list[tuple[int, str, int]]()
            oldest = math.inf
            newest = -math.inf
            for line in self._waiting:
                size, oldest, newest = size + line[2], min(oldest, line[0]), max(newest, line[0])
                if batch and (size > MAX_BYTES or len(batch) >= MAX_EVENTS or newest - oldest > MAX_SPAN_MS):
                    break
                batch.append(line)
            return batch

    def _forget(self, batch: list[tuple[int, str, int]]) -> None:
        """Remove the lines that were sent, except those that the limit has removed meanwhile."""
        with self._lock:
            for line in batch:
                if self._waiting and self._waiting[0] is line:
                    self._waiting.popleft()
                    self._bytes -= line[2]
                elif self._dropped:
                    self._dropped -= 1

    def _make(self) -> None:
        exists = self._client.exceptions.ResourceAlreadyExistsException
        group = {"logGroupName": self._destination.group}
        makes = [(self._client.create_log_stream, {**group, "logStreamName": self._stream})]
        if self._destination.creates_group:
            makes.insert(0, (self._client.create_log_group, group))
        for make, names in makes:
            try:
                make(**names)
            except exists:
                continue
        self._made = True


def emf_line(run: str, step: int, values: Mapping[str, float], at_ms: int) -> str:
    """Format metrics of a step in CloudWatch's embedded metric format; JSON has no NaN or infinity."""
    values = {name: value for name, value in values.items() if math.isfinite(value)}
    charted = [{"Name": name} for name in values if is_charted(name)][:MAX_METRICS]
    fields = {"run": run, "step": step, **values}
    if not charted:
        return json.dumps(fields)
    directive = {"Namespace": NAMESPACE, "Dimensions": [["run"]], "Metrics": charted}
    return json.dumps({"_aws": {"Timestamp": at_ms, "CloudWatchMetrics": [directive]}, **fields})


def is_charted(name: str) -> bool:
    """Return whether CloudWatch makes a metric of it: `eval/<task>/<scoring>` are, their errors and counts are not."""
    return name in CHARTED or (name.startswith("eval/") and not name.endswith(("_stderr", "/items", "/truncated")))


def _client(region: str | None) -> Any:
    try:
        import boto3
        import botocore.config
        import botocore.exceptions
    except ImportError:
        raise MissingExtra("boto3", "aws") from None
    patience = botocore.config.Config(
        connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, retries={"total_max_attempts": 1}
    )
    try:
        # boto3 reads only AWS_DEFAULT_REGION, unlike AWS's other tools and Skytrain's store.
        return boto3.client("logs", region_name=region or aws_region(), config=patience)
    except botocore.exceptions.BotoCoreError as error:  # no region, a profile that does not exist
        raise SkytrainError(f"trainer.loggers: cloudwatch cannot be used: {error}\n  set AWS_REGION") from None


def stream_lines(session: AwsSession, group: str, prefix: str, lines: int | None) -> list[str]:
    """Return the last lines of the streams whose names begin with `prefix`, each with the rest of its stream's name."""
    wanted = {"logGroupName": group, "logStreamNamePrefix": prefix}
    try:
        events = list(session.items(Call("logs", "FilterLogEvents", wanted), "events"))
    except CloudError as error:
        if error.code == "ResourceNotFoundException":  # nothing has been written yet
            return []
        raise
    events.sort(key=lambda event: event["timestamp"])
    texts = [f"[{event['logStreamName'].removeprefix(prefix)}] {event['message'].rstrip()}" for event in events]
    return texts[-lines:] if lines else texts
