"""Rules on the degrees of a mesh, which must divide the model, the sequence, the batch and the processes."""

from __future__ import annotations

import math

from ..mesh import CHUNKS, DIMENSIONS, INTERLEAVED, most_stages
from ..schema import has_layers
from .rule import Rule, Setup


def _processes(setup: Setup) -> str | None:
    mesh = setup.mesh
    if setup.processes is None or mesh.gpus == setup.processes:
        return None
    product = " x ".join(f"{name} {getattr(mesh, name)}" for name in DIMENSIONS if getattr(mesh, name) > 1) or "1"
    return f"the mesh {product} is for {mesh.gpus} processes, but there are {setup.processes}"


def _layers(setup: Setup) -> str | None:
    mesh = setup.mesh
    model = setup.config.model
    stages = mesh.pipeline * mesh.chunks
    if mesh.pipeline == 1 or not has_layers(model) or stages <= most_stages(model.layers, mesh.chunks):
        return None
    each = f" ({mesh.chunks} on each of {mesh.pipeline} ranks)" if mesh.chunks > 1 else ""
    return f"{model.layers} layers are fewer than {stages} stages{each}"


def _chunks(setup: Setup) -> str | None:
    parallel = setup.config.parallel
    own = CHUNKS[parallel.schedule]
    if setup.mesh.pipeline == 1 or parallel.chunks in (None, own):
        return None
    if parallel.schedule != INTERLEAVED:
        return f"{parallel.chunks} parts of the model on each rank; the {parallel.schedule} schedule has {own}"
    return "1 part of the model on each rank is not interleaved" if parallel.chunks == 1 else None


def _pieces(setup: Setup) -> str | None:
    config = setup.config
    ranks = setup.mesh.context
    length = config.trainer.sequence_length
    method = config.parallel.context_method
    pieces = ranks * (1 if method == "ulysses" else 2)
    if ranks == 1 or length % pieces == 0:
        return None
    below = length // pieces * pieces
    above = -(-length // pieces) * pieces
    near = " or ".join(f"trainer.sequence_length={n}" for n in (below, above) if 0 < n <= config.model.max_length)
    twice = "" if method == "ulysses" else ", two for each so that all have the same work"
    fix = f"; try {near}" if near else ""
    return f"{length} tokens do not divide into {pieces} pieces for {ranks} ranks (parallel.context{twice}){fix}"


def _exchanged_heads(setup: Setup) -> str | None:
    mesh = setup.mesh
    model = setup.config.model
    ulysses = setup.config.parallel.context_method == "ulysses"
    if mesh.context == 1 or not ulysses or not has_layers(model):
        return None
    heads = model.heads // mesh.tensor
    if heads % mesh.context == 0:
        return None
    divided = f" ({model.heads} over parallel.tensor={mesh.tensor})" if mesh.tensor > 1 else ""
    return f"ulysses deals heads to ranks, and {heads} heads{divided} do not divide among {mesh.context}"


def _tensor(setup: Setup) -> str | None:
    mesh = setup.mesh
    model = setup.config.model
    if mesh.tensor == 1:
        return None
    if setup.hf is not None:
        return next(
            (
                f"the {size} {what} of {setup.hf.name} do not divide among {mesh.tensor} ranks"
                for what, size in setup.hf.sizes.items()
                if size % mesh.tensor
            ),
            None,
        )
    if not has_layers(model):
        return None
    sizes = {
        "model.heads": model.heads,
        "model.kv_heads": model.groups,
        **({"model.mlp_width": model.hidden_width} if model.experts is None or model.experts.dense_layers else {}),
        "the padded vocabulary (model.pad_vocab_to)": model.padded_vocab,
        "the part of a sequence (trainer.sequence_length)": setup.config.trainer.sequence_length // mesh.context,
    }
    uneven = next(((key, size) for key, size in sizes.items() if size % mesh.tensor), None)
    return uneven and f"{uneven[0]}, which is {uneven[1]}, does not divide among {mesh.tensor} ranks"


def _micro_batches(setup: Setup) -> list[int] | None:
    """Return the micro-batches of each size of step on a data-parallel rank; None if they do not divide evenly."""
    each = (setup.config.trainer.micro_batch or 1) * setup.mesh.data
    sizes = _step_sequences(setup)
    return None if any(size % each for size in sizes.values()) else [size // each for size in sizes.values()]


def _step_sequences(setup: Setup) -> dict[str, int]:
    """Return the sequences of a step by the settings that say so: those of the schedule, and the last."""
    trainer = setup.config.trainer
    sizes = {
        f"trainer.batch_schedule[{number}].batch_tokens": phase.batch_tokens
        for number, phase in enumerate(trainer.batch_schedule)
    }
    sizes["trainer.batch_tokens"] = trainer.batch_tokens
    return {key: size // trainer.sequence_length for key, size in sizes.items()}


def _batch(setup: Setup) -> str | None:
    trainer = setup.config.trainer
    ranks = setup.mesh.data
    together = (trainer.micro_batch or 1) * ranks
    uneven = next(((key, size) for key, size in _step_sequences(setup).items() if size % together), None)
    if uneven is None:
        return None
    key, sequences = uneven
    near = max(1, round(sequences / together)) * together * trainer.sequence_length
    return (
        f"{sequences} sequences a step do not divide over {ranks} data-parallel ranks x "
        f"{trainer.micro_batch or 1} (trainer.micro_batch); try {key}={near}"
    )


def _through_pipeline(setup: Setup) -> str | None:
    mesh = setup.mesh
    parallel = setup.config.parallel
    counts = _micro_batches(setup)
    if mesh.pipeline == 1 or counts is None:
        return None
    through = parallel.pipeline_micro_batches or math.gcd(*counts)
    uneven = next((count for count in counts if count % through), None)
    if uneven is not None:
        return f"{through} does not divide the {uneven} micro-batches of a step"
    if through >= mesh.pipeline and (mesh.chunks == 1 or through % mesh.pipeline == 0):
        return None
    rule = "a multiple of" if mesh.chunks > 1 else "at least"
    return (
        f"{through} micro-batches go through a pipeline of {mesh.pipeline} ranks at a time; "
        f"the {parallel.schedule} schedule needs {rule} {mesh.pipeline}"
    )


# Those of the model and the sequence hold whatever the batch.
MODEL_SIZE_RULES = (
    Rule(
        name="layers",
        key="parallel.pipeline",
        excludes="more stages than layers",
        problem=_layers,
        fix="a smaller parallel.pipeline",
    ),
    Rule(
        name="chunks",
        key="parallel.chunks",
        excludes="any number but a schedule's own, except with `interleaved-1f1b`",
        problem=_chunks,
        fix="parallel.schedule=interleaved-1f1b, or parallel.chunks=null",
    ),
    Rule(
        name="pieces",
        key="trainer.sequence_length",
        excludes="context parallelism whose pieces do not divide it",
        problem=_pieces,
        fix="another trainer.sequence_length, or a smaller parallel.context",
    ),
    Rule(
        name="exchanged-heads",
        key="parallel.context_method",
        excludes="`ulysses` where heads (after tensor parallelism) do not divide among the ranks",
        problem=_exchanged_heads,
        fix="try parallel.context_method=ring",
    ),
    Rule(
        name="tensor-sizes",
        key="parallel.tensor",
        excludes="heads, key-value heads, MLP width, padded vocabulary or parts of a sequence that it does not divide",
        problem=_tensor,
        fix="a parallel.tensor that divides them all, or parallel=fsdp",
    ),
)
JOB_SIZE_RULES = (
    Rule(
        name="processes",
        key="parallel",
        excludes="degrees that do not multiply to the number of processes",
        problem=_processes,
        fix="another number of processes, or -1 for one of the degrees",
    ),
    Rule(
        name="batch",
        key="trainer.batch_tokens",
        excludes="data-parallel ranks x `trainer.micro_batch` that do not divide it, or a batch of `trainer.batch_schedule`",
        problem=_batch,
        fix="another trainer.batch_tokens or trainer.micro_batch",
    ),
    Rule(
        name="through-pipeline",
        key="parallel.pipeline_micro_batches",
        excludes="fewer micro-batches than the schedule needs, or a number that does not divide a step's",
        problem=_through_pipeline,
        fix="a larger trainer.batch_tokens (or batch of trainer.batch_schedule), a smaller trainer.micro_batch or "
        "parallel.pipeline_micro_batches=null",
    ),
)
