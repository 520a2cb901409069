"""The twelve interruptions of a run, each at a moment that the seed decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from skytrain.jobs import list_meeting

from .hypervisor import Life
from .world import RehearsedRun

NOTICE_SECONDS = 120.0
SHORT_NOTICE_SECONDS = 5.0
OUTAGE_SECONDS = 60.0
PARTITION_SECONDS = 75.0  # longer than the silence after which a host counts as lost
QUICK_SECONDS = 0.05  # between looks for a moment that is short


@dataclass(frozen=True)
class Interruption:
    """`act` waits for its moment, and returns what it did, or nothing more than the name says."""

    name: str
    act: Callable[[RehearsedRun], str]


def notice(run: RehearsedRun, node: int, seconds: float) -> str:
    """A spot notice; EC2 takes the machine when the time is over, whether it has left or not."""
    life, before = node_of(run, node), set(run.commits())
    at = time.time()
    life.host.metadata.spot_notice(seconds)
    if seconds < NOTICE_SECONDS:
        time.sleep(seconds)
        run.world.hypervisor.lose(life, "was interrupted")
        return ""
    run.until(
        lambda: life.ended is not None or time.time() > at + seconds, "the node leaves before its time", seconds + 30
    )
    if life.ended is None:
        run.world.hypervisor.lose(life, "was interrupted")
        return "it did not leave in time"
    phases = notice_phases(run, life, at, before)
    run.world.measured.setdefault("notice to commit", []).append(phases)
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())


def notice_phases(run: RehearsedRun, life: Life, at: float, before: set[int]) -> dict[str, float]:
    """Seconds from the notice until each stage, by the store's clock and the machine's console."""
    phases = {}
    told = life.host.printed(r"this node leaves", at)
    if told is not None:
        phases["read"] = told - at
    new = [step for step in run.commits() if step not in before]
    markers = [
        stat.modified
        for stat in run.store.list(f"runs/{run.run}/checkpoints/")
        if "/COMMITTED." in stat.key and any(f"step-{step:09d}/" in stat.key for step in new)
    ]
    # The last one: a checkpoint that was being written when the notice came may be committed before it.
    saved = [each for each in markers if at <= each <= (life.ended or at)]
    if saved:
        phases["committed"] = max(saved) - at
    assert life.ended is not None
    phases["left"] = life.ended - at
    return phases


def lose(run: RehearsedRun, *nodes: int) -> str:
    for life in [node_of(run, node) for node in nodes]:
        run.world.hypervisor.lose(life, "was lost")
    return ""


def lose_in_boot(run: RehearsedRun) -> str:
    """A node is lost, and then the machine that replaces it, before its agent runs or just after."""
    before = {life.facts.id for life in run.lives}
    lose(run, run.world.random.randrange(2))
    new: Life = run.until(
        lambda: next((life for life in run.lives if life.facts.id not in before), None),
        "the group replaces the machine",
    )
    time.sleep(run.world.random.uniform(1, 12))
    run.world.hypervisor.lose(new, "was lost while it booted")
    return f"the replacement was lost {new.seconds:.0f} s after its launch"


def lose_in_save(run: RehearsedRun) -> str:
    """A node is lost when files of a checkpoint are in the store and its marker is not."""

    def being_written() -> str | None:
        steps: dict[str, bool] = {}
        for stat in run.store.list(f"runs/{run.run}/checkpoints/"):
            step = stat.key.split("/")[3]
            steps[step] = steps.get(step, False) or "/COMMITTED." in stat.key
        return next((step for step, is_committed in steps.items() if not is_committed and step not in known), None)

    known: set[str] = set()
    if found := being_written():
        known.add(found)  # left behind by an earlier interruption
    deadline = time.monotonic() + 120
    while (step := being_written()) is None and time.monotonic() < deadline:
        time.sleep(QUICK_SECONDS)
    lose(run, run.world.random.randrange(2))
    return f"{step} was being written" if step else "no save was seen within two minutes"


def lose_in_meeting(run: RehearsedRun) -> str:
    """A node is lost; when the others have ended the generation, or have just begun the next, another one is."""
    before = list_meeting(run.store, run.run).newest
    survivor = node_of(run, 0)
    lose(run, 1)
    run.until(lambda: list_meeting(run.store, run.run).ended, "the generation ends")
    if run.world.random.random() < 0.5:
        run.world.hypervisor.lose(survivor, "was lost while it waited")
        return "the survivor was lost while it waited for another"
    run.until(lambda: list_meeting(run.store, run.run).newest > before, "the next generation")
    lose(run, 0)
    return "node 0 of the next generation was lost as soon as there was one"


def partition(run: RehearsedRun) -> str:
    """The network is cut: one node from everything, or the two from each other; it comes back."""
    first = node_of(run, 0)
    second = node_of(run, 1)
    if run.world.random.random() < 0.5:
        cut = run.world.random.choice([first, second])
        cut.host.cut_off(True)
        time.sleep(PARTITION_SECONDS)
        cut.host.cut_off(False)
        return f"{cut.facts.id} reached nothing for {PARTITION_SECONDS:.0f} s"
    ports = [first.host.port, second.host.port]
    run.world.network.cut_between_hosts(ports, True)
    time.sleep(PARTITION_SECONDS)
    run.world.network.cut_between_hosts(ports, False)
    return f"the nodes did not reach each other for {PARTITION_SECONDS:.0f} s, and both reached the store"


def outage(run: RehearsedRun) -> str:
    """Every request to the store is answered with 503 SlowDown."""
    before = list_meeting(run.store, run.run).newest
    run.world.proxy.inject("slow_down")
    time.sleep(OUTAGE_SECONDS)
    run.world.proxy.clear()
    refused = run.world.proxy.happened.pop("slow_down", 0)
    return f"{refused} requests were refused; generation {before} was under way"


def node_of(run: RehearsedRun, number: int) -> Life:
    """Return node 0 or 1 of the newest generation."""
    found: list[Life] = run.until(lambda: len(nodes := run.of_generation()) == 2 and nodes, "both nodes run")
    return found[number]


INTERRUPTIONS = (
    Interruption("node 0 gets a notice of 120 s", partial(notice, node=0, seconds=NOTICE_SECONDS)),
    Interruption("node 1 gets a notice of 120 s", partial(notice, node=1, seconds=NOTICE_SECONDS)),
    Interruption("node 0 gets a notice of 5 s", partial(notice, node=0, seconds=SHORT_NOTICE_SECONDS)),
    Interruption("node 1 gets a notice of 5 s", partial(notice, node=1, seconds=SHORT_NOTICE_SECONDS)),
    Interruption("node 0 is lost without notice", lambda run: lose(run, 0)),
    Interruption("node 1 is lost without notice", lambda run: lose(run, 1)),
    Interruption("both nodes are lost", lambda run: lose(run, 0, 1)),
    Interruption("a machine is lost during boot", lose_in_boot),
    Interruption("a node is lost during a save", lose_in_save),
    Interruption("a node is lost during the meeting", lose_in_meeting),
    Interruption("the network is partitioned", partition),
    Interruption("the store is out for 60 s", outage),
)
