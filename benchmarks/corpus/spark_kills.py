"""Kills the driver and executors of `prepare engine=spark` at random moments, and starts it again until it is done.

    python benchmarks/corpus/spark_kills.py [KILLS [SEED [cluster]]] | tee benchmarks/corpus/spark_kills.log

On local[2], where a kill takes the driver and its workers at once; with `cluster` on a standalone cluster of two
workers, where it takes the driver or an executor. One file is large enough to be shared by tasks. After every finished
run the store must have the files and bytes of a run that was never interrupted, and nothing else; then the next run
begins with an empty store, until there were KILLS kills (20). The moment is drawn anew for each kill.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.pipelines.test_spark import SMALL_CHUNKS, SMALL_EXECUTORS, contents, settings  # noqa: E402
from tests.support.spark import SparkCluster, prepare_command, spark_cluster, spark_environment, write_documents  # noqa: E402

DOCUMENTS = 3000
STAGES = [
    "spans",
    "count",
    "clean",
    "equal",
    "pairs",
    "needed",
    "verify",
    "clusters",
    "remove",
    "measure",
    "write",
    "tokenize",
    "shards",
]
LONGEST_WAIT = 30.0  # seconds from the first stage of an attempt, or from the kill before, to a kill


class Attempt:
    """A driver, the stages that it has shown, and when it showed the first."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.stages: list[str] = []
        self.lines: list[str] = []
        self.began = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            stage = line.split(" ")[0]
            if stage in STAGES:
                self.stages.append(stage)
                self.began.set()
        self.began.set()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within these seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join()
        return True

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()


def main(kills: int = 20, seed: int = 7, where: str = "local[2]") -> None:
    generator = random.Random(seed)
    print(
        f"{platform.machine()}, load {os.getloadavg()[0]:.1f}, {DOCUMENTS} documents, {kills} kills, seed {seed}, {where}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = folder / "documents"
        write_documents(documents, DOCUMENTS, files=3)
        first = documents / "f000.jsonl"
        first.write_bytes(first.read_bytes() + (documents / "f001.jsonl").read_bytes())
        (documents / "f001.jsonl").unlink()
        (folder / "tmp").mkdir()
        environment = {**spark_environment(), "TMPDIR": str(folder / "tmp")}
        reference = folder / "reference"
        subprocess.run(
            command(documents, reference, "data.workers=1"), env=environment, check=True, capture_output=True
        )
        expected = contents(reference)
        with spark_cluster(folder) if where == "cluster" else nullcontext() as cluster:
            total = runs = 0
            while total < kills:
                total += one_run(documents, folder / "store", expected, cluster, environment, generator, kills - total)
                runs += 1
        left = [path.name for path in (folder / "tmp").iterdir() if path.name.startswith("skytrain-")]
    print(
        f"{total} kills, {runs} runs, each with the bytes of the uninterrupted run; folders left in TMPDIR: {left or 'none'}"
    )


def command(documents: Path, store: Path, *words: str) -> list[str]:
    return prepare_command(*settings(documents, store, *words), first=SMALL_CHUNKS)


def one_run(
    documents: Path, store: Path, expected: dict[str, bytes], cluster: SparkCluster | None, environment: dict[str, str],
    generator: random.Random, most: int,
) -> int:  # fmt: skip
    """Prepare until it is done, killing at most so many times on the way; returns how often."""
    words = ["engine=spark", f"spark.master={cluster.url if cluster else 'local[2]'}", "spark.split_bytes=200KB"]
    words += [SMALL_EXECUTORS] if cluster else []
    killed = 0
    begun = time.monotonic()
    attempt = Attempt(command(documents, store, *words), environment)
    while True:
        attempt.began.wait()
        if killed >= most:
            attempt.process.wait()
        if attempt.wait(generator.uniform(0.0, LONGEST_WAIT)):
            break
        victim = "driver" if cluster is None or generator.random() < 0.4 else "executor"
        stage = attempt.stages[-1] if attempt.stages else "start"
        if cluster is not None and victim == "executor":
            found = cluster.executors()
            if not found:
                continue
            os.kill(generator.choice(found), signal.SIGKILL)
        else:
            attempt.kill()
            attempt = Attempt(command(documents, store, *words), environment)
        killed += 1
        print(f"  killed the {victim} after {time.monotonic() - begun:.0f} s, in or after {stage}", flush=True)
    if attempt.process.returncode:
        sys.exit(f"it ended with {attempt.process.returncode}:\n{''.join(attempt.lines[-30:])}")
    made = contents(store)
    more = sorted(made.keys() - expected.keys())
    less = sorted(expected.keys() - made.keys())
    changed = [name for name in expected if made.get(name) != expected[name]]
    if more or less or changed:
        sys.exit(f"after {killed} kills: too much {more[:5]}, missing {less[:5]}, other bytes {changed[:5]}")
    print(f"done with {killed} kills, the same {len(made)} files", flush=True)
    shutil.rmtree(store)
    return killed


if __name__ == "__main__":
    main(*(int(word) if word.isdecimal() else word for word in sys.argv[1:]))
