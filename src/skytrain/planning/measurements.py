"""Measured steps in the user's cache, and predictions corrected by them.

The time of a step is roughly the longer of device time and host launch time. A measurement shows how much slower or
faster than predicted that side was. A prediction for the same job is then *measured*; for the same device and mode
with another micro-batch, length or model it is *calibrated* by the nearest measurement of the limiting side; any other
prediction is *assumed*.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import DecoderConfig, SkytrainError, skytrain_cache_folder, upgrade
from ..storage import data_of, read_file_object
from .communication import Node
from .hardware import find_gpu
from .memory import KernelPath, Precision, TrainingJob, path_of
from .mesh import Mesh
from .throughput import SHARPNESS, Source, StepTime, launch_seconds, step_time, together

REMEASURE = "remove it, and measure again: skytrain plan --measure"
WARM_STEPS = slice(10, 20)  # of 20: the first ones compile, allocate and fill caches

# Standard deviation of the logarithm of a step's time. Assumed: wide enough for software that the fit on published runs
# has not seen (benchmarks/planning/published.log), as ours is on GPUs where nothing was measured.
SIGMA: dict[Source, float] = {"measured": 0.03, "calibrated": 0.08, "assumed": 0.20}


@dataclass(frozen=True)
class Measurement:
    device: str  # torch's name, or "cpu"
    gpus: int
    model: str
    # The model's shape, from which the roofline can be recomputed; None for a plugged-in model.
    decoder: dict[str, Any] | None
    sequence_length: int
    micro_batch: int
    accumulation: int
    preset: str
    precision: Precision
    path: KernelPath
    checkpointing: bool
    step_seconds: float  # the worst of steps 10 to 19
    peak_bytes: int | None
    date: str
    torch: str
    # As in TrainingJob; older measurements lack them.
    graphs: bool = False
    selective: bool = False
    fp8: bool = False

    @property
    def tokens_per_s(self) -> float:
        return self.micro_batch * self.sequence_length * self.accumulation * self.gpus / self.step_seconds

    def job(self) -> TrainingJob | None:
        """Return the measured job as input for the roofline, or None for a plugged-in model."""
        if self.decoder is None:
            return None
        return TrainingJob(
            model=DecoderConfig(**upgrade(DecoderConfig, self.decoder)),
            sequence_length=self.sequence_length,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            precision=self.precision,
            compiled=self.path == "compiled",
            fused=self.path == "fused",
            checkpointing=self.checkpointing,
            graphs=self.graphs,
            selective=self.selective,
            fp8=self.fp8,
        )


@dataclass(frozen=True)
class Prediction:
    step: StepTime
    seconds: float
    source: Source
    because: str


def decoder_fields(model: DecoderConfig) -> dict[str, Any]:
    """Return the decoder settings that affect speed, as JSON values; excludes position scaling and weights' origin."""
    return asdict(replace(model, rope_scaling=None, weights=None))


def warm_worst(step_seconds: Sequence[float]) -> float:
    """Return the slowest step from the tenth on, of 20 or more: the worst case for a budget."""
    warm = list(step_seconds)[WARM_STEPS.start :]
    if len(warm) < WARM_STEPS.stop - WARM_STEPS.start:
        raise SkytrainError(f"a measurement needs {WARM_STEPS.stop} steps, and {len(step_seconds)} were taken")
    return max(warm)


def save_measurement(measurement: Measurement, folder: Path | None = None) -> Path:
    """Save a measurement, replacing an older one of the same job."""
    fields = asdict(measurement)
    key = [value for name, value in fields.items() if name not in ("step_seconds", "peak_bytes", "date", "torch")]
    place = (folder or skytrain_cache_folder()) / "measurements"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{measurement.model}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(fields, indent=1) + "\n")
    part.replace(path)
    return path


def load_measurements(folder: Path | None = None) -> list[Measurement]:
    measurements = []
    for path in sorted(((folder or skytrain_cache_folder()) / "measurements").glob("*.json")):
        with data_of(str(path), REMEASURE):
            one = Measurement(**read_file_object(path, remedy=REMEASURE))
            one.job()  # a decoder of another version has other fields
            measurements.append(one)
    return measurements


def predict(job: TrainingJob, mesh: Mesh, node: Node, measurements: Sequence[Measurement] = ()) -> Prediction:
    """Predict the seconds of one optimizer step by the roofline, corrected by near measurements if there are any."""
    step = step_time(job, mesh, node)
    here = [one for one in measurements if is_of_gpu(one, node)]
    known = [one for one in here if (one.precision, one.path) == (job.precision, path_of(job, mesh))]
    if not known:
        return _by_neighbours(job, mesh, node, here, step)
    known.sort(key=lambda one: _distance(one, job, mesh))
    then = [_arithmetic(one, node) for one in known]
    if not any(_distance(known[0], job, mesh)):
        return Prediction(step, step.seconds * known[0].step_seconds / then[0][0].seconds, "measured", _what(known[0]))

    device = step.device
    launch = launch_seconds(job, mesh)
    by_device = by_host = None
    for one, (step_then, launch_then) in reversed(
        list(zip(known, then, strict=True))
    ):  # the nearest comes last and wins
        if step_then.device >= launch_then:
            device = step.device * _slower(one.step_seconds, step_then.device, launch_then)
            by_device = one
        else:
            launch = launch_seconds(job, mesh) * _slower(one.step_seconds, launch_then, step_then.device)
            by_host = one
    limit, side = (by_device, "device") if device >= launch else (by_host, "host")
    seconds = together(device, launch)
    if limit is None:
        because = f"nothing was measured on {node.gpu.name} in {_mode(job, mesh)} where the {side} is the limit"
        return Prediction(step, seconds, "assumed", because)
    return Prediction(step, seconds, "calibrated", _what(limit))


def _by_neighbours(job: TrainingJob, mesh: Mesh, node: Node, here: Sequence[Measurement], step: StepTime) -> Prediction:
    """Predict a mode that was not measured on this GPU, corrected like the nearest measured mode.

    Without this, a GPU that measured slow would be chosen in a mode that was not measured.
    """
    unmeasured = f"nothing was measured on {node.gpu.name} in {_mode(job, mesh)}"
    if not here:
        return Prediction(step, step.seconds, "assumed", unmeasured)
    near = min(here, key=lambda one: (one.precision != job.precision, *_distance(one, job, mesh)))
    ratio = near.step_seconds / _arithmetic(near, node)[0].seconds
    because = f"{unmeasured}; times {ratio:.2f}, as {near.precision}, {near.path} was: {_what(near)}"
    return Prediction(step, ratio * step.seconds, "assumed", because)


def _mode(job: TrainingJob, mesh: Mesh) -> str:
    return f"{job.precision}, {path_of(job, mesh)}"


def _slower(measured: float, longer: float, shorter: float) -> float:
    """Return how much slower than predicted the longer side was, given the measured step.

    The whole ratio is used if the shorter side by itself explains the step.
    """
    rest = 1 - (shorter / measured) ** SHARPNESS
    return measured * rest ** (1 / SHARPNESS) / longer if rest > 0.5 else measured / together(longer, shorter)


def is_of_gpu(one: Measurement, node: Node) -> bool:
    """Return whether it was measured on this node's GPU, with a model whose shape is known."""
    gpu = find_gpu(one.device)
    return gpu is not None and gpu.name == node.gpu.name and one.decoder is not None


def _arithmetic(one: Measurement, node: Node) -> tuple[StepTime, float]:
    """Return the roofline's prediction for the measured job: its step time and the host's launch time."""
    then = one.job()
    mesh = Mesh(replicate=one.gpus)
    assert then is not None
    return step_time(then, mesh, node), launch_seconds(then, mesh)


def _what(one: Measurement) -> str:
    return (
        f"{one.model}, micro-batch {one.micro_batch} of {one.sequence_length} on {one.gpus} x {one.device}, {one.date}"
    )


def _distance(one: Measurement, job: TrainingJob, mesh: Mesh) -> tuple[float, ...]:
    """Return the distance between a measurement and a job, the largest difference first; ignores accumulation."""
    return (
        float(one.decoder != decoder_fields(job.model)),
        float((one.preset, one.gpus) != (mesh.preset, mesh.gpus)),
        float((one.checkpointing, one.selective, one.fp8) != (job.checkpointing, job.selective, job.fp8)),
        abs(math.log(one.sequence_length / job.sequence_length)),
        abs(math.log(one.micro_batch / job.micro_batch)),
    )
