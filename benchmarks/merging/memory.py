"""Peak memory of `skytrain merge`: it holds one tensor of each model, whatever the number of layers.

    python benchmarks/merging/memory.py > benchmarks/merging/memory.log

Merges two folders with random weights of 4 and of 16 layers, with the same vocabulary and so the same largest tensor. Each
merge is a process of its own; its peak resident memory (ru_maxrss), less that of a process that only imports the same
code, is printed beside the bytes of one model. Some minutes on one core, and 1 GB of disk.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from skytrain.config import compose, format_bytes
from skytrain.export import HFExport, export_hf
from skytrain.models import build_model
from skytrain.tokens.byte_level import gpt2

LAYERS = (4, 16)
WIDTH = 512
LENGTH = 256
VOCABULARY = 50257
IMPORTS = "import torch, skytrain.pipelines.merge, skytrain.cli.main"


def main() -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}")
    baseline = _peak([sys.executable, "-c", IMPORTS])
    print(f"imports alone: {format_bytes(baseline)}; largest tensor: {format_bytes(VOCABULARY * WIDTH * 4)}")
    print(f"{'layers':>6} {'one model':>12} {'merge above the imports':>24}")
    for layers in LAYERS:
        with tempfile.TemporaryDirectory() as name:
            folders = [_folder(Path(name) / f"{layers}-{seed}", layers, seed) for seed in range(2)]
            size = sum(each.stat().st_size for each in folders[0].glob("*.safetensors"))
            words = ["run=merged", f"store.root={Path(name) / 'store'}", "tokenizer=gpt2"]
            peak = _peak([sys.executable, "-m", "skytrain", "merge", *map(str, folders), "--force", *words])
            print(f"{layers:>6} {format_bytes(size):>12} {format_bytes(peak - baseline):>24}", flush=True)


def _folder(path: Path, layers: int, seed: int) -> Path:
    sizes = (f"layers={layers}", f"width={WIDTH}", "heads=8", f"max_length={LENGTH}")
    words = ["model=gpt2-tiny", "tokenizer=gpt2", "trainer.sequence_length=64", *(f"model.{each}" for each in sizes)]
    return export_hf(build_model(compose(words).config.model, seed=seed), gpt2(), path, HFExport("fp32"))


def _peak(command: list[str]) -> int:
    """Bytes that the process had resident at its peak."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_maxrss * 1024


if __name__ == "__main__":
    main()
