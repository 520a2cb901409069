"""Faults in what a run depends on: the store is silent or denies everything for a while, EC2's metadata service fails.

Neither may end a run. The store is SeaweedFS behind the fault proxy of the tests; the metadata service is a stand-in.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs.campaign import AttemptResult
from benchmarks.runs.job_kills import END_SECONDS, Jobs
from tests.support.faults import FaultProxy, Kind, Request
from tests.support.imds import Fault, fake_metadata
from tests.support.s3 import start_server

from skytrain.runs import attempt_numbers, read_outcome
from skytrain.storage import open_store

# of an outage
SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 180.0
COMMITS = 4  # of a run, before its last: an outage begins right after one of them
ANSWERS: dict[Kind, str] = {"slow_down": "503", "denied": "403"}
# A denial is an outage only where the same was allowed before, so it never comes from the start.
CASES: tuple[tuple[Kind, str, bool], ...] = (
    ("slow_down", "writes", True),
    ("denied", "writes", True),
    ("slow_down", "everything", False),
    ("denied", "everything", True),
    ("slow_down", "everything", True),
    ("slow_down", "writes", False),
)


@dataclass(frozen=True)
class Outage:
    """What the store answers, to which requests, from the start (`commit` 0) or a commit on, and for how long."""

    answer: Kind
    scope: str  # writes, everything
    commit: int
    seconds: float

    def __str__(self) -> str:
        since = f"commit {self.commit}" if self.commit else "the start"
        return f"{self.scope} answered {ANSWERS[self.answer]} for {self.seconds:.0f} s from {since}"


class Window:
    """Decides for the proxy which requests meet the outage: it begins after the commit's marker has passed."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._lock = threading.Lock()
        self._commits = 0
        self._began = None if outage.commit else time.monotonic()
        self.hits = 0

    def __call__(self, request: Request) -> bool:
        writes = request.method in ("PUT", "POST", "DELETE")
        with self._lock:
            if self._began is None:
                if request.method == "PUT" and "/COMMITTED." in request.path:
                    self._commits += 1
                    if self._commits == self._outage.commit:
                        self._began = time.monotonic()
                return False
            hit = time.monotonic() - self._began < self._outage.seconds and (writes or self._outage.scope != "writes")
            self.hits += hit
            return hit


class StoreOutages(Jobs[Outage]):
    """One attempt outlives the outage: nothing is started again, and it exits with 0."""

    kind = "store"

    def __init__(self, root: Path, mode: str, seed: int, say: Callable[[str], None]) -> None:
        self._stack = ExitStack()
        folder = root / f"seaweedfs-{mode}"
        folder.mkdir()
        process, self._server = start_server(folder)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._proxy = self._stack.enter_context(FaultProxy(self._server.port))
        self._store_root = self._server.new_root()
        os.environ.update(self._server.environment())  # this process looks past the proxy
        self._copy_data(root)
        super().__init__(root, mode, seed, say)

    def _copy_data(self, root: Path) -> None:
        here = open_store(str(root))
        there = open_store(self._store_root)
        for stat in (*here.list("tokens"), *here.list("tokenizers")):
            there.write(stat.key, here.read(stat.key))

    @property
    def store_root(self) -> str:
        return self._store_root

    def environment(self) -> dict[str, str]:
        return {**self._server.environment(self._proxy.url), "AWS_EC2_METADATA_DISABLED": "true"}

    def choose(self) -> Outage:
        answer, scope, late = CASES[self.tries % len(CASES)]
        commit = self.generator.randint(1, COMMITS) if late else 0
        return Outage(answer, scope, commit, self.generator.uniform(SHORTEST_SECONDS, LONGEST_SECONDS))

    def place(self, disturbance: Outage) -> str:
        return f"{disturbance.scope} answered {ANSWERS[disturbance.answer]}"

    def attempt(self, run: str, disturbance: Outage | None) -> AttemptResult:
        began = time.monotonic()
        window = Window(disturbance) if disturbance else None
        if disturbance and window:
            self._proxy.inject(disturbance.answer, when=window)
        job = self.start(run)
        try:
            self.ended(job, run, {0}, END_SECONDS + (disturbance.seconds if disturbance else 0.0))
        finally:
            job.kill()
            job.wait()
            self._proxy.clear()
        numbers = attempt_numbers(open_store(self.store_root), run)
        assert numbers == [0], f"{run}: attempts {numbers}: it was started again"
        hits = window.hits if window else 0
        return AttemptResult(hits > 0, time.monotonic() - began, f"{hits} requests failed")

    def close(self) -> None:
        self._stack.close()
        for name in self._server.environment():
            del os.environ[name]


@dataclass(frozen=True)
class MetadataFault:
    """How the metadata service fails when the job asks what it runs on, and again before it gives a spot notice."""

    fault: Fault
    method: str | None  # PUT: tokens alone
    times: int

    def __str__(self) -> str:
        what = "tokens" if self.method == "PUT" else "answers"
        return f"metadata: {self.times} {what} {self.fault}, twice, then a spot notice"


class MetadataFaults(Jobs[MetadataFault]):
    """The budget is watched all the same, and the notice is seen: exit 7, with a commit."""

    kind = "metadata"
    modes = ("single", "fsdp")
    # More micro-batches a step, so that a run lasts for several of the watch's polls.
    extra = ("trainer.batch_tokens=8192", "budget.usd=1e9")
    faults: tuple[tuple[Fault, str | None], ...] = (
        ("busy", "PUT"),
        ("empty", None),
        ("hang", "PUT"),
        ("garbage", None),
        ("empty", "PUT"),
        ("busy", None),
        ("hang", None),
    )

    def __init__(self, root: Path, mode: str, seed: int, say: Callable[[str], None]) -> None:
        self._url = ""
        super().__init__(root, mode, seed, say)

    def environment(self) -> dict[str, str]:
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self._url}

    def choose(self) -> MetadataFault:
        fault, method = self.faults[self.tries % len(self.faults)]
        return MetadataFault(fault, method, self.generator.randint(1, 3))

    def place(self, disturbance: MetadataFault) -> str:
        return f"metadata {disturbance.fault}" + (" for tokens" if disturbance.method else "")

    def attempt(self, run: str, disturbance: MetadataFault | None) -> AttemptResult:
        began = time.monotonic()
        before = self.steps(run)
        with fake_metadata() as fake:
            self._url = fake.url
            if disturbance is not None:
                fake.fail(disturbance.fault, times=disturbance.times, method=disturbance.method)
            job = self.start(run)
            try:
                while disturbance is not None and self.steps(run) == before and job.poll() is None:
                    time.sleep(0.05)
                if disturbance is not None:
                    fake.tokens.clear()
                    fake.fail(disturbance.fault, times=disturbance.times, method=disturbance.method)
                    fake.give_notice()
                code = self.ended(job, run, {0, 7} if disturbance else {0}, END_SECONDS)
            finally:
                job.kill()
                job.wait()
        if code == 7:
            store = open_store(self.store_root)
            outcome = read_outcome(store, run, attempt_numbers(store, run)[-1])
            assert outcome is not None and outcome["step"] == self.steps(run)[-1], f"{run}: exit code 7, and {outcome}"
        assert "is not watched" not in self.log(run).read_text()
        return AttemptResult(code == 7, time.monotonic() - began, f"exit code {code}")
