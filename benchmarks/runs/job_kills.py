"""Faults for `skytrain train` as a user starts it, with supervisor, torchrun and workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Container
from dataclasses import dataclass

from benchmarks.runs.campaign import SETTINGS, AttemptResult, Campaign, Disturbance
from tests.support.tiny import TINY

from skytrain.checkpoints import committed_steps
from skytrain.jobs import identify
from skytrain.jobs.processes import descendants, supervised_by
from skytrain.runs import attempt_numbers, read_outcome
from skytrain.storage import open_store

ORPHAN_SECONDS = 10.0  # after the supervisor is gone, nothing of its job may be left
END_SECONDS = 300.0  # for a job on a busy machine to stop, or to come as far as its next commit
EARLY_SECONDS = 2.0  # in which no worker has imported torch
MOMENTS = ("early", "any", "after a commit")


@dataclass(frozen=True)
class JobKill:
    """When a job is killed."""

    what: str
    moment: str
    seconds: float  # from the start, or from the attempt's first commit

    def __str__(self) -> str:
        since = "the first commit" if self.moment == "after a commit" else "the start"
        return f"{self.what} {self.seconds:.2f} s after {since}"


class Jobs(Campaign[Disturbance]):
    """Runs are trained by `skytrain train` in processes of their own."""

    modes = ("single", "ddp", "fsdp")
    extra: tuple[str, ...] = ()  # settings of this kind

    def environment(self) -> dict[str, str]:
        """Of a job, beside this process's own."""
        return {}

    def start(self, run: str) -> subprocess.Popen[bytes]:
        words = [
            *TINY,
            *SETTINGS,
            *self.options,
            *self.extra,
            f"store.root={self.store_root}",
            f"run={run}",
            "--processes",
            str(self.world),
        ]
        command = [sys.executable, "-m", "skytrain", "train", *words]
        with self.log(run).open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.environment()})

    def steps(self, run: str) -> list[int]:
        return committed_steps(open_store(self.store_root), run)

    def ended(self, job: subprocess.Popen[bytes], run: str, codes: Container[int], seconds: float) -> int:
        """The exit code, which must be one of `codes`."""
        code = job.wait(seconds)
        assert code in codes, f"{run}: exit code {code}: {self.log(run).read_text()[-2000:]}"
        return code


class JobCampaign(Jobs[JobKill]):
    """Starts jobs and waits for the moment; `kill` is what the kinds differ in."""

    what: str

    def kill(self, job: subprocess.Popen[bytes], run: str) -> str:
        """Returns, when the job is over, what is worth saying."""
        raise NotImplementedError

    def choose(self) -> JobKill:
        moment = MOMENTS[self.tries % len(MOMENTS)]
        longest = {"early": EARLY_SECONDS, "any": self.seconds, "after a commit": 0.5}[moment]
        return JobKill(self.what, moment, self.generator.uniform(0.0, longest))

    def place(self, disturbance: JobKill) -> str:
        moment = {"early": "before workers have imported torch", "any": "at any moment"}.get(
            disturbance.moment, disturbance.moment
        )
        return f"{disturbance.what} {moment}"

    def attempt(self, run: str, disturbance: JobKill | None) -> AttemptResult:
        began = time.monotonic()
        before = self.steps(run)
        job = self.start(run)
        supervisor = identify(job.pid)
        try:
            if disturbance is not None and self.wait(job, run, before, disturbance):
                note = self.kill(job, run)
                self.check_orphans(run, supervisor)
                return AttemptResult(True, time.monotonic() - began, note)
            self.ended(job, run, {0}, END_SECONDS)
            self.check_orphans(run, supervisor)
            return AttemptResult(False, time.monotonic() - began)
        finally:
            job.kill()
            job.wait()

    def wait(self, job: subprocess.Popen[bytes], run: str, before: list[int], disturbance: JobKill) -> bool:
        """Whether the moment came before the job was done."""
        if disturbance.moment == "after a commit":
            while self.steps(run) == before and job.poll() is None:
                time.sleep(0.02)
        until = time.monotonic() + disturbance.seconds
        while time.monotonic() < until and job.poll() is None:
            time.sleep(0.005)
        return job.poll() is None

    def check_orphans(self, run: str, supervisor: str) -> None:
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := supervised_by(supervisor)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"{run}: {left} are left {ORPHAN_SECONDS:.0f} s after their supervisor"


class SupervisorKills(JobCampaign):
    """The supervisor cannot do anything any more; its workers must end all the same, and claim no further attempt."""

    kind = "supervisor"
    what = "killed the supervisor"

    def kill(self, job: subprocess.Popen[bytes], run: str) -> str:
        job.kill()
        job.wait()
        return ""


class GroupSignals(JobCampaign):
    """As systemd and Slurm stop a job: its supervisor, torchrun and every worker get the signal."""

    kind = "group"
    what = "SIGTERM for every process"

    def kill(self, job: subprocess.Popen[bytes], run: str) -> str:
        for pid in (*descendants(job.pid), job.pid):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        # 0: it was done at that moment; -SIGTERM: the supervisor itself had not begun to listen.
        code = self.ended(job, run, {0, 7, 12, -signal.SIGTERM}, END_SECONDS)
        if code == 7:
            store = open_store(self.store_root)
            outcome = read_outcome(store, run, attempt_numbers(store, run)[-1])
            assert outcome is not None and outcome["outcome"] == "interrupted", f"{run}: exit code 7, and {outcome}"
            assert outcome["step"] == self.steps(run)[-1], f"{run}: exit code 7, and {outcome} is not committed"
        return f"exit code {code}"
