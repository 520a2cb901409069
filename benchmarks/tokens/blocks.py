"""Streaming from S3 in blocks: the first batch of 1,000 shards, memory against data set size, and shuffle quality.

S3 is a SeaweedFS on this machine's loopback, so its bandwidth is the disk's and the cores', which other jobs may share.

    python benchmarks/tokens/blocks.py [--shards 1000]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from skytrain.storage import Store, open_store  # noqa: E402
from skytrain.tokens import ShardWriter, find_manifest  # noqa: E402
from skytrain.tokens.manifest import TokenizerFacts  # noqa: E402
from skytrain.tokens.order import BlockOrder, GlobalOrder  # noqa: E402

T = 1024
SHARD_TOKENS = 2**18
VOCAB = 50257
CACHE_SHARDS = 40

READ = """
import sys, time
from pathlib import Path
from skytrain.config import BatchSizes
from skytrain.storage import open_store
from skytrain.tokens import BatchSettings, TokenDataModule, TokenSplit
from skytrain.tokens.cache import ShardCache
root, cache, batches, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
began = time.monotonic()
split = TokenSplit.open(open_store(root), "tokens/train", cache=ShardCache(cache, limit), supply=False)
module = TokenDataModule(split, None, BatchSettings(sequence_length=1024, micro_batch=8, batches=BatchSizes(64), total_steps=10**6, seed=1, shuffle="blocks", block_shards=8))
loader = iter(module.train_dataloader())
next(loader)
first = time.monotonic() - began
for _ in range(batches - 1):
    next(loader)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
used = sum(path.stat().st_size for path in cache.glob("*/tokens.bin"))
print(first, int(status["RssAnon"].split()[0]) / 1024, used, module.waited_seconds)
"""


def read(root: str, cache: Path, batches: int, limit: int) -> tuple[float, float, float, float]:
    """Seconds to the first batch, MB of private memory, bytes in the cache, seconds waited: in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READ, root, str(cache), str(batches), str(limit)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT).stdout
    first, memory, used, waited = map(float, out.split())
    return first, memory, used, waited


def write(store: Store, shards: int) -> int:
    """Bytes of one shard."""
    rng = np.random.default_rng(0)
    facts = TokenizerFacts("gpt2", "0" * 64, VOCAB, VOCAB - 1)
    with ShardWriter(store, "tokens/train", "train", facts, SHARD_TOKENS) as writer:
        for _ in range(shards):
            writer.add(rng.integers(0, VOCAB - 1, SHARD_TOKENS - 1), text_bytes=1)
        return writer.finish({}).shards[0].bytes


def one_download(store: Store, folder: Path) -> float:
    """Median seconds for one shard from the store to a file."""
    manifest = find_manifest(store, "tokens/train")
    assert manifest is not None
    seconds = []
    for shard in manifest.shards[-5:]:
        began = time.monotonic()
        store.download(f"tokens/train/{shard.name}.bin", folder / "one.bin", sha256=shard.sha256)
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


def shuffle_quality() -> None:
    """If every shard were about something else: how far a batch's mean strays, in units of a perfect shuffle's."""
    shards = 1000
    windows = 256
    batch = 512
    print(
        f"\nshuffle of {shards} shards of {windows} windows, batches of {batch}, every shard with a value of its own:"
    )
    print(
        f"  {'order':<18} {'spread of batch means':>22} {'shards in a batch':>18} {'neighbours in data that stay neighbours':>40}"
    )
    for name, order in [
        ("global", GlobalOrder(1, shards * windows)),
        *((f"blocks of {n}", BlockOrder(1, [windows] * shards, n)) for n in (1, 4, 8, 16, 64, 256)),
    ]:
        at = order.at(np.arange(shards * windows))
        shard_of = at // windows
        values = np.random.default_rng(0).standard_normal(shards)[shard_of]
        batches = values[: len(values) // batch * batch].reshape(-1, batch)
        spread = batches.mean(axis=1).std() / (values.std() / np.sqrt(batch))
        distinct = np.mean([len(np.unique(row)) for row in shard_of[: len(batches) * batch].reshape(-1, batch)])
        print(f"  {name:<18} {spread:>21.2f}x {distinct:>18.1f} {np.mean(np.abs(np.diff(at)) == 1):>39.3%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    shards = parser.parse_args().shards
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
    from tests.support.s3 import start_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "s3").mkdir()
        process, server = start_server(folder / "s3")
        try:
            os.environ.update(server.environment())
            roots = {count: server.new_root() for count in (shards // 10, shards)}
            for count, root in roots.items():
                shard_bytes = write(open_store(root), count)
            print(
                f"{shards} shards of {shard_bytes / 1e6:.2f} MB in S3, cache of {CACHE_SHARDS} shards, blocks of 8, batches of 8 x {T}\n"
            )
            limit = CACHE_SHARDS * shard_bytes
            for attempt in range(3):
                alone = one_download(open_store(roots[shards]), folder)
                first = read(roots[shards], folder / f"first-{attempt}", 1, limit)[0]
                print(
                    f"one shard's download {alone:.3f} s; first batch, data set opened and cache empty, {first:.3f} s",
                    flush=True,
                )
            windows = (SHARD_TOKENS - 1) // T
            for count, root in roots.items():
                batches = min(count, 100) * windows // 8  # the same number of batches through either
                _, memory, used, waited = read(root, folder / f"memory-{count}", batches, limit)
                print(
                    f"{count:>5} shards: {batches} batches, {memory:.0f} MB of private memory, {used / limit:.0%} of the cache's limit used, {waited:.1f} s waited",
                    flush=True,
                )
        finally:
            process.terminate()
            process.wait()
    shuffle_quality()


if __name__ == "__main__":
    main()
