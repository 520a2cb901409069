"""Measures the load that an endpoint bears: a sweep over concurrency, with streamed answers timed token by token."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

from ..runs import Reporter
from ..serving import Endpoint, EndpointError

PERCENTILES = (50, 95, 99)
TIMED_OUT = "timed out"  # the message of a socket
MOST_DETAIL = 300  # characters


@dataclass(frozen=True)
class LoadSettings:
    """The requests to send to the endpoint."""

    model: str
    concurrencies: Sequence[int]
    requests: int  # timed at each concurrency
    max_tokens: int
    seed: int = 0
    ignore_eos: bool = True  # an option of vLLM, for answers of equal length


@dataclass(frozen=True)
class TimedAnswer:
    """One request, in seconds since it was sent."""

    first_token: float = 0.0
    total: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    gaps: Sequence[float] = ()  # between two parts of the answer
    error: str | None = None  # the kind of error
    detail: str = ""  # the server's message


@dataclass(frozen=True)
class LoadLevel:
    """The results at one concurrency. Times are those of successful requests, in seconds, by percentile."""

    concurrency: int
    seconds: float
    completed: int
    errors: dict[str, int]
    tokens: int
    prompt_tokens: int
    first_token: dict[int, float] = field(default_factory=dict)
    between_tokens: dict[int, float] = field(default_factory=dict)
    total: dict[int, float] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def requests_per_s(self) -> float:
        return self.completed / self.seconds if self.seconds else 0.0

    def usd_per_mtok(self, usd_per_hour: float | None) -> float | None:
        """Return the dollars per million generated tokens if this load lasts."""
        if usd_per_hour is None or not self.tokens_per_s:
            return None
        return usd_per_hour / 3600 / self.tokens_per_s * 1e6


def run_load(endpoint: Endpoint, settings: LoadSettings, prompts: Sequence[str], reporter: Reporter) -> list[LoadLevel]:
    """Time every level in turn, each after a warm-up of one request per connection, until the server is gone."""
    assert len(prompts) >= settings.requests, "one prompt for each request"
    levels: list[LoadLevel] = []
    reported: set[str] = set()
    for concurrency in settings.concurrencies:
        warm = prompts[-concurrency:]  # the last ones, so that the cache of prefixes helps little
        began = time.perf_counter()
        answers = list(_answers(endpoint, settings, warm, concurrency))
        gone = _is_gone(endpoint, answers)  # checked first, so as not to wait again and again for a server that hangs
        if not gone:
            began = time.perf_counter()
            answers = []
            for answer in _answers(endpoint, settings, prompts[: settings.requests], concurrency):
                answers.append(answer)
                reporter.progress(f"{concurrency} at once", len(answers), settings.requests)
        levels.append(_level(concurrency, time.perf_counter() - began, answers))
        for failed in answers:
            if failed.error and failed.detail and failed.error not in reported:
                reported.add(failed.error)
                reporter.note(f"{failed.error}: {failed.detail}")
        if gone or (levels[-1].completed < settings.requests and not _answers_at_all(endpoint)):
            reporter.note(f"the server no longer answers: the sweep ends at {concurrency} at once")
            break
    return levels


def _answers(
    endpoint: Endpoint, settings: LoadSettings, prompts: Sequence[str], concurrency: int
) -> Iterator[TimedAnswer]:
    """Send every prompt once, `concurrency` of them at any time, and yield the answers as they end."""
    waiting: SimpleQueue[tuple[int, str]] = SimpleQueue()
    answers: SimpleQueue[TimedAnswer | Exception] = SimpleQueue()
    for each in enumerate(prompts):
        waiting.put(each)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set() and not waiting.empty():
            try:
                answers.put(_ask(endpoint, settings, waiting.get_nowait()))
            except Empty:
                return
            except Exception as error:
                answers.put(error)

    for _ in range(min(concurrency, len(prompts))):
        # Daemon threads, so that Ctrl-C does not wait for a server that hangs.
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in prompts:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer
    finally:
        stop.set()


def _ask(endpoint: Endpoint, settings: LoadSettings, numbered: tuple[int, str]) -> TimedAnswer:
    number, prompt = numbered
    body: dict[str, Any] = {
        "model": settings.model,
        "prompt": prompt,
        "max_tokens": settings.max_tokens,
        "temperature": 1.0,
        "seed": settings.seed + number,
    }
    if settings.ignore_eos:
        body["ignore_eos"] = True
    began = time.perf_counter()
    times: list[float] = []
    usage: dict[str, int] = {}
    try:
        for event in endpoint.stream("/v1/completions", body):
            if event.usage:
                usage = dict(event.usage)
            if event.text or not event.usage:
                times.append(time.perf_counter() - began)
    except EndpointError as error:
        said = str(error).partition("\n")[0].partition(": ")[2]
        if error.status:
            return TimedAnswer(error=f"HTTP {error.status}", detail=said[:MOST_DETAIL])
        return TimedAnswer(error=said or "no answer")
    tokens = usage.get("completion_tokens", len(times))
    if not times or not tokens:
        return TimedAnswer(error="an empty answer")
    gaps = [after - before for before, after in pairwise(times)]
    return TimedAnswer(
        first_token=times[0], total=times[-1], tokens=tokens, prompt_tokens=usage.get("prompt_tokens", 0), gaps=gaps
    )


def _level(concurrency: int, seconds: float, answers: Sequence[TimedAnswer]) -> LoadLevel:
    good = [each for each in answers if each.error is None]
    return LoadLevel(
        concurrency=concurrency,
        seconds=seconds,
        completed=len(good),
        errors=dict(Tally(each.error for each in answers if each.error is not None)),
        tokens=sum(each.tokens for each in good),
        prompt_tokens=sum(each.prompt_tokens for each in good),
        first_token=percentiles([each.first_token for each in good]),
        between_tokens=percentiles([gap for each in good for gap in each.gaps]),
        total=percentiles([each.total for each in good]),
    )


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """Return the nearest-rank percentiles; empty without values."""
    ordered = sorted(values)
    return {p: ordered[max(0, -(-p * len(ordered) // 100) - 1)] for p in PERCENTILES} if ordered else {}


def _is_gone(endpoint: Endpoint, warm_up: Sequence[TimedAnswer]) -> bool:
    errors = [each.error for each in warm_up if each.error]
    if len(errors) < len(warm_up):
        return False
    return all(each.endswith(TIMED_OUT) for each in errors) or not _answers_at_all(endpoint)


def _answers_at_all(endpoint: Endpoint) -> bool:
    try:
        endpoint.models()
    except EndpointError:
        return False
    return True
