"""`skytrain prepare` killed with SIGKILL again and again, and started again each time with another number of workers.

    python -m tests.pipelines.killing [KILLS] [SEED]

ends with a line that says whether every byte in the store is that of a run that nobody disturbed, and nothing else lies
there or in the folder for temporary files.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from skytrain.storage import open_store

WORDS = Path(__file__).read_text().split() + [f"word{i}" for i in range(500)]
FILES, DOCUMENTS = 6, 60
# Small pieces, so that there is much to be in the middle of; otherwise the command as a user types it.
COMMAND = "from skytrain.corpus import chunks; chunks.CHUNK_CHARS = 20_000; from skytrain.cli.main import main; main()"
SETTINGS = ["data=jsonl", "data.name=mine", "data.source.id_key=id", "data/cleaning=normalize", "tokenizer=gpt2"]
SETTINGS += ["data.near_dedup.enabled=true", "data.part_bytes=60KB", "data.shard_tokens=8K"]


def write_documents(folder: Path) -> None:
    generator = random.Random(1)
    for name in range(FILES):
        with (folder / f"{name}.jsonl").open("w") as out:
            for i in range(DOCUMENTS):
                text = " ".join(generator.choices(WORDS, k=200))
                out.write(json.dumps({"id": f"{name}-{i}", "text": text if i % 9 else "the same in every file"}) + "\n")


def start(documents: Path, store: Path, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND, "prepare", *SETTINGS]
    command += [f"data.source.paths={documents}/*.jsonl", f"store.root={store}", f"data.workers={workers}"]
    scratch = scratch_of(store)
    scratch.mkdir(exist_ok=True)
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )


def scratch_of(store: Path) -> Path:
    """The TMPDIR of a store's processes: short, since multiprocessing makes a socket in it."""
    return Path(tempfile.gettempdir(), f"killed-{hashlib.sha256(str(store).encode()).hexdigest()[:8]}")


def left_over(store: Path) -> list[Path]:
    """Temporary files and folders that no process uses any more, when the last one has ended."""
    return [*scratch_of(store).glob("skytrain-*"), *store.rglob(".skytrain-*")]


def finish(process: subprocess.Popen[bytes]) -> None:
    said = process.communicate()[1]
    if process.returncode:
        raise SystemExit(said.decode())


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    """Kills the process, and not its workers, as a kernel short of memory does; False where it ended before."""
    while not ready():
        try:
            process.wait(0.002)
        except subprocess.TimeoutExpired:
            continue
        finish(process)
        return False
    process.send_signal(signal.SIGKILL)
    process.communicate()  # its workers hold the other end: this returns when the last of them has gone too
    return process.returncode == -signal.SIGKILL


def files(folder: Path) -> dict[str, bytes]:
    """What the store holds."""
    store = open_store(str(folder))
    return {stat.key: store.read(stat.key) for stat in store.list("")}


def stored(store: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(store))


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def main(kills: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "documents").mkdir()
        write_documents(folder / "documents")
        began = time.monotonic()
        finish(start(folder / "documents", folder / "whole", 1))
        lasts = time.monotonic() - began  # what an undisturbed run takes, as busy as the machine is
        expected, done, rounds, generator = files(folder / "whole"), 0, 0, random.Random(seed)
        while done < kills:
            rounds += 1
            store = folder / f"store{rounds}"
            began = time.monotonic()
            while kill_when(start(folder / "documents", store, 1 + done % 3), after(generator.uniform(0.1, 1) * lasts)):
                done += 1
                lasts *= 1.1  # even a resumed run that has nothing left to do may take longer on a busier machine
                began = time.monotonic()
            lasts = time.monotonic() - began
            assert not left_over(store), f"preparation {rounds} left {left_over(store)}"
            found = files(store)
            other = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
            assert not other, f"preparation {rounds} ended with other bytes in {other}"
        print(f"{done} kills in {rounds} preparations, each ended with the same {len(expected)} files, byte for byte")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
