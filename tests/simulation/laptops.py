"""People's computers in the simulation: the product's own launch, terminal and stop, on laptops that sleep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from skytrain.aws import MachineImage, Tags, remove_all
from skytrain.config import SkytrainError
from skytrain.planning import PlannedOffer, timestamp
from skytrain.planning.images import BASE_LINE
from skytrain.runs import (
    DEFAULT_TARGET,
    LaunchedGroup,
    LaunchRecord,
    RunStatus,
    Silent,
    attempt_numbers,
    ended_launch,
    is_superseded,
    launches_of,
    next_launch,
    read_outcome,
)
from skytrain.storage import Store
from skytrain.targets import account, leftovers, lifecycle, limits, run_status, stopping
from skytrain.targets.ec2 import launch as launching, machines as ec2_machines, target
from skytrain.targets.ec2.machines import LaunchKeeper, removal_calls
from skytrain.targets.ec2.requests import GroupSpec, kill_time
from skytrain.targets.jobs import group_name
from tests.targets.plans import offer

if TYPE_CHECKING:
    from .world import World

RUN = "simulated"
LOOK_SECONDS = 10.0
CLOUD: Any = SimpleNamespace(
    subnets=SimpleNamespace(nodes="private", private={"us-east-2a": "subnet-1"}),
    security_group="sg-1",
    instance_profile="node",
    kms_key=None,
)


STOP_CONFIG: Any = SimpleNamespace(
    store=None, cloud=SimpleNamespace(project="demo", region="us-east-2", account=None, target=DEFAULT_TARGET)
)


@dataclass(frozen=True)
class SimulatedLaunch(launching.PreparedLaunch):
    """A launch without packages."""

    def given(self, files: Mapping[str, bytes]) -> SimulatedLaunch:
        return self


@cache
def _offer(nodes: int) -> PlannedOffer:
    return offer("p5.48xlarge", nodes, "on-demand", placement_group=False, efa_interfaces=0)


def prepared_launch(world: World, launch: str, now: datetime, kill_after_seconds: float) -> launching.PreparedLaunch:
    """Return a launch of the run: its record and the product's own requests."""
    planned = replace(_offer(world.nodes), kill_after_seconds=kill_after_seconds)
    specs = tuple(_group(planned, launch, number, now) for number in range(world.offers))
    groups = [
        LaunchedGroup(
            name=group_name("demo", RUN, launch, number), zone="us-east-2a", instance_type="p5.48xlarge", market="spot",
            nodes=world.nodes, usd_per_hour=world.price, kill_at=timestamp(kill_time(now, planned)), placement_group=False,
        )
        for number in range(world.offers)
    ]  # fmt: skip
    record = LaunchRecord(
        id=launch, run=RUN, verb="train", launched_at=now.isoformat(), launched_by="test", account="1",
        region="us-east-2", patience_seconds=600.0, plan_hash="", image="ami", bundle="", words=[], groups=groups,
    )  # fmt: skip
    parts: Any = dict.fromkeys(("plan", "contents", "bundle"))
    return SimulatedLaunch(run=RUN, record=record, session=world.cloud, store=world.store, groups=specs, **parts)  # type: ignore[arg-type]


def _group(planned: PlannedOffer, launch: str, number: int, now: datetime) -> GroupSpec:
    boot: Any = SimpleNamespace(render=lambda kill_at: "#!/bin/bash")  # the simulated machine boots in its own way
    image = MachineImage("ami-1", BASE_LINE)
    tags = Tags("demo", "ada", RUN)
    return GroupSpec(
        run=RUN,
        launch=launch,
        number=number,
        offer=planned,
        zone="us-east-2a",
        image=image,
        boot=boot,
        tags=tags,
        cloud=CLOUD,
        launched_at=now,
    )


def launch(world: World) -> LaunchRecord:
    """Do what `skytrain launch` does after its checks of the account. Raises SkytrainError where it refuses."""
    store, now = world.store.patient(60.0), world.clock()
    earlier = launches_of(store, RUN)
    ask = limits.ask_account(world.cloud, store)  # type: ignore[arg-type]
    limits.check_alone(earlier, store, now, ask)
    limits.count_launches(world.cloud, store, earlier, world.say)  # type: ignore[arg-type]
    affordable = limits.seconds_affordable(world.config, store, RUN, world.nodes * world.price)  # type: ignore[arg-type]
    seconds = min(world.kill_after_seconds, affordable)
    number = next_launch(earlier, ended_launch(store, RUN))
    ready = prepared_launch(world, number, now, seconds if math.isfinite(seconds) else 4 * 3600.0)
    with mock.patch.object(launching, "plan_file", lambda plan: {}):
        steps = launching._steps(replace(ready, store=store), {}, _Noted(world))
    lifecycle.run_launch(replace(steps, inputs={}, upload=lambda reporter: None), _Noted(world))
    return ready.record


class _Noted(Silent):
    def __init__(self, world: World) -> None:
        self._world = world

    def note(self, text: str) -> None:
        self._world.say(f"laptop: {text.splitlines()[0]}")


def follow(world: World, record: LaunchRecord) -> None:
    """Do what the terminal does that launched a run, until the run is over or nothing of the launch is left."""
    keeper = LaunchKeeper(world.cloud, world.store, record)  # type: ignore[arg-type]
    gone = 0
    while gone < 2 and world.clock() < record.over_at and not world.is_over(record.id):
        try:
            gone = 0 if limits.ask_account(world.cloud, world.store)(record) else gone + 1  # type: ignore[arg-type]
            if said := keeper():
                world.say(f"terminal of {record.id}: {said.splitlines()[0]}")
            limits.count_launches(world.cloud, world.store, [record], lambda _: None)  # type: ignore[arg-type]
        except SkytrainError as error:
            world.say(f"terminal of {record.id}: {str(error).splitlines()[0]}")
        world.engine.sleep(LOOK_SECONDS)
    limits.count_launches(world.cloud, world.store.patient(600.0), [record], world.say)  # type: ignore[arg-type]


def stop(world: World, wait_seconds: float, *, force: bool) -> None:
    """Do what `skytrain stop cloud=aws --yes` does."""
    try:
        planned = stopping.stop_with_machines(STOP_CONFIG, RUN, world.say)
        result = planned.end(wait_seconds, force, _Noted(world))
    except SkytrainError as error:
        world.say(f"stop: {str(error).splitlines()[0]}")
        return
    world.say(f"stop: {result.text}{f'; {result.warning}' if result.warning else ''}")


def remove_groups(world: World, record: LaunchRecord) -> None:
    """Do what `skytrain gc --delete` does with a launch that is over."""
    remove_all(world.cloud, [("us-east-2", call) for call in removal_calls(record)], world.say)  # type: ignore[arg-type]


def collect_garbage(world: World) -> None:
    """Do what `skytrain gc --delete` does with the groups of the run; deletes nothing of a launch that is not over."""
    store = world.store.patient(60.0)
    try:
        launches = launches_of(store, RUN)
        if not launches or leftovers._is_active(store, _status(world, store), world.clock()):
            return
        for record in launches:
            working = [each.id for each in world.cloud.running if each.group.launch == record.id]
            folder = f"runs/{RUN}/launches/{record.id}"
            ended = any(f"{folder}/{name}.json" in world.objects for name in ("stopped", "ended"))
            if working and not (
                ended
                or world.is_over(record.id)
                or record.failed
                or is_superseded(store, record)
                or record.over_at <= world.clock()
            ):
                world.engine.crashes.append(f"gc deletes launch {record.id}, which works on {working}")
            remove_groups(world, record)
            world.say(f"gc has deleted {record.id}")
    except SkytrainError as error:
        world.say(f"gc: {str(error).splitlines()[0]}")


def _status(world: World, store: Store) -> RunStatus:
    """Return what the store says about the run, as `skytrain status` reads it."""
    attempts = attempt_numbers(store, RUN)
    if not attempts:
        return RunStatus(RUN, "launched")
    outcome = read_outcome(store, RUN, attempts[-1])
    # Heartbeats of jobs are not simulated: a run without an outcome is silent, the hardest case for gc.
    return RunStatus(RUN, "stale" if outcome is None else outcome["outcome"])


def _status_with_jobs(world: World, store: Store) -> RunStatus:
    """Return the status that `skytrain stop` sees: a run whose job works is not silent."""
    status = _status(world, store)
    works = any(job.poll() is None for machine in world.cloud.running for job in machine.jobs)
    return replace(status, state="running") if status.state == "stale" and works else status


def _require_attempts(store: Store, run: str) -> None:
    """Stand in for the record of the run, which its first attempt writes."""
    if not attempt_numbers(store, run):
        raise SkytrainError(f"there is no run {run!r}")


class _OneByOne:
    """A pool without threads: only actors wait in the simulation."""

    def __init__(self, count: int) -> None:
        self.map = map

    def __enter__(self) -> _OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        return


@contextmanager
def patched_clocks(clock: type[datetime]) -> Iterator[None]:
    """Let launches and terminals see the simulated time of day."""
    with ExitStack() as stack:
        for module in (lifecycle, limits, ec2_machines, launching, stopping, run_status):
            stack.enter_context(mock.patch.object(module, "datetime", clock))
        yield


@contextmanager
def patched_stop(world: World) -> Iterator[None]:
    """Let `skytrain stop` find the simulated account and store, and the state of simulated jobs."""
    with ExitStack() as stack:
        for module in (stopping, account):
            stack.enter_context(mock.patch.object(module, "open_store", lambda config: world.store.patient(600.0)))
        for module in (stopping, run_status):
            stack.enter_context(mock.patch.object(module, "load_run", _require_attempts))
            stack.enter_context(
                mock.patch.object(module, "status_of", lambda store, record: _status_with_jobs(world, store))
            )
        stack.enter_context(mock.patch.object(stopping, "open_session", lambda *_: world.cloud))
        stack.enter_context(mock.patch("skytrain.aws.scan.ThreadPoolExecutor", _OneByOne))
        yield


@contextmanager
def patched_machines(world: World) -> Iterator[None]:
    """Let a machine's agent find the simulated account and store."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(target, "open_session", lambda region: world.cloud))
        stack.enter_context(mock.patch.object(target, "open_store", lambda config: world.store))
        yield
