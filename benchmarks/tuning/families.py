"""How families of runs differ: what the beliefs of the ladder are made from.

    python benchmarks/tuning/families.py > benchmarks/tuning/families.log      # ten seconds

A family is a table, or an optimizer of a table. For each it prints how far every law is off in level and in exponents,
and how its curves look; then what the families disagree by, over all and with each left out in turn. The numbers in
`tuning/curve.py`, `Priors` and `LOCATED` are these, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from table import DIVERGED_NATS, KNOWN_GRIDS, Cell, read_cells

from skytrain.tuning import Problem, Rung
from skytrain.tuning.curve import RungLosses, Shapes, places_from, u_shape
from skytrain.tuning.laws import LAWS
from skytrain.tuning.problem import Priors

HERE = Path(__file__).parent
LEAST = 3  # cells with a minimum of their own
SHAPES = ("batch-aware", "unchanged", "deepseek", "step-law", "horizon")
NEARER = 2  # shapes of a family that its widths are taken around: which one is the nearest, nobody knows beforehand
Law = Callable[[Rung], float]


@dataclass(frozen=True)
class Transfer:
    """How a law's shape misses from the smaller to the larger cells of a family."""

    exponents: np.ndarray  # of size, horizon and batch, to be added to the law's
    own: float  # deviation of one cell that no exponent explains

    def distance(self) -> float:
        return float(np.nansum(self.exponents[:2] ** 2))


def laws() -> dict[str, Law]:
    found: dict[str, Law] = {one.name: lambda rung, one=one: math.log(one.rate(rung)) for one in LAWS}
    return {**found, "unchanged": lambda rung: 0.0}


def families() -> dict[str, list[Cell]]:
    found = {
        "dense": read_cells(HERE / "tables/steplaw_dense.csv"),
        "mixtures": read_cells(HERE / "tables/steplaw_moe.csv"),
    }
    for cell in read_cells(HERE / "tables/marin_optimizers.csv"):
        found.setdefault(f"marin {cell.family}", []).append(cell)
    for path in (HERE / f"h200_{name}.json" for name in KNOWN_GRIDS):
        found[path.stem.replace("_", " ")] = read_cells(path)
    return {name: cells for name, cells in found.items() if sum(one.bracketed for one in cells) >= LEAST}


def pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return every cell with the cheaper ones of its model family that could stand in for it."""
    known = [one for one in cells if one.bracketed]
    same = len({one.rung.parameters for one in known}) > 5 or any("x" in one.family for one in known)
    return [
        (target, one)
        for target in known
        for one in known
        if one.setting[1:] != target.setting[1:]
        and (same or one.family == target.family)
        and one.rung.parameters <= target.rung.parameters
        and one.rung.tokens <= target.rung.tokens
    ]


def transfer(cells: Sequence[Cell], law: Law) -> Transfer:
    places = []
    misses = []
    for target, one in pairs(cells):
        a, b = target.rung, one.rung
        places.append(np.log([a.parameters / b.parameters, a.tokens / b.tokens, a.batch_tokens / b.batch_tokens]))
        misses.append(target.optimum() - one.optimum() - law(a) + law(b))
    x = np.array(places)
    y = np.array(misses)
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    found[np.ptp(x, axis=0) == 0] = math.nan
    return Transfer(found, float(np.std(y - x @ np.nan_to_num(found)) / math.sqrt(2)))


def curve_of(cell: Cell) -> tuple[float, float, float] | None:
    """Return the curvature, the skew and the relative error of the U's shape, from the best of a grid."""
    finite = cell.losses < cell.losses.min() + DIVERGED_NATS
    if not cell.bracketed or finite.sum() < 6:
        return None
    x = np.log(cell.rates[finite])
    y = cell.losses[finite]
    above = y - y.min()
    weight = 1 / (0.003**2 + (0.3 * above) ** 2)
    weight /= weight.sum()
    skews = np.arange(-1.0, 2.01, 0.25)
    places = np.linspace(x.min(), x.max(), 40)
    u = u_shape(x - places[:, None], skews[:, None, None])  # skews x places x losses
    u_away = u - (u @ weight)[..., None]
    y_away = y - weight @ y
    curvature = (u_away * y_away) @ weight / ((u_away**2) @ weight)
    error = y_away - curvature[..., None] * u_away
    cost = np.where(curvature > 0, (error**2) @ weight, math.inf)
    skew, place = np.unravel_index(int(np.argmin(cost)), cost.shape)
    far = above > 0.01
    if not far.any() or not math.isfinite(cost[skew, place]):
        return None
    off = float(np.sqrt(np.mean((error[skew, place][far] / above[far]) ** 2)))
    return float(curvature[skew, place]), float(skews[skew]), off


def wall_of(cell: Cell) -> float | None:
    """Return ln of the first diverged over the best rate, less half of the step between them."""
    best = int(np.argmin(cell.losses))
    diverged = [n for n in range(best + 1, len(cell.rates)) if cell.losses[n] >= cell.losses.min() + DIVERGED_NATS]
    if not diverged:
        return None
    first = diverged[0]
    return float(0.5 * math.log(cell.rates[first] * cell.rates[first - 1]) - math.log(cell.rates[best]))


def located(cells: Sequence[Cell], count: int) -> float:
    """Return how far the minimum of `count` rates, a factor of two apart, is from the one of all rates."""
    rng = np.random.default_rng(count)
    misses = []
    for cell in cells:
        if not cell.bracketed or len(cell.rates) < 6:
            continue
        truth = cell.optimum()
        start = truth + rng.uniform(-0.5, 0.5) - 0.5 * (count - 1) * math.log(2)
        wanted = {int(np.argmin(abs(np.log(cell.rates) - start - n * math.log(2)))) for n in range(count)}
        chosen = [n for n in sorted(wanted) if cell.losses[n] < cell.losses.min() + DIVERGED_NATS]
        if len(chosen) < count:
            continue
        losses = RungLosses(tuple(np.log(cell.rates[chosen])), tuple(cell.losses[chosen]))
        places = places_from(truth - 3, 120)
        each = Shapes(Priors.curvature, Priors.curvature_offset, Problem.noise)
        weight = np.exp(each.likelihood(losses, truth - 3, 120) + each.prior.reshape(-1, 1)).sum(0)
        misses.append(float(weight @ places / weight.sum()) - truth)
    return float(np.sqrt(np.mean(np.square(misses)))) if misses else math.nan


def rms(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.sqrt(np.mean(np.square(known)))) if known else math.nan


def main() -> None:
    known = families()
    every = laws()
    levels: dict[str, dict[str, float]] = {}
    moved: dict[str, dict[str, Transfer]] = {}
    curves = {}
    for name, cells in known.items():
        good = [one for one in cells if one.bracketed]
        covered = not name.startswith("marin") or name == "marin adamw"
        print(f"{name}: {len(cells)} cells, {len(good)} with a minimum of their own")
        moved[name] = {law: transfer(cells, every[law]) for law in SHAPES}
        if covered:
            levels[name] = {
                law: float(np.mean([one.optimum() - every[law](one.rung) for one in good]))
                for law in every
                if law != "unchanged"
            }
            print("  level missed by " + ", ".join(f"{law} {miss:+.2f}" for law, miss in levels[name].items()))
        for law, found in moved[name].items():
            words = "/".join("-" if math.isnan(one) else f"{one:+.2f}" for one in found.exponents)
            print(f"  {law}: size/horizon/batch exponents missed by {words}; each cell {found.own:.2f} besides")
        shapes = [one for one in map(curve_of, cells) if one is not None]
        walls = [one for one in map(wall_of, cells) if one is not None]
        if shapes:
            curves[name] = np.array(shapes)
            a, skew, far = np.median(shapes, 0)
            print(
                f"  curvature {a:.3f} (ln deviation {np.std(np.log(curves[name][:, 0])):.2f}), skew {skew:+.2f}, shape off by {far:.2f} of the loss above"
            )
        if walls:
            print(
                f"  first divergence {np.mean(walls):.2f} +- {np.std(walls):.2f} above the best rate, {len(walls)} cells"
            )
        print("  minimum of n rates missed by " + ", ".join(f"{n}: {located(cells, n):.2f}" for n in (2, 3, 4, 5)))
    print("\nLevel of each law, rms over families")
    for law in every:
        if law != "unchanged":
            print(f"  {law}: {rms([one[law] for one in levels.values()]):.2f}")
    print(f"  any: {rms([missed for one in levels.values() for missed in one.values()]):.2f}")
    print("\nWidths: rms over families; exponents around the two nearer of the five shapes")
    for left in (None, *known):
        names = [one for one in known if one != left]
        nearer = [found for one in names for found in sorted(moved[one].values(), key=Transfer.distance)[:NEARER]]
        size, horizon, batch = (rms([one.exponents[axis] for one in nearer]) for axis in range(3))
        exponent = rms([size, horizon, batch])
        offset = rms([levels[one]["batch-aware"] for one in names if one in levels])
        own = rms([one.own for one in nearer])
        a = np.array([np.median(np.log(curves[one][:, 0])) for one in names if one in curves])
        words = f"without {left}" if left else "all"
        print(
            f"  {words:20} offset {offset:.2f}, exponents {exponent:.2f} (size {size:.2f}, horizon {horizon:.2f}, batch {batch:.2f}), nugget {own:.2f}, "
            f"curvature {math.exp(a.mean()):.3f} with ln deviation {a.std(ddof=1):.2f}"
        )


if __name__ == "__main__":
    main()
