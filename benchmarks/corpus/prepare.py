"""All of `skytrain prepare` against the equivalent datatrove pipeline, in CPU-seconds, in one run.

    python benchmarks/corpus/prepare.py FOLDER [PEERS_PYTHON] | tee benchmarks/corpus/prepare.log

Read JSON lines, normalize, language, Gopher, C4 and FineWeb rules, e-mail and IP addresses, exact and near
de-duplication, write parquet, tokenize with GPT-2's BPE, write shards. datatrove is slow, so it is given every
n-th document and compared per megabyte.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from command import adopt_orphans, children_cpu, prepare_command

from skytrain.corpus import open_corpus
from skytrain.storage import open_store
from skytrain.tokens.byte_level import gpt2

HERE = Path(__file__).parent
PEER_MB = 3.0


def main(folder: Path, peers: str | None) -> None:
    adopt_orphans()
    load = os.getloadavg()[0]
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}"
    )
    source = folder / "debian.jsonl"
    with source.open() as lines:
        sizes = [len(json.loads(line)["text"].encode()) for line in lines]
    size = sum(sizes) / 1e6
    with tempfile.TemporaryDirectory() as scratch:
        run_ours(source, Path(scratch) / "store0", 1)  # the first run of a version compiles its rules
        ours = size / run_ours(source, Path(scratch) / "store0", 1)
        both = size / run_ours(source, Path(scratch) / "store1", 2)
        print(
            f"skytrain              {ours:7.2f} MB per CPU-second, all of {size:.1f} MB, one process; {both:.2f} with two",
            flush=True,
        )
        show(Path(scratch) / "store0")
        if not peers:
            return
        gpt2().save(Path(scratch) / "tokenizer")
        every = max(1, int(size / PEER_MB))
        sample = Path(scratch) / "sample" / "sample.jsonl"
        sample.parent.mkdir()
        with source.open() as lines:
            sample.write_text("".join(line for i, line in enumerate(lines) if i % every == 0))
        peer_size = sum(sizes[::every]) / 1e6
        for splitting in ("spacy", "whitespace"):
            work = Path(scratch) / splitting
            command = [
                peers,
                str(HERE / "peers/peer_datatrove.py"),
                str(sample),
                str(work),
                str(Path(scratch) / "tokenizer/tokenizer.json"),
                splitting,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(done.stderr[-3000:])
                raise SystemExit(1)
            speed = peer_size / json.loads(done.stdout.splitlines()[-1])["cpu_seconds"]
            print(
                f"datatrove {splitting:<11} {speed:7.3f} MB per CPU-second on {peer_size:.1f} MB of it; skytrain is {ours / speed:.0f} times as fast, {both / speed:.0f} with two processes",
                flush=True,
            )


def run_ours(source: Path, store: Path, workers: int) -> float:
    """CPU-seconds of the command as a user types it, start-up and compiled kernels' loading included."""
    command = [*prepare_command("debian", source, store, workers), "data.bad_records=skip"]
    shutil.rmtree(store, ignore_errors=True)
    before, started = children_cpu(), time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds = children_cpu() - before
    print(
        f"  run: {seconds:.1f} CPU-seconds, {time.monotonic() - started:.1f} s on the clock, {workers} process{'es' * (workers > 1)}",
        flush=True,
    )
    return seconds


def show(root: Path) -> None:
    store = open_store(str(root))
    [version] = store.folders("corpora/debian")
    manifest = open_corpus(store, "debian", version)
    for stage in manifest.stages:
        print(
            f"  {stage.name:<18} {stage.documents_in:>6} -> {stage.documents_out:>6} documents  {stage.bytes_in / 1e6:7.1f} -> {stage.bytes_out / 1e6:7.1f} MB"
        )
    rules = next(stage for stage in manifest.stages if stage.name == "dedup").bytes_in
    print(
        f"  the rules keep {rules / manifest.text_bytes_read:.0%} of the bytes; near-duplicates:",
        json.loads(store.read(f"{manifest.folder}/report.json"))["near_duplicates"]["cluster_sizes"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "data"), sys.argv[2] if len(sys.argv) > 2 else None)
