"""The heartbeats of a run's hosts.

    runs/<run>/meeting/ready/<shape>/<host>.json       a host that may be invited or takes part
    runs/<run>/meeting/away/<shape>/<host>.json        a host that waits before its next try, or saves and leaves
    runs/<run>/meeting/left/<shape>/<host>.json        the last record of a host that has left
    runs/<run>/meeting/boot/<machine>.json             a rented machine whose agent has not started yet

`jobs/rendezvous.py` has the other objects of the folder. A heartbeat also has the host's cost so far, which
`HostSpends` in `meter.py` reads, so that hosts that wait are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..storage import NotFound, Stat, Store, read_object

Presence = Literal["ready", "away", "left"]
BOOT_SHAPE = "boot"  # shape of machines whose agent has not started: only their cost counts


@dataclass(frozen=True)
class HostRecord:
    """The heartbeat object of one host."""

    presence: Presence
    shape: str
    host: str
    stat: Stat


def meeting_folder(run: str) -> str:
    return f"runs/{run}/meeting/"


def host_key(run: str, presence: Presence, shape: str, host: str) -> str:
    return f"{meeting_folder(run)}{presence}/{shape}/{host}.json"


def host_record(stat: Stat, folder: str) -> HostRecord | None:
    """Return the host whose heartbeat an object of the folder is; None for other objects."""
    match stat.key.removeprefix(folder).split("/"):
        case [("ready" | "away" | "left") as presence, shape, name]:
            return HostRecord(presence, shape, name.removesuffix(".json"), stat)
        case ["boot", name]:
            return HostRecord("away", BOOT_SHAPE, name.removesuffix(".json"), stat)
    return None


class HostHeartbeats:
    """The heartbeats of a run's hosts; reads only those that have changed since the last reading."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}  # key -> etag, record

    def read(self, hosts: Iterable[HostRecord]) -> list[tuple[HostRecord, dict[str, Any]]]:
        """Return each host with its record; one that has moved since it was listed is left to the next reading."""
        current = []
        for each in hosts:
            known = self._known.get(each.stat.key)
            if known is None or known[0] != each.stat.etag:
                try:
                    known = (each.stat.etag, read_object(self._store, each.stat.key))
                except NotFound:
                    continue
            current.append((each, known))
        self._known = {each.stat.key: known for each, known in current}
        return [(each, record) for each, (_, record) in current]
