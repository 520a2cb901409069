"""The two worked plans of docs/planning.md, exactly as a user would ask for them.

    python benchmarks/planning/recipes.py              prints the plans and writes recipes.log beside this file

Uses the packaged prices and no measurements, so that the log is the same on every machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

COMMON = "model=gpt2-124m trainer.precision=bf16-mixed trainer.compile=true"
PLANS = (
    "plan recipe=gpt2-124m-pile --instance g5.12xlarge --nodes 2 --market spot --mesh shard=2,tensor=4",
    "plan recipe=gpt2-124m-pile --instance g5.12xlarge --nodes 2 --market spot",
    "plan recipe=gpt2-124m-pile --rows 6",
    f"plan {COMMON} trainer.steps=4725 budget.usd=40 --instance g5.xlarge --nodes 1 --region us-east-2 --market spot --trials 8 --trial-steps 472",
    f"plan {COMMON} budget.usd=40 --instance g5.xlarge --nodes 1 --how-many-tokens",
    f"plan {COMMON} trainer.steps=4725 --deadline 1h --rows 4",
)


def run(arguments: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"SKYTRAIN_CACHE": folder}
        command = [sys.executable, "-c", "from skytrain.cli.main import main; main()", *shlex.split(arguments)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return f"$ skytrain {arguments}\n{done.stdout}"


if __name__ == "__main__":
    text = "\n".join(run(plan) for plan in PLANS)
    print(text)
    (Path(__file__).parent / "recipes.log").write_text(text)
