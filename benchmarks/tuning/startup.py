"""What starting costs a small trial: a process of its own against the next trial of a process that runs already.

    python benchmarks/tuning/startup.py > benchmarks/tuning/startup.log

Trains the same few steps of a tiny model on synthetic text: once as `skytrain train`, and several times in this
process, as `skytrain tune` does. Seconds of CPU are given beside those of the clock, since they do not depend on what
else the machine does.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time

from skytrain.config import compose
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent

STEPS = 10
WORDS = [
    "data=synthetic",
    "tokenizer=bytes",
    "model=gpt2-tiny",
    "trainer.sequence_length=64",
    "trainer.batch_tokens=512",
    "trainer.micro_batch=8",
    "trainer.precision=32-true",
    "trainer.validate_tokens=2K",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[]",
    f"trainer.steps={STEPS}",
]


def clocks(who: int) -> tuple[float, float]:
    used = resource.getrusage(who)
    return time.monotonic(), used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        words = [*WORDS, f"store.root={root}"]
        prepare(compose(words).config, Silent())
        before = clocks(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "skytrain", "train", *words, "run=own"], check=True, capture_output=True)
        after = clocks(resource.RUSAGE_CHILDREN)
        print(f"a process of its own: {after[0] - before[0]:.1f} s, {after[1] - before[1]:.1f} s of CPU")
        from skytrain.pipelines.train import train

        for number in range(4):
            before = clocks(resource.RUSAGE_SELF)
            train(compose([*words, f"run=shared-{number}"]).config, Silent())
            after = clocks(resource.RUSAGE_SELF)
            which = "first" if number == 0 else "next"
            print(f"{which} trial of one process: {after[0] - before[0]:.1f} s, {after[1] - before[1]:.1f} s of CPU")


if __name__ == "__main__":
    main()
