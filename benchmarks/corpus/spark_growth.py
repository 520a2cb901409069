"""How time, memory and shuffled bytes of `prepare engine=spark` grow: 100 thousand and 1 million documents, 2 cores.

    python benchmarks/corpus/spark_growth.py [COUNT ...] | tee benchmarks/corpus/spark_growth.log

Two executors of one core and 2 GB (Spark's local-cluster): read, normalize, exact and near de-duplication, parts,
GPT-2 tokens, shards. Documents are 40 words of a made-up language, every tenth one a near-copy of another.
CPU-seconds are those of all processes: driver, executors and their Python workers. Memory is sampled from /proc:
resident pages of an executor, and of its Python worker, shared ones divided among those that share them.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from command import adopt_orphans, children_cpu
from growth import read

WORDS = 40
PER_FILE = 25_000
EXECUTORS = "local-cluster[2,1,2048]"
LARGER = (5_000_000, 1_000_000_000)
CORES = 4  # of an r5.xlarge or r7i.xlarge


def main(counts: list[int]) -> None:
    adopt_orphans()
    print(
        f"{platform.machine()}, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, {EXECUTORS}",
        flush=True,
    )
    first = None
    cost = 0.0
    shuffled = 0.0
    for count in counts:
        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch) / "documents", count)
            cpu, seconds, peaks, facts = run(Path(scratch))
        cost = cpu / count
        shuffled = facts["shuffle_bytes_per_document"]
        near = facts["near_duplicates"]
        print(
            f"{count:>9} documents: {cost * 1e6:6.1f} CPU-microseconds a document, {seconds:.0f} s on the clock, "
            f"{shuffled:.0f} bytes shuffled a document, peak {peaks['executor'] / 2**20:.0f} MiB in an executor and "
            f"{peaks['python'] / 2**20:.0f} MiB in its Python worker, {peaks['driver'] / 2**20:.0f} MiB in the driver; "
            f"{near['pairs']} pairs, {near['similar']} similar, {near['rounds']} rounds",
            flush=True,
        )
        for name, stage in facts["stages"].items():
            print(
                f"  {name:<9} {stage['seconds']:7.1f} s, {stage['tasks']:4} tasks, {stage['shuffle_bytes'] / count:6.1f} bytes shuffled a document"
            )
        if first:
            print(f"  against {first[0]} documents: time a document x{cost / first[1]:.2f}", flush=True)
        first = first or (count, cost)
    for count in LARGER:
        hours = cost * count / 3600
        machines = max(1, round(hours / CORES / 8))
        print(
            f"{count:>10} such documents: {hours:,.1f} core-hours, {shuffled * count / 1e9:,.1f} GB shuffled; "
            f"{machines} machines of {CORES} cores for {hours / CORES / machines:.1f} hours"
        )


def write(folder: Path, count: int) -> None:
    generator = random.Random(1)
    words = [
        "".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randrange(2, 10))) for _ in range(20_000)
    ]
    folder.mkdir()
    previous: list[str] = []
    for start in range(0, count, PER_FILE):
        with (folder / f"{start:010d}.jsonl").open("w") as out:
            for number in range(start, min(start + PER_FILE, count)):
                chosen = generator.choices(words, k=WORDS)
                if number % 10 == 9:
                    chosen = [*previous[:-1], chosen[0]] if number % 20 == 9 else list(previous)
                previous = chosen
                out.write(json.dumps({"id": str(number), "text": " ".join(chosen)}) + "\n")


def run(folder: Path) -> tuple[float, float, dict[str, int], dict]:
    store = folder / "store"
    command = [sys.executable, "-c", "from skytrain.cli.main import main; main()", "prepare", "data=jsonl"]
    command += [f"data.source.paths={folder}/documents/*.jsonl", "data.source.id_key=id", "data/cleaning=normalize"]
    command += ["data.near_dedup.enabled=true", "data.part_bytes=16MB", "data.shard_tokens=5M", "tokenizer=gpt2"]
    command += [f"store.root={store}", "engine=spark", f"spark.master={EXECUTORS}"]
    command += ["spark.conf={spark.executor.memory: 1g, spark.driver.host: 127.0.0.1}"]
    before = children_cpu()
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peaks = {"executor": 0, "python": 0, "driver": 0}
    watching = threading.Thread(target=watch, args=(process.pid, peaks), daemon=True)
    watching.start()
    _, said = process.communicate()
    watching.join()
    if process.returncode:
        raise SystemExit(said[-3000:])
    facts = json.loads(next(store.glob("corpora/*/*/spark.json")).read_text())
    return children_cpu() - before, time.monotonic() - started, peaks, facts


def watch(pid: int, peaks: dict[str, int]) -> None:
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in read(f"/proc/{pid}/status"):
        for member in family(pid):
            words = read(f"/proc/{member}/cmdline")
            kind = "executor" if "ExecutorBackend" in words else "python" if "pyspark.daemon" in words else "driver"
            peaks[kind] = max(peaks[kind], proportional(member))
        time.sleep(1.0)


def family(pid: int) -> list[int]:
    """The process and its descendants; a JVM starts processes from any of its threads."""
    found = []
    queue = [pid]
    while queue:
        member = queue.pop()
        found.append(member)
        for thread in Path(f"/proc/{member}/task").glob("*/children"):
            queue += [int(child) for child in read(str(thread)).split()]
    return found


def proportional(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in read(f"/proc/{pid}/smaps_rollup").splitlines()[1:] if ":" in line)
    return int(fields.get("Pss", "0 kB").split()[0]) * 1024


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or [100_000, 1_000_000])
