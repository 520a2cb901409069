"""Weak and strong scaling of every parallel mode on this machine's cores or GPUs. Needs an idle machine.

    python benchmarks/parallel/scaling.py                 # cores: a tiny model
    python benchmarks/parallel/scaling.py --gpus          # GPUs: GPT-2 124M

Writes scaling.json, scaling.svg and scaling.log beside itself.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path

from skytrain.bench import bench_parallel, parallel_results, scaling_table
from skytrain.bench.parallel import plot
from skytrain.cli.console import reporter

CORES = ("recipe=quickstart", "trainer.micro_batch=4", "trainer.device=cpu")
GPUS = ("recipe=gpt2-124m-openwebtext",)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--gpus", action="store_true")
    options.add_argument("--steps", type=int, default=5)
    options.add_argument("--processes", type=int)
    options.add_argument("--modes", default="")
    given = options.parse_args()
    modes = [mode for mode in given.modes.split(",") if mode]
    with tempfile.TemporaryDirectory() as root, reporter() as console:
        overrides = [*(GPUS if given.gpus else CORES), f"store.root={root}"]
        bench = bench_parallel(overrides, [], console, steps=given.steps, largest=given.processes, modes=modes)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print(f"{bench.model}, sequences of {bench.sequence_length}, {bench.precision}, {bench.date}")
        print(" ".join(f"{key}={value}" for key, value in bench.machine.items() if key != "host"))
        print("\n".join(scaling_table(bench)))
    here = Path(__file__)
    name = "scaling-gpus" if given.gpus else "scaling"
    kept = parallel_results(bench)
    del kept["folder"], kept["machine"]["host"]  # of no use to a reader
    here.with_name(f"{name}.json").write_text(json.dumps(kept, indent=1))
    here.with_name(f"{name}.svg").write_text(plot(bench))
    here.with_name(f"{name}.log").write_text(out.getvalue())
    print(out.getvalue())


if __name__ == "__main__":
    main()
