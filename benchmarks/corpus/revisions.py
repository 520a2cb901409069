"""What a change of the code costs `skytrain prepare`: CPU-seconds of two source trees, in turns.

    git archive REVISION | tar -x -C OLD
    python benchmarks/corpus/revisions.py FOLDER OLD [ROUNDS] | tee benchmarks/corpus/revisions.log

All rules, exact and near de-duplication, GPT-2 tokens, one process, start-up included. The first run of a tree, which
compiles its kernels, is not counted.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from command import adopt_orphans, children_cpu, prepare_command

HERE = Path(__file__).parent


def main(folder: Path, old: Path, rounds: int) -> None:
    adopt_orphans()
    trees = {"before": old.resolve() / "src", "after": HERE.parent.parent / "src"}
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    spent: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(rounds + 1):
        for name in list(trees) if number % 2 else list(reversed(trees)):
            seconds = cpu_seconds(folder / "debian.jsonl", trees[name])
            print(
                f"{name:<6} {seconds:6.2f} CPU-seconds{'' if number else ', compiling or loading for the first time'}",
                flush=True,
            )
            if number:
                spent[name].append(seconds)
    before, after = (statistics.median(spent[name]) for name in trees)
    print(f"median of {rounds}: {before:.2f} before, {after:.2f} after, {after / before - 1:+.1%}")


def cpu_seconds(source: Path, tree: Path) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        command = [*prepare_command("debian", source, Path(scratch) / "store", 1), "data.bad_records=skip"]
        before = children_cpu()
        environment = {**os.environ, "PYTHONPATH": str(tree), "TMPDIR": scratch}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        spent = children_cpu() - before
        shutil.rmtree(Path(scratch) / "store")
    return spent


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 5)
