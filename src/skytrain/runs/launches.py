"""The record of a launch in the store: which groups it rented, so that any host or terminal can grow or end them."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from .. import __version__
from ..config import SkytrainError
from ..storage import (
    DamagedRecord,
    NotFound,
    ObjectError,
    Store,
    is_time,
    read_object,
    read_typed,
    record_of,
)
from .heartbeats import meeting_folder
from .meter import boot_clock
from .record import has_record
from .stopping import user_name

DEFAULT_TARGET = "ec2"  # of a record that names none, and of an account without cloud.target
NEVER = datetime(9000, 1, 1, tzinfo=UTC)
MOST_STAGES = 8  # launches that follow one another
LAUNCH_FILE = re.compile(r"(\d{5,9})\.json")  # of a launch, or of an offer that was tried
ORDER_FILE = re.compile(r"(\d{5,9})/launch\.json")
TARGET = re.compile(r"[\w.-]{1,200}", re.ASCII)  # the name of a target, or the path of a class; a region
AWAKE_SECONDS = 10.0  # a write that took longer may have spanned a sleep of the computer


@dataclass(frozen=True)
class LaunchedGroup:
    """One Auto Scaling group: the machines of one offer in one zone; or one job of a scheduler, in any zone."""

    name: str
    zone: str
    instance_type: str
    market: str
    nodes: int
    usd_per_hour: float  # of one machine
    kill_at: str  # "" if nothing ends it: a Slurm job is requeued until the run is over
    placement_group: bool

    @property
    def text(self) -> str:
        """Return the machines in a few words."""
        place = f" in {self.zone}" if self.zone else ""
        return f"{self.nodes} x {self.instance_type} ({self.market}){place}"


@dataclass(frozen=True)
class LaunchId:
    """The identity of a launch."""

    run: str
    launch: str


@dataclass(frozen=True)
class LaunchOrigin:
    """Who launched, from where and with what: for people who look into a launch later. CloudTrail has the same caller."""

    caller: str  # ARN of the caller in AWS; "" if AWS was not asked
    user: str
    host: str
    version: str  # of Skytrain


def launch_origin(caller: str = "") -> LaunchOrigin:
    """Return the origin of a launch from this process."""
    return LaunchOrigin(caller=caller, user=user_name(), host=platform.node(), version=__version__)


@dataclass(frozen=True)
class LaunchRecord:
    """A launch of a run. The groups are in the plan's order: the first starts, the others wait at zero.

    A launch whose requests failed has removed what it had created, and keeps its record.
    """

    id: str
    run: str
    verb: str
    launched_at: str
    launched_by: str
    account: str
    region: str
    patience_seconds: float
    plan_hash: str
    image: str  # AMI
    bundle: str
    words: list[str]
    groups: list[LaunchedGroup]
    failed: bool = False
    after: LaunchId | None = None  # all groups wait at zero until this launch has succeeded: a smoke run, or a stage
    then: LaunchId | None = None  # that launch waits for this one, whose last act starts or removes it
    target: str = DEFAULT_TARGET  # the value of cloud.target; each group of another than ec2 is a job there
    origin: LaunchOrigin | None = None  # None: launched by a version that recorded none

    @property
    def over_at(self) -> datetime:
        """Return when every group has been ended."""
        return max(datetime.fromisoformat(group.kill_at) if group.kill_at else NEVER for group in self.groups)

    @property
    def target_word(self) -> str:
        """Return what people type to name the target."""
        return f"cloud{'.target' if '.' in self.target else ''}={self.target}"


def launch_folder(record: LaunchRecord) -> str:
    """Return the folder of what became of a launch, such as logs of failed boots and offers tried. Its machines write it."""
    return f"runs/{record.run}/launches/{record.id}"


def inputs_folder(run: str, launch: str) -> str:
    """Return the folder of what was launched: its record, its plan, what its machines run. Only operators write there."""
    return f"launches/{run}/{launch}"


def launch_key(run: str, launch: str) -> str:
    return f"runs/{run}/launches/{launch}.json"


def order_key(run: str, launch: str) -> str:
    """Return the copy of a launch's record that only operators write: what its machines write is their own word."""
    return f"{inputs_folder(run, launch)}/launch.json"


def started_key(record: LaunchRecord) -> str:
    """Return the object that says since when a launch that waited has asked for machines."""
    return f"{launch_folder(record)}/started.json"


def stopped_key(record: LaunchRecord) -> str:
    """Return the object that says that people have ended the launch: nobody asks for other machines of it."""
    return f"{launch_folder(record)}/stopped.json"


def ended_key(record: LaunchRecord) -> str:
    """Return the object that says why a launch ended that could not go on."""
    return f"{launch_folder(record)}/ended.json"


def end_launch(store: Store, record: LaunchRecord, reason: str) -> None:
    """Record why a launch ends; the first reason counts."""
    store.create(ended_key(record), json.dumps({"reason": reason}).encode())


def ended_reason(store: Store, record: LaunchRecord) -> str | None:
    """Return why a launch ended that could not go on; None if it did not."""
    key = ended_key(record)
    return str(read_object(store, key).get("reason", "")) if store.exists(key) else None


def current_offer(store: Store, record: LaunchRecord) -> tuple[int, datetime]:
    """Return the number of the offer that is tried now, and since when, by the store's clock."""
    prefix = f"{launch_folder(record)}/offers/"
    stats = [(LAUNCH_FILE.fullmatch(stat.key.removeprefix(prefix)), stat) for stat in store.list(prefix)]
    tried = {int(found[1]): stat for found, stat in stats if found and int(found[1]) < len(record.groups)}
    if tried:
        newest = max(tried)
        return newest, datetime.fromtimestamp(tried[newest].modified, UTC)
    if record.after is None:
        return 0, datetime.fromisoformat(record.launched_at)
    started = store.stat(started_key(record))
    return 0, datetime.fromtimestamp(started.modified, UTC) if started else datetime.max.replace(tzinfo=UTC)


def offer_key(record: LaunchRecord, number: int) -> str:
    """Return the object that makes an offer the current one."""
    return f"{launch_folder(record)}/offers/{number:05d}.json"


def launch_starts(store: Store, record: LaunchRecord) -> bool | None:
    """Return whether a launch that waited for another one was started; None while it waits."""
    if store.exists(started_key(record)):
        return True
    return False if read_launch(store, record.run, record.id).failed else None


def following_launches(store: Store, record: LaunchRecord) -> list[LaunchRecord]:
    """Return the launch that waits for this one, the one that waits for that, and so on."""
    return _chain(store, record, "then")


def preceding_launches(store: Store, record: LaunchRecord) -> list[LaunchRecord]:
    """Return the launch that this one waits for, the one that that waits for, and so on."""
    return _chain(store, record, "after")


def _chain(store: Store, record: LaunchRecord, way: Literal["then", "after"]) -> list[LaunchRecord]:
    """Return the launches along one way. Machines may write their run's records: what one says counts if the other agrees."""
    back = "after" if way == "then" else "then"
    found: list[LaunchRecord] = []
    while (other := getattr(record, way)) is not None and len(found) < MOST_STAGES:
        own = LaunchId(record.run, record.id)
        try:
            record = read_launch(store, other.run, other.launch)
        except NotFound:  # it was never launched
            break
        if getattr(record, back) != own:
            break
        found.append(record)
    return found


def withdraw_launch(store: Store, record: LaunchRecord) -> None:
    """Cancel a launch that waits for another one."""
    if record.after is not None and launch_starts(store, record) is None:
        mark_failed(store, record)


def create_launch(store: Store, record: LaunchRecord) -> None:
    """Write the record of a new launch. Raises SkytrainError if another terminal launches the run at this moment."""
    keys = (launch_key(record.run, record.id), order_key(record.run, record.id))
    if not all(store.create(key, _body(record)) for key in keys):
        raise SkytrainError(
            f"run {record.run} is being launched by someone else at this moment\n  see: skytrain status {shlex.quote(record.run)}"
        )


class LaunchSuperseded(SkytrainError):
    """The error of a launch that another one has taken over from; it must not act any more."""


def _request_key(record: LaunchRecord, number: int) -> str:
    return f"{launch_folder(record)}/requests/{number:05d}.json"


class LaunchFence:
    """The right of a launch to act, asked for before each of its requests.

    A launch may sleep between two requests, with the computer that makes it, while someone else launches the run. So
    each request is preceded by a numbered object that is created only if it does not exist. The launch that takes over
    creates the next one of them itself, and the one that slept then finds it.
    """

    def __init__(self, store: Store, record: LaunchRecord) -> None:
        self._store = store
        self._record = record
        self._number = 0

    def advance(self) -> None:
        """Raise LaunchSuperseded unless this launch may make its next request."""
        while True:
            asked = boot_clock()
            body = json.dumps({"by": self._record.launched_by, "number": self._number}).encode()
            if not self._store.create(_request_key(self._record, self._number), body):
                raise LaunchSuperseded(
                    f"run {self._record.run} has been launched by someone else since: this launch, "
                    f"{self._record.id}, had not made a request for a while, and asks for nothing any more\n"
                    f"  see: skytrain status {shlex.quote(self._record.run)} {self._record.target_word}"
                )
            self._number += 1
            if boot_clock() - asked < AWAKE_SECONDS:  # else it may have slept after the object was created
                return


def requested_at(store: Store, record: LaunchRecord) -> float:
    """Return when the launch last made progress, by the store's clock: its newest request, or its record."""
    requests = [stat.modified for stat in store.list(f"{launch_folder(record)}/requests/")]
    return max([recorded_at(store, record), *requests])


def supersede_launch(store: Store, record: LaunchRecord, by: str) -> None:
    """Take over from a launch, which can make no request from now on. Raises SkytrainError if it makes one now."""
    if is_superseded(store, record):
        return
    number = len(store.list(f"{launch_folder(record)}/requests/"))
    if not store.create(_request_key(record, number), json.dumps({"superseded_by": by}).encode()):
        raise SkytrainError(
            f"run {record.run} is being launched by {record.launched_by} at this moment\n"
            f"  see: skytrain status {shlex.quote(record.run)} {record.target_word}"
        )


def is_superseded(store: Store, record: LaunchRecord) -> bool:
    """Return whether another launch has taken over from this one."""
    requests = store.list(f"{launch_folder(record)}/requests/")
    return bool(requests) and "superseded_by" in read_object(store, requests[-1].key)


def may_grow(store: Store, record: LaunchRecord) -> bool:
    """Return whether a launch may ask for machines beyond those that it has: nobody has ended it or taken over from it.

    A terminal that slept, or a machine that was cut off, does not know what has happened since.
    """
    ended = store.exists(stopped_key(record)) or store.exists(ended_key(record)) or is_withdrawn(store, record)
    return not ended and not is_superseded(store, record)


def is_withdrawn(store: Store, record: LaunchRecord) -> bool:
    """Return whether the launch has failed or was withdrawn since its record was read."""
    try:
        return read_launch(store, record.run, record.id).failed
    except (ObjectError, DamagedRecord):  # machines that have read it before go on
        return record.failed


def mark_failed(store: Store, record: LaunchRecord) -> None:
    """Record that the launch's requests failed, or that it was withdrawn, and nothing of it is left."""
    mark_withdrawn(store, record)
    order = order_key(record.run, record.id)
    if store.exists(order):
        store.write(order, _body(replace(record, failed=True)))


def mark_withdrawn(store: Store, record: LaunchRecord) -> None:
    """Record that nothing is left of a launch that waited. Machines that it waited for may do so."""
    store.write(launch_key(record.run, record.id), _body(replace(record, failed=True)))


def copy_launches(store: Store, run: str, name: str) -> None:
    """Write the records of a run's launches as those of the run of another name."""
    for record in launches_of(store, run):
        mine = _body(replace(record, run=name))
        store.write(launch_key(name, record.id), mine)
        if store.exists(order_key(run, record.id)):
            store.write(order_key(name, record.id), mine)


def _body(record: LaunchRecord) -> bytes:
    return json.dumps(asdict(record), indent=1).encode()


def read_launch(store: Store, run: str, launch: str) -> LaunchRecord:
    """Return the record. Raises NotFound, and DamagedRecord.

    What operators have written counts. The other copy, which machines of the run may write, is that of a launch of an earlier
    version; of a later one it only says that a launch which waited has been withdrawn.
    """
    try:
        order = _read_copy(store, order_key(run, launch), LaunchId(run, launch))
    except NotFound:
        return _read_copy(store, launch_key(run, launch), LaunchId(run, launch))
    if order.failed or order.after is None:
        return order
    try:
        return replace(order, failed=_read_copy(store, launch_key(run, launch), LaunchId(run, launch)).failed)
    except (NotFound, DamagedRecord):  # whoever may write it hides nothing
        return order


def _read_copy(store: Store, key: str, id: LaunchId) -> LaunchRecord:
    record = read_typed(store, key, LaunchRecord, origin=None)
    with record_of(store, key):
        if not record.groups:
            raise ValueError("it has no groups")
        if (record.run, record.id) != (id.run, id.launch):  # its machines may write it: it speaks for no other run
            raise ValueError(f"it is about launch {record.id} of run {record.run}")
        # Both are printed in commands to type.
        if not TARGET.fullmatch(record.target) or not TARGET.fullmatch(record.region or "-"):
            raise ValueError(f"{record.target!r:.60} in {record.region!r:.60} is not a target")
        named = [(group.name, group.zone, group.instance_type, group.market) for group in record.groups]
        for text in (record.launched_by, *(each for texts in named for each in texts)):
            if not text.isprintable():  # a line of its own could tell people to type something
                raise ValueError(f"{text!r:.60} is not one line")
        for text in (record.launched_at, *(group.kill_at for group in record.groups if group.kill_at)):
            if not is_time(text):
                raise ValueError(f"{text!r:.60} is not a time")
        for group in record.groups:
            if group.nodes < 1 or group.usd_per_hour < 0:
                raise ValueError(f"{group.nodes} machines at ${group.usd_per_hour} cannot be rented")
    return record


def launches_of(store: Store, run: str) -> list[LaunchRecord]:
    """Return the launches of a run, oldest first; first of all those that no operator has recorded.

    They are of an earlier version, or machines of the run have added them: none of these must be taken for the newest.
    """
    return [read_launch(store, run, launch) for launch in _launch_ids(store, run)]


def _launch_ids(store: Store, run: str) -> list[str]:
    orders = _ids_below(store, f"launches/{run}/", ORDER_FILE)
    return [*sorted(_ids_below(store, f"runs/{run}/launches/", LAUNCH_FILE) - orders), *sorted(orders)]


def _ids_below(store: Store, prefix: str, files: re.Pattern[str]) -> set[str]:
    found = (files.fullmatch(stat.key.removeprefix(prefix)) for stat in store.list(prefix))
    return {file[1] for file in found if file}


def recorded_at(store: Store, record: LaunchRecord) -> float:
    """Return when the record was written, by the store's clock."""
    stat = store.stat(order_key(record.run, record.id)) or store.stat(launch_key(record.run, record.id))
    assert stat is not None
    return stat.modified


def run_folders(store: Store) -> list[str]:
    """Return the names of all runs, also of one that was launched and whose machines have deleted its folder."""
    return sorted({*store.folders("runs/"), *store.folders("launches/")})


def launched_runs(store: Store, among: Callable[[str], bool] = lambda run: True) -> list[str]:
    """Return the runs that were launched and have not begun to train, of those whose names are `among`."""
    named = (run for run in run_folders(store) if among(run))
    runs = (run for run in named if not has_record(store, run))
    return [run for run in runs if _launch_ids(store, run)]


def next_launch(earlier: Sequence[LaunchRecord], ended: int = 0) -> str:
    """Return the id of the launch after these, and after the one that has `ended`.

    Machines write the numbers of earlier ones: after the last number that is read, nobody would see the launch.
    """
    launch = f"{1 + max([ended, *(int(record.id) for record in earlier)]):05d}"
    if not LAUNCH_FILE.fullmatch(f"{launch}.json"):
        raise DamagedRecord(
            f"the run has records of a launch {int(launch) - 1:,}, and no run is launched so often\n"
            "  delete them below launches/ and meeting/ in its folder, or choose another name: run=NAME"
        )
    return launch


def ended_launch(store: Store, run: str) -> int:
    """Return the number of the launch whose end the run's hosts have recorded last; 0 without one.

    Its own record may have been deleted. Machines of another launch with that number would leave as soon as they boot.
    """
    ends = [stat.key for stat in store.list(f"{meeting_folder(run)}generations/") if stat.key.endswith(".over.json")]
    launch = str(read_object(store, ends[-1]).get("launch")) if ends else ""
    return int(launch) if LAUNCH_FILE.fullmatch(f"{launch}.json") else 0  # machines write it
