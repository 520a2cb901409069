"""Convert a configuration to the planner's description of its work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from ..config import (
    Config,
    ConfigError,
    ParallelConfig,
    fused_model_problem,
    fused_settings_problem,
    has_layers,
    model_size_problem,
)
from .costs import RunWork, work_of
from .measurements import Measurement
from .memory import TrainingJob, planned_precision, update_facts
from .search import Fixed, Placement


@dataclass(frozen=True)
class Workload:
    """A run to place: its computation, its data traffic, and what the search must not change."""

    job: TrainingJob
    work: RunWork
    batch_tokens: int
    fixed: Fixed
    parallel: ParallelConfig | None  # the mesh that `train` would form; None leaves the mesh to the search
    unfit: str | None  # why that mesh cannot divide the model on any machine
    measurements: Sequence[Measurement]
    problem: Callable[[Placement], str | None]  # why `train` could not run a layout; None for one that it can


def workload_of(
    config: Config,
    given: Collection[str] = (),
    *,
    of_recipe: Collection[str] = (),
    open_mesh: bool | None = None,
    measurements: Sequence[Measurement] = (),
    problem: Callable[[Placement], str | None] = lambda _: None,
) -> Workload:
    """Return a configuration's workload. Settings in `given` are kept; the mesh is open unless `parallel` sets it."""
    if open_mesh is None:
        open_mesh = leaves_mesh_open(config.parallel)
    return Workload(
        job=job_of(config),
        work=work_of(config),
        batch_tokens=config.trainer.batch_tokens,
        fixed=fixed_of(config, given, of_recipe),
        parallel=None if open_mesh else config.parallel,
        unfit=None if open_mesh else model_size_problem(config),
        measurements=measurements,
        problem=problem,
    )


def leaves_mesh_open(parallel: ParallelConfig) -> bool:
    """Return whether `parallel` is `auto` or the default, a single device."""
    alone = all(
        degree == 1
        for degree in (parallel.pipeline, parallel.replicate, parallel.shard, parallel.context, parallel.tensor)
    )
    return parallel.name in ("single", "auto") and alone


def fixed_of(config: Config, given: Collection[str], of_recipe: Collection[str] = ()) -> Fixed:
    """Return what the search must keep: the user's settings, and recomputation if it is requested.

    A recipe that sets the mesh is made for machines, and so are its micro-batch and its reduction.
    """
    trainer = config.trainer
    kept = {*given, *(() if leaves_mesh_open(config.parallel) else of_recipe)}
    keeps_recomputation = "trainer.activation_checkpointing" in given or trainer.activation_checkpointing != "none"
    return Fixed(
        micro_batch=trainer.micro_batch if "trainer.micro_batch" in kept and trainer.micro_batch else None,
        micro_batch_if_it_fits="trainer.micro_batch" not in given,
        recomputation=trainer.activation_checkpointing if keeps_recomputation else None,
        reduce_once=config.parallel.reduce_once if "parallel.reduce_once" in kept else None,
        schedule="parallel.schedule" in given,
        chunks=config.parallel.chunks,
    )


def job_of(config: Config) -> TrainingJob:
    """Return the training job of a configuration, for the memory and time models."""
    model = config.model
    trainer = config.trainer
    parallel = config.parallel
    if not has_layers(model):
        raise ConfigError(
            "model.family",
            f"{model.name} is a plugged-in model, whose size is not known without building it",
            hint="plan with the built-in decoder of a similar shape, or measure it here: skytrain plan --measure",
        )
    return TrainingJob(
        model=model,
        sequence_length=trainer.sequence_length,
        micro_batch=trainer.micro_batch or 1,
        precision=planned_precision(trainer.precision),
        optimizer=update_facts(config),
        compiled=trainer.compile,
        fused=trainer.fused != "off" and fused_settings_problem(config) is None and fused_model_problem(model) is None,
        graphs=trainer.cuda_graphs != "off" and not config.loader.separate_documents,
        loss_chunk_tokens=trainer.loss_chunk_tokens,
        checkpointing=trainer.activation_checkpointing == "full",
        selective=trainer.activation_checkpointing == "selective",
        fp8=trainer.fp8 != "off",
        schedule=parallel.schedule,
        pipeline_micro_batches=parallel.pipeline_micro_batches,
        offload=parallel.cpu_offload,
        offload_to_disk=parallel.offload_folder is not None,
        context_method=parallel.context_method,
        reduce_once=parallel.reduce_once,
    )
