"""Made-up tables of finished runs, of kinds that no published table here has: what a search must survive elsewhere.

    python benchmarks/tuning/replay.py --worlds --every 5 > benchmarks/tuning/worlds.log       # two minutes
    python benchmarks/tuning/replay.py --worlds one-horizon "one-horizon, known" > benchmarks/tuning/mup.log

Each kind breaks something that a search could lean on. Its curves are not the U that the ladder fits, its optima follow
none of the laws, and its level is off. A draw has several families of one kind. Draw 0 may be looked at while the
ladder is changed; draws 1 and 2 are for the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from table import Cell, cell_of

from skytrain.tuning import Rung
from skytrain.tuning.laws import law_named

FAMILIES = 3  # of one kind in a draw
DIVERGED = 3.0  # nats above the best, of a run that diverged

Span = tuple[float, float]


@dataclass(frozen=True)
class World:
    """A kind of table. Spans are uniform, one value for each family; exponents are those of ln rate."""

    name: str
    about: str
    sizes: tuple[float, ...]
    horizons: tuple[float, ...]
    batches: tuple[float, ...]
    grid: float  # factor between neighbouring rates
    rates: int
    level: Span  # ln of the middle cell's optimum over the batch-aware law's
    size: Span
    horizon: Span
    late_horizon: Span | None  # beyond the middle horizon; None: the same
    batch: Span
    own: float  # deviation of ln of each cell's optimum from all this
    curvature: Span  # ln of nats for a factor of e below the optimum
    flat: float  # ln around the optimum that costs next to nothing
    steeper: Span  # how much dearer it is above the optimum than below
    wall: Span | None  # ln of the first rate that diverges over the optimum
    noise: float


WORLDS = (
    World(
        name="width-free",
        about="as with muP: the best rate depends on nothing but a little on the horizon, and lies far above every law",
        sizes=(4e7, 1e8, 2.5e8, 6e8),
        horizons=(1e9, 2.5e9, 6e9, 1.5e10),
        batches=(262144,),
        grid=2.0,
        rates=8,
        level=(0.7, 2.2),
        size=(-0.05, 0.05),
        horizon=(-0.15, 0.1),
        late_horizon=None,
        batch=(0.0, 0.0),
        own=0.1,
        curvature=(-4.5, -3.0),
        flat=0.3,
        steeper=(1.0, 3.0),
        wall=(1.2, 2.5),
        noise=0.002,
    ),
    World(
        name="one-horizon",
        about="a muP sweep as papers print it: three widths, one horizon, rates a factor of four apart, far above every law",
        sizes=(4.7e6, 7.5e7, 1.2e9),
        horizons=(3.2e10,),
        batches=(262144,),
        grid=4.0,
        rates=5,
        level=(1.9, 3.5),
        size=(-0.03, 0.03),
        horizon=(0.0, 0.0),
        late_horizon=None,
        batch=(0.0, 0.0),
        own=0.1,
        curvature=(-3.2, -2.2),
        flat=0.15,
        steeper=(0.7, 3.0),
        wall=(2.5, 5.0),
        noise=0.002,
    ),
    World(
        name="falling",
        about="the best rate falls with the horizon, as at small batches, and hardly with the size; a fine grid of rates",
        sizes=(1e8, 2e8, 4e8, 8e8),
        horizons=(2e9, 6e9, 2e10, 6e10),
        batches=(131072, 524288),
        grid=math.sqrt(2),
        rates=14,
        level=(-0.8, 0.8),
        size=(-0.3, 0.0),
        horizon=(-0.45, -0.25),
        late_horizon=None,
        batch=(0.3, 0.6),
        own=0.12,
        curvature=(-4.5, -3.0),
        flat=0.0,
        steeper=(0.5, 2.0),
        wall=(1.5, 3.0),
        noise=0.0015,
    ),
    World(
        name="cliffs",
        about="nano scale: noisy, steep, and diverging a little above the best rate; a short run is worth less",
        sizes=(2e5, 8e5, 3e6, 1e7),
        horizons=(2e6, 8e6, 3e7, 1.2e8),
        batches=(8192,),
        grid=math.sqrt(2),
        rates=16,
        level=(-1.0, 1.5),
        size=(-0.5, -0.1),
        horizon=(-0.1, 0.5),
        late_horizon=None,
        batch=(0.0, 0.0),
        own=0.2,
        curvature=(-2.0, -0.7),
        flat=0.1,
        steeper=(0.3, 1.0),
        wall=(0.4, 0.9),
        noise=0.015,
    ),
    World(
        name="coarse",
        about="half decades of rates, a best one that is inversely proportional to the width, flat minima",
        sizes=(5e7, 2e8, 8e8, 3.2e9),
        horizons=(2e9, 8e9, 3.2e10),
        batches=(524288,),
        grid=math.sqrt(10),
        rates=6,
        level=(-1.0, 1.0),
        size=(-0.55, -0.45),
        horizon=(0.0, 0.3),
        late_horizon=None,
        batch=(0.0, 0.0),
        own=0.15,
        curvature=(-4.5, -3.0),
        flat=0.6,
        steeper=(1.0, 2.0),
        wall=(1.5, 2.5),
        noise=0.002,
    ),
    World(
        name="bent",
        about="the best rate rises with the horizon while runs are short and falls when they are long",
        sizes=(3e7, 1e8, 3e8, 1e9),
        horizons=(5e8, 2e9, 8e9, 3.2e10),
        batches=(262144,),
        grid=math.sqrt(2),
        rates=14,
        level=(-0.8, 0.8),
        size=(-0.5, -0.2),
        horizon=(0.3, 0.6),
        late_horizon=(-0.4, -0.1),
        batch=(0.0, 0.0),
        own=0.12,
        curvature=(-4.0, -2.5),
        flat=0.1,
        steeper=(0.7, 2.0),
        wall=(1.0, 2.0),
        noise=0.002,
    ),
)


def world_cells(world: World, draw: int) -> list[Cell]:
    """Return all cells of a draw of one kind."""
    return [cell for family in range(FAMILIES) for cell in _family(world, draw, family)]


def _family(world: World, draw: int, number: int) -> Iterator[Cell]:
    rng = np.random.default_rng([draw, number, *world.name.encode()])

    def drawn(span: Span) -> float:
        return float(rng.uniform(*span))

    name = f"{world.name}{draw}{number}"
    middle = Rung(
        name="",
        parameters=math.exp(float(np.mean(np.log(world.sizes)))),
        tokens=math.exp(float(np.mean(np.log(world.horizons)))),
        batch_tokens=math.exp(float(np.mean(np.log(world.batches)))),
        usd=0.0,
    )
    level = math.log(law_named("batch-aware").rate(middle)) + drawn(world.level)
    size = drawn(world.size)
    horizon = drawn(world.horizon)
    late = horizon if world.late_horizon is None else drawn(world.late_horizon)
    batch = drawn(world.batch)
    curvature = math.exp(drawn(world.curvature))
    steeper = drawn(world.steeper)
    wall = math.inf if world.wall is None else drawn(world.wall)
    # The grid is the same for all cells of a family, wide enough for every optimum, and not centred on any of them.
    optima = {}
    for parameters in world.sizes:
        for tokens in world.horizons:
            for batch_tokens in world.batches:
                later = math.log(tokens / middle.tokens)
                optima[parameters, tokens, batch_tokens] = (
                    level
                    + size * math.log(parameters / middle.parameters)
                    + (horizon if later < 0 else late) * later
                    + batch * math.log(batch_tokens / middle.batch_tokens)
                    + world.own * float(rng.standard_normal())
                )
    centre = float(np.mean(list(optima.values()))) + drawn((-0.5, 0.5)) * math.log(world.grid)
    places = centre + math.log(world.grid) * (np.arange(world.rates) - (world.rates - 1) / 2)
    for (parameters, tokens, batch_tokens), best in optima.items():
        floor = 1.8 + 0.9 * (1e8 / parameters) ** 0.15 + 0.6 * (1e9 / tokens) ** 0.25
        losses = {}
        for place in places:
            away = place - best
            beyond = max(0.0, abs(away) - world.flat) * (1.0 if away < 0 else math.sqrt(steeper))
            # Like a parabola near the minimum and a straight line far from it.
            above = 2 * curvature * (math.sqrt(1 + beyond**2) - 1) + 0.02 * curvature * away**2
            noise = world.noise * float(rng.standard_t(4)) / math.sqrt(2)
            loss = floor + above + noise
            losses[float(f"{math.exp(place):.4g}")] = floor + DIVERGED if away > wall else loss
        rung = Rung(
            name=f"{name}-{parameters / 1e6:.4g}M-{tokens / 1e9:.4g}B-{batch_tokens // 1024:.0f}k",
            parameters=parameters,
            tokens=tokens,
            batch_tokens=batch_tokens,
            usd=parameters * tokens / 1e18,
        )
        yield cell_of(name, rung, losses)
