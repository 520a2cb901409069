"""Weighted mixtures: assigns each sample of a run to a source so that every prefix has the exact proportions."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..config import SkytrainError

# One period of the pattern is computed and stored: a few seconds and tens of megabytes at this length.
LONGEST_PERIOD = 2**20


@dataclass(frozen=True)
class Phase:
    """The weights (of any positive scale) with which sources are drawn from sample `start` of the run."""

    start: int
    weights: tuple[float, ...]


class Mixture:
    """A map from each position to a source and an index within that source: a pure function of the position.

    At every position each source's count differs from the sum of its shares so far by less than one sample. A
    source's n-th sample may come once its share exceeds n - 1 and must come by the time its share reaches n. Taking
    the most urgent source first always satisfies this, as in earliest-deadline-first scheduling of periodic tasks. Weights
    that change move the deadlines of samples that are due after the change, so the end of a phase looks ahead: it is planned
    with the shares that follow. That some order satisfies all deadlines, whatever the weights, is Tijdeman's chairman
    assignment (1980).
    """

    def __init__(self, names: Sequence[str], phases: Sequence[Phase]) -> None:
        assert phases and phases[0].start == 0
        self.names = tuple(names)
        self.phases = tuple(phases)
        shares = np.array([Fraction(0)] * len(names), dtype=object)
        counts = np.zeros(len(names), dtype=np.int64)
        self._pieces: list[_Piece] = []
        stretches = [
            _Stretch(exact_rates(self.names, phase.weights), length)
            for phase, length in zip(phases, _lengths(phases), strict=True)
        ]
        for i, (phase, stretch) in enumerate(zip(phases, stretches, strict=True)):
            # A sample that is due after the phase becomes ready in this last part of it at the earliest.
            end = 0 if stretch.length is None else min(stretch.length, math.ceil(1 / min(stretch.rates)) + 1)
            before = None if stretch.length is None else stretch.length - end
            start = phase.start
            for length, later in ((before, ()), (end, stretches[i + 1 :])):
                if length == 0:
                    continue
                piece = _make_piece(start, _Stretch(stretch.rates, length), shares, counts, later)
                self._pieces.append(piece)
                if length is not None:
                    start += length
                    shares = shares + np.array(stretch.rates, dtype=object) * length
                    counts = counts + piece.counts_after(np.array([length]))[0]

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source number of each position, and the sample's index within that source."""
        positions = np.asarray(positions, dtype=np.int64)
        starts = np.array([piece.start for piece in self._pieces])
        which = np.searchsorted(starts, positions, side="right") - 1
        sources = np.empty_like(positions)
        indices = np.empty_like(positions)
        for i in np.unique(which).tolist():
            here = which == i
            sources[here], indices[here] = self._pieces[i].at(positions[here])
        return sources, indices

    def counts(self, position: int) -> dict[str, int]:
        """Return the number of samples drawn from each source before this position."""
        piece = [piece for piece in self._pieces if piece.start <= position][-1]
        after = piece.base + piece.counts_after(np.array([position - piece.start]))[0]
        return dict(zip(self.names, after.tolist(), strict=True))


@dataclass(frozen=True)
class _Stretch:
    """A part of the run with the same rates: the share of each source in a sample, and for how many samples."""

    rates: list[Fraction]
    length: int | None  # None: for ever


def _lengths(phases: Sequence[Phase]) -> list[int | None]:
    lengths = [after.start - phase.start for phase, after in itertools.pairwise(phases)]
    for length, (phase, after) in zip(lengths, itertools.pairwise(phases), strict=True):
        if length <= 0:
            raise SkytrainError(
                f"the mixture's phases must begin one after the other: {after.start} comes after {phase.start}"
            )
    return [*lengths, None]


@dataclass(frozen=True)
class _Piece:
    """A part of a phase as a table: an initial part, then a period that repeats forever."""

    start: int
    base: np.ndarray  # counts of each source before `start`
    sources: np.ndarray  # sources of the initial part and of one period
    ranks: np.ndarray  # the index of each sample within its source, counted in this table
    beginning: int  # samples before the period
    per_period: np.ndarray  # samples of each source in one period

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        offsets = positions - self.start
        rounds = np.maximum(0, offsets - self.beginning) // self._period
        places = offsets - rounds * self._period
        sources = self.sources[places]
        return sources, self.base[sources] + self.ranks[places] + rounds * self.per_period[sources]

    def counts_after(self, lengths: np.ndarray) -> np.ndarray:
        rounds = np.maximum(0, lengths - self.beginning) // self._period
        places = lengths - rounds * self._period
        heads = np.stack([np.bincount(self.sources[:place], minlength=len(self.base)) for place in places])
        return heads + rounds[:, None] * self.per_period[None, :]

    @property
    def _period(self) -> int:
        return len(self.sources) - self.beginning


def exact_rates(names: Sequence[str], weights: Sequence[float]) -> list[Fraction]:
    """Return the weights, exactly as written in decimal, as fractions of their sum."""
    for name, weight in zip(names, weights, strict=True):
        if not (math.isfinite(weight) and weight > 0):
            raise SkytrainError(
                f"source {name!r} of the mixture has weight {weight}: it must be above 0\n  leave a source out if it is not wanted"
            )
    # Via the shortest decimal representation: 0.1 means a tenth, not the nearest double.
    exact = [Fraction(repr(float(weight))) for weight in weights]
    rates = [weight / sum(exact) for weight in exact]
    period = math.lcm(*(rate.denominator for rate in rates))
    if period > LONGEST_PERIOD:
        written = ", ".join(f"{name} {weight}" for name, weight in zip(names, weights, strict=True))
        raise SkytrainError(
            f"the weights of the mixture ({written}) only repeat after {period:,} samples, too many to plan exactly\n"
            "  write them with fewer digits, such as 0.62 and 0.38"
        )
    return rates


def _make_piece(
    start: int, stretch: _Stretch, shares: np.ndarray, counts: np.ndarray, later: Sequence[_Stretch]
) -> _Piece:
    """Plan a stretch; `later` are those that follow, if samples that are due in them can be ready in this one."""
    rates, length = stretch.rates, stretch.length
    period = math.lcm(*(rate.denominator for rate in rates))
    drawn: list[int] = []
    have = counts.tolist()
    if later and length is not None:
        sources = np.array(_draw(rates, list(shares), have, length, later), dtype=np.int64)
        return _piece(start, counts, sources, 0)
    # After a whole period every share has grown by an integer, so the pattern repeats once the differences between
    # counts and shares are those at the start of an earlier period. If the shares start as integers, that is at once.
    seen: dict[tuple[int, ...], int] = {}
    while True:
        rounds = len(drawn) // period
        state = tuple(have[j] - math.floor(shares[j] + rates[j] * period * rounds) for j in range(len(rates)))
        if state in seen:
            beginning = seen[state] * period
            break
        seen[state] = rounds
        if length is not None and len(drawn) >= length:
            beginning = (rounds - 1) * period  # no later position is ever requested
            break
        drawn += _draw(rates, [shares[j] + rates[j] * period * rounds for j in range(len(rates))], have, period)
    return _piece(start, counts, np.array(drawn, dtype=np.int64), beginning)


def _piece(start: int, counts: np.ndarray, sources: np.ndarray, beginning: int) -> _Piece:
    ranks = np.empty_like(sources)
    for j in range(len(counts)):
        mine = sources == j
        ranks[mine] = np.arange(mine.sum())
    per_period = np.bincount(sources[beginning:], minlength=len(counts))
    return _Piece(
        start=start, base=counts.copy(), sources=sources, ranks=ranks, beginning=beginning, per_period=per_period
    )


def _draw(
    rates: list[Fraction], shares: list[Fraction], have: list[int], count: int, later: Sequence[_Stretch] = ()
) -> list[int]:
    """Return the next `count` sources, after which those of `later` follow; `have` is updated in place."""
    # In units of 1/scale everything is an integer.
    scale = math.lcm(*(Fraction(value).denominator for value in [*shares, *rates]))
    share = [int(value * scale) for value in shares]
    rate = [int(value * scale) for value in rates]

    def ready(j: int) -> int:
        """Return the first sample, from 1, at which source j may be drawn again."""
        return max(1, (have[j] * scale - share[j]) // rate[j] + 1)

    def due(j: int) -> int:
        """Return the sample by which source j must be drawn again."""
        here = -((share[j] - (have[j] + 1) * scale) // rate[j])
        return here if here <= count or not later else count + due_later(j, have[j] + 1 - shares[j] - rates[j] * count)

    def due_later(j: int, missing: Fraction) -> int:
        """Return after how many samples of the later stretches the share of source j has grown by `missing`."""
        passed = 0
        for stretch in later:
            needed = math.ceil(missing / stretch.rates[j])
            if stretch.length is None or needed <= stretch.length:
                return passed + needed
            passed += stretch.length
            missing -= stretch.rates[j] * stretch.length
        raise AssertionError("the last stretch has no end")

    waiting = [(ready(j), j) for j in range(len(rates))]
    heapq.heapify(waiting)
    urgent: list[tuple[int, int]] = []
    drawn = []
    for now in range(1, count + 1):
        while waiting and waiting[0][0] <= now:
            j = heapq.heappop(waiting)[1]
            heapq.heappush(urgent, (due(j), j))
        deadline, j = heapq.heappop(urgent)
        assert deadline >= now, "earliest deadline first meets every deadline of periodic tasks"
        drawn.append(j)
        have[j] += 1
        heapq.heappush(waiting, (max(now + 1, ready(j)), j))
    return drawn
