"""What four budgets buy: `skytrain plan --best` for $40, $150, $1,000 and $10,000, and whether it is monotone and stable.

    python benchmarks/planning/best.py --scan --settings 50 > benchmarks/planning/best.log   # up to an hour

With --scan, then 200 random budgets of 50 random settings (recipes, texts, serving, limits, deadlines, regions, markets, machines),
each once more with a cent added: the loss must not rise with the budget, and a cent must move it by less than 0.001. Of every
second setting, a pair of budgets with different answers (size, batch or machines) is halved until a cent lies between them:
where a jump would be. Below $4 a cent moves the loss by more: last, ten cents in a row at a few budgets say how many more tokens
each of them buys, and whether a change of the answer moves the loss more than its neighbours do.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from skytrain.config import SkytrainError
from skytrain.pipelines.best import _best_now
from skytrain.planning import PlanRequest

BUDGETS = (40, 150, 1000, 10000)
SMALL_BUDGETS = (1.0, 1.1, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0)
RECIPES = ("modern-124m",) * 4 + (
    "gpt2-124m-openwebtext",
    "gpt2-124m-fineweb",
    "gpt2-124m-pile",
    "modern-350m",
    "modern-1b",
)
SETTINGS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("plan.data_tokens", ("10M", "100M", "1B", "2B", "15B", "1T"), 0.3),
    ("plan.serve_tokens", ("1M", "1B", "100B", "1T"), 0.25),
    ("plan.most_parameters", ("50M", "200M", "1B", "3B"), 0.25),
    ("plan.law", ("Besiroglu 2024", "Hoffmann 2022"), 0.15),
    ("data", ("pile", "fineweb", "openwebtext"), 0.1),
)
LIMITS: tuple[tuple[str, tuple[Any, ...], float], ...] = (
    ("deadline_hours", (1, 3, 6, 12, 24, 48, 168, 720), 0.3),
    ("region", ("us-east-1", "us-east-2", "us-west-2"), 0.3),
    ("market", ("spot", "on-demand"), 0.35),
    ("instance", ("g5.xlarge", "g6.12xlarge", "p4d.24xlarge", "p5.48xlarge,p4d.24xlarge", "p5.4xlarge"), 0.3),
    ("nodes", (1, 2, 4, 16), 0.15),
)


def answers() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for usd in BUDGETS:
            words = ["plan", "--best", f"budget.usd={usd}", f"store.root={folder}/store"]
            print(f"$ skytrain plan --best budget.usd={usd}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "skytrain", *words, "--out", str(Path(folder) / "plan.json")],
                capture_output=True,
                text=True,
                check=False,
            )
            text = done.stdout + done.stderr
            print(text.replace(f" store.root={folder}/store", "").replace(f"{folder}/", ""), flush=True)


def settings(random: Random) -> tuple[list[str], dict[str, Any]]:
    """Return a recipe with some of the settings and limits of `plan --best`."""
    words = [f"recipe={random.choice(RECIPES)}"]
    for name, values, share in SETTINGS:
        if random.random() < share:
            words.append(f"{name}={random.choice(values)}")
    limits = {name: random.choice(values) for name, values, share in LIMITS if random.random() < share}
    return words, limits


def scan(count: int) -> None:
    """Print how much the loss rises with the budget, and what a cent does, over random budgets of random settings."""
    random = Random(1)
    budgets = bought = 0
    rise = 0.0
    cents: list[tuple[float, float]] = []
    changes: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            words, limits = settings(random)
            words.append(f"store.root={folder}")
            low = math.log(random.choice((1, 5, 20, 100)))
            high = low + random.choice((0.05, 0.5, 3, 7))
            before = math.inf
            found: list[tuple[int, Any]] = []
            for usd in sorted(round(math.exp(random.uniform(low, high)), 2) for _ in range(4)):
                here, more = (best_row(words, round(100 * usd) + one, limits) for one in (0, 1))
                budgets += 1
                if here is not None and more is not None:
                    bought += 1
                    found.append((round(100 * usd), here))
                    rise = max(rise, here.forecast.loss - before, more.forecast.loss - here.forecast.loss)
                    cents.append((usd, here.forecast.loss - more.forecast.loss))
                    before = min(before, here.forecast.loss)
            if number % 2 == 0 and (change := change_between(words, limits, found)) is not None:
                changes.append(change)
                rise = max(rise, -change[1])
    print(
        f"{budgets} budgets from $1 to $100,000 of {count} random settings, {bought} of which buy something: the loss rises "
        f"by at most {rise:.6f}"
    )
    for least, most in ((0, 3), (3, 10), (10, math.inf)):
        for name, moves in (("budgets", cents), ("budgets where the answer changes", changes)):
            moved = [abs(one) for usd, one in moves if least <= usd < most]
            if moved:
                print(
                    f"${least} to ${most}: {len(moved)} {name}; a cent moves the loss by at most {max(moved):.6f}, "
                    f"median {statistics.median(moved):.6f}"
                )


def small_budgets() -> None:
    """Print what each of ten further cents does at small budgets."""
    print("ten cents in a row, recipe=modern-124m: tokens that a cent adds, and by how much it lowers the loss")
    with tempfile.TemporaryDirectory() as folder:
        words = ["recipe=modern-124m", f"store.root={folder}"]
        for usd in SMALL_BUDGETS:
            rows = [best_row(words, round(100 * usd) + cents, {}) for cents in range(11)]
            moves = [
                (one.forecast.loss - more.forecast.loss, answer(one) != answer(more)) for one, more in pairwise(rows)
            ]
            tokens = statistics.median(more.tokens / one.tokens for one, more in pairwise(rows)) - 1
            changes = [f"{move:.5f}" for move, changed in moves if changed]
            print(
                f"${usd:.2f}: loss {rows[0].forecast.loss:.3f}, tokens {tokens:+.2%}, loss {min(moves)[0]:.5f} to "
                f"{max(moves)[0]:.5f} lower; where the answer changes: {', '.join(changes) or 'it does not'}"
            )


def change_between(
    words: list[str], limits: dict[str, Any], found: list[tuple[int, Any]]
) -> tuple[float, float] | None:
    """Return dollars at which another cent changes the answer, and by how much it lowers the loss."""
    for (less, one), (more, other) in pairwise(found):
        if answer(one) == answer(other):
            continue
        while more - less > 1:
            middle = (less + more) // 2
            row = best_row(words, middle, limits)
            if row is None:
                break
            less, one, more, other = (
                (middle, row, more, other) if answer(row) == answer(one) else (less, one, middle, row)
            )
        return less / 100, one.forecast.loss - other.forecast.loss
    return None


def answer(row: Any) -> tuple[Any, ...]:
    """Return what of an answer can only change at once."""
    return row.model.name, row.config.trainer.batch_tokens, row.purchase.offer.name


def best_row(words: list[str], cents: int, limits: dict[str, Any]) -> Any:
    """Return the lowest expected loss; None where nothing can be bought."""
    try:
        return _best_now(words, [], PlanRequest(budget_usd=cents / 100, **limits))[0]
    except SkytrainError:
        return None


if __name__ == "__main__":
    if "--only-scan" not in sys.argv:
        answers()
    if "--scan" in sys.argv or "--only-scan" in sys.argv:
        scan(int(sys.argv[sys.argv.index("--settings") + 1]) if "--settings" in sys.argv else 50)
        small_budgets()
