"""What four budgets buy: `skytrain plan --best` for $40, $150, $1,000 and $10,000, and whether it is monotone and stable.

    python benchmarks/planning/best.py --scan > benchmarks/planning/best.log        # a minute or two

With --scan, then 24 budgets from $10 to $10,000 of one recipe, each once more with a cent added: the loss must not rise with the
budget, and must move by less than 0.001 with the cent.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from skytrain.pipelines.best import _candidates, _Search
from skytrain.planning import PlanRequest

BUDGETS = (40, 150, 1000, 10000)


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


def scan() -> None:
    with tempfile.TemporaryDirectory() as folder:
        composed = next(iter(_candidates([f"store.root={folder}/store"], [])))
    rise = cent = 0.0
    before = None
    for usd in np.exp(np.linspace(np.log(10), np.log(10_000), 24)):
        search = _Search(composed, PlanRequest(budget_usd=float(usd)))
        here, more = (search.best(float(usd) + extra) for extra in (0.0, 0.01))
        assert here is not None and more is not None
        cent = max(cent, abs(more.forecast.loss - here.forecast.loss))
        rise = max(rise, more.forecast.loss - here.forecast.loss, here.forecast.loss - (before or math.inf))
        before = here.forecast.loss
    print(
        f"24 budgets from $10 to $10,000: the loss rises by at most {rise:.6f}; a cent moves it by at most {cent:.6f}"
    )


if __name__ == "__main__":
    if "--only-scan" not in sys.argv:
        answers()
    if "--scan" in sys.argv or "--only-scan" in sys.argv:
        scan()
