"""Memory of ranks that load a sharded Hugging Face folder: each reads its own part, never the whole model.

    python benchmarks/parallel/weights_memory.py                                       # writes weights_memory.log
    python benchmarks/parallel/weights_memory.py --model llama-3.2-3b --file-mb 1000   # 3.2B: 13 GB of memory

A folder of random bf16 weights in several files is loaded by four ranks in float32, under each mode. Counted is
anonymous memory (RssAnon in /proc/self/status), sampled every 5 ms from before the model is made until it is ready:
pages of the mapped files are not in it, they belong to the page cache. Of each rank what the process held before is
taken off. The limit: summed over the ranks, 1.3 times the sum of their shares and the size of one file.

A share is what the rank must hold once it is ready: its part of the weights in float32. DeepSpeed allocates more when
it is set up: a float32 copy of that part, its gradients and Adam's two moments, 20 bytes a parameter in all. Its
ZeRO-3 takes whole parameters, one after the other, so a rank also holds the largest one for a moment.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.parallel.processes import run_ranks

RANKS = 4
TOLERANCE = 1.3
MODES = {
    "fsdp": ("parallel=fsdp",),
    "hsdp": ("parallel=hsdp", "parallel.replicate=2", "parallel.shard=2"),
    "tp": ("parallel=tp",),
    "tp-fsdp": ("parallel=tp-fsdp", "parallel.tensor=2"),
    "pp": ("parallel=pp",),
    "deepspeed-zero3": ("parallel=deepspeed-zero3",),
}
LOG = Path(__file__).with_suffix(".log")


class Ready(Exception):
    """The model is ready: nothing is trained."""


class Sampler(threading.Thread):
    """The most anonymous memory that this process has had."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = anonymous_bytes()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            self.peak = max(self.peak, anonymous_bytes())


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not say RssAnon")


def write_random(model: str, layers: int | None, folder: Path, file_bytes: int) -> int:
    """Writes the folder; returns the model's parameters."""
    import dataclasses
    import json

    import torch

    from skytrain.models import Decoder, count_parameters, hf_config, to_hf, weight_pairs
    from skytrain.models.safetensors_io import TensorSpec, write_folder
    from skytrain.models.sizes import size_config

    config = size_config(model)
    config = dataclasses.replace(config, layers=layers or config.layers)
    with torch.device("meta"):
        outline = Decoder(config)
    parameters = dict(outline.named_parameters())
    specs = [
        TensorSpec(name, torch.bfloat16, tuple(tensor.shape))
        for pair in weight_pairs(config, parameters)
        for name, tensor in to_hf(config, pair, [parameters[each].detach() for each in pair.ours]).items()
    ]
    noise = torch.randn(1 << 20).mul_(0.02).bfloat16()

    def values() -> Iterator[torch.Tensor]:
        for spec in specs:
            count = torch.Size(spec.shape).numel()
            yield noise.repeat(-(-count // noise.numel()))[:count].view(spec.shape)

    write_folder(folder, specs, values(), file_bytes)
    (folder / "config.json").write_text(json.dumps(hf_config(config, dtype="bfloat16")))
    return count_parameters(outline)


def measure(folder: Path, overrides: tuple[str, ...]) -> dict[str, int]:
    """Of this rank, bytes: its share, and the most anonymous memory while it loads."""
    import lightning.pytorch as pl
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils.data import DataLoader

    from skytrain.cli.options import compose_overrides
    from skytrain.jobs import Ranks
    from skytrain.storage import open_store
    from skytrain.training import CausalLM, make_trainer, outline, plan_training
    from skytrain.training.step import Optimization

    seen: dict[str, int] = {}

    class Stop(pl.Callback):
        def on_fit_start(self, trainer: Any, module: Any) -> None:
            sampler.done.set()
            named = module.model.parameters()
            held = {id(each): each.to_local() if isinstance(each, DTensor) else each for each in named}
            engine = getattr(trainer.strategy, "deepspeed_engine", None)
            if engine is not None:
                seen["share"] = sum(20 * each.ds_tensor.numel() for each in engine.module.parameters())
            else:
                seen["share"] = sum(each.numel() * each.element_size() for each in held.values())
            raise Ready

    settings = ["trainer.sequence_length=8", "trainer.micro_batch=1", f"trainer.batch_tokens={8 * RANKS}"]
    settings += ["trainer.steps=1", "trainer.device=cpu", "trainer.precision=32-true", "lr_schedule.warmup_steps=0"]
    given = ["model=hf-weights", f"model.weights={folder}", "tokenizer=bytes", *settings, *overrides]
    config = compose_overrides(given).config
    plan = plan_training(config, Ranks.from_environment())
    trainer = make_trainer(config, plan, open_store(tempfile.gettempdir()), [Stop()], [])
    gc.collect()
    sampler = Sampler()
    before = sampler.peak
    sampler.start()
    module = CausalLM(outline(config), Optimization(config.optimizer, config.lr_schedule, 1, 1.0))
    with contextlib.suppress(Ready):
        trainer.fit(module, DataLoader([torch.zeros(1, 9, dtype=torch.long)], batch_size=None))  # type: ignore[arg-type]
    sampler.join()
    return {**seen, "peak": sampler.peak - before}


def report(folder: Path, parameters: int, modes: list[str]) -> tuple[list[str], bool]:
    files = sorted(folder.glob("*.safetensors"))
    largest = max(path.stat().st_size for path in files)
    total = sum(path.stat().st_size for path in files)
    lines = [
        f"{parameters:,} parameters, {total / 1e6:,.0f} MB in {len(files)} files of at most {largest / 1e6:,.0f} MB, {RANKS} ranks",
        "| mode | sum of shares, MB | sum of peaks, MB | limit, MB | largest rank, MB | whole model, MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    fits = True
    for mode in modes:
        ranks = run_ranks(RANKS, measure, folder, MODES[mode])
        share, peak = (sum(rank[key] for rank in ranks) for key in ("share", "peak"))
        limit = TOLERANCE * share + largest
        fits = fits and peak <= limit
        row = (share, peak, limit, max(rank["peak"] for rank in ranks), parameters * 4)
        lines.append(f"| {mode} | " + " | ".join(f"{value / 1e6:,.0f}" for value in row) + " |")
        print(lines[-1], flush=True)
    return lines, fits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="llama-3.2-1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--file-mb", type=int, default=400)
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--folder", type=Path, help="where the weights are written, and removed from")
    chosen = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="weights-", dir=chosen.folder))
    try:
        parameters = write_random(chosen.model, chosen.layers, scratch, chosen.file_mb * 10**6)
        lines, fits = report(scratch, parameters, chosen.modes)
    finally:
        shutil.rmtree(scratch)
    with LOG.open("a") as log:
        print(f"{chosen.model}", *lines, "", sep="\n", file=log)
    if not fits:
        raise SystemExit("a mode is over its limit")


if __name__ == "__main__":
    main()
