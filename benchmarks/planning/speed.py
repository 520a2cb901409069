"""How long the planner itself takes: a plan over the whole catalogue, and the search for 70B on 2,048 GPUs.

python benchmarks/planning/speed.py                prints the times and writes speed.log beside this file
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from skytrain.config import DecoderConfig, compose
from skytrain.planning import Machines, Node, Placement, best_placement
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.memory import TrainingJob
from skytrain.planning.throughput import mfu

PLAN = [
    "plan",
    "model=gpt2-124m",
    "trainer.tokens=2.5B",
    "trainer.steps=null",
    "trainer.precision=bf16-mixed",
    "budget.usd=150",
]
TIMES = 5


def plan_seconds() -> list[tuple[float, float]]:
    """The whole command from a cold interpreter: wall time, and CPU time, which a busy machine changes less.

    The first run only writes bytecode, which an installed package has.
    """
    command = [sys.executable, "-c", "from skytrain.cli.main import main; main()", *PLAN]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(1 + TIMES):
            began = time.perf_counter()
            used = _used()
            subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
            seconds.append((time.perf_counter() - began, _used() - used))
    return seconds[1:]


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def search_70b() -> tuple[float, Placement]:
    model = compose(["model=llama-3.1-70b", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(model, DecoderConfig)
    p5 = packaged_catalog().instance("p5.48xlarge")
    began = time.perf_counter()
    found = best_placement(
        TrainingJob(model, 8192, 1, compiled=True), Machines(Node.of(p5), 2048, p5.gpu_memory_mib), 2048 * 8192
    )
    seconds = time.perf_counter() - began
    assert isinstance(found, Placement)
    return seconds, found


def search_405b(gpu_memory_mib: int | None = None) -> tuple[float, Placement, float]:
    """Llama 3.1's 405B on 2,048 machines, with its batch; the last number is the MFU."""
    model = compose(["model=llama-3.1-405b", "tokenizer.vocab_size=257"]).config.model
    assert isinstance(model, DecoderConfig)
    p5 = packaged_catalog().instance("p5.48xlarge")
    node = Node.of(p5)
    began = time.perf_counter()
    found = best_placement(
        TrainingJob(model, 8192, 1, compiled=True),
        Machines(node, 16384, gpu_memory_mib or p5.gpu_memory_mib),
        2048 * 8192,
    )
    seconds = time.perf_counter() - began
    assert isinstance(found, Placement)
    share = mfu(found.job, found.mesh, node, found.prediction.seconds)
    assert share is not None
    return seconds, found, share


if __name__ == "__main__":
    plans = plan_seconds()
    seconds, found = search_70b()
    big_seconds, big, share = search_405b()
    _, _, most = search_405b(gpu_memory_mib=10**7)
    lines = [
        f"{platform.machine()}, Python {platform.python_version()}",
        f"skytrain plan, whole catalogue, best of {TIMES}: {min(plans)[0]:.2f} s by the clock, {min(used for _, used in plans):.2f} s of processor time "
        f"(load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)",
        f"search, Llama 70B on 2,048 H100, 16.8M tokens a step: {seconds:.2f} s -> {found.mesh}, micro-batch {found.job.micro_batch}, "
        f"{'' if found.job.recomputation == 'none' else found.job.recomputation + ' recomputation, '}{found.memory.total / 1e9:.1f} GB/GPU, {found.tokens_per_s / 2048:,.0f} tok/s/GPU (assumed)",
        f"search, Llama 405B on 16,384 H100, 16.8M tokens a step: {big_seconds:.2f} s -> {big.mesh}, {big.job.schedule}, micro-batch "
        f"{big.job.micro_batch}, {'' if big.job.recomputation == 'none' else big.job.recomputation + ' recomputation, '}{big.memory.total / 1e9:.1f} GB/GPU, {share:.1%} MFU (assumed); {most:.1%} if memory had no limit",
    ]
    print("\n".join(lines))
    (Path(__file__).parent / "speed.log").write_text("\n".join(lines) + "\n")
