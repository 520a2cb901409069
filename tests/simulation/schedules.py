"""Random schedules of faults: what goes wrong with a simulated run, and when, by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from skytrain.aws import Notice

from . import laptops
from .world import RUN, Chaos, Machine, World

EVENTS_UNTIL = 1500.0  # seconds in which things go wrong; the world behaves well afterwards


def random_world(seed: int, *, hooks: bool = True) -> World:
    """Return a world whose requests go wrong now and then, with some events besides."""
    world = World(seed, hooks=hooks)
    world.nodes = world.random.choice([1, 2, 2, 2, 3, 4])
    if world.random.random() < 0.3:
        world.spares = 1
    if world.random.random() < 0.3:
        world.offers = 2
    if world.random.random() < 0.3:
        world.skews = (0.0, -86400.0, 86400.0, -300.0, 300.0)
    if world.random.random() < 0.5:
        world.engine.later(5.0, world.follow)
    if world.random.random() < 0.3:
        world.budget = replace(world.budget, usd=world.nodes * world.random.uniform(2.5, 6.0))
        world.config.budget = world.budget
    chance = world.random.choice([0.0, 0.002, 0.01, 0.03])
    world.chaos = Chaos(lost=chance, unanswered=chance, late=chance / 2, slow=chance, torn=chance, cloud=3 * chance)

    def calm() -> None:
        world.chaos = Chaos()
        world.unreachable.clear()
        world.storeless.clear()
        world.cloudless.clear()
        world.throttled = False
        world.separated.clear()
        world.outage = False
        world.failing = lambda machine: None
        world.job_fails = lambda machine, step: None

    for _ in range(world.random.randint(0, 5)):
        event = world.random.choice(EVENTS)
        world.engine.later(world.random.uniform(20, EVENTS_UNTIL), partial(event, world))
    world.engine.later(EVENTS_UNTIL, calm)
    world.events_until = EVENTS_UNTIL
    return world


def _any(world: World) -> Machine | None:
    running = world.cloud.running
    return world.random.choice(running) if running else None


def lose_one(world: World) -> None:
    if machine := _any(world):
        machine.lose()


def lose_all(world: World) -> None:
    for machine in world.cloud.running:
        machine.lose()


def freeze(world: World) -> None:
    if machine := _any(world):
        machine.freeze(world.random.uniform(5, 300))


def notice(world: World) -> None:
    if machine := _any(world):
        world.say(f"{machine.id} gets a notice")
        machine.noticed = Notice("spot", "spot interruption")
        world.engine.later(120.0, machine.lose)


def rebalance(world: World) -> None:
    if machine := _any(world):
        machine.noticed = Notice("rebalance", "rebalance recommendation", at_once=False)


def cut_off(world: World) -> None:
    if machine := _any(world):
        world.say(f"{machine.id} is cut off")
        world.unreachable.add(machine.id)
        world.engine.later(world.random.uniform(10, 200), lambda: world.unreachable.discard(machine.id))


def lose_store(world: World) -> None:
    """The store answers one machine with errors only."""
    if machine := _any(world):
        world.say(f"{machine.id} does not reach the store")
        world.storeless.add(machine.id)
        world.engine.later(world.random.uniform(10, 900), lambda: world.storeless.discard(machine.id))


def lose_cloud(world: World) -> None:
    """AWS does not answer one machine, which reaches the store and the others."""
    if machine := _any(world):
        world.say(f"{machine.id} does not reach AWS")
        world.cloudless.add(machine.id)
        world.engine.later(world.random.uniform(10, 900), lambda: world.cloudless.discard(machine.id))


def throttle(world: World) -> None:
    """Somebody else's script uses up the account's requests."""
    world.say("AWS throttles")
    world.throttled = True

    def back() -> None:
        world.throttled = False

    world.engine.later(world.random.uniform(20, 600), back)


def stop_hardware(world: World) -> None:
    if machine := _any(world):
        machine.stop()


def delete_group(world: World) -> None:
    """Somebody deletes a group, with its machines, in the console."""
    groups = sorted(world.cloud.groups)
    if groups:
        name = world.random.choice(groups)
        world.say(f"somebody deletes {name}")
        world.cloud.delete_group(name)


def launch_twice(world: World) -> None:
    """Two people launch the run within a second."""
    world.launch_again(0.0)
    world.engine.later(world.random.uniform(0, 1), lambda: world.launch_again(0.0))


def kill_laptop(world: World) -> None:
    """Somebody launches, and the process is killed, at any moment: no signal handler runs."""
    world.launch_again(0.0)
    laptop = world.laptops[-1]
    world.engine.later(world.random.uniform(0, 12), lambda: world.engine.kill(laptop))


def collect_garbage(world: World) -> None:
    """Somebody runs `skytrain gc --delete`."""
    world.engine.spawn("gc", lambda: laptops.collect_garbage(world))


def separate(world: World) -> None:
    running = world.cloud.running
    if len(running) >= 2:
        pair = frozenset(machine.id for machine in world.random.sample(running, 2))
        world.say(f"{sorted(pair)} do not reach each other")
        world.separated.add(pair)
        world.engine.later(world.random.uniform(10, 400), lambda: world.separated.discard(pair))


def outage(world: World) -> None:
    world.say("the store is out")
    world.outage = True

    def back() -> None:
        world.outage = False

    world.engine.later(world.random.uniform(5, 120), back)


def crash(world: World) -> None:
    """A job fails once."""
    left = [1]

    def fails(machine: Machine, step: int) -> int | None:
        if left[0]:
            left[0] -= 1
            world.say(f"the job crashes on {machine.id}")
            return 1
        return None

    world.job_fails = fails


def bad_boots(world: World) -> None:
    """Machines fail in boot, for a while."""
    world.say("machines fail in boot from now on")
    world.failing = lambda machine: "the bucket cannot be read"


def stop(world: World) -> None:
    """A person stops the run."""
    world.laptops.append(world.engine.spawn("stop", lambda: laptops.stop(world, 300.0, force=False)))


def damage(world: World) -> None:
    """Somebody truncates a record of the run; one that is listed with others, or the only one of its kind."""
    key = _record(world)
    if key is not None:
        world.say(f"{key} is truncated")
        data, etag, at = world.objects[key]
        world.objects[key] = (data[: len(data) // 2], f"{etag}x", at)
        world.tampered = True


def delete(world: World) -> None:
    """Somebody deletes a record of the run, but for its generations: their numbers would begin anew."""
    key = _record(world)
    if key is not None and "/generations/" not in key:
        world.say(f"{key} is deleted")
        del world.objects[key]
        world.tampered = True


def delete_launches(world: World) -> None:
    """Somebody deletes all that the store knows about launches, while their machines work."""
    world.say("the records of launches are deleted")
    for key in [key for key in world.objects if key.startswith((f"runs/{RUN}/launches/", f"launches/{RUN}/"))]:
        del world.objects[key]
    world.tampered = True


def _record(world: World) -> str | None:
    folders = ("meeting", "launches", "attempts", "billed", "stop.json")
    keys = [key for key in sorted(world.objects) if key.startswith(tuple(f"runs/{RUN}/{name}" for name in folders))]
    return world.random.choice(keys) if keys else None


def launch_again(world: World) -> None:
    """Somebody launches the run, from a computer that may sleep, while it trains, ends or has ended."""
    world.launch_again(world.random.choice([0.0, 30.0, 120.0, 600.0]))


def close_lid(world: World) -> None:
    """The computers that launch and follow sleep for a while."""
    seconds = world.random.uniform(30, 3600)
    for laptop in world.laptops:
        if not laptop.ended:
            world.say(f"a computer sleeps for {seconds:.0f} s")
            laptop.frozen_until = world.engine.now + seconds


def end_machines(world: World) -> None:
    """A person ends the machines without waiting for a checkpoint."""
    wait = world.random.choice([0.0, 30.0, 300.0])
    world.laptops.append(world.engine.spawn("stop --force", lambda: laptops.stop(world, wait, force=True)))


def no_capacity(world: World) -> None:
    """No further machine can be had for a while."""
    world.cloud.capacity = len(world.cloud.running)

    def back() -> None:
        world.cloud.capacity = 10**6

    world.engine.later(world.random.uniform(30, 1200), back)


EVENTS: tuple[Callable[[World], None], ...] = (
    lose_one, lose_one, lose_all, freeze, notice, rebalance, cut_off, separate, outage, crash, bad_boots, stop, damage, delete,
    delete_launches, launch_again,
    launch_again, close_lid, end_machines, no_capacity, lose_store, lose_cloud, throttle, stop_hardware, delete_group, launch_twice,
    kill_laptop, collect_garbage, collect_garbage,
)  # fmt: skip
