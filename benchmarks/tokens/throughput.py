"""Tokens per CPU-second from disk to int64 tensors, one process, warm page cache, batches of 8 x 1024.

Every reader goes through a torch DataLoader without workers and delivers (8, 1025) int64, Skytrain's in a `Batch`. CPU time, not wall time:
other jobs may share the cores. litdata and mosaicml-streaming are measured where they are installed.

    python benchmarks/tokens/throughput.py [--tokens 40M]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from skytrain.config import BatchSizes, parse_count
from skytrain.storage import open_store
from skytrain.tokens import Batch, BatchSettings, ShardWriter, TokenDataModule, TokenSplit
from skytrain.tokens.cache import ShardCache
from skytrain.tokens.manifest import TokenizerFacts
from skytrain.tokens.mixture import Phase

T, BATCH, VOCAB = 1024, 8, 50257
SECONDS, REPEATS = 1.5, 5
Batches = Iterator[torch.Tensor | Batch]


def measure(name: str, open_reader: Callable[[], Callable[[], Batches]]) -> float | None:
    """Median over repeats of tokens per CPU-second of this process and its threads; one pass before warms everything."""
    try:
        reader = open_reader()
    except ImportError as error:
        print(f"{name:<44} not installed ({error})")
        return None
    rates = []
    for repeat in range(REPEATS + 1):
        batches, tokens = reader(), 0
        assert windows_of(next(batches)).shape == (BATCH, T + 1)
        began, wall = time.process_time(), time.monotonic()
        for batch in batches:
            windows = windows_of(batch)
            assert windows.dtype == torch.int64
            tokens += len(windows) * T
            if time.process_time() - began > SECONDS or time.monotonic() - wall > 10 * SECONDS:
                break
        if repeat:
            rates.append(tokens / (time.process_time() - began) / 1e6)
    print(
        f"{name:<44} {statistics.median(rates):8.1f} M tokens/CPU-s   ({min(rates):.1f} to {max(rates):.1f})",
        flush=True,
    )
    return statistics.median(rates)


def windows_of(batch: torch.Tensor | Batch) -> torch.Tensor:
    return batch.windows if isinstance(batch, Batch) else batch


def skytrain_reader(folder: Path, tokens: int, **settings: object) -> Callable[[], Batches]:
    store = open_store(str(folder / "store"))
    split = TokenSplit.open(store, "tokens/train", cache=ShardCache(folder / "cache"))
    train = {"a": split, "b": split} if "phases" in settings else split
    batches = BatchSettings(
        sequence_length=T, micro_batch=BATCH, batches=BatchSizes(64), total_steps=10**6, seed=1, **settings
    )
    module = TokenDataModule(train, None, batches)
    return lambda: iter(module.train_dataloader())


class Memmap(Dataset[torch.Tensor]):
    """As nanoGPT reads: one memory map, one random window a sample."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // T

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[i * T : i * T + T + 1].astype(np.int64))


def memmap_reader(path: Path) -> Callable[[], Batches]:
    return lambda: endless(DataLoader(Memmap(path), batch_size=BATCH, shuffle=True, drop_last=True))


def memmap_gather(path: Path) -> Callable[[], Batches]:
    """No DataLoader: the least that numpy can do."""
    tokens, rng = np.memmap(path, dtype=np.uint16, mode="r"), np.random.default_rng(0)

    def batches() -> Batches:
        while True:
            starts = rng.integers(0, len(tokens) - T - 1, BATCH)
            yield torch.from_numpy(np.stack([tokens[s : s + T + 1] for s in starts]).astype(np.int64))

    return batches


def litdata_reader(folder: Path, stream: np.ndarray) -> Callable[[], Batches]:
    import litdata

    target = folder / "litdata"
    if not target.exists():
        from litdata.streaming.writer import BinaryWriter

        target.mkdir()
        # The same chunk size as litdata's own example for tokens.
        writer = BinaryWriter(
            str(target), chunk_size=(T + 1) * 8192, compression=None, item_loader=litdata.TokensLoader(block_size=T + 1)
        )
        for i in range((len(stream) - 1) // T):
            writer[i] = torch.from_numpy(stream[i * T : i * T + T + 1].astype(np.int32))
        writer.done()
        writer.merge()

    def open_loader() -> Batches:
        data = litdata.StreamingDataset(
            str(target), item_loader=litdata.TokensLoader(block_size=T + 1), shuffle=True, drop_last=True
        )
        loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, drop_last=True)
        return (batch.to(torch.int64) for batch in endless(loader))

    return open_loader


def mosaic_reader(folder: Path, stream: np.ndarray) -> Callable[[], Batches]:
    if importlib.util.find_spec("torchvision") is None:
        # It is imported for image data sets that we do not use, and torchvision's wheels do not fit every torch.
        for name in (
            "torchvision",
            "torchvision.datasets",
            "torchvision.transforms",
            "torchvision.transforms.functional",
        ):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    import streaming

    target = folder / "mosaic"
    if not target.exists():
        with streaming.MDSWriter(out=str(target), columns={"tokens": f"ndarray:uint16:{T + 1}"}) as writer:
            for i in range((len(stream) - 1) // T):
                writer.write({"tokens": stream[i * T : i * T + T + 1]})
    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(local=str(target), shuffle=True, batch_size=BATCH)

    def collate(samples: list[dict[str, np.ndarray]]) -> torch.Tensor:
        return torch.from_numpy(np.stack([sample["tokens"] for sample in samples]).astype(np.int64))

    return lambda: endless(DataLoader(data, batch_size=BATCH, collate_fn=collate, drop_last=True))


def endless(loader: DataLoader[torch.Tensor]) -> Batches:
    while True:
        yield from loader


def write_data(folder: Path, tokens: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    facts = TokenizerFacts("gpt2", "0" * 64, VOCAB, VOCAB - 1)
    with ShardWriter(
        open_store(str(folder / "store")), "tokens/train", "train", facts, shard_tokens=2_000_000
    ) as writer:
        while writer.tokens < tokens:
            ids = rng.integers(0, VOCAB - 1, rng.integers(1, 1200))
            writer.add(ids, text_bytes=4 * len(ids))
        writer.finish({})
    stream = rng.integers(0, VOCAB, tokens).astype(np.uint16)
    stream.tofile(folder / "memmap.bin")
    return stream


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="40M")
    count = parse_count(parser.parse_args().tokens)
    torch.set_num_threads(1)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "litdata", "mosaicml-streaming")))
    print(f"{count / 1e6:.0f} M tokens, batches of {BATCH} x {T}, {REPEATS} repeats of {SECONDS} CPU-seconds\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stream = write_data(folder, count)
        ours = measure("skytrain, shuffle global", lambda: skytrain_reader(folder, count))
        measure("skytrain, shuffle blocks", lambda: skytrain_reader(folder, count, shuffle="blocks"))
        measure("skytrain, mixture of two", lambda: skytrain_reader(folder, count, phases=[Phase(0, (0.7, 0.3))]))
        measure("numpy memmap, gather without a DataLoader", lambda: memmap_gather(folder / "memmap.bin"))
        measure("numpy memmap, DataLoader", lambda: memmap_reader(folder / "memmap.bin"))
        litdata = measure("litdata StreamingDataset, TokensLoader", lambda: litdata_reader(folder, stream))
        mosaic = measure("mosaicml-streaming StreamingDataset", lambda: mosaic_reader(folder, stream))
    assert ours is not None
    print(f"\nfeeding 650k tokens/s takes {0.65 / ours:.2%} of a core")
    for peer, rate in (("litdata", litdata), ("mosaicml-streaming", mosaic)):
        if rate is not None:
            print(f"{ours / rate:.1f}x {peer}")


if __name__ == "__main__":
    main()
