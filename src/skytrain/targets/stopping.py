"""Stop: ask the processes of a run to save a checkpoint and end, wait until they have, and end its machines."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial

from ..aws import ANSWERING, KINDS, AwsSession, Call, CloudError, CloudResource, open_session, remove_all, scale_to_zero
from ..config import Config, SkytrainError, error_text, plural
from ..runs import (
    DEFAULT_TARGET,
    LaunchRecord,
    Reporter,
    RunStatus,
    ask_stop,
    attempt_numbers,
    following_launches,
    launches_of,
    load_run,
    preceding_launches,
    stop_key,
    stopped_key,
    withdraw_launch,
)
from ..storage import Retry, Store, open_store
from ..tuning import SweepStatus, stop_sweep
from .account import UNKNOWN, machines_of, related_launches
from .base import SchedulerJob
from .lifecycle import described_groups, uninterrupted
from .limits import count_launches, ended_in_store
from .run_status import FINISHING, LAUNCHED, PREPARING, SERVING, TUNING, find_status, status_of

POLL_SECONDS = 2.0
LIVE = ("running", "starting")
# kinds of resources
API_KEY = "API key"
ROLE = "machine role"


@dataclass(frozen=True)
class StoppedRun:
    """What became of a run that was asked to stop."""

    run: str
    state: str  # as `skytrain status` shows it
    asked: bool  # whether there was anything to stop
    step: int
    total_steps: int
    checkpoint_step: int | None

    @property
    def may_be_saving(self) -> bool:
        """Whether ending its machines now could lose a checkpoint."""
        return self.state in LIVE


@dataclass(frozen=True)
class StopResult:
    """What `stop` has done, for people and for --json."""

    text: str
    facts: object
    exit_code: int = 0
    warning: str | None = None


@dataclass(frozen=True)
class PlannedStop:
    """What `stop` would end. Nothing has been asked yet."""

    requests: Callable[[], str]  # what --dry-run prints
    end: Callable[[float, bool, Reporter], StopResult]  # is given --wait in seconds and --force
    question: str | None = None  # None: nothing that needs an answer
    session: AwsSession | None = None  # whose account the question names
    usd_per_hour: float = 0.0  # that it saves


def stop(config: Config, run: str, wait_seconds: float, reporter: Reporter) -> StoppedRun:
    """Ask the run's newest attempt to stop, and wait up to `wait_seconds` for its end."""
    store = open_store(config.store)
    status = find_status(store, run)
    launches = launches_of(store, run)
    if status.state == LAUNCHED:
        withdraw_launch(store, launches[-1])
    if launches:  # a smoke run or a stage that is stopped starts no other
        for waiting in following_launches(store, launches[-1]):
            withdraw_launch(store, waiting)
    if status.state in (LAUNCHED, SERVING) and (last := launches[-1]).verb == "serve":
        store.write(stopped_key(last), b"{}")
    # A stale attempt is asked too: its machine may only be cut off from the store.
    if status.state not in (*LIVE, "stale"):
        return _result(status, asked=False)
    asked = attempt_numbers(store, run)[-1]
    ask_stop(store, run, asked)
    reporter.note(f"{run}: asked attempt {asked} to save a checkpoint and stop")
    return _result(_wait(store, status, asked, wait_seconds, reporter), asked=True)


def _wait(store: Store, status: RunStatus, asked: int, wait_seconds: float, reporter: Reporter) -> RunStatus:
    record = load_run(store, status.run)
    began = time.monotonic()
    while status.state in LIVE:
        elapsed = time.monotonic() - began
        if elapsed >= wait_seconds:
            break
        reporter.progress("stop", elapsed, None, f"{status.state}, step {status.step}", wait_seconds - elapsed)
        time.sleep(min(POLL_SECONDS, wait_seconds - elapsed))
        newest = attempt_numbers(store, status.run)[-1]
        if newest > asked:
            # torchrun restarts crashed workers by itself; their new attempt is to stop as well.
            asked = newest
            ask_stop(store, status.run, asked)
        status = status_of(store, record)
    return status


def stop_calls(machines: Sequence[CloudResource]) -> list[tuple[str, Call]]:
    """Return the requests that end a run's machines, each with its region: groups first, which would replace instances."""
    groups = [each for each in machines if each.kind == "Auto Scaling group"]
    calls = [(group.region, scale_to_zero(group)) for group in groups]
    for each in machines:
        if each.kind == "instance":  # one by one: where one of several is gone, EC2 ends none of them
            calls.append((each.region, Call("ec2", "TerminateInstances", {"InstanceIds": [each.id]})))
    for key in (each for each in machines if each.kind == API_KEY):
        calls += [(key.region, call) for call in KINDS[API_KEY].delete(key)]
    if not any(
        each.kind == "instance" for each in machines
    ):  # their last lines of the log need it; `gc` deletes it then
        for role in (each for each in machines if each.kind == ROLE):
            calls += [(role.region, call) for call in KINDS[ROLE].delete(role)]
    return calls


def account_machines(
    config: Config, runs: Sequence[str], tell: Callable[[str], None]
) -> tuple[AwsSession | None, list[CloudResource]]:
    """Return the machines of these runs; none without an AWS account in the configuration."""
    if config.cloud.project is None or not runs:
        return None, []
    session = open_session(config.cloud.region, config.cloud.account)
    return session, [each for run in runs for each in machines_of(config, session, run, tell)]


def _machines_now(
    config: Config, runs: Sequence[str], before: list[CloudResource], tell: Callable[[str], None]
) -> list[CloudResource]:
    """Return the machines of now: some may have started while a question stood on the screen, or during the wait."""
    try:
        return account_machines(config, runs, tell)[1]
    except Exception as error:  # whatever it is, those of before are ended
        tell(f"warning: {error_text(error)}\n  ending the machines that were there before")
        return before


class _Launches:
    """The launches of runs when a question was asked: one that somebody makes afterwards is not what was asked about."""

    def __init__(self, config: Config, runs: Sequence[str]) -> None:
        self._config = config
        self._runs = runs
        self._before = self._read()

    def _read(self) -> dict[tuple[str, str], LaunchRecord] | None:
        try:
            store = open_store(self._config.store)
            return {(each.run, each.id): each for run in self._runs for each in launches_of(store, run)}
        except SkytrainError:  # told by those who need it; machines are ended all the same
            return None

    def since(self, name: str) -> StopResult | None:
        """Return the result of a stop of `name` that must end nothing any more; None if nobody has launched since."""
        now = self._read()
        if self._before is None or now is None:
            return None
        newer = [record for key, record in now.items() if key not in self._before and not record.failed]
        if not newer:
            return None
        record = newer[-1]
        return StopResult(
            f"{name}: it was launched again",
            {"run": name, "asked": False},
            3,
            f"{record.launched_by} launched {record.run} at {record.launched_at}, after this command was given: "
            f"nothing of that launch was ended\n  to end it, run this again: {_command(name)}",
        )


def stop_with_machines(config: Config, run: str, tell: Callable[[str], None]) -> PlannedStop:
    """Let a run save and stop, then end the machines of the account that carry its tag."""
    try:
        session, machines = account_machines(config, [run], tell)
    except CloudError:
        tell(_nothing_asked(config, run))
        raise

    launches = _Launches(config, [run])

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        if (again := launches.since(run)) is not None:
            return again
        try:
            stopped = stop(config, run, wait_seconds, reporter)
        except BaseException as error:
            if not machines:
                raise
            if not force or not isinstance(error, SkytrainError):
                reporter.note(f"nothing was ended: {_named(machines)} may run on\n  end them: {_command(run)} --force")
                raise
            tell(f"warning: {error_text(error)}\n  ending its machines although it could not be asked to save")
            stopped = StoppedRun(run=run, state=UNKNOWN, asked=True, step=0, total_steps=0, checkpoint_step=None)
        if (again := launches.since(run)) is not None:
            return again
        waits = stopped.may_be_saving and not force
        left: list[CloudResource] = []
        if session is not None and not waits:
            # First, so that nobody who still watches the launch asks for other machines.
            _note_failure(lambda: mark_stopped(config, run), tell)
        if session is not None and machines and not waits:
            left = end_machines(session, _machines_now(config, [run], machines, tell), reporter)
            _note_failure(lambda: _count(config, session, run, tell), tell)
        if left:
            warning = f"not ended: {_named(left)} may run on\n  run this again: {_command(run)}"
            return StopResult(describe_stop(stopped), asdict(stopped), 3, warning)
        if not waits and (unseen := _unseen(run, machines)):
            return StopResult(describe_stop(stopped), asdict(stopped), 3, unseen)
        warning = (
            f"its machines still run: they end by themselves when it has saved; run this again, or add --force\n"
            f"  skytrain status {shlex.quote(run)} cloud=aws"
        )
        if machines and waits:
            return StopResult(describe_stop(stopped), asdict(stopped), 3, warning)
        return _result_here(config, stopped)

    def requests() -> str:
        return json.dumps(planned_stop(config, run, machines), indent=1)

    if not machines:
        return PlannedStop(requests, end)
    require_run(config, run, machines)
    return PlannedStop(
        requests=requests,
        end=end,
        question=_end_question(run, machines),
        session=session,
        usd_per_hour=_usd_per_hour(machines),
    )


def stop_with_jobs(
    config: Config,
    run: str,
    active: Callable[[], Sequence[SchedulerJob]],
    *,
    end: Callable[[SchedulerJob], object],
    ended: str,
) -> PlannedStop:
    """Let a run save and stop, then `end` its active jobs, which are `ended` then. Those that only wait end at once."""
    if not active():
        find_status(open_store(config.store), run)  # for its message, also in a dry run, if there is no such run

    def finish(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        jobs = active()
        waits = bool(jobs) and all(job.phase == "waiting" for job in jobs)
        stopped = None if waits else stop(config, run, wait_seconds, reporter)
        left = stopped is not None and stopped.may_be_saving and not force
        if not left:
            for job in active():
                end(job)
                reporter.note(f"job {job.id} is {ended}")
            mark_stopped(config, run)
        if stopped is None:
            return StopResult(f"{run}: it had not begun to train", {"run": run, "asked": False})
        return StopResult(describe_stop(stopped), asdict(stopped), 3) if left else _result_here(config, stopped)

    return PlannedStop(lambda: json.dumps([{"end": job.id} for job in active()], indent=1), finish)


def stop_whole_sweep(
    config: Config, sweep: SweepStatus, tell: Callable[[str], None], end_jobs: Callable[[], None]
) -> PlannedStop:
    """Ask the processes of a sweep to stop, and set its machines' groups to zero; `end_jobs` ends what else it has."""
    name = sweep.sweep
    session, machines = account_machines(config, sweep.machines, tell)

    def requests() -> str:
        calls = [{"region": region, **call.render()} for region, call in stop_calls(machines)]
        return json.dumps({"sessions": sweep.sessions, "requests": calls}, indent=1)

    launches = _Launches(config, sweep.machines)

    def end(wait_seconds: float, force: bool, reporter: Reporter) -> StopResult:
        if (again := launches.since(name)) is not None:
            return again
        try:
            asked = stop_sweep(config, name, reporter)
        except BaseException as error:
            if not machines:
                raise
            if not force or not isinstance(error, SkytrainError):
                reporter.note(f"nothing was ended: {_named(machines)} may run on\n  end them: {_command(name)} --force")
                raise
            tell(f"warning: {error_text(error)}\n  ending its machines although its trials could not be asked to save")
            asked = []
        left: list[CloudResource] = []
        if session is not None and machines:
            # First: a machine that boots now ends itself.
            for run in sweep.machines:
                _note_failure(partial(mark_stopped, config, run), tell)
            found = _machines_now(config, sweep.machines, machines, tell)
            left = end_machines(session, found, reporter)
            for run in sweep.machines:
                _note_failure(partial(_count, config, session, run, tell), tell)
        end_jobs()
        count = plural(len(asked), "process", "processes")
        text = f"{count} asked to stop; the same command continues it" if asked else "nothing to stop"
        facts = {"sweep": name, "asked": asked}
        warning = f"not ended: {_named(left)} may run on\n  run this again: {_command(name)}" if left else None
        warning = warning or _unseen(name, machines)
        return StopResult(f"{name}: {text}", facts, 3 if warning else 0, warning)

    if not machines:
        return PlannedStop(requests, end)
    return PlannedStop(
        requests=requests,
        end=end,
        question=_end_question(name, machines),
        session=session,
        usd_per_hour=_usd_per_hour(machines),
    )


def _unseen(name: str, machines: Sequence[CloudResource]) -> str | None:
    """Return a warning about groups that AWS did not describe when it was asked; None if it described all."""
    unseen = [each for each in machines if each.state == UNKNOWN]
    if not unseen:
        return None
    return (
        f"set to zero, but AWS did not say which machines they have: {_named(unseen)}\n"
        f"  run this again: {_command(name)}"
    )


def _note_failure(work: Callable[[], object], tell: Callable[[str], None]) -> None:
    """Do what must not keep machines from being ended, whatever becomes of it."""
    try:
        work()
    except Exception as error:
        tell(f"warning: {error_text(error)}")


def _count(config: Config, session: AwsSession, run: str, tell: Callable[[str], None]) -> None:
    store = open_store(config.store)
    count_launches(session, store, related_launches(store, run), tell)


def _nothing_asked(config: Config, run: str) -> str:
    """Return what may run on when AWS could not be asked at all, and what ends it."""
    try:
        live = [each for each in related_launches(open_store(config.store), run) if not each.failed]
        left = "; ".join(described_groups(each) for each in live if each.over_at > datetime.now(UTC))
    except SkytrainError:
        left = ""
    return (
        f"nothing was ended: {left or f'machines of {run}'} may run on\n  run this again: {_command(run)}; "
        f"without AWS, this lets a run that trains save and end itself: skytrain stop {shlex.quote(run)} "
        f"store.root={config.store.root}"
    )


def _result_here(config: Config, stopped: StoppedRun) -> StopResult:
    """Return the result, with a warning if a job that has no processes to ask was launched where nobody was asked to end it."""
    here = config.cloud.target or (DEFAULT_TARGET if config.cloud.project is not None else None)
    text = describe_stop(stopped)
    facts = asdict(stopped)
    if stopped.state not in (LAUNCHED, PREPARING, TUNING, FINISHING):
        return StopResult(text, facts)
    record = launches_of(open_store(config.store), stopped.run)[-1]
    if record.failed or record.target == here:
        return StopResult(text, facts)
    warning = (
        f"it was launched with {record.target_word}, where nothing was ended\n"
        f"  skytrain stop {shlex.quote(stopped.run)} {record.target_word}"
    )
    return StopResult(text, facts, 3, warning)


def mark_stopped(config: Config, run: str) -> None:
    """Note that people have ended the target's newest launch of the run, which may then be launched elsewhere.

    A smoke run or a stage before it that is not over is ended with it: a machine of that one which boots now ends itself.
    """
    store = open_store(config.store)
    target = config.cloud.target or DEFAULT_TARGET
    launches = [record for record in launches_of(store, run) if record.target == target]
    if not launches:
        return
    store.write(stopped_key(launches[-1]), b"{}")
    now = datetime.now(UTC)
    for first in preceding_launches(store, launches[-1]):
        if not first.failed and first.over_at > now and not ended_in_store(first, store):
            store.write(stopped_key(first), b"{}")


def _end_question(name: str, machines: Sequence[CloudResource]) -> str:
    count = len([each for each in machines if each.kind == "instance"])
    return f"Stop {name} and terminate {plural(count, 'machine')}?"


def require_run(config: Config, run: str, machines: Sequence[CloudResource]) -> None:
    """Refuse to end the machines of a run that this store does not know: it could not be asked to save first."""
    try:
        find_status(open_store(config.store), run)
    except SkytrainError as error:
        count = plural(len([each for each in machines if each.kind == "instance"]), "machine")
        runs = dict.fromkeys(each.tags.run or run for each in machines)  # a sweep has one for each machine
        end = "; ".join(f"skytrain gc --run {shlex.quote(each)} --delete cloud=aws" for each in runs)
        raise SkytrainError(
            f"{error}\n  {count} with its tag may be starting, or work for another store: set store.root to that one\n"
            f"  to end them without a checkpoint: {end}"
        ) from None


def planned_stop(config: Config, run: str, machines: Sequence[CloudResource]) -> dict[str, object]:
    """Return what `--dry-run` prints: the object that would be written, and the requests to AWS with their regions."""
    store = open_store(config.store)
    live = find_status(store, run).state in (*LIVE, "stale")
    asked = {"write": store.url(stop_key(run)), "attempt": attempt_numbers(store, run)[-1]} if live else None
    return {"store": asked, "requests": [{"region": region, **call.render()} for region, call in stop_calls(machines)]}


def end_machines(
    session: AwsSession, machines: Sequence[CloudResource], reporter: Reporter, again: Retry = ANSWERING
) -> list[CloudResource]:
    """Set the run's groups to zero and terminate its instances, and return what could not be ended.

    Whatever fails, the next request is made. A group that is left keeps its instances: it would replace them.
    """
    with uninterrupted(lambda: reporter.note("still ending machines: what is left costs money")):
        failed = remove_all(session, stop_calls(machines), reporter.note, again=again)
    groups = {call.parameters.get("AutoScalingGroupName") for _, call in failed}
    ids = {one for _, call in failed for one in call.parameters.get("InstanceIds", ())}
    left = [each for each in machines if each.id in groups or each.id in ids or each.facts.get("group") in groups]
    ended = [each for each in machines if each not in left]
    count = len([each for each in ended if each.kind == "instance"])
    reporter.note(f"{plural(count, 'machine')} terminated, ${_usd_per_hour(ended):.2f} per hour less")
    return left


def _named(machines: Sequence[CloudResource]) -> str:
    return ", ".join(f"{each.kind} {each.id} in {each.region}" for each in machines)


def _command(name: str) -> str:
    return f"skytrain stop {shlex.quote(name)} cloud=aws"


def _usd_per_hour(machines: Sequence[CloudResource]) -> float:
    return sum(each.usd_per_hour or 0.0 for each in machines)


def _result(status: RunStatus, *, asked: bool) -> StoppedRun:
    return StoppedRun(
        run=status.run,
        state=status.state,
        asked=asked,
        step=status.step,
        total_steps=status.total_steps,
        checkpoint_step=status.checkpoint_step,
    )


def describe_stop(stopped: StoppedRun) -> str:
    """Describe in one line what became of the run."""
    reached = f"step {stopped.step}/{stopped.total_steps}"
    kept = "no checkpoint yet" if stopped.checkpoint_step is None else f"checkpoint at step {stopped.checkpoint_step}"
    if stopped.state == UNKNOWN:
        return f"{stopped.run}: it could not be asked to save; what it had saved before is kept"
    if stopped.state == LAUNCHED:
        return f"{stopped.run}: it had not begun to train"
    if stopped.state == FINISHING:
        return f"{stopped.run}: what it has measured and exported is used when it is launched again"
    if stopped.state == PREPARING:
        return f"{stopped.run}: what it has prepared is used when it is launched again"
    if stopped.state == TUNING:
        return f"{stopped.run}: its trials continue from their checkpoints when the sweep is launched again"
    if stopped.state == SERVING:
        return f"{stopped.run}: its endpoint has ended; its machine and its API key are removed with cloud={DEFAULT_TARGET}"
    if not stopped.asked:
        return f"{stopped.run}: nothing to stop, it is {stopped.state} at {reached}, {kept}"
    if stopped.state in LIVE:
        return f"{stopped.run}: still {stopped.state} at {reached}; it stops after its current step and a save"
    if stopped.state == "stale":
        return f"{stopped.run}: gives no sign of life; if its machine comes back, it stops. {kept}"
    resumes = "" if stopped.state == "done" else "; the same `skytrain train` resumes it"
    return f"{stopped.run}: {stopped.state} at {reached}, {kept}{resumes}"
