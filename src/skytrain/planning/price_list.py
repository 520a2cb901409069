"""The prices of what is not a machine: disks, file systems, gateways, storage and its requests."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

HOURS_PER_MONTH = 730.0


@dataclass(frozen=True)
class UnitPrice:
    """The price of a unit: an hour, a GB for a month, 1000 requests."""

    usd: float
    unit: str
    date: str
    source: str

    @property
    def usd_per_hour(self) -> float:
        """Return the price of an hour, of a GB where it is sold by size."""
        assert self.unit in ("hour", "gb-month"), self.unit
        return self.usd / (1 if self.unit == "hour" else HOURS_PER_MONTH)


@cache
def unit_prices() -> dict[str, UnitPrice]:
    """Return the prices by the names of `data/unit_prices.csv`."""
    text = files("skytrain.planning").joinpath("data", "unit_prices.csv").read_text()
    return {
        row["item"]: UnitPrice(float(row["usd"]), row["unit"], row["date"], row["source"])
        for row in csv.DictReader(text.splitlines())
    }
