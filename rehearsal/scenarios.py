"""The scenarios. Each launches a run of its own, and raises RehearsalFailed if something that must hold does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial

from skytrain.jobs import list_meeting

from .checks import check_generations, check_identical, check_nothing_left, check_spend
from .interruptions import INTERRUPTIONS
from .laptop import STEPS, Wanted
from .money import MONEY
from .phases import replacement_phases
from .pipeline import pipeline
from .storms import STORMS, proven_by
from .sweeps import sweep
from .tutorial import tutorial
from .world import RehearsalFailed, RehearsedRun, World

Scenario = Callable[[World], None]


def done(world: World) -> None:
    """2 nodes x 2 ranks, launch to done, with the terminal following; the run that the others are compared with."""
    run = RehearsedRun(world, Wanted("whole", settings=("budget.usd=40",)))
    expect(run.launch(), 0, "the launching terminal's exit code", run)
    finish(run, 0)
    world.baseline = run


def laptop(world: World) -> None:
    """The launching computer is killed as soon as the requests are made; the run ends as it would have."""
    run = RehearsedRun(world, Wanted("laptop", settings=("budget.usd=40",)))
    run.launch(wait=False)
    process = run.process
    assert process is not None
    groups = world.account.scaling.autoscaling_groups
    run.until(lambda: any(group.desired_capacity for group in list(groups.values())), "the launch's last request")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    world.say("  the launching process was killed with SIGKILL")
    run.until(lambda: run.exit_code() is not None, "the run is over")
    finish(run, 0, uninterrupted(world))


def interruptions(world: World) -> None:
    """Interruptions at random moments; the numbers are those of the run that nobody interrupted."""
    expected = uninterrupted(world)
    run = RehearsedRun(world, Wanted("interrupted", settings=("budget.usd=40",)))
    # The terminal follows: seconds after a commit, both machines may be lost before they could prove themselves.
    run.launch(wait=False)
    chosen = list(INTERRUPTIONS)
    world.random.shuffle(chosen)
    chosen = chosen[: world.interruptions]
    for number, interruption in enumerate(chosen, 1):
        # Evenly over the run, so that each finds it under way.
        threshold = number * STEPS // (len(chosen) + 2)
        run.until(partial(is_due, run, threshold), f"step {threshold}")
        if run.exit_code() is not None:
            raise RehearsalFailed(f"the run ended before interruption {number}\n{run.consoles()}")
        time.sleep(world.random.uniform(0, 1))
        generation = list_meeting(run.store, run.run).newest
        step = run.step()
        what = interruption.act(run)
        world.say(f"  {number:2d}. {interruption.name}: generation {generation}, step {step}{what and f' ({what})'}")
    run.until(lambda: run.exit_code() is not None, "the run is over")
    run.until(lambda: run.process is not None and run.process.poll() is not None, "the terminal ends")
    expect(run.process and run.process.poll(), 0, "the terminal's exit code", run)
    run.wait_until_nothing_is_left(300)
    for life in run.lives[run.wanted.nodes :]:
        phases = replacement_phases(run, life)
        if phases is not None:
            world.measured.setdefault("replacement to first step", []).append(phases)
    finish(run, 0, expected)


def budget(world: World) -> None:
    """The budget ends the run with exit code 6, saved, before it is spent."""
    limit = 0.50
    # Otherwise it would stop after 20 steps, which show that the budget cannot pay for 20000.
    settings = (f"budget.usd={limit}", "budget.overrun=continue", "trainer.steps=20000", "trainer.checkpoint_every=100")
    run = RehearsedRun(world, Wanted("budget", settings=settings))
    expect(run.launch(), 6, "the launching terminal's exit code", run)
    finish(run, 6)
    spent = sum(life.usd for life in run.lives)
    if spent > limit:
        raise RehearsalFailed(f"the machines cost ${spent:.4f}, more than the budget of ${limit}")
    if not run.commits() or run.commits()[-1] < run.step():
        raise RehearsalFailed(f"it was not saved: trained to step {run.step()}, saved at {run.commits()}")
    world.say(f"  stopped at step {run.step()} with a checkpoint; the machines cost ${spent:.4f} of ${limit:.2f}")


def kill(world: World) -> None:
    """At the kill time AWS ends everything, although the agents are frozen."""
    settings = ("budget.usd=40", "trainer.steps=5000")
    run = RehearsedRun(world, Wanted("killed", kill_after_seconds=480.0, settings=settings))
    expect(run.launch(follow=False), 0, "the launch's exit code", run)
    nodes = run.until(
        lambda: len(found := [life for life in run.lives if life.host.printed("generation 1: node ")]) == 2 and found,
        "both agents are ready",
    )
    run.until(proven_by(run, 2), "both machines have proved themselves")
    for life in nodes:
        life.host.freeze()
    world.say(f"  {sum(len(life.host.processes()) for life in nodes)} processes of both hosts are frozen with SIGSTOP")
    run.until(
        lambda: not world.hypervisor.running and not world.account.leftovers().get("instances"),
        "all is terminated",
        600,
    )
    if len(world.hypervisor.fired) < len(run.wanted.offers()):
        raise RehearsalFailed(f"machines ended before the scheduled actions: {world.hypervisor.fired}")
    late = max(life.ended or 0.0 for life in run.lives) - min(run.killed_at())
    world.say(
        f"  AWS ended all machines {late:.1f} s after the kill time, and cut their power: frozen agents shut nothing down"
    )
    world.say("  nobody was left to delete the empty groups: skytrain gc")
    world.say("  " + world.laptop.command("gc", "--delete", "--yes", "cloud=ec2").stdout.strip().splitlines()[-1])
    world.say(f"  {check_nothing_left(run)}")
    if left := [role for role in world.account.roles() if "killed" in role]:
        raise RehearsalFailed(f"gc has left the roles of the run: {left}")


def capacity(world: World) -> None:
    """The first zone has no machines: the second offer runs, in another zone."""
    settings = ("budget.usd=40", "trainer.steps=10")
    run = RehearsedRun(world, Wanted("capacity", patience="20s", settings=settings))
    world.account.capacity["us-east-2a"] = 0
    try:
        expect(run.launch(), 0, "the launching terminal's exit code", run)
        finish(run, 0)
    finally:
        del world.account.capacity["us-east-2a"]
    zones = {life.facts.zone for life in run.lives}
    if zones != {"us-east-2b"}:
        raise RehearsalFailed(f"machines ran in {zones}, not in us-east-2b alone")
    world.say("  no machine in us-east-2a; the second offer ran in us-east-2b")


def quota(world: World) -> None:
    """A quota of zero is exit code 4 before anything is created."""
    run = RehearsedRun(world, Wanted("quota", settings=("budget.usd=40",)))
    world.account.quota_vcpus = 0
    try:
        code = world.laptop.command(*world.laptop.launch_words(run.wanted), "--yes", check=False)
    finally:
        world.account.quota_vcpus = 512
    if code.returncode != 4:
        raise RehearsalFailed(f"launch ended with {code.returncode}, not 4:\n{code.stdout}{code.stderr}")
    if world.account.leftovers() or world.store.list("runs/quota/"):
        raise RehearsalFailed(f"something was created: {world.account.leftovers()} {world.store.list('runs/quota/')}")
    world.say(f"  exit code 4, and nothing was created: {code.stderr.strip().splitlines()[-3].strip()}")


SCENARIOS: dict[str, Scenario] = {
    "quota": quota,
    "done": done,
    "laptop": laptop,
    "capacity": capacity,
    "budget": budget,
    "kill": kill,
    "interruptions": interruptions,
    "sweep": sweep,
    "pipeline": pipeline,
    "tutorial": tutorial,
    **STORMS,
    **MONEY,
}


def uninterrupted(world: World) -> RehearsedRun:
    if world.baseline is None:
        world.say("  first the uninterrupted run")
        done(world)
    assert world.baseline is not None
    return world.baseline


def is_due(run: RehearsedRun, step: int) -> bool:
    """Whether the run trains and has reached the step, or is over."""
    return run.exit_code() is not None or (run.step() >= step and run.is_training())


def finish(run: RehearsedRun, code: int, expected: RehearsedRun | None = None) -> None:
    """Wait for the end, and check what must hold after every run; one failure does not hide the others."""
    run.wait_until_nothing_is_left(300)
    expect(run.exit_code(), code, "the run's exit code", run)
    checks: list[Callable[[RehearsedRun], str]] = [check_nothing_left, check_generations, check_spend]
    if expected is not None:
        checks.append(partial(check_identical, expected=expected))
    problems = []
    for check in checks:
        try:
            run.world.say(f"  {check(run)}")
        except RehearsalFailed as error:
            problems.append(str(error))
    if problems:
        raise RehearsalFailed("\n".join(problems))


def expect(found: object, wanted: object, what: str, run: RehearsedRun) -> None:
    if found != wanted:
        raise RehearsalFailed(f"{what} is {found}, not {wanted}\n{run.consoles()}")
