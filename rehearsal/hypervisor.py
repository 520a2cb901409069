"""Turns the account's instances into hosts: what EC2's and Auto Scaling's own machinery does behind their APIs.

It starts a host for each new instance, ends the hosts of terminated ones (power button, and after a while the power
itself), terminates the instance of a host that has shut itself down, fires scheduled actions, asks again for capacity, and
counts every machine's seconds from its launch until EC2 would stop billing it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from .account import Account
from .hosts import Host, HostNetwork, MachineParts
from .metadata import InstanceFacts

ROUND_SECONDS = 0.2
FORCE_SECONDS = 20.0  # of an orderly shutdown, after which EC2 cuts the power
ASK_SECONDS = 5.0  # between two requests of a group for machines that it lacks
LEAST_SECONDS = 60.0  # that EC2 bills of a machine


@dataclass
class Life:
    """One machine: its host, and from when until when it is billed."""

    facts: InstanceFacts
    group: str
    began: float  # both by time.time()
    usd_per_hour: float
    host: Host
    ended: float | None = None
    off: float | None = None  # when it had shut down; EC2 does not bill the time since `ended`
    force_at: float | None = None
    interrupted: str = ""  # what the rehearsal did to it

    @property
    def seconds(self) -> float:
        return (self.ended or time.time()) - self.began

    @property
    def shutdown_seconds(self) -> float:
        return 0.0 if self.ended is None or self.off is None else self.off - self.ended

    @property
    def billed_seconds(self) -> float:
        """EC2 bills by the second, and at least a minute."""
        return max(LEAST_SECONDS, self.seconds)

    @property
    def usd(self) -> float:
        return self.billed_seconds * self.usd_per_hour / 3600


@dataclass
class Hypervisor:
    """A thread that keeps hosts as the account says."""

    account: Account
    network: HostNetwork
    parts: MachineParts
    tell: Callable[[str], None]
    lives: dict[str, Life] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)  # groups whose scheduled action was executed

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self.account.lifecycle.console = self._console
        self._ask_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Hypervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever is left when the rehearsal ends is removed."""
        self._stop.set()
        self._thread.join()
        for life in self.running:
            life.host.cut_power()
            life.host.remove()

    @property
    def running(self) -> list[Life]:
        return [life for life in self.lives.values() if life.host.is_on]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._round()
            except Exception:
                self.problems.append(traceback.format_exc())
            self._stop.wait(ROUND_SECONDS)

    def _round(self) -> None:
        with self.account.lock:
            self._fire_actions()
            if time.monotonic() >= self._ask_at:
                self._ask_at = time.monotonic() + ASK_SECONDS
                self.account.lifecycle.tick()
                for group in self.account.scaling.autoscaling_groups.values():
                    self.account.lifecycle.fill(group)
            states = {one.id: one for one in self.account.instances() if hasattr(one, "autoscaling_group")}
        for name, instance in states.items():
            if instance.state == "running" and name not in self.lives:
                self._start(instance)
        for life in list(self.lives.values()):
            self._follow(life, states[life.facts.id].state == "running")

    def _fire_actions(self) -> None:
        scaling = self.account.scaling
        now = datetime.now(UTC)
        for action in list(scaling.scheduled_actions.values()):
            starts = datetime.fromisoformat(str(action.start_time))
            group = scaling.autoscaling_groups.get(action.auto_scaling_group_name)
            if (starts if starts.tzinfo else starts.replace(tzinfo=UTC)) > now:
                continue
            del scaling.scheduled_actions[action.scheduled_action_name]
            if group is not None:
                self.tell(f"Auto Scaling: {action.scheduled_action_name} sets the group to {action.desired_capacity}")
                group.min_size = action.min_size
                group.max_size = action.max_size
                group.set_desired_capacity(action.desired_capacity)
                self.fired.append(group.name)

    def _console(self, instance: str) -> str:
        """What a machine has printed, without the times that the rehearsal adds."""
        life = self.lives.get(instance)
        lines = life.host.console.splitlines() if life is not None else []
        return "\n".join(line.partition(" ")[2] for line in lines)

    def _start(self, instance: object) -> None:
        found = instance
        began = time.time()
        group = found.autoscaling_group  # type: ignore[attr-defined]
        zone = found.placement.zone  # type: ignore[attr-defined]
        data = found.user_data  # type: ignore[attr-defined]
        template = group.ec2_launch_template.latest_version().data
        efa = sum("efa" in one.get("InterfaceType", "") for one in template.get("NetworkInterfaces", []))
        facts = InstanceFacts(
            id=found.id, type=found.instance_type, zone=zone, address=found.private_ip_address, market="spot", image=found.image_id,  # type: ignore[attr-defined]
            launched_at=datetime.fromtimestamp(began, UTC), tags={tag["Key"]: tag["Value"] for tag in group.tags}, efa_devices=efa,
        )  # fmt: skip
        host = Host(facts, data.decode(), self.network, self.parts)
        price = self.account.prices[facts.type, zone]
        self.lives[facts.id] = Life(facts=facts, group=group.name, began=began, usd_per_hour=price, host=host)
        self.tell(f"EC2: {facts.id} starts in {zone} at {facts.address}")

    def _follow(self, life: Life, wanted: bool) -> None:
        if life.ended is None and not wanted:  # EC2 bills no instance that is shutting down
            life.ended, life.force_at = time.time(), time.monotonic() + FORCE_SECONDS
            life.host.press_power_button()
        if not life.host.is_on and life.ended is None:
            life.ended = time.time()
            self.tell(f"EC2: {life.facts.id} {life.interrupted or 'has shut itself down'} after {life.seconds:.0f} s")
            life.host.remove()
            self.account.terminate(life.facts.id)
        elif not life.host.is_on and life.force_at is not None:
            life.force_at, life.off = None, time.time()
            self.tell(f"EC2: {life.facts.id} was terminated after {life.seconds:.0f} s")
            life.host.remove()
        elif life.force_at is not None and time.monotonic() >= life.force_at:
            life.host.cut_power()

    def lose(self, life: Life, why: str) -> None:
        """The machine is gone, without a word to its system or its peers."""
        life.interrupted = why
        life.host.cut_power()
