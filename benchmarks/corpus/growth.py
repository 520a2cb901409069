"""How memory and time of `prepare` grow with the corpus: all rules, on 100 thousand and 1 million documents.

    python benchmarks/corpus/growth.py FOLDER [COUNT ...] | tee benchmarks/corpus/growth.log

Normalizing, language, Gopher, C4 and FineWeb rules, addresses, exact and near de-duplication, parts, GPT-2
tokens. Documents are six short sentences of debian.jsonl in a new order, every tenth one a near-copy of
another. Peak memory is that of the largest process and of all of them together: anonymous pages, shared ones
divided among the processes that share them, sampled from /proc (the page cache is the kernel's to take back).
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

from command import adopt_orphans, children_cpu, prepare_command

HERE = Path(__file__).parent
SENTENCES = 6
WORKERS = 2


def main(folder: Path, counts: list[int]) -> None:
    adopt_orphans()
    print(
        f"{platform.processor() or platform.machine()}, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, {WORKERS} worker processes",
        flush=True,
    )
    first = None
    for count in counts:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            source = Path(scratch) / "documents.jsonl"
            size = write(folder / "debian.jsonl", source, count)
            cpu, seconds, largest, together, kept = run(source, Path(scratch) / "store")
        print(
            f"{count:>9} documents, {size / 1e6:7.1f} MB: {cpu / count * 1e6:6.1f} CPU-microseconds a document, {size / 1e6 / cpu:5.2f} MB per CPU-second, "
            f"{seconds:.0f} s on the clock, peak {largest / 2**20:.0f} MiB in one process, {together / 2**20:.0f} MiB in all, {kept} kept",
            flush=True,
        )
        if first:
            print(
                f"  against {first[0]} documents: time a document x{cpu / count / first[1]:.2f}, peak of one process x{largest / first[2]:.2f}, of all x{together / first[3]:.2f}",
                flush=True,
            )
        first = first or (count, cpu / count, largest, together)


def write(origin: Path, target: Path, count: int) -> int:
    generator = random.Random(1)
    sentences = []
    with origin.open() as lines:
        for line in lines:
            for paragraph in json.loads(line)["text"].split("\n\n"):
                sentences += [part + "." for part in paragraph.split(". ") if 60 < len(part) < 140]
    size = 0
    previous: list[str] = []
    with target.open("w") as out:
        for number in range(count):
            chosen = generator.choices(sentences, k=SENTENCES)
            if number % 10 == 9:
                chosen = [*previous[:-1], chosen[0]] if number % 20 == 9 else list(previous)
            text = " ".join(chosen)
            previous = chosen
            size += len(text.encode())
            out.write(json.dumps({"id": str(number), "text": text}) + "\n")
    return size


def run(source: Path, store: Path) -> tuple[float, float, int, int, int]:
    command = prepare_command("growth", source, store, WORKERS)
    before = children_cpu()
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peaks = [0, 0]
    watching = threading.Thread(target=watch, args=(process.pid, peaks), daemon=True)
    watching.start()
    _, said = process.communicate()
    watching.join()
    if process.returncode:
        raise SystemExit(said[-3000:])
    cpu = children_cpu() - before
    manifest = json.loads(next(store.glob("corpora/growth/*/manifest.json")).read_text())
    return cpu, time.monotonic() - started, peaks[0], peaks[1], manifest["documents"]


def watch(pid: int, peaks: list[int]) -> None:
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in read(f"/proc/{pid}/status"):
        sizes = [resident(member) for member in family(pid)]
        peaks[0], peaks[1] = max([peaks[0], *sizes]), max(peaks[1], sum(sizes))
        time.sleep(0.2)


def family(pid: int) -> list[int]:
    found = []
    queue = [pid]
    while queue:
        member = queue.pop()
        found.append(member)
        queue += [int(child) for child in read(f"/proc/{member}/task/{member}/children").split()]
    return found


def resident(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in read(f"/proc/{pid}/smaps_rollup").splitlines()[1:] if ":" in line)
    return int(fields.get("Pss_Anon", "0 kB").split()[0]) * 1024


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it ended in the meantime
        return ""


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"),
        [int(count) for count in sys.argv[2:]] or [100_000, 1_000_000],
    )
