"""Replacement storms: machines that fail again and again. However they fail, few start, and the cause is said in one line."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from skytrain.jobs import list_meeting
from skytrain.planning import load_catalog
from skytrain.targets.ec2.replacement import most_machines

from .checks import check_nothing_left
from .hosts import MachineParts
from .hypervisor import Life
from .laptop import Wanted
from .world import RehearsalFailed, RehearsedRun, World

COMPARED = "p5.48xlarge"  # at whose on-demand price a storm's cost is told
MOST_USD = 60.0  # of any storm, at that price
AGENT_SECONDS = 40.0  # for which an agent lives until it is killed
QUIET_SECONDS = 90.0  # without a new machine, after which a storm is over
STEP_SECONDS = 60.0  # of a step and its save, at most
OUTAGE_SECONDS = 60.0


def killed_agents(world: World) -> None:
    """Every agent is killed some 40 s after it began: it restarts on its machine, and few machines start."""
    run = RehearsedRun(world, Wanted("oom", settings=("budget.usd=2",)))
    run.launch(wait=False)
    seen: dict[tuple[str, int], float] = {}

    def kill_old() -> bool:
        for life, pid in agents(run):
            if time.monotonic() - seen.setdefault((life.facts.id, pid), time.monotonic()) > AGENT_SECONDS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return is_over(run)

    run.until(kill_old, "the terminal ends", 1800)
    restarted = sum(count > 1 for count in services(run))
    if not restarted:
        raise RehearsalFailed(f"no killed agent was started again on its machine\n{run.consoles()}")
    world.say(f"  {len(seen)} agents were killed on {len(run.lives)} machines")
    conclude(run, r"its agent ended \(killed KILL|the budget is spent", budget_usd=2.0)


def without_store(world: World) -> None:
    """The machines' role can neither read nor write the bucket: few start, and the terminal says which bucket."""
    parts = world.hypervisor.parts
    with broken(world, replace(parts, credentials=("AKIAREHEARSALNOBODYS", parts.credentials[1]))):
        run = RehearsedRun(world, Wanted("denied", settings=("budget.usd=40",)))
        run.launch(wait=False)
        run.until(lambda: is_over(run), "the terminal ends", 900)
        conclude(run, rf"could not read {world.laptop.root}/bundles/\w+ .*InvalidAccessKeyId.*last console lines")


def without_metadata(world: World) -> None:
    """The metadata service is silent from power-on, so that machines have no credentials and no terminal follows."""
    with broken(world, replace(world.hypervisor.parts, metadata_answers=False)):
        run = RehearsedRun(world, Wanted("silent", settings=("budget.usd=40",)))
        run.launch(follow=False)
        run.until(lambda: len(run.lives) >= 2 and is_quiet(run), "the launch rests", 900)
        shown = world.laptop.command("status", run.run, "cloud=ec2").stdout
        found = re.search(
            r"2 machines ended within .*\n.*nothing is charged.*\n.*skytrain stop silent cloud=ec2", shown
        )
        if len(run.lives) != 2 or found is None or "credentials" not in found[0]:
            raise RehearsalFailed(f"{len(run.lives)} machines started, and status says:\n{shown}")
        world.say(f"  the launch rests; status: {found[0].splitlines()[0]}")
        world.laptop.command("stop", run.run, "--yes", "cloud=ec2")
        world.laptop.command("gc", "--delete", "--yes", "cloud=ec2")
        conclude(run)


def broken_agent(world: World) -> None:
    """The agent dies at its first import: few machines start, and the terminal says which import."""
    folder = world.folder / "broken"
    folder.mkdir()
    (folder / "typer.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    parts = world.hypervisor.parts
    with broken(world, replace(parts, environment={**parts.environment, "PYTHONPATH": str(folder)})):
        run = RehearsedRun(world, Wanted("imports", settings=("budget.usd=40",)))
        run.launch(wait=False)
        run.until(lambda: is_over(run), "the terminal ends", 900)
        conclude(run, r"its agent ended \(exited 1.*libcudart.so.12")


def cut_off_end(world: World) -> None:
    """The run is over while its machines cannot reach AWS for 60 s: they ask again, and no other machine starts."""
    run = RehearsedRun(world, Wanted("cut-off", settings=("budget.usd=40", "trainer.steps=20")))
    run.launch(wait=False)
    run.until(lambda: run.step() >= 15 and run.commits(), "the last steps")
    run.until(proven_by(run, 2), "both machines have proved themselves")
    world.account.unreachable = True
    try:
        run.until(lambda: run.exit_code() is not None, "the run is over")
        time.sleep(OUTAGE_SECONDS)
    finally:
        world.account.unreachable = False
    run.until(lambda: is_over(run), "the terminal ends", 900)
    if len(run.lives) != 2 or run.exit_code() != 0:
        raise RehearsalFailed(
            f"{len(run.lives)} machines ran, and the exit code is {run.exit_code()}\n{run.consoles()}"
        )
    conclude(run)


def old_failures(world: World) -> None:
    """Five old boot failures are in the store, and one more comes: a healthy run goes on."""
    run = RehearsedRun(world, Wanted("old-failures", settings=("budget.usd=40",)))
    run.launch(wait=False, follow=False)
    run.until(lambda: run.step() >= 10 and run.is_training(), "it trains")
    run.until(proven_by(run, 2), "both machines have proved themselves")
    for number in range(5):
        world.store.write(f"runs/{run.run}/launches/00001/boot-failures/i-{number:017d}.log", b"an old failure\n")
    parts = world.hypervisor.parts
    with broken(world, replace(parts, credentials=("AKIAREHEARSALNOBODYS", parts.credentials[1]))):
        world.hypervisor.lose(run.of_generation()[1], "was lost")
        run.until(lambda: len(run.lives) == 3 and not run.lives[2].host.is_on, "its replacement fails to boot")
    run.until(lambda: run.exit_code() is not None, "the run is over")
    if run.exit_code() != 0:
        raise RehearsalFailed(f"the run ended with {run.exit_code()}\n{run.consoles()}")
    run.wait_until_nothing_is_left(300)
    conclude(run)


def apart(world: World) -> None:
    """Two nodes never reach each other, and both reach the store: one is replaced, then the run ends with the reason."""
    run = RehearsedRun(world, Wanted("apart", settings=("budget.usd=40",)))
    run.launch(wait=False)
    cut: set[str] = set()

    def keep_apart() -> bool:
        for life in run.lives:
            if life.host.port not in cut and life.host.is_on:
                cut.add(life.host.port)
                with contextlib.suppress(Exception):
                    world.network.cut_between_hosts([life.host.port], True)
        return is_over(run)

    run.until(keep_apart, "the terminal ends", 2400)
    if len(run.lives) != 3:
        raise RehearsalFailed(f"{len(run.lives)} machines ran, and not 3: one is replaced\n{run.consoles()}")
    world.say(f"  {list_meeting(run.store, run.run).newest} generations; one machine was replaced")
    conclude(run, r"the nodes did not reach each other, 4 times in a row")


STORMS: dict[str, Callable[[World], None]] = {
    "killed-agents": killed_agents,
    "without-store": without_store,
    "without-metadata": without_metadata,
    "broken-agent": broken_agent,
    "cut-off-end": cut_off_end,
    "old-failures": old_failures,
    "apart": apart,
}


def conclude(run: RehearsedRun, cause: str = "", budget_usd: float | None = None) -> None:
    """Check the bound and the cost, and that the terminal said the cause; then that nothing is left."""
    world = run.world
    if cause:
        told = run.log.read_text()
        found = re.search(cause, told)
        if found is None:
            raise RehearsalFailed(f"the terminal does not say {cause!r}:\n{told[-3000:]}")
        line = next(line for line in reversed(told.splitlines()) if re.search(cause, line))
        world.say(f"  the terminal: {line[:300]}")
    run.wait_until_nothing_is_left(300)
    world.say(f"  {check_bound(run, budget_usd)}")
    world.say(f"  {check_nothing_left(run)}")


def check_bound(run: RehearsedRun, budget_usd: float | None = None) -> str:
    """At most K machines without a committed step; never above the budget by more than K machine-minutes and a step."""
    most = most_machines(run.wanted.nodes)
    count = without_commit(run)
    usd = sum(life.usd for life in run.lives)
    dear = sum(life.billed_seconds for life in run.lives) * compared_price() / 3600
    price = max(life.usd_per_hour for life in run.lives)
    said = (
        f"{len(run.lives)} machines started, {count} without a committed step (at most {most}); ${usd:.2f}, "
        f"as {COMPARED} ${dear:.2f}"
    )
    if count > most or dear > MOST_USD:
        raise RehearsalFailed(f"a storm: {said}")
    if budget_usd is not None and usd > budget_usd + most * price / 60 + run.wanted.nodes * price * STEP_SECONDS / 3600:
        raise RehearsalFailed(f"above the budget of ${budget_usd}: {said}")
    return said


def without_commit(run: RehearsedRun) -> int:
    """The most machines that started with no commit in between, by the hypervisor's clock and the store's."""
    keys = run.store.list(f"runs/{run.run}/checkpoints/")
    commits = sorted(stat.modified for stat in keys if "/COMMITTED." in stat.key)
    edges = [0.0, *commits, float("inf")]
    return max(sum(before <= life.began < after for life in run.lives) for before, after in itertools.pairwise(edges))


def compared_price() -> float:
    return next(
        price.usd_per_hour_max
        for price in load_catalog().prices
        if (price.type, price.market) == (COMPARED, "on-demand")
    )


@contextlib.contextmanager
def broken(world: World, parts: MachineParts) -> Iterator[None]:
    """Let every machine that starts within have these parts."""
    before, world.hypervisor.parts = world.hypervisor.parts, parts
    try:
        yield
    finally:
        world.hypervisor.parts = before


def is_over(run: RehearsedRun) -> bool:
    """Whether the terminal that followed the run has ended. A storm fails the scenario as soon as it is one."""
    stop_storm(run)
    return run.process is not None and run.process.poll() is not None


def is_quiet(run: RehearsedRun) -> bool:
    """Whether no machine runs, and none has started for a while."""
    stop_storm(run)
    newest = max(life.began for life in run.lives)
    return not any(life.host.is_on for life in run.lives) and time.time() - newest > QUIET_SECONDS


def stop_storm(run: RehearsedRun) -> None:
    if (count := without_commit(run)) > most_machines(run.wanted.nodes):
        began = min(life.began for life in run.lives)
        raise RehearsalFailed(f"a storm: {count} machines within {time.time() - began:.0f} s without a committed step")


def proven_by(run: RehearsedRun, count: int) -> Callable[[], Any]:
    folder = f"runs/{run.run}/launches/00001/proven/"
    return lambda: len(run.store.list(folder)) >= count


def agents(run: RehearsedRun) -> Iterator[tuple[Life, int]]:
    """The node agents that run now."""
    for life in run.lives:
        for pid in life.host.processes() if life.host.is_on else []:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if words[1:2] and words[1].endswith(b"/bin/skytrain") and words[2:3] == [b"node"]:
                    yield life, pid


def services(run: RehearsedRun) -> Iterator[int]:
    """How often the service of each machine was started."""
    for life in run.lives:
        yield sum(event["event"] == "service" for event in life.host.events)
