"""All of `skytrain prepare` against the equivalent datatrove pipeline, in CPU-seconds, in one run.

    python benchmarks/corpus/prepare.py FOLDER [PEERS_PYTHON] | tee benchmarks/corpus/prepare.log

Read JSON lines, normalize, language, Gopher, C4 and FineWeb rules, e-mail and IP addresses, exact and near
de-duplication, write parquet, tokenize with GPT-2's BPE, write shards. datatrove is slow, so it is given every
n-th document and compared per megabyte; what start-up costs on so little text is printed too.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
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
PEER_MB = 1.5
SPLITTINGS = {"spacy": "spaCy", "fallback": "datatrove's fallback, spaCy", "plain": "white space"}


def main(folder: Path, peers: str | None) -> None:
    adopt_orphans()
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} "
        f"on {os.cpu_count()} cores that other work shares; CPU-seconds of all processes, not wall time"
    )
    source = folder / "debian.jsonl"
    with source.open() as lines:
        sizes = [len(json.loads(line)["text"].encode()) for line in lines]
    size = sum(sizes) / 1e6
    every = max(1, int(size / PEER_MB))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        sample = scratch / "sample" / "sample.jsonl"
        sample.parent.mkdir()
        with source.open() as lines:
            sample.write_text("".join(line for i, line in enumerate(lines) if i % every == 0))
        peer_size = sum(sizes[::every]) / 1e6
        cold = run_ours(sample, scratch / "store", 1, NUMBA_CACHE_DIR=str(scratch / "numba"))
        warm = run_ours(sample, scratch / "store", 1)
        print(
            f"skytrain {peer_size:.1f} MB, cold {cold:6.1f} CPU-seconds: the first run compiles the rules and keeps them"
        )
        print(f"skytrain {peer_size:.1f} MB, warm {warm:6.1f} CPU-seconds, start-up included", flush=True)
        gpt2().save(scratch / "tokenizer")
        ours = []
        theirs = {}
        for splitting in SPLITTINGS:  # in turns with ours, so that both see the same other work
            ours.append(run_ours(source, scratch / "store", 1))
            if peers:
                theirs[splitting] = run_peer(peers, sample, scratch, splitting)
        speed = size / statistics.median(ours)
        both = size / run_ours(source, scratch / "store2", 2)
        print(f"skytrain {speed:7.2f} MB per CPU-second, all of {size:.1f} MB, one process; {both:.2f} with two")
        show(scratch / "store")
        for splitting, seconds in theirs.items():
            peer = peer_size / seconds
            print(
                f"datatrove, words by {SPLITTINGS[splitting]:<27} {peer:6.3f} MB per CPU-second on {peer_size:.1f} MB of it: "
                f"skytrain is {speed / peer:.0f} times as fast on all of it, {seconds / warm:.1f} times on the same "
                f"{peer_size:.1f} MB, start-up included",
                flush=True,
            )


def run_peer(python: str, sample: Path, scratch: Path, splitting: str) -> float:
    script = HERE / "peers/peer_datatrove.py"
    tokenizer = scratch / "tokenizer/tokenizer.json"
    command = [python, str(script), str(sample), str(scratch / splitting), str(tokenizer), splitting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    seconds: float = json.loads(done.stdout.splitlines()[-1])["cpu_seconds"]
    print(f"  run: {seconds:.1f} CPU-seconds, datatrove with words by {SPLITTINGS[splitting]}", flush=True)
    return seconds


def run_ours(source: Path, store: Path, workers: int, **environment: str) -> float:
    """CPU-seconds of the command as a user types it, start-up and compiled kernels' loading included."""
    command = [*prepare_command("debian", source, store, workers), "data.bad_records=skip"]
    shutil.rmtree(store, ignore_errors=True)
    before = children_cpu()
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
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
