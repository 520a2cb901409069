"""Scenarios in which people, not machines, could lose money: lids that close, tags that are edited, requests without answers."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from skytrain.runs import launches_of, spent_usd

from .checks import check_nothing_left, check_spend
from .laptop import Wanted
from .storms import proven_by
from .world import RehearsalFailed, RehearsedRun, World

SHORT = ("budget.usd=40", "trainer.steps=10")
LONG = ("budget.usd=40", "trainer.steps=5000")
SILENT_SECONDS = 15.0  # without an answer of AWS
STALLED_SECONDS = 62.0  # after which another launch may take over


def lid(world: World) -> None:
    """The lid closes after the launch's record, a colleague launches, the lid opens: only the colleague's machines run."""
    run = RehearsedRun(world, Wanted("lid", settings=SHORT))
    run.launch(wait=False, follow=False)
    slept = run.process
    assert slept is not None
    while not run.store.list("runs/lid/launches/"):
        time.sleep(0.01)
    os.kill(slept.pid, signal.SIGSTOP)
    asked = [group for group in world.account.scaling.autoscaling_groups.values() if group.desired_capacity]
    if asked:
        raise RehearsalFailed("the launch was frozen too late: it had asked for machines")
    world.say("  the launching process is frozen with SIGSTOP after its record")
    time.sleep(STALLED_SECONDS)
    _expect(run.launch(follow=False), 0, "the colleague's launch", run)
    os.kill(slept.pid, signal.SIGCONT)
    _expect(run.until(slept.poll, "the launch that slept ends"), 2, "the launch that slept", run)
    run.until(lambda: run.exit_code() is not None, "the run is over")
    run.wait_until_nothing_is_left(300)
    failed = [record.failed for record in launches_of(run.store, run.run)]
    if len(run.lives) != run.wanted.nodes or failed != [True, False]:
        raise RehearsalFailed(f"{len(run.lives)} machines were rented, launches failed: {failed}\n{run.consoles()}")
    world.say(f"  {len(run.lives)} machines in all; {check_spend(run)}")
    world.say(f"  {check_nothing_left(run)}")


def tags(world: World) -> None:
    """People remove the run's tags and edit its expiry: gc deletes nothing, and stop still ends the groups."""
    run = RehearsedRun(world, Wanted("tags", settings=LONG))
    _expect(run.launch(follow=False), 0, "the launch's exit code", run)
    run.until(run.is_training, "the run trains")
    scaling = world.account.ground.session.client("autoscaling")
    for group in launches_of(run.store, run.run)[0].groups:
        named = {"ResourceId": group.name, "ResourceType": "auto-scaling-group"}
        scaling.delete_tags(Tags=[{**named, "Key": "skytrain:run"}])
        past = {"Key": "skytrain:expires-at", "Value": "2020-01-01T00:00:00Z", "PropagateAtLaunch": True}
        scaling.create_or_update_tags(Tags=[{**named, **past}])
    said = world.laptop.command("gc", "--delete", "--yes", "cloud=ec2").stdout.strip().splitlines()
    if len([life for life in run.lives if life.ended is None]) != run.wanted.nodes:
        raise RehearsalFailed("gc ended machines of a run that trains:\n" + "\n".join(said))
    world.say("  gc kept all machines, although their tags say that they expired in 2020")
    stopped = world.laptop.command("stop", run.run, "--yes", "cloud=ec2")
    world.say(f"  stop: {stopped.stdout.strip().splitlines()[-1]}")
    run.until(lambda: not world.hypervisor.running, "no machine runs", 120)
    time.sleep(10)  # in which a group that was left would have replaced them
    if len(run.lives) != run.wanted.nodes or world.hypervisor.running:
        raise RehearsalFailed(f"{len(run.lives)} machines were rented, not {run.wanted.nodes}")
    world.laptop.command("gc", "--delete", "--yes", "cloud=ec2")
    run.wait_until_nothing_is_left(120)
    world.say(f"  {len(run.lives)} machines in all; {check_nothing_left(run)}")


def relaunch(world: World) -> None:
    """A run is launched again with a budget that is spent, and with its checkpoints deleted: neither costs a step."""
    run = RehearsedRun(world, Wanted("relaunch", settings=SHORT))
    _expect(run.launch(follow=False), 0, "the launch's exit code", run)
    run.until(lambda: run.exit_code() is not None, "the run is over")
    run.wait_until_nothing_is_left(300)
    spent = spent_usd(run.store, run.run)
    machines = len(run.lives)
    poor = replace(run.wanted, settings=(f"budget.usd={spent / 2:.4f}", "trainer.steps=20"))
    refused = world.laptop.command(*world.laptop.launch_words(poor), "--yes", check=False)
    if refused.returncode != 2 or "nothing is left to rent machines with" not in refused.stderr:
        raise RehearsalFailed(f"launch ended with {refused.returncode}:\n{refused.stdout}{refused.stderr}")
    said = next(line for line in refused.stderr.splitlines() if "nothing is left" in line)
    world.say(f"  with half of the ${spent:.4f} that it has cost: {said.strip()}")
    run.store.delete_all(f"runs/{run.run}/checkpoints")
    run.wanted = replace(run.wanted, settings=("budget.usd=40", "trainer.steps=10"))
    _expect(run.launch(), 9, "the exit code of a run that lost its checkpoints", run)
    run.wait_until_nothing_is_left(300)
    seconds = sum(life.seconds for life in run.lives[machines:])
    world.say(f"  without its checkpoints: exit code 9 after {seconds:.0f} machine-seconds; {check_spend(run)}")
    world.say(f"  {check_nothing_left(run)}")


def waits(world: World) -> None:
    """A node gets a notice, there is no capacity, and the other waits: gc deletes nothing, and the run comes to its end."""
    run = RehearsedRun(world, Wanted("waits", settings=("budget.usd=40", "trainer.steps=60")))
    _expect(run.launch(follow=False), 0, "the launch's exit code", run)
    run.until(proven_by(run, 2), "both machines have proved themselves")
    survivor, leaver = run.of_generation()
    world.account.capacity["us-east-2a"] = 1
    try:
        leaver.host.metadata.spot_notice(120.0)
        run.until(lambda: leaver.ended is not None, "the node with the notice leaves", 130)
        run.until(lambda: survivor.host.printed("1 of 2 nodes are ready"), "the other waits", 120)
        said = world.laptop.command("gc", "--delete", "--yes", "cloud=ec2").stdout.strip().splitlines()
        if survivor.ended is not None or not world.account.leftovers().get("groups"):
            raise RehearsalFailed("gc deleted a run that waits for a machine:\n" + "\n".join(said))
        world.say("  one node waits for another, and gc --delete kept its machine and its group")
    finally:
        del world.account.capacity["us-east-2a"]
    run.until(lambda: run.exit_code() is not None, "the run is over")
    _expect(run.exit_code(), 0, "the run's exit code", run)
    run.wait_until_nothing_is_left(300)
    _expect(len(run.lives), 3, "machines in all", run)
    world.say(f"  {check_spend(run)}")
    world.say(f"  {check_nothing_left(run)}")


def no_answer(world: World) -> None:
    """AWS closes connections without an answer: a launch removes what it asked for, stop ends machines or names them."""
    run = RehearsedRun(world, Wanted("no-answer", settings=LONG))
    world.account.unanswered = "SetDesiredCapacity"
    try:
        run.launch(wait=False, follow=False)
        process = run.process
        assert process is not None
        run.until(lambda: run.lives, "the last request has its effect")
        world.account.unreachable = True
        for _ in range(3):
            time.sleep(SILENT_SECONDS / 3)
            os.kill(process.pid, signal.SIGINT)
    finally:
        world.account.unanswered = ""
        world.account.unreachable = False
    if not run.until(lambda: process.poll() is not None and (process.returncode or -1), "the launch ends", 300):
        raise RehearsalFailed(f"a launch without answers succeeded\n{run.consoles()}")
    run.wait_until_nothing_is_left(120)
    if "still removing" not in (told := run.log.read_text()) or "Traceback" in told:
        raise RehearsalFailed(f"the terminal says:\n{told}")
    rented = len(run.lives)
    world.say(f"  without an answer and with Ctrl-C pressed three times, the launch removed its {rented} machines")
    _expect(run.launch(follow=False), 0, "the next launch", run)
    run.until(run.is_training, "the run trains")
    seen = world.folder / "watch.log"
    watch = world.laptop.start("status", run.run, "cloud=ec2", "--watch", log=seen)
    time.sleep(SILENT_SECONDS)
    world.account.unreachable = True
    try:
        refused = world.laptop.command("stop", run.run, "--yes", "cloud=ec2", check=False)
    finally:
        world.account.unreachable = False
    group = launches_of(run.store, run.run)[-1].groups[0].name
    if not refused.returncode or group not in refused.stderr or "Traceback" in refused.stderr:
        raise RehearsalFailed(f"stop without answers ended with {refused.returncode}:\n{refused.stderr}")
    world.say(f"  stop without answers: exit code {refused.returncode}, and it names {group}")
    world.laptop.command("stop", run.run, "--yes", "cloud=ec2")
    run.until(lambda: watch.poll() is not None, "the view ends", 180)
    if watch.returncode or "Traceback" in seen.read_text():
        raise RehearsalFailed(f"status --watch ended with {watch.returncode}:\n{seen.read_text()}")
    world.laptop.command("gc", "--delete", "--yes", "cloud=ec2")
    run.wait_until_nothing_is_left(120)
    _expect(len(run.lives), rented + run.wanted.nodes, "machines in all", run)
    world.say(f"  stop again ended the run, and so did the view that watched it; {check_nothing_left(run)}")


def _expect(found: object, wanted: object, what: str, run: RehearsedRun) -> None:
    if found != wanted:
        raise RehearsalFailed(f"{what}: {found}, not {wanted}\n{run.consoles()}")


MONEY = {"lid": lid, "tags": tags, "relaunch": relaunch, "waits": waits, "no-answer": no_answer}
