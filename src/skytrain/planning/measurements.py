"""Measured steps, kept in the user's cache, and the predictions they correct.

A step takes as long as the device computes and the host launches, mostly the longer of them, and a measurement says how much slower
or faster that one side was than the arithmetic had it. The same job again is then *measured*; the same device and mode at another
micro-batch, length or model is *calibrated* by the nearest measurement of the side that limits it; anything else is *assumed*.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from skytrain.config import DecoderConfig, SkytrainError, skytrain_cache_folder

from .communication import Node
from .hardware import find_gpu
from .memory import KernelPath, Precision, TrainingJob, path_of
from .mesh import Mesh
from .throughput import SHARPNESS, Source, StepTime, launch_seconds, step_time, together

WARM_STEPS = slice(10, 20)  # of 20: the first ones compile, allocate and fill caches

# One standard deviation of the logarithm of a step's time. Assumed: from the error on published runs that the fit had not seen.
SIGMA: dict[Source, float] = {"measured": 0.03, "calibrated": 0.08, "assumed": 0.20}


@dataclass(frozen=True)
class Measurement:
    device: str  # torch's name, or "cpu"
    gpus: int
    model: str
    # The model's shape, so that the roofline can be asked about it again; None for a plugged-in model.
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
    # As a job has them; what was measured before there were any has none.
    graphs: bool = False
    selective: bool = False
    fp8: bool = False

    @property
    def tokens_per_s(self) -> float:
        return self.micro_batch * self.sequence_length * self.accumulation * self.gpus / self.step_seconds

    def job(self) -> TrainingJob | None:
        """What was measured, as the roofline takes it."""
        if self.decoder is None:
            return None
        return TrainingJob(
            DecoderConfig(**self.decoder),
            self.sequence_length,
            self.micro_batch,
            self.accumulation,
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
    """What of a decoder decides its speed, as JSON keeps it. How positions are stretched and where weights come from do not."""
    return asdict(replace(model, rope_scaling=None, weights=None))


def warm_worst(step_seconds: Sequence[float]) -> float:
    """The slowest of steps 10 to 19 of 20: what a budget has to reckon with."""
    warm = list(step_seconds)[WARM_STEPS]
    if len(warm) < WARM_STEPS.stop - WARM_STEPS.start:
        raise SkytrainError(f"a measurement needs {WARM_STEPS.stop} steps, and {len(step_seconds)} were taken")
    return max(warm)


def save_measurement(measurement: Measurement, folder: Path | None = None) -> Path:
    """A newer measurement of the same thing replaces the older."""
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
    found = []
    for path in sorted(((folder or skytrain_cache_folder()) / "measurements").glob("*.json")):
        try:
            one = Measurement(**json.loads(path.read_text()))
            one.job()  # a decoder of another version has other fields
            found.append(one)
        except (TypeError, ValueError) as error:
            raise SkytrainError(
                f"{path} is not a measurement ({error})\n  remove it, and measure again: skytrain plan --measure"
            ) from None
    return found


def predict(job: TrainingJob, mesh: Mesh, node: Node, measurements: Sequence[Measurement] = ()) -> Prediction:
    """Seconds of one optimizer step, by arithmetic and, where something near was measured, by how the arithmetic erred there."""
    step = step_time(job, mesh, node)
    here = [one for one in measurements if is_of_gpu(one, node)]
    known = [one for one in here if (one.precision, one.path) == (job.precision, path_of(job, mesh))]
    if not known:
        return _by_neighbours(job, mesh, node, here, step)
    known.sort(key=lambda one: _distance(one, job, mesh))
    then = [_arithmetic(one, node) for one in known]
    if not any(_distance(known[0], job, mesh)):
        return Prediction(step, step.seconds * known[0].step_seconds / then[0][0].seconds, "measured", _what(known[0]))

    device, launch = step.device, launch_seconds(job, mesh)
    by_device = by_host = None
    for one, (step_then, launch_then) in reversed(list(zip(known, then, strict=True))):  # the nearest has the last word
        if step_then.device >= launch_then:
            device, by_device = step.device * _slower(one.step_seconds, step_then.device, launch_then), one
        else:
            launch, by_host = launch_seconds(job, mesh) * _slower(one.step_seconds, launch_then, step_then.device), one
    limit, side = (by_device, "device") if device >= launch else (by_host, "host")
    seconds = together(device, launch)
    if limit is None:
        because = f"nothing was measured on {node.gpu.name} in {_mode(job, mesh)} where the {side} is the limit"
        return Prediction(step, seconds, "assumed", because)
    return Prediction(step, seconds, "calibrated", _what(limit))


def _by_neighbours(job: TrainingJob, mesh: Mesh, node: Node, here: Sequence[Measurement], step: StepTime) -> Prediction:
    """A mode that was not measured on this GPU: as much slower or faster than arithmetic as the nearest measured mode was.

    Without this a GPU that measures slow would be chosen in the one mode that nobody measured.
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
    """How much slower the longer side was than arithmetic has it, given the step; all of it where the shorter alone explains the step."""
    rest = 1 - (shorter / measured) ** SHARPNESS
    return measured * rest ** (1 / SHARPNESS) / longer if rest > 0.5 else measured / together(longer, shorter)


def is_of_gpu(one: Measurement, node: Node) -> bool:
    """Whether it was measured on this node's GPU, with a model whose shape is known."""
    gpu = find_gpu(one.device)
    return gpu is not None and gpu.name == node.gpu.name and one.decoder is not None


def _arithmetic(one: Measurement, node: Node) -> tuple[StepTime, float]:
    """What was measured, as the arithmetic has it: its step, and the host's part of it."""
    then, mesh = one.job(), Mesh(replicate=one.gpus)
    assert then is not None
    return step_time(then, mesh, node), launch_seconds(then, mesh)


def _what(one: Measurement) -> str:
    return (
        f"{one.model}, micro-batch {one.micro_batch} of {one.sequence_length} on {one.gpus} x {one.device}, {one.date}"
    )


def _distance(one: Measurement, job: TrainingJob, mesh: Mesh) -> tuple[float, ...]:
    """How unlike a measurement is, the worst difference first; accumulation only repeats what was measured."""
    return (
        float(one.decoder != decoder_fields(job.model)),
        float((one.preset, one.gpus) != (mesh.preset, mesh.gpus)),
        float((one.checkpointing, one.selective, one.fp8) != (job.checkpointing, job.selective, job.fp8)),
        abs(math.log(one.sequence_length / job.sequence_length)),
        abs(math.log(one.micro_batch / job.micro_batch)),
    )
