"""The ledger of a sweep: every dollar that it has spent, has reserved for a trial, or keeps for the final run.

The final run is reserved before anything else. A trial is admitted only if its worst case fits into what is left, and
is charged what was measured. Until then its whole reserve counts as spent, so a kill can only make the sum too large.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..config import EXIT_CODES, SkytrainError
from ..storage import Store, is_amount, read_typed, record_of

FINAL = "final"


class BudgetError(SkytrainError):
    """A request that the budget does not allow."""

    exit_code = EXIT_CODES["budget"]


@dataclass(frozen=True)
class HourlyPrice:
    """The price of a machine hour in dollars, with a margin for prices that change while a sweep runs."""

    usd_per_hour: float
    margin: float

    def usd(self, seconds: float) -> float:
        """Return the most that this many seconds cost."""
        return self.usd_per_hour * (1 + self.margin) * seconds / 3600

    def charged(self, seconds: float) -> float:
        """Return what this many seconds did cost."""
        return self.usd_per_hour * seconds / 3600


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: money reserved for a purpose, and the actual cost once it is known."""

    what: str  # `final`, `trial-003` or `overhead-<session>`
    reserved_usd: float
    charged_usd: float | None = None

    @property
    def usd(self) -> float:
        return self.reserved_usd if self.charged_usd is None else self.charged_usd


def read_entry(store: Store, key: str) -> Entry:
    """Return one line of a ledger, of the name that its object has. Machines of the sweep may write it."""
    entry = read_typed(store, key, Entry, charged_usd=None)
    with record_of(store, key):
        if not key.endswith(f"/{entry.what}.json"):
            raise ValueError(f"it is about {entry.what!r:.60}")
        if not all(is_amount(usd) for usd in (entry.reserved_usd, entry.usd)):
            raise ValueError("a line of a ledger cannot be less than nothing")
    return entry


class Ledger:
    """The entries of one sweep, each an object in the store that one worker writes."""

    def __init__(self, store: Store, folder: str, budget_usd: float) -> None:
        self._store = store
        self._folder = f"{folder}/ledger"
        self.budget_usd = budget_usd
        self._entries: dict[str, Entry] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what other workers have written since."""
        self._entries = {entry.what: entry for entry in self._load()}

    def count(self, entry: Entry) -> None:
        """Count an entry that its worker has not written yet."""
        self._entries[entry.what] = entry

    def _load(self) -> list[Entry]:
        return [read_entry(self._store, stat.key) for stat in self._store.list(f"{self._folder}/")]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries[name] for name in sorted(self._entries))

    def has(self, what: str) -> bool:
        return what in self._entries

    def entry(self, what: str) -> Entry:
        return self._entries.get(what, Entry(what, 0.0))

    def usd(self, what: str) -> float:
        return self.entry(what).usd

    @property
    def spent_usd(self) -> float:
        """Return everything but the final run: charges, and the reserves of what is not charged yet."""
        return sum(entry.usd for entry in self._entries.values() if entry.what != FINAL)

    @property
    def left_usd(self) -> float:
        """Return what trials may still use."""
        return self.budget_usd - self.spent_usd - self.usd(FINAL)

    def reserve(self, what: str, usd: float) -> Entry:
        """Reserve money, or raise BudgetError with the sum. What was reserved before keeps its amount."""
        if what in self._entries:
            return self._entries[what]
        if usd > self.left_usd + 1e-9:
            raise BudgetError(
                f"{what} may cost ${usd:.2f}, and ${self.left_usd:.2f} are left: "
                f"budget ${self.budget_usd:.2f} - spent ${self.spent_usd:.2f} - final run ${self.usd(FINAL):.2f}"
            )
        return self._write(Entry(what, usd))

    def replace(self, entry: Entry) -> None:
        """Write an entry anew, whatever it was."""
        if self._entries.get(entry.what) != entry:
            self._write(entry)

    def charge(self, what: str, usd: float) -> Entry:
        """Replace a reserve by what was actually spent."""
        reserved = self._entries[what].reserved_usd if what in self._entries else 0.0
        return self._write(Entry(what, reserved, usd))

    def release(self, what: str) -> None:
        """Cancel a reserve on which nothing was spent."""
        self._store.delete(f"{self._folder}/{what}.json")
        self._entries.pop(what, None)

    def _write(self, entry: Entry) -> Entry:
        text = json.dumps(entry.__dict__, indent=1)
        self._store.write(f"{self._folder}/{entry.what}.json", text.encode())
        self._entries[entry.what] = entry
        return entry
