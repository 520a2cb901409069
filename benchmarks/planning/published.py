"""Fits the throughput model's fractions on half of the published runs and compares predictions with the other half.

    python benchmarks/planning/published.py            prints the tables and writes published.log beside this file

published_runs.csv names every run with its source. Which half a run is in follows from its name alone: runs are
ordered by the sha256 of their names, and the first half is fitted on. The structure of the model was worked on
with all of them in view, so a dozen other halves (the same with a number before the name) are fitted and
reported too. What the planner uses is fitted on all runs, by the same procedure. Where a source does not say
its micro-batch, the project's default stands. Left out, for lack of detail: llm.c GPT-2 1558M (no token count),
the single-A100 162M run (no shape), speed-run records (other mathematics), NeMo on GB200 (no number of GPUs),
OLMo-3 (no throughput), Megatron's range of 2B to 462B.
"""

from __future__ import annotations

import csv
import hashlib
import math
import statistics
from dataclasses import replace
from pathlib import Path

from skytrain.config import DecoderConfig
from skytrain.config.composition import compose
from skytrain.planning.communication import Node
from skytrain.planning.hardware import Gpu, find_gpu
from skytrain.planning.memory import TrainingJob
from skytrain.planning.mesh import Mesh
from skytrain.planning.throughput import Software, step_time, tokens_per_step

HERE = Path(__file__).parent
Run = dict[str, str]  # a line of published_runs.csv
NETWORK_BYTES_PER_S = {"h100": 400e9, "h200": 400e9, "a100": 50e9}  # 3200 and 400 Gbit/s a machine

# Start values and, through a weak pull towards them, what a class with few runs falls back on.
START = {
    "gemm-a100": 0.85,
    "gemm-h100": 0.66,
    "gemm-h100-500w": 0.55,
    "attention-a100": 0.50,
    "attention-h100": 0.30,
    "float8": 1.6,
    "float8-megatron": 2.0,
    "tensor_hidden": 0.4,
    "traffic-torch-eager": 4.5,
    "traffic-torch-compile": 2.0,
    "traffic-torch-compile-2.4": 3.0,
    "traffic-torch-compile-2.0": 4.0,
    "traffic-composer": 3.0,
}
WHOLE = {"single": "replicate", "ddp": "replicate", "fsdp": "shard"}  # presets of one dimension
PULL = 0.1
OTHER_SPLITS = 12
LIMITS = {"gemm-a100": 0.9, "tensor_hidden": 1.0}  # nothing runs beyond what hardware can do


def shapes() -> dict[str, DecoderConfig]:
    base = compose(["model=gpt2-124m"]).config.model
    assert isinstance(base, DecoderConfig)
    llama = replace(
        base,
        family="llama",
        norm="rmsnorm",
        positions="rope",
        rope_theta=5e5,
        activation="silu",
        gated_mlp=True,
        bias="none",
        tied_head=False,
        max_length=262144,
        vocab_size=128256,
        kv_heads=8,
    )
    plain = replace(base, bias="none", max_length=8192)
    return {
        "gpt2-124m": base,
        "mpt-125m": replace(plain, name="mpt-125m", vocab_size=50368),
        "mpt-7b": replace(plain, name="mpt-7b", layers=32, width=4096, heads=32, vocab_size=50432),
        "nanochat-d26": replace(
            llama, name="nanochat-d26", layers=26, width=1664, heads=13, kv_heads=13, gated_mlp=False, vocab_size=32768
        ),
        "llama3-8b": replace(llama, name="llama3-8b", layers=32, width=4096, heads=32, mlp_width=14336),
        "llama3-70b": replace(llama, name="llama3-70b", layers=80, width=8192, heads=64, mlp_width=28672),
        "llama3-405b": replace(llama, name="llama3-405b", layers=126, width=16384, heads=128, mlp_width=53248),
    }


def software(name: str, fitted: dict[str, float]) -> Software:
    base, _, extra = name.partition("+")
    gemm = {"torch-compile-fp8": fitted["float8"], "megatron-fp8": fitted["float8-megatron"]}.get(base, 1.0)
    traffic = fitted.get(
        f"traffic-{base}", fitted["traffic-torch-compile"]
    )  # CUDA by hand fuses what the compiler fuses
    hidden = fitted["tensor_hidden"] if extra == "async-tp" else 0.0
    return Software(name, gemm, traffic, host_seconds=0.0, tensor_hidden=hidden)


def device(name: str, fitted: dict[str, float]) -> Gpu:
    """The GPU with the fractions being fitted. torchtitan's own machines hold H100s limited to 500 W, with HBM2e of 2.4 TB/s."""
    gpu = find_gpu(name.removesuffix("-500w"))
    assert gpu is not None
    chip = "a100" if name.startswith("a100") else "h100"
    generation = replace(gpu.generation, gemm=fitted[f"gemm-{chip}"], attention=fitted[f"attention-{chip}"])
    limited = fitted["gemm-h100-500w"] / fitted["gemm-h100"] if name.endswith("-500w") else 1.0
    memory = 2.4e12 if name.endswith("-500w") else gpu.memory_bytes_per_s
    return replace(gpu, generation=generation, power=limited, memory_bytes_per_s=memory)


def mesh_of(row: Run) -> Mesh:
    if row["mesh"] in WHOLE:
        return Mesh(**{WHOLE[row["mesh"]]: int(row["gpus"])})
    return Mesh(**{name: int(degree) for name, degree in (part.split("=") for part in row["mesh"].split(","))})


def predict(row: Run, models: dict[str, DecoderConfig], fitted: dict[str, float]) -> float:
    """Tokens per second and GPU."""
    node = Node(
        device(row["gpu"], fitted), int(row["gpus_per_node"]), NETWORK_BYTES_PER_S[row["gpu"].split("-")[0]], efa=True
    )
    job = TrainingJob(
        models[row["model"]],
        int(row["sequence_length"]),
        int(row["micro_batch"]),
        int(row["accumulation"]),
        compiled="compile" in row["software"],
        checkpointing=row["checkpointing"] == "full",
    )
    mesh = mesh_of(row)
    return (
        tokens_per_step(job, mesh) / step_time(job, mesh, node, software(row["software"], fitted)).seconds / mesh.gpus
    )


def fit(rows: list[Run], models: dict[str, DecoderConfig]) -> dict[str, float]:
    """Least absolute log error, by coordinate descent: a dozen numbers, no gradient needed."""
    fitted = dict(START)

    def cost(values: dict[str, float]) -> float:
        errors = [abs(math.log(predict(row, models, values) / float(row["tokens_per_s_per_gpu"]))) for row in rows]
        return statistics.fmean(errors) + PULL * statistics.fmean(
            math.log(values[name] / START[name]) ** 2 for name in START
        )

    best = cost(fitted)
    step = 1.25
    while step > 1.005:
        improved = False
        for name in START:
            for factor in (step, 1 / step):
                tried = fitted | {name: fitted[name] * factor}
                if (
                    all(tried[limited] <= most for limited, most in LIMITS.items())
                    and (found := cost(tried)) < best - 1e-9
                ):
                    fitted = tried
                    best = found
                    improved = True
        if not improved:
            step = math.sqrt(step)
    return fitted


def quantile(values: list[float], at: float) -> float:
    ordered = sorted(values)
    position = at * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def halves(rows: list[Run], salt: str = "") -> tuple[list[Run], list[Run]]:
    """The half to fit on and the half to predict, by nothing but the names."""
    ordered = sorted(rows, key=lambda row: hashlib.sha256((salt + row["run"]).encode()).hexdigest())
    return ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]


def error_of(row: Run, models: dict[str, DecoderConfig], fitted: dict[str, float]) -> float:
    return predict(row, models, fitted) / float(row["tokens_per_s_per_gpu"]) - 1


def summary(errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"{len(sizes)} runs, median error {statistics.median(sizes):.1%}, p90 {quantile(sizes, 0.9):.1%}"


def report() -> str:
    rows = runs()
    models = shapes()
    fitting, holdout = halves(rows)
    fitted = fit(fitting, models)
    lines = ["fitted on half: " + _values(fitted), ""]
    for name, half in (("fit", fitting), ("holdout", holdout)):
        lines += [
            f"| {name} | software | GPUs | published tok/s/GPU | predicted | error |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['run']} | {row['software']} | {row['gpus']} {row['gpu']} | {float(row['tokens_per_s_per_gpu']):,.0f} | {predict(row, models, fitted):,.0f} | {error_of(row, models, fitted):+.1%} |"
            for row in half
        ]
        lines += ["", f"{name}: {summary([error_of(row, models, fitted) for row in half])}", ""]
    lines += ["Other halves, by a number before each name; the runs that were not fitted on:", ""]
    for salt in range(OTHER_SPLITS):
        fitting, holdout = halves(rows, str(salt))
        other = fit(fitting, models)
        lines.append(f"- {salt}: {summary([error_of(row, models, other) for row in holdout])}")
    return "\n".join([*lines, "", "fitted on all, which the planner uses: " + _values(fit(rows, models)), ""])


def _values(fitted: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in fitted.items())


def runs() -> list[Run]:
    return list(csv.DictReader((HERE / "published_runs.csv").read_text().splitlines()))


if __name__ == "__main__":
    text = report()
    print(text)
    (HERE / "published.log").write_text(text)
