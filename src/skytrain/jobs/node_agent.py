"""The node agent: registers this host, meets the others in generations, runs each generation's job, and leaves.

`generations.py` makes the decisions. This module reads the store and the metadata service, and carries them out.
The monotonic clock of this host only paces its requests; whether another host is lost is decided by the store's clock.
"""

from __future__ import annotations

import dataclasses
import math
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from ..aws import Notice
from ..config import EXIT_CODES, INTERRUPTED, UNCOMMITTED, SkytrainError, format_seconds
from ..runs import Presence
from ..storage import StoreError
from .early_signals import handled_signals
from .generations import (
    Action,
    EndGeneration,
    GenerationEnd,
    HostState,
    JobGeneration,
    Leave,
    MeetingRules,
    MeetingView,
    Propose,
    StartJob,
    StopJob,
    decide,
    fresh_hosts,
    job_ended,
    must_go,
)
from .machines import RentedMachines
from .network import free_port
from .node_job import NodeJob
from .rendezvous import HostIdentity, MeetingStore
from .supervisor import Restarts, describe_exit, restart_wait_seconds

LOOK_SECONDS = 10.0
FOLLOW_SECONDS = 2.0  # how long the other hosts leave it to node 0 to report that a job has ended
NOTICE_SECONDS = 5.0  # between two requests for a notice, as AWS advises
WAIT_CHECK_SECONDS = 60.0  # between two checks for a request to stop and of the budget, while this host waits
HOPELESS_SECONDS = 10.0  # limit on stopping a job that cannot save
ROUND_SECONDS = 0.2
HEALTH_TRIES = 3
PROOF_SECONDS = 10.0  # between two looks for the progress that proves this machine
KEEP_WAITING_SECONDS = 1800.0  # between two signs of life of a machine that is not proven
UNMET = "the nodes did not reach each other"
UNMET_GENERATIONS = 2  # in a row, after which one node is replaced; after as many again the run ends
GIVE_BACK_SECONDS = 900.0  # for which giving the machines back is tried again
GIVE_BACK_WAIT_SECONDS = 30.0  # the longest wait between two tries
NO_FAILURES = {EXIT_CODES[cause] for cause in ("done", "budget", INTERRUPTED, UNCOMMITTED, "superseded")}
RUN_ENDS = {EXIT_CODES[cause] for cause in ("done", "budget", "usage", "preflight", "damaged", "credentials")}


@dataclass(frozen=True)
class HostServices:
    """The functions through which the agent uses its host and the run's records."""

    start_job: Callable[[JobGeneration, int], NodeJob]  # arguments: a generation, and this host's number in it
    spend: Callable[[], dict[str, Any]]  # this host's cost, until its next heartbeat
    notice: Callable[[], Notice | None] = lambda: None
    health: Callable[[], list[str]] = list  # problems of this host
    resumed_step: Callable[[], int | None] = lambda: None  # step from which the newest attempt resumed
    stop_asked: Callable[[], str | None] = lambda: None
    budget_spent: Callable[[int], str | None] = lambda hosts: None  # why the budget of waiting hosts is spent
    progress: Callable[[], int] = lambda: 0  # what the job has done for good, such as its last committed step
    has_met: Callable[[int], bool] = lambda generation: True  # whether the hosts of a generation found each other


@dataclass(frozen=True)
class AgentLimits:
    """Limits on restarts and waits."""

    max_restarts: int
    stop_seconds: float
    patience_seconds: float = 1800.0  # how long an agent without a job waits for a store that does not answer
    keep_seconds: float = 0.0  # how long the machine is kept after the run has failed
    keep_after_success: bool = False  # until its kill time


@dataclass
class RequestPace:
    """The time at which something is next due, by this host's clock."""

    seconds: float
    at: float = 0.0

    def due(self) -> bool:
        now = time.monotonic()
        if now < self.at:
            return False
        self.at = now + self.seconds
        return True


@dataclass
class RunningJob:
    """The job of a generation on this host, and when to kill it."""

    job: NodeJob
    generation: JobGeneration
    kill_at: float | None = None


class ProofOfWork:
    """Whether this machine has taken part in lasting progress; until then nothing but a grant replaces it.

    The requests are made in a thread: a cloud that does not answer must not delay heartbeats.
    """

    def __init__(self, machines: RentedMachines, tell: Callable[[str], None]) -> None:
        self._machines = machines
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._look = RequestPace(PROOF_SECONDS)
        self._sign = RequestPace(KEEP_WAITING_SECONDS)
        self._before: int | None = None  # the progress when this machine's job began
        self.given = False

    def begin_job(self) -> None:
        """Note that only progress from now on counts."""
        self._before = None
        self._look.at = 0.0

    def round(self, progress: Callable[[], int | None], *, runs: bool) -> None:
        """Prove this machine if its job has made progress; otherwise let it be kept. Called again and again."""
        if self.given or (self._thread is not None and self._thread.is_alive()):
            return
        if runs and self._look.due():
            self.check(progress())
        elif self._sign.due():
            self._start(self._keep)

    def check(self, progress: int | None) -> None:
        """Compare the job's progress with that at its begin."""
        if self.given or progress is None:
            return
        if self._before is None:
            self._before = progress
        elif progress > self._before:
            self._start(partial(self._prove, progress))

    def finish(self) -> None:
        """Wait for a request that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        self.finish()
        self._thread = threading.Thread(target=self._ask, args=[work], daemon=True)
        self._thread.start()

    def _ask(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (SkytrainError, OSError) as error:
            self._tell(f"warning: {error}\n  asking again")

    def _keep(self) -> None:
        self.given = not self._machines.keep_waiting()

    def _prove(self, progress: int) -> None:
        self._machines.prove(progress)
        self.given = True
        self._tell("this machine has taken part in a committed step: from now on it is replaced if it is lost")


@dataclass
class NodeAgent:
    """One host of a run, from its registration until it leaves."""

    identity: HostIdentity
    address: str
    meeting: MeetingStore
    machines: RentedMachines
    services: HostServices
    rules: MeetingRules
    limits: AgentLimits
    tell: Callable[[str], None]
    state: HostState = field(init=False)
    exit_code: int = field(default=EXIT_CODES[UNCOMMITTED], init=False)

    def __post_init__(self) -> None:
        self.state = HostState(host=self.identity.host)
        self._running: RunningJob | None = None
        self._restarts = Restarts(self.limits.max_restarts)
        self._away_until = 0.0
        self._presence: Presence | None = None
        self._beat = RequestPace(self.rules.beat_seconds)
        self._notice = RequestPace(NOTICE_SECONDS)
        # At a random offset, so that hosts that boot together do not send their requests together.
        self._look = RequestPace(LOOK_SECONDS, time.monotonic() + random.uniform(0, LOOK_SECONDS))
        self._wait_check = RequestPace(WAIT_CHECK_SECONDS, time.monotonic() + WAIT_CHECK_SECONDS)
        self._silent_since: float | None = None  # the store does not answer
        self._signal: int | None = None
        self._at_once = False  # a second Ctrl-C
        self._suspect = False  # a job has failed here: check the host's health
        self._lacking: tuple[int, bool] | None = None  # number of ready hosts, if too few; whether this is the first
        self._told_waiting = (-1, -1)
        self._waits_since = time.monotonic()
        self._under_way = False  # a generation, as last seen
        self._has_met = False  # the job of this host's generation has found the other hosts'
        self._meet_check = RequestPace(WAIT_CHECK_SECONDS)
        self._over = False  # the run is over
        self._was_first_node = False  # in this host's last generation
        self._proof = ProofOfWork(self.machines, self.tell)

    def run(self, dead: frozenset[str] = frozenset()) -> int:
        """Take part until the run is over or this host must leave, and return the exit code."""
        self._proof = ProofOfWork(self.machines, self.tell)
        self.state = dataclasses.replace(self.state, dead=dead)
        with ExitStack() as stack:
            stack.callback(self._end)
            self._try(lambda: self._write_beat("away"))  # its cost counts from now on
            fit = self._pass_health_check()
            while fit and self.state.phase != "gone":
                self.round()
                time.sleep(ROUND_SECONDS)
            self._keep_machine()
        self._give_back()
        return self.exit_code

    def handle_signals(self) -> None:
        """Treat a signal to the agent as a notice: it comes from a shutdown, the scheduler or a terminal."""
        for number in handled_signals():
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._at_once = self._at_once or (self._signal is not None and number == signal.SIGINT)
        self._signal = number

    def round(self) -> None:
        """Do whatever is due now."""
        self._check_job()
        if self._signal is not None:
            self._must_go(f"{signal.Signals(self._signal).name} received")
            if self._at_once and self._running is not None:
                self._running.kill_at = 0.0
        if self._notice.due():
            self._check_notice()
        if self._waits() and self._wait_check.due():
            self._check_waiting()
        presence: Presence = "ready" if self._is_ready() else "away"
        if self._beat.due() or presence != self._presence:
            self._try(lambda: self._write_beat(presence))
        self._proof.round(lambda: self._ask(self.services.progress), runs=self._running is not None)
        if self._look.due():
            self._try(lambda: self._act(*decide(self.state, self._see(), self.rules)))

    def _waits(self) -> bool:
        """Return whether this host waits for others, as a host without a job or as one whose job has not met theirs."""
        if self._running is None:
            return self.state.phase == "meeting"
        if self.state.phase == "running" and not self._has_met and self._meet_check.due():
            self._has_met = self._ask(lambda: self.services.has_met(self.state.joined)) is not False
        return self.state.phase == "running" and not self._has_met

    def _is_ready(self) -> bool:
        return self.state.may_be_invited and time.monotonic() >= self._away_until

    def _write_beat(self, presence: Presence) -> None:
        phase = self.state.phase if presence == "ready" else "away"
        record = {"phase": phase, "generation": self.state.joined, "address": self.address}
        self.meeting.beat(presence, {**record, "spend": self.services.spend()})
        self._presence = presence

    def _see(self) -> MeetingView:
        view = self.meeting.view()
        under_way = view.newest is not None and view.end is None
        self._under_way = under_way
        over = view.end is not None and view.end.exit_code is not None
        if self.state.phase == "meeting" and not under_way and not over:
            fresh = fresh_hosts(view, self.rules, self.identity.host)
            ready = (len(fresh), self.rules.wanted)
            self._lacking = (ready[0], fresh[0] == self.identity.host) if 0 < ready[0] < ready[1] else None
            if ready != self._told_waiting:
                self._told_waiting = ready
                self.tell(f"{ready[0]} of {ready[1]} nodes are ready")
        return view

    def _try(self, work: Callable[[], None]) -> None:
        """Do the work, or let the next round try again if the store does not answer; the job continues meanwhile."""
        try:
            work()
            if self._silent_since is not None:
                self._silent_since = None
                self.tell("the store answers again")
        except StoreError as error:
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                self.tell(f"warning: {error}\n  retrying every few seconds")
            waited = time.monotonic() - self._silent_since
            if self._running is None and waited > self.limits.patience_seconds and self.state.phase != "gone":
                self._leave(GenerationEnd(self.identity.host, f"the store does not answer: {error}"))
                self.state = dataclasses.replace(self.state, phase="gone")
                self.exit_code = error.exit_code

    # Actions that the protocol decided.

    def _act(self, state: HostState, actions: tuple[Action, ...]) -> None:
        self.state = state
        for action in actions:
            match action:
                case Propose():
                    self.meeting.propose(action, self.address, free_port(self.address))
                    self._look.at = 0.0  # whichever proposal won, start at once
                case EndGeneration():
                    self._try(partial(self._end_generation, action))
                case StartJob():
                    self._start_job(action.generation)
                case StopJob():
                    self._stop_job(action)
                case Leave():
                    self._leave(action.end)

    def _end_generation(self, action: EndGeneration) -> None:
        if self.meeting.end(action):
            self.tell(f"generation {action.number} ends: {action.end.reason}")

    def _start_job(self, generation: JobGeneration) -> None:
        rank = generation.members.index(self.identity.host)
        self.tell(f"generation {generation.number}: node {rank} of {len(generation.members)}, at {generation.address}")
        self._told_waiting = (-1, -1)
        self._was_first_node = rank == 0
        self._lacking = None
        self._has_met = False
        self._meet_check.at = time.monotonic() + WAIT_CHECK_SECONDS
        self._proof.begin_job()
        self._proof.round(lambda: self._ask(self.services.progress), runs=True)
        self._running = RunningJob(self.services.start_job(generation, rank), generation)

    def _stop_job(self, action: StopJob) -> None:
        if self._running is None:
            return
        self.tell(f"stopping the job: {action.reason}")
        self._running.job.stop()
        # The supervisor kills late workers itself; this is for a supervisor that hangs, or a job that cannot save.
        seconds = self.limits.stop_seconds + HOPELESS_SECONDS if action.saves else HOPELESS_SECONDS
        self._running.kill_at = time.monotonic() + seconds

    def _leave(self, end: GenerationEnd) -> None:
        if end.exit_code is not None:
            self.exit_code = end.exit_code
            self._over = True
        self.tell(f"this node leaves: {end.reason}")

    # Events on this host.

    def _check_job(self) -> None:
        if self._running is None:
            return
        code = self._running.job.poll()
        if code is None and self._running.kill_at is not None and time.monotonic() > self._running.kill_at:
            self._running.job.kill()
            code = EXIT_CODES[UNCOMMITTED]
        if code is None:
            return
        generation, self._running = self._running.generation, None
        if code not in RUN_ENDS and not self._proof.given:
            self._proof.check(self._ask(self.services.progress))  # it may have committed a step as its last act
        self.exit_code = code if code == EXIT_CODES[INTERRUPTED] else EXIT_CODES[UNCOMMITTED]
        end = self._judge(code, generation)
        state, actions = job_ended(self.state, end)
        # 64 hosts that end together need not all report it: one that does not see the end at its next look reports it.
        self._act(state, actions if self._was_first_node else ())
        self._look.at = 0.0 if self._was_first_node else time.monotonic() + FOLLOW_SECONDS
        self._waits_since = time.monotonic()
        if self._suspect:
            self._suspect = False
            self._pass_health_check()

    def _judge(self, code: int, generation: JobGeneration) -> GenerationEnd:
        """Return what the exit code of a job means for its generation and for the run."""
        host = self.identity.host
        if code in RUN_ENDS:
            return GenerationEnd(host, f"the run is over: exit code {code}", code)
        if code in (EXIT_CODES[INTERRUPTED], EXIT_CODES[UNCOMMITTED]):
            stop = self._ask(self.services.stop_asked) if self._was_first_node else None
            return GenerationEnd(host, stop or "the job was interrupted", code if stop else None, saves=True)
        if code == EXIT_CODES["superseded"]:
            if self._is_current(generation):
                return GenerationEnd(host, "an attempt outside the generations has taken over the run", code)
            return GenerationEnd(host, "the next generation has begun")
        if self.state.phase == "stopping":
            return GenerationEnd(host, f"the job ended with {describe_exit(code)}")  # killed, for a known reason
        return self._count_crash(code, generation)

    def _count_crash(self, code: int, generation: JobGeneration) -> GenerationEnd:
        if (unmet := self._count_unmet(code, generation)) is not None:
            return unmet
        number = self._restarts.crashed(self._ask(self.services.resumed_step))
        why = describe_exit(code)
        if number is None:
            reason = f"the job failed ({why}) {self.limits.max_restarts + 1} times in a row without progress"
            return GenerationEnd(self.identity.host, reason, code)
        wait = restart_wait_seconds(number)
        self._away_until = time.monotonic() + wait
        self.tell(
            f"the job failed here ({why}): ready again in {format_seconds(wait)}, "
            f"restart {number} of {self.limits.max_restarts} without progress"
        )
        self._suspect = True
        return GenerationEnd(self.identity.host, f"the job failed on {self.identity.host} ({why})")

    def _count_unmet(self, code: int, generation: JobGeneration) -> GenerationEnd | None:
        """Count generations in a row whose hosts do not find each other: the last host is replaced, then the run ends."""
        if len(generation.members) == 1 or self._ask(lambda: self.services.has_met(generation.number)) is not False:
            return None
        host = self.identity.host
        count = 1 + (self._ask(lambda: self.meeting.ended_so(UNMET, generation.number - 1)) or 0)
        reason = f"{UNMET}, {count} times in a row ({describe_exit(code)})"
        if count >= 2 * UNMET_GENERATIONS:
            hint = "one was replaced meanwhile; does their security group admit itself?"
            return GenerationEnd(host, f"{reason}; {hint}", code)
        if count == UNMET_GENERATIONS and host == generation.members[-1]:
            self.machines.replace_me(reason)
            self.state = dataclasses.replace(self.state, leaving=GenerationEnd(host, reason))
            self.exit_code = EXIT_CODES["preflight"]
        return GenerationEnd(host, reason)

    def _is_current(self, generation: JobGeneration) -> bool:
        try:
            view = self.meeting.view()
        except StoreError:
            return False
        return view.newest == generation and view.end is None

    def _ask(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (SkytrainError, OSError) as error:
            self.tell(f"warning: {error}")
            return None

    def _check_notice(self) -> None:
        try:
            notice = self.services.notice()
        except OSError:  # the metadata service does not answer; the next round asks again
            return
        if notice is None:
            return
        if notice.at_once:
            self._must_go(notice.text)
        elif not self.state.when_spare:
            self.tell(f"{notice.text}: this node leaves when another one is ready")
            self.state = dataclasses.replace(self.state, when_spare=notice.text)

    def _check_waiting(self) -> None:
        """Check what ends a run whose hosts wait for each other, or for their job to begin: nobody else does."""
        reason = self._ask(self.services.stop_asked)
        code = EXIT_CODES[INTERRUPTED]
        if reason is None:
            reason = self._ask(lambda: self.services.budget_spent(self.meeting.hosts))
            code = EXIT_CODES["budget"]
        if reason is not None:
            # Members of a generation that is under way without this host are alive, and save.
            self._act(*must_go(self.state, GenerationEnd(self.identity.host, reason, code, saves=True)))
        elif self._lacking is not None and self._lacking[1] and not self._under_way:
            waited = time.monotonic() - self._waits_since
            hopeless = self.machines.lack_nodes(self._lacking[0], self.rules.wanted, waited)
            if hopeless is not None:
                code = EXIT_CODES[INTERRUPTED if self._ask(self.services.progress) else UNCOMMITTED]
                self._act(*must_go(self.state, GenerationEnd(self.identity.host, hopeless, code)))

    def _must_go(self, reason: str) -> None:
        if self.state.leaving is None and self.state.phase != "gone":
            self.tell(f"{reason}: this node leaves")
            self._act(*must_go(self.state, GenerationEnd(self.identity.host, reason, saves=True)))
            self._look.at = 0.0

    def _pass_health_check(self) -> bool:
        """Check the host up to three times, since a driver may need a moment; then have the machine replaced."""
        problems: list[str] = []
        for number in range(1, HEALTH_TRIES + 1):
            problems = self.services.health()
            if not problems:
                return True
            self.tell(f"health check {number} of {HEALTH_TRIES}: {'; '.join(problems)}")
            if number < HEALTH_TRIES:
                time.sleep(restart_wait_seconds(number))
        reason = f"it failed its health check {HEALTH_TRIES} times: {'; '.join(problems)}"
        self.machines.replace_me(reason)
        self.state = dataclasses.replace(self.state, leaving=GenerationEnd(self.identity.host, reason))
        self.exit_code = EXIT_CODES["preflight"]
        return False

    def _keep_machine(self) -> None:
        """Keep this machine for a while after a failure, or until its kill time after success, if people asked for it.

        Its cost counts; a signal or a notice ends it.
        """
        failed = self.exit_code not in NO_FAILURES
        seconds = self.limits.keep_seconds if failed else 0.0
        if self.exit_code == 0 and self.limits.keep_after_success:
            seconds = math.inf
        if not self._over or not seconds:
            return
        until = time.monotonic() + seconds
        long = f"for {format_seconds(seconds)}, at most until its kill time" if failed else "until its kill time"
        self.tell(
            f"the run {'failed' if failed else 'is done'}: this machine is kept {long}\n"
            f"  inspect it: skytrain shell {self.identity.run}; end it: skytrain stop {self.identity.run}"
        )
        while time.monotonic() < until and self._signal is None:
            if self._beat.due():
                self._try(lambda: self._write_beat("away"))
            if self._notice.due() and (notice := self._ask(self.services.notice)) and notice.at_once:
                return
            time.sleep(ROUND_SECONDS)

    def _give_back(self) -> None:
        """Give the machines back. The groups are set to zero before anything else, and before this machine ends.

        A machine that ended while its group still asks for it would be replaced, so the request is repeated.
        """
        self._proof.finish()
        if self._over:
            self._until_done(lambda: self.machines.set_desired(0))
            self._until_done(lambda: self.machines.end_run(self.exit_code) is not False)
            if self._was_first_node:
                self.machines.delete_groups()
        self.machines.terminate_me()

    def _until_done(self, work: Callable[[], bool]) -> None:
        until = time.monotonic() + GIVE_BACK_SECONDS
        wait = 1.0
        while self._ask(work) is not True and time.monotonic() < until:
            wait = min(GIVE_BACK_WAIT_SECONDS, 2 * wait)
            again = time.monotonic() + random.uniform(wait / 2, wait)
            while (left := again - time.monotonic()) > 0:
                self._record_left()  # its cost counts meanwhile: each record reaches beyond the next
                time.sleep(min(left, self.rules.beat_seconds))

    def _end(self) -> None:
        if self._running is not None:  # after an error in the agent, no process may stay behind
            self._running.job.kill()
        self._record_left()

    def _record_left(self) -> None:
        self._try(lambda: self.meeting.beat("left", {"phase": "gone", "spend": self.services.spend()}))
