"""The table of docs/continue-pretraining.md: what `skytrain plan` says about each recipe on its own machine.

    python benchmarks/planning/continue_pretraining.py

Prints the table, writes continue_pretraining.log beside this file and puts the table into the page. It uses the
packaged prices and no measurements, so that it is the same on every machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from skytrain.config import compose

MODELS = ("llama-3.1-8b", "exaone-3.5-7.8b", "gemma-2-9b", "solar-10.7b", "llama-2-13b")
MACHINES = ("p4d", "p4de")
PAGE = Path(__file__).parents[2] / "docs" / "continue-pretraining.md"
GPU_GB = {"p4d": 40, "p4de": 80}


def offers(recipe: str, machine: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["plan", f"recipe={recipe}", "--instance", f"{machine}.24xlarge", "--nodes", "1", "--json"]
        command = [sys.executable, "-c", "from skytrain.cli.main import main; main()", *words]
        environment = os.environ | {"SKYTRAIN_CACHE": folder}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["offers"]
    return [offer for offer in found if offer["usd"] is not None]


def row(model: str, machine: str) -> str:
    recipe = f"{model}-{machine}"
    config = compose([f"recipe={recipe}"]).config
    found = offers(recipe, machine)
    best = {
        market: min((offer for offer in found if offer["market"] == market), key=lambda offer: float(offer["usd"][1]))
        for market in ("on-demand", "spot")
        if any(offer["market"] == market for offer in found)
    }
    dollars = [f"{best[market]['usd'][1]:,.0f}" if market in best else "-" for market in ("on-demand", "spot")]
    tokens = found[0]["tokens_per_s"]
    memory = f"{found[0]['memory_bytes'] / 1e9:.1f} of {GPU_GB[machine]}"
    words = (f"`recipe={recipe}`", config.parallel.name, str(config.trainer.micro_batch), memory, f"{tokens:,.0f}")
    return "| " + " | ".join([*words, *dollars]) + " |"


def main() -> None:
    lines = [
        "| recipe | mode | sequences a GPU | planned GB a GPU | tokens/s | $ a billion tokens | on spot |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(row(model, machine) for model in MODELS for machine in MACHINES),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_suffix(".log").write_text(text)
    before, begin, rest = PAGE.read_text().partition("<!-- recipes -->\n")
    _, end, after = rest.partition("<!-- /recipes -->")
    assert begin and end, f"{PAGE} has no place for the table"
    PAGE.write_text(f"{before}{begin}{text}{end}{after}")


if __name__ == "__main__":
    main()
