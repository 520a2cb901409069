"""Whether a sweep's ledger is the time of its processes: undisturbed, and killed or interrupted at random moments.

    python benchmarks/tuning/ledger.py > benchmarks/tuning/ledger.log      # five minutes

Runs `skytrain tune` of a tiny model in processes of its own, measures how long each of them exists, and compares the
seconds with those that the ledger has charged. Kills begin with the third second, in which torch is being loaded. A process
that is killed is charged up to ten seconds too much, since its last heartbeat is all that is known about it. One that gets
SIGTERM charges itself.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from skytrain.config import EXIT_CODES, INTERRUPTED, UNCOMMITTED, compose
from skytrain.storage import open_store
from skytrain.tuning import Ledger

USD_PER_HOUR = 3.6  # a tenth of a cent a second
RUNS = (
    ("whole", 0, signal.SIGKILL, 0.12),
    ("killed", 4, signal.SIGKILL, 0.4),
    ("interrupted", 4, signal.SIGTERM, 0.4),
)
WORDS = [
    "data=synthetic",
    "tokenizer=bytes",
    "model=gpt2-tiny",
    "trainer.sequence_length=32",
    "trainer.batch_tokens=256",
    "trainer.micro_batch=8",
    "trainer.steps=64",
    "trainer.precision=32-true",
    "trainer.validate_tokens=2K",
    "lr_schedule.warmup_steps=8",
    "tune.shortest=16",
    f"tune.usd_per_hour={USD_PER_HOUR}",
    "tune.final=false",
]


def sweep_seconds(words: list[str], kills: int, how: signal.Signals, rng: random.Random) -> float:
    """Return how long all processes of a sweep have existed together."""
    seconds = 0.0
    while True:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "skytrain", "tune", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            code = process.wait(rng.uniform(3, 60) if kills > 0 else None)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            code = process.wait()
        kills -= 1
        seconds += time.monotonic() - began
        if code == 0:
            return seconds
        assert code in (-how, EXIT_CODES[INTERRUPTED], EXIT_CODES[UNCOMMITTED]), f"exit code {code}"


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        words = [*WORDS, f"store.root={root}"]
        subprocess.run([sys.executable, "-m", "skytrain", "prepare", *words], check=True, capture_output=True)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
        for name, kills, how, usd in RUNS:
            named = [*words, f"tune.name={name}", f"budget.usd={usd}"]
            seconds = sweep_seconds(named, kills, how, random.Random(0))
            store = open_store(compose(words).config.store)
            charged = 3600 * Ledger(store, f"sweeps/{name}", usd).spent_usd / USD_PER_HOUR
            print(
                f"{name}: {seconds:.1f} s, the ledger has {charged:.1f} s, {100 * (charged / seconds - 1):+.1f}%",
                flush=True,
            )


if __name__ == "__main__":
    main()
