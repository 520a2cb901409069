"""Earlier sweeps of the same kind: what their answers say about the level of the best value, before the first trial.

Sweeps of one person differ less than families of runs do: the same code, the same conventions, often the same data. How
far each missed the law that the new search starts from is averaged, each with its interval, its distance in size,
horizon and batch, and the widths of `Priors`. The beliefs without them stay beside that, with the same weight, and the
trials decide between the two.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config import Config, has_layers
from ..storage import (
    DamagedRecord,
    NotFound,
    ObjectError,
    Store,
    is_mapping,
    is_number,
    is_text,
    read_object,
    record_of,
)
from .problem import Priors, Rung, shifted
from .sweeps import SweepStore
from .trials import target_shape

log = logging.getLogger(__name__)

INTERVAL = 2.563  # deviations of a normal distribution from its 10% to its 90% quantile
RECORD = "earlier"  # the object of a sweep that has the sweeps it starts from, and what it is for later ones
NAME = re.compile(r"[A-Za-z0-9._+-]{1,200}")  # of a sweep, or of one of its turns: it is printed
PLACE = ("parameters", "tokens", "batch_tokens")
MOST = 200  # sweeps of a store that are looked at
LEAST = 1e-30  # numbers beyond this, and one over it, are damage
FAR = 8.0  # deviations of the level: an answer farther from the law than this is damage, or of another kind


@dataclass(frozen=True)
class EarlierSweep:
    """The answer of a finished sweep: the 80% interval of the best value at its own target."""

    name: str
    parameters: float
    tokens: float
    batch_tokens: float
    low: float
    high: float

    @property
    def rung(self) -> Rung:
        return Rung(
            name=self.name, parameters=self.parameters, tokens=self.tokens, batch_tokens=self.batch_tokens, usd=0.0
        )

    def variance(self, target: Rung, priors: Priors) -> float:
        """Return the variance of what this answer says about the level at another target."""
        own = self.rung
        ratios = (
            own.parameters / target.parameters,
            own.tokens / target.tokens,
            own.batch_tokens / target.batch_tokens,
        )
        tilted = sum((width * math.log(ratio)) ** 2 for width, ratio in zip(priors.exponents, ratios, strict=True))
        deviation = math.log(self.high / self.low) / INTERVAL
        return deviation**2 + tilted + priors.nugget**2

    def missed(self, priors: Priors) -> float:
        """Return ln of how far the answer lies above the law."""
        return 0.5 * math.log(self.low * self.high) - priors.law(self.rung)


def with_earlier(priors: Priors, target: Rung, earlier: Sequence[EarlierSweep]) -> Priors:
    """Return the beliefs after earlier sweeps; the same ones if none of them is near what was expected."""
    near = [one for one in earlier if abs(one.missed(priors)) < FAR * priors.offset]
    if not near:
        return priors
    shares = [1 / one.variance(target, priors) for one in near]
    precision = sum(shares) + priors.offset**-2
    shift = sum(share * one.missed(priors) for share, one in zip(shares, near, strict=True)) / precision
    return replace(
        priors,
        law=shifted(priors.law, shift),
        shapes=tuple(replace(one, law=shifted(one.law, shift)) for one in priors.shapes),
        offset=min(priors.offset, Priors.offset),  # no narrower than around a law: a person's sweeps may all miss alike
        before=priors,
        earlier=tuple(one.name for one in near),
    )


def recorded_earlier(sweep: SweepStore, config: Config) -> tuple[EarlierSweep, ...]:
    """Return the earlier sweeps that a sweep starts from: those that its store had when it began.

    They are recorded with the sweep, so that all of its machines, and every command that continues it, decide alike.
    """
    if not sweep.store.exists(f"{sweep.folder}/{RECORD}.json"):
        # A sweep of an earlier version has decided trials without them.
        found = () if sweep.decisions() else find_earlier(sweep.store, config, sweep.name)
        rung = target_shape(config).rung(0.0)
        fields = {
            "kind": kind_of(config),
            "target": {name: getattr(rung, name) for name in PLACE},
            "sweeps": [asdict(one) for one in found],
        }
        sweep.store.create(f"{sweep.folder}/{RECORD}.json", (json.dumps(fields, indent=1) + "\n").encode())
    key = f"{sweep.folder}/{RECORD}.json"
    record = read_object(sweep.store, key)
    with record_of(sweep.store, key):
        return tuple(_checked(one["name"], one, one) for one in record["sweeps"])


def find_earlier(store: Store, config: Config, name: str) -> tuple[EarlierSweep, ...]:
    """Return the finished sweeps of a store that have the same kind as a new one called `name`.

    Records are data of whoever wrote them: one that cannot be read, or has impossible numbers, is left out and named.
    """
    if not config.tune.earlier or config.tune.axis != "lr" or config.tune.expected is not None:
        return ()
    found = []
    for other in [one for one in store.folders("sweeps") if one != name][:MOST]:
        folder = f"sweeps/{other}"
        try:
            record = read_object(store, f"{folder}/{RECORD}.json", {"kind": is_mapping, "target": is_mapping})
            if record["kind"] != kind_of(config):
                continue
            key = f"{folder}/answer.json"
            answer = read_object(store, key, {"low": is_number, "high": is_number})
            with record_of(store, key):
                if answer.get("own") is True:
                    found.append(_checked(other, record["target"], answer))
        except NotFound:
            continue  # it has not ended, or is of an earlier version
        except (DamagedRecord, ObjectError) as error:
            log.warning("warning: sweep %r does not count for this one: %s", other, error)
    return tuple(found)


def kind_of(config: Config) -> dict[str, str]:
    """Return what sweeps must have in common: levels of other optimizers and parametrizations say nothing."""
    model = config.model
    named = model.parametrization if has_layers(model) else f"plugged-in {model.name}"
    return {"axis": config.tune.axis, "optimizer": config.optimizer.name, "parametrization": named}


def _checked(name: Any, place: Any, answer: Any) -> EarlierSweep:
    """Return the sweep that records describe; raise ValueError for numbers that no sweep can have."""
    numbers = {**{each: place[each] for each in PLACE}, "low": answer["low"], "high": answer["high"]}
    if not is_text(name) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r:.60} cannot name a sweep")
    if not all(is_number(one) and LEAST < one < 1 / LEAST for one in numbers.values()):
        raise ValueError(f"{numbers} cannot be the answer of a sweep")
    if numbers["low"] > numbers["high"]:
        raise ValueError("its interval ends before it begins")
    return EarlierSweep(name=name, **numbers)
