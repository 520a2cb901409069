"""Fits the throughput model on some published runs and compares its predictions with others.

    python benchmarks/planning/published.py            prints the tables and writes published.log beside this file

published_runs.csv (42 runs) and published_runs_2.csv (424) name every run with its source and the class of its software.
A class has its own efficiencies of products, attention and everything else; GPUs, links and the slowdown by the number
of machines are common. Every class has one or two sources, so runs are split by model: of each source, the models are
ordered by the sha256 of their names, and every second one is fitted on. The log names both. A second fit leaves whole
sources out where a class has several. A third question is software of a class that the fit has never seen: its values are the mean of the other classes'.
The p10-p90 range of a group comes from the runs of it that are fitted on, never from those that it is reported on: each
is predicted by a fit without its model (or without its class), and the range is from the tenth to the ninetieth
percentile of these errors. What the planner ships for its own software is not fitted here but measured (h200.md); GPU generations and the slowdown are this
fit's on all.
Left out: runs with partial recomputation, which the planner cannot express.
"""

from __future__ import annotations

import csv
import hashlib
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.config import DecoderConfig, compose
from skytrain.planning import Gpu, Mesh, Node, decoder_size, find_gpu
from skytrain.planning.loss_laws import least_squares
from skytrain.planning.measurements import SIGMA
from skytrain.planning.memory import TrainingJob
from skytrain.planning.throughput import WEIGHT_BYTES, Software, step_time, tokens_per_step

HERE = Path(__file__).parent
NETWORK_BYTES_PER_S = {"h100": 400e9, "h200": 400e9, "a100": 50e9}  # 3200 and 400 Gbit/s a machine
WHOLE = {"single": "replicate", "ddp": "replicate", "fsdp": "shard"}  # presets of one dimension
CLASSES = ("composer", "megatron-fp8", "megatron-2023", "internevo")  # whose products and attention are not torch's

# Start values and, through a weak pull towards them, what a class with few runs falls back on.
START = {
    "gemm-a100": 0.80,
    "gemm-h100": 0.68,
    "gemm-h100-500w": 0.55,
    "attention-a100": 0.45,
    "attention-h100": 0.30,
    "float8": 1.5,
    "hidden-async": 0.4,
    "hidden-megatron": 0.5,
    "straggling": 0.01,
    "traffic-torch-eager": 4.5,
    "traffic-torch-compile": 1.5,
    "traffic-torch-compile-2.4": 2.5,
    "traffic-torch-compile-2.0": 4.0,
    "traffic-composer": 3.0,
    "traffic-megatron-fp8": 2.0,
    "traffic-megatron-2023": 3.0,
    "traffic-internevo": 3.0,
    **{f"gemm-{name}": 1.0 for name in CLASSES},
    **{f"attention-{name}": 1.0 for name in CLASSES},
    "gemm-megatron-fp8": 1.7,  # of bf16's: the rates of NVIDIA's runs are beyond what bf16 can reach
}
BF16_CLASSES = (
    "torch-eager",
    "torch-compile",
    "composer",
    "megatron-2023",
    "internevo",
)  # whose mean an unknown one has
LEFT_OUT = ("torch-eager", "composer", "megatron-2023", "internevo")  # whole, to ask for software that is unknown
LIKE_COMPILED = ("torch-compile-fp8", "megatron-bf16", "cuda")  # classes of few runs with the traffic of compiled torch
# What two RMS norms of several kernels move more than fused ones, for each token and element of the width. Each in float32:
# forward cast 6, square 8, mean 4, product 8, cast 6 and gain 4 bytes, backward 72; in one kernel 4 and 6.
UNFUSED_NORM_BYTES = 2 * (36 + 72 - 10)
# Megatron and InternEvo hold weights in bf16, apart from those that the optimizer updates: a micro-batch casts nothing, and
# reads and writes the float32 sum of gradients.
NARROW_WEIGHT_BYTES = 8
FOLDS = 8  # of the runs that are fitted on, for the width of the p10-p90 range
PULL = 0.5  # ln deviation of a value around its start
NOISE = 0.08


@dataclass(frozen=True)
class Run:
    name: str
    source: str
    software: str
    gpu: str
    gpus_per_node: int
    network: float
    job: TrainingJob
    mesh: Mesh
    tokens_per_s: float  # and GPU

    @property
    def family(self) -> str:
        """The class of the software, whatever its version and options."""
        return self.software.partition("+")[0].removesuffix("-2.4").removesuffix("-2.0")

    @property
    def group(self) -> list[str]:
        groups = []
        if self.job.sequence_length >= 16384 or self.mesh.context > 1:
            groups.append("T >= 16k, context parallel")
        elif self.mesh.tensor > 1 or self.mesh.pipeline > 1:
            groups.append("tensor, pipeline")
        else:
            groups.append("data-parallel, FSDP")
        if self.mesh.gpus >= 512:
            groups.append(">= 512 GPUs")
        return groups


Bands = dict[str, tuple[float, float]]  # p10 and p90 of the ln errors, by group

LIMITS = {
    "data-parallel, FSDP": (0.08, 0.22),
    "tensor, pipeline": (0.12, 0.28),
    "T >= 16k, context parallel": (0.15, 0.30),
    ">= 512 GPUs": (0.15, 0.30),
}


@lru_cache(maxsize=1)
def base_model() -> DecoderConfig:
    model = compose(["model=gpt2-124m"]).config.model
    assert isinstance(model, DecoderConfig)
    return model


def llama(**fields: Any) -> DecoderConfig:
    modern: dict[str, Any] = {
        "family": "llama",
        "norm": "rmsnorm",
        "positions": "rope",
        "rope_theta": 5e5,
        "activation": "silu",
        "gated_mlp": True,
        "bias": "none",
        "tied_head": False,
        "max_length": 262144,
    }
    return replace(base_model(), **(modern | fields))


def shapes() -> dict[str, DecoderConfig]:
    base = base_model()
    plain = replace(base, bias="none", max_length=8192)
    big = {"vocab_size": 128256, "kv_heads": 8}
    return {
        "gpt2-124m": base,
        "mpt-125m": replace(plain, name="mpt-125m", vocab_size=50368),
        "mpt-7b": replace(plain, name="mpt-7b", layers=32, width=4096, heads=32, vocab_size=50432),
        "nanochat-d26": llama(
            name="nanochat-d26", layers=26, width=1664, heads=13, kv_heads=13, gated_mlp=False, vocab_size=32768
        ),
        "llama3-8b": llama(name="llama3-8b", layers=32, width=4096, heads=32, mlp_width=14336, **big),
        "llama3-70b": llama(name="llama3-70b", layers=80, width=8192, heads=64, mlp_width=28672, **big),
        "llama3-405b": llama(name="llama3-405b", layers=126, width=16384, heads=128, mlp_width=53248, **big),
    }


def shape_of(row: dict[str, str]) -> DecoderConfig:
    """The decoder of a row: gated or not, tied or not, whichever has the row's number of parameters."""
    fields: dict[str, Any] = {
        "name": row["model"],
        "layers": int(row["layers"]),
        "width": int(row["dim"]),
        "heads": int(row["heads"]),
        "kv_heads": int(row["kv_heads"]),
        "mlp_width": int(row["ffn"]),
        "vocab_size": int(row["vocab"]),
        "head_size": None if int(row["dim"]) % int(row["heads"]) == 0 else 128,
    }
    plain = replace(base_model(), bias="none", max_length=max(2048, int(row["seq"])))
    options = [replace(plain, **fields, tied_head=tied) for tied in (True, False)]
    options += [llama(**fields, tied_head=tied) for tied in (True, False)]
    return min(options, key=lambda model: abs(math.log(decoder_size(model).parameters / float(row["params"]))))


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((HERE / name).read_text().splitlines()))


def first_runs() -> list[Run]:
    models = shapes()
    found = []
    for row in rows("published_runs.csv"):
        mesh = (
            Mesh(**{WHOLE[row["mesh"]]: int(row["gpus"])})
            if row["mesh"] in WHOLE
            else Mesh(**{name: int(degree) for name, degree in (part.split("=") for part in row["mesh"].split(","))})
        )
        job = TrainingJob(
            models[row["model"]],
            int(row["sequence_length"]),
            int(row["micro_batch"]),
            int(row["accumulation"]),
            compiled="compile" in row["software"],
            checkpointing=row["checkpointing"] == "full",
        )
        found.append(
            Run(
                name=row["run"],
                source=row["run"].partition("-")[0],
                software=row["software"],
                gpu=row["gpu"],
                gpus_per_node=int(row["gpus_per_node"]),
                network=NETWORK_BYTES_PER_S[row["gpu"].split("-")[0]],
                job=job,
                mesh=mesh,
                tokens_per_s=float(row["tokens_per_s_per_gpu"]),
            )
        )
    return found


def second_runs() -> list[Run]:
    found = []
    for number, row in enumerate(rows("published_runs_2.csv"), 2):
        if row["ac"] == "partial":
            continue
        data = int(row["dp"])
        sharded = int(row["zero"]) == 3
        mesh = Mesh(
            pipeline=int(row["pp"]),
            replicate=int(row["replicate"]) if sharded else 1,
            shard=int(row["shard"]) if sharded else data,
            context=int(row["cp"]),
            tensor=int(row["tp"]),
            chunks=int(row["virtual_stages"]),
            zero=3 if sharded else 1,
        )
        micro = int(row["micro_batch"])
        job = TrainingJob(
            shape_of(row),
            int(row["seq"]),
            micro,
            max(1, int(row["global_batch"]) // (micro * data)),
            compiled="compile" in row["software"] or row["software"].startswith(("megatron", "cuda")),
            checkpointing=row["ac"] == "full",
            selective=row["ac"] == "selective",
            schedule="interleaved-1f1b" if int(row["virtual_stages"]) > 1 else "1f1b",
        )
        limited = "500 W" in row["note"]
        found.append(
            Run(
                name=f"{row['model']}, line {number}",
                source=row["source"],
                software="+".join([row["software"], *_options(row)]),
                gpu="h100-500w" if limited else row["gpu"],
                gpus_per_node=min(8, int(row["gpus"])),
                network=float(row["network_bytes_s_node"]),
                job=job,
                mesh=mesh,
                tokens_per_s=float(row["measured_tokens_s_gpu"]),
            )
        )
    return found


def _options(row: dict[str, str]) -> list[str]:
    """What a row of Megatron's says of its kernels, and of what its tensor parallelism shares and hides."""
    if row["software"] == "megatron-fp8":
        return ["tp-overlap"] if "TP overlap" in row["note"] else []
    if row["software"] != "megatron-2023":
        return []
    return [*(["norms"] if "RMS kernel" not in row["note"] else []), *(["no-sp"] if "SP" not in row["note"] else [])]


def software(name: str, fitted: dict[str, float]) -> Software:
    base, *options = name.split("+")
    fp8 = {"torch-compile-fp8": "float8", "megatron-fp8": "gemm-megatron-fp8"}.get(base)
    hidden = 0.0
    if "async-tp" in options:
        hidden = fitted["hidden-async"]
    elif "tp-overlap" in options or base == "megatron-bf16":
        hidden = fitted["hidden-megatron"]
    return Software(
        name,
        1.0 if fp8 else _of_class("gemm", base, fitted),
        _of_class("traffic", base, fitted),
        host_seconds=0.0,
        tensor_hidden=min(1.0, hidden),
        attention=_of_class("attention", base, fitted),
        straggling=fitted["straggling"],
        blocks=fitted[fp8] if fp8 else 1.0,  # neither Transformer Engine's nor torchao's users have the head in fp8
        weight_bytes=NARROW_WEIGHT_BYTES if base.startswith(("megatron", "internevo")) else WEIGHT_BYTES,
        norm_bytes=UNFUSED_NORM_BYTES if "norms" in options else 0.0,
        sequence_parallel="no-sp" not in options,
    )


def _of_class(what: str, base: str, fitted: dict[str, float]) -> float:
    """Return a class's value; of one that the fit does not know, the mean of the logarithms of the bf16 classes'."""
    plain = fitted["traffic-torch-compile"] if what == "traffic" else 1.0
    if f"{what}-{base}" in fitted or f"traffic-{base}" in fitted or base in LIKE_COMPILED:
        return fitted.get(f"{what}-{base}", plain)
    known = [name for name in BF16_CLASSES if f"traffic-{name}" in fitted]
    return math.exp(statistics.fmean(math.log(fitted.get(f"{what}-{name}", plain)) for name in known))


def without_class(fitted: dict[str, float], family: str) -> dict[str, float]:
    """Return the values of a fit without those of a class, which is then unknown."""
    return {name: value for name, value in fitted.items() if not name.partition("-")[2].startswith(family)}


def device(name: str, fitted: dict[str, float]) -> Gpu:
    """The GPU with the fractions being fitted. torchtitan's own machines hold H100s limited to 500 W, with HBM2e of 2.4 TB/s."""
    gpu = find_gpu(name.removesuffix("-500w"))
    assert gpu is not None
    chip = "a100" if name.startswith("a100") else "h100"
    generation = replace(gpu.generation, gemm=fitted[f"gemm-{chip}"], attention=fitted[f"attention-{chip}"])
    limited = fitted["gemm-h100-500w"] / fitted["gemm-h100"] if name.endswith("-500w") else 1.0
    memory = 2.4e12 if name.endswith("-500w") else gpu.memory_bytes_per_s
    return replace(gpu, generation=generation, power=limited, memory_bytes_per_s=memory)


def predict(run: Run, fitted: dict[str, float]) -> float:
    """Tokens per second and GPU."""
    return _predict(run, device(run.gpu, fitted), software(run.software, fitted))


def _predict(run: Run, gpu: Gpu, its_software: Software) -> float:
    node = Node(gpu, run.gpus_per_node, run.network, efa=True)
    seconds = step_time(run.job, run.mesh, node, its_software).seconds
    return tokens_per_step(run.job, run.mesh) / seconds / run.mesh.gpus


def fit(runs: Sequence[Run]) -> dict[str, float]:
    """Least squares of ln errors, less sensitive to runs that are far off, with a weak pull towards the start."""
    names = list(START)
    kept: dict[tuple[int, Gpu, Software], float] = {}  # most values that are fitted change few of the runs

    def predictions(fitted: dict[str, float]) -> Any:
        gpus = {name: device(name, fitted) for name in {run.gpu for run in runs}}
        classes = {name: software(name, fitted) for name in {run.software for run in runs}}
        found = []
        for number, run in enumerate(runs):
            at = (number, gpus[run.gpu], classes[run.software])
            if at not in kept:
                kept[at] = _predict(run, at[1], at[2])
            found.append(kept[at])
        return np.array(found)

    published = np.array([run.tokens_per_s for run in runs])

    def residuals(state: Any) -> Any:
        fitted = dict(
            zip(
                names,
                (START[name] * math.exp(min(value, 3.0)) for name, value in zip(names, state, strict=True)),
                strict=True,
            )
        )
        missed = np.log(predictions(fitted) / published) / NOISE
        robust = np.sign(missed) * np.sqrt(2 * (np.sqrt(1 + missed**2) - 1))
        return np.concatenate([robust, state / PULL])

    found = least_squares(residuals, np.zeros(len(names)), steps=12)
    return {name: START[name] * math.exp(value) for name, value in zip(names, found, strict=True)}


def is_fitted_on(run: Run, runs: Sequence[Run]) -> bool:
    """Every second model of a source, in the order of a hash of its name; runs of a source with one model by their own names."""
    models = {one.job.model.name for one in runs if one.source == run.source}
    key: Callable[[Run], str] = (lambda one: one.job.model.name) if len(models) > 1 else (lambda one: one.name)
    names = {key(one) for one in runs if one.source == run.source}
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return ordered.index(key(run)) % 2 == 0


def source_is_fitted_on(run: Run, runs: Sequence[Run]) -> bool:
    """Of a class with several sources every second one, whole; a class with one source is split by model."""
    sources = {one.source for one in runs if one.family == run.family}
    if len(sources) == 1:
        return is_fitted_on(run, runs)
    ordered = sorted(sources, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return ordered.index(run.source) % 2 == 0


def quantile(values: Sequence[float], at: float) -> float:
    return float(np.quantile(values, at))


def part_of(run: Run, runs: Sequence[Run]) -> str:
    """What is fitted on, or not, as a whole: a model of a source; a run of a source that has one model."""
    models = {one.job.model.name for one in runs if one.source == run.source}
    return f"{run.source}: {run.job.model.name if len(models) > 1 else run.name}"


def unseen_errors(fitting: Sequence[Run]) -> dict[str, float]:
    """Return ln errors of the runs that are fitted on, each predicted by a fit without its model."""
    parts = sorted(
        {part_of(run, fitting) for run in fitting}, key=lambda name: hashlib.sha256(name.encode()).hexdigest()
    )
    fold = {name: number % FOLDS for number, name in enumerate(parts)}
    errors = {}
    for number in range(FOLDS):
        fitted = fit([run for run in fitting if fold[part_of(run, fitting)] != number])
        for run in fitting:
            if fold[part_of(run, fitting)] == number:
                errors[key(run)] = math.log(predict(run, fitted) / run.tokens_per_s)
    return errors


def unknown_class_errors(fitting: Sequence[Run], runs: Sequence[Run]) -> dict[str, float]:
    """Return ln errors of `runs`, each predicted by a fit on those of `fitting` that have another class of software."""
    errors = {}
    for family in LEFT_OUT:
        fitted = without_class(fit([run for run in fitting if run.family != family]), family)
        for run in runs:
            if run.family == family:
                errors[key(run)] = math.log(predict(run, fitted) / run.tokens_per_s)
    return errors


def bands(runs: Sequence[Run], errors: dict[str, float]) -> Bands:
    """Return the p10 and the p90 of each group's ln errors."""
    found = {group: [errors[key(run)] for run in runs if group in run.group and key(run) in errors] for group in LIMITS}
    return {group: (quantile(of, 0.1), quantile(of, 0.9)) for group, of in found.items() if of}


def summary(runs: Sequence[Run], errors: dict[str, float], band: Callable[[Run], Bands]) -> list[str]:
    """Return a table of errors by group, with the share inside the range that `band` has for the run and group."""
    lines = [
        "| runs | count | median | p90 | inside p10-p90 | inside the planner's own 20% | bias | must hold |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    ours = 1.2816 * SIGMA["assumed"]
    for group, (median, p90) in LIMITS.items():
        here = [run for run in runs if group in run.group]
        if not here:
            continue
        of = [errors[key(run)] for run in here]
        sizes = [abs(error) for error in of]
        inside = statistics.fmean(
            band(run)[group][0] <= math.log1p(errors[key(run)]) <= band(run)[group][1] for run in here
        )
        wide = statistics.fmean(abs(math.log1p(error)) <= ours for error in of)
        holds = statistics.median(sizes) <= median and quantile(sizes, 0.9) <= p90
        lines.append(
            f"| {group} | {len(of)} | {statistics.median(sizes):.1%} | {quantile(sizes, 0.9):.1%} | {inside:.0%} | {wide:.0%} | "
            f"{statistics.median(of):+.1%} | {median:.0%}, {p90:.0%}: {'holds' if holds else 'MISSES'} |"
        )
    return lines


def key(run: Run) -> str:
    return f"{run.source}: {run.name}"


def report() -> str:
    runs = [*first_runs(), *second_runs()]
    fitting = [run for run in runs if is_fitted_on(run, runs)]
    others = [run for run in runs if not is_fitted_on(run, runs)]
    fitted = fit(fitting)
    errors = {key(run): predict(run, fitted) / run.tokens_per_s - 1 for run in runs}
    known = bands(fitting, unseen_errors(fitting))
    lines = [f"{len(runs)} runs; fitted on {len(fitting)}: {_values(fitted)}", ""]
    lines += [
        f"p10-p90 ranges, from the runs that are fitted on, each predicted without its model ({FOLDS} folds): {_ranges(known)}",
        "",
        "Runs that were not fitted on:",
        "",
        *summary(others, errors, lambda _: known),
        "",
        "Fitted on:",
        "",
        *summary(fitting, errors, lambda _: known),
        "",
        *unknown_class(fitting, others),
        "",
    ]
    for name, part in (("not fitted on", others), ("fitted on", fitting)):
        lines += [f"| source, {name} | count | median | p90 | bias | models |", "| --- | --- | --- | --- | --- | --- |"]
        for source in sorted({run.source for run in part}):
            of = [run for run in part if run.source == source]
            sizes = [abs(errors[key(run)]) for run in of]
            models = ", ".join(sorted({run.job.model.name for run in of}))
            bias = statistics.median(errors[key(run)] for run in of)
            lines.append(
                f"| {source} | {len(of)} | {statistics.median(sizes):.1%} | {quantile(sizes, 0.9):.1%} | {bias:+.1%} | {models} |"
            )
        lines.append("")
    lines += [
        "| run | software | mesh | GPUs | T | published tok/s/GPU | error | fitted on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {key(run)} | {run.software} | {run.mesh} | {run.mesh.gpus} {run.gpu} | {run.job.sequence_length} | {run.tokens_per_s:,.0f} | "
        f"{errors[key(run)]:+.1%} | {'yes' if run in fitting else 'no'} |"
        for run in runs
    ]
    lines += ["", *left_out(runs)]
    if "--all" in sys.argv:
        lines += ["", "fitted on all, which the planner uses: " + _values(fit(runs))]
    return "\n".join([*lines, ""])


def unknown_class(fitting: Sequence[Run], others: Sequence[Run]) -> list[str]:
    """Software that the fit knows nothing of: each class is left out whole, and predicted as the mean of the others."""
    found = unknown_class_errors(fitting, [*fitting, *others])
    known = bands(fitting, found)
    errors = {name: math.expm1(error) for name, error in found.items()}
    of = [run for run in others if key(run) in errors]
    lines = [
        f"Classes of software left out whole ({', '.join(LEFT_OUT)}), each predicted as the mean of the others; "
        f"p10-p90 ranges, from the same question about the runs that are fitted on: {_ranges(known)}",
        "",
        *summary(of, errors, lambda _: known),
        "",
        "| class | count | median | bias |",
        "| --- | --- | --- | --- |",
    ]
    for family in LEFT_OUT:
        its = [errors[key(run)] for run in of if run.family == family]
        lines.append(
            f"| {family} | {len(its)} | {statistics.median(map(abs, its)):.1%} | {statistics.median(its):+.1%} |"
        )
    return lines


def left_out(runs: Sequence[Run]) -> list[str]:
    """The harder question: sources that the fit has not seen at all."""
    fitting = [run for run in runs if source_is_fitted_on(run, runs)]
    others = [run for run in runs if not source_is_fitted_on(run, runs)]
    fitted = fit(fitting)
    errors = {key(run): predict(run, fitted) / run.tokens_per_s - 1 for run in others}
    seen = {run.source for run in fitting}
    model, whole = bands(fitting, unseen_errors(fitting)), bands(fitting, unknown_class_errors(fitting, fitting))
    lines = [
        f"Whole sources left out, where a class of software has several: fitted on {len(fitting)}, compared with {len(others)}.",
        "fitted on: " + ", ".join(sorted(seen)),
        f"p10-p90 ranges, as above: of a source that is fitted on {_ranges(model)}; of another, as of an unknown class "
        f"{_ranges(model | whole)}",
        "",
        *summary(others, errors, lambda run: model if run.source in seen else model | whole),
        "",
        "| source | count | median | bias |",
        "| --- | --- | --- | --- |",
    ]
    for source in sorted({run.source for run in others}):
        of = [errors[key(run)] for run in others if run.source == source]
        lines.append(f"| {source} | {len(of)} | {statistics.median(map(abs, of)):.1%} | {statistics.median(of):+.1%} |")
    return lines


def _ranges(known: Bands) -> str:
    return ", ".join(
        f"{group} {math.expm1(low):+.0%} to {math.expm1(high):+.0%}" for group, (low, high) in known.items()
    )


def _values(fitted: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in fitted.items())


if __name__ == "__main__":
    text = report()
    print("\n".join(text.splitlines()[:60]))
    (HERE / "published.log").write_text(text)
