"""Resolve settings to a mesh that fits the processes, the model and the batch, or suggest meshes that would."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .capabilities import COMBINATION_RULES, MODEL_SIZE_RULES, Device, HFShape, Setup, broken_rule
from .errors import ConfigError
from .mesh import DEEPSPEED, DIMENSIONS, Mesh, divisors, make_mesh, resolve_degrees
from .schema import Config

SHOWN = 3  # number of meshes suggested in place of one that does not fit


def resolve_mesh(
    config: Config, world_size: int, nodes: int = 1, device: Device | None = None, hf: HFShape | None = None
) -> Mesh:
    """Return the mesh that `parallel` requests on `world_size` processes. Raises ConfigError if it is impossible."""
    if config.parallel.name == "auto":
        raise ConfigError(
            "parallel.name",
            "auto is for `skytrain train`, which chooses when it starts",
            hint="name a mesh here, such as single",
        )
    mesh = make_mesh(config.parallel, resolve_degrees(config.parallel, world_size, nodes))
    broken = broken_rule(Setup(config, mesh, world_size, device=device, hf=hf))
    if broken is None:
        return mesh
    rule, problem = broken
    if rule in COMBINATION_RULES:
        raise ConfigError(rule.key, problem, hint=rule.fix)
    raise ConfigError(rule.key, problem, hint=f"{rule.fix}\n  {_offer(config, mesh, world_size, hf)}")


def check_job(config: Config, world_size: int, nodes: int = 1, hf: HFShape | None = None) -> None:
    """Raise ConfigError if `world_size` processes cannot form the mesh. Needs neither running workers nor torch."""
    if config.parallel.name != "auto":  # the workers choose the mesh for `auto`
        resolve_mesh(config, world_size, nodes, hf=hf)


def mesh_problem(config: Config, world_size: int) -> str | None:
    """Return why a mesh whose degrees are all given cannot work, or None if it can."""
    mesh = make_mesh(config.parallel, resolve_degrees(config.parallel, world_size, nodes=1))
    broken = broken_rule(Setup(config, mesh, world_size))
    return f"{broken[0].key}: {broken[1]}" if broken else None


def model_size_problem(config: Config) -> str | None:
    """Return why the given degrees cannot divide the model on any number of processes, or None if they can."""
    given = {name: getattr(config.parallel, name) for name in DIMENSIONS}
    least = {name: 1 if degree in (-1, None) else degree for name, degree in given.items()}
    broken = broken_rule(Setup(config, make_mesh(config.parallel, least)), MODEL_SIZE_RULES)
    return f"{broken[0].key}: {broken[1]}" if broken else None


def step_batches(config: Config, mesh: Mesh) -> tuple[int, int]:
    """Return how each rank splits a step of `trainer.batch_tokens`: micro-batches per pipeline pass, and passes per step.

    Without a pipeline, a pass is one micro-batch. A pipeline runs all micro-batches of a step in one pass by default:
    the more micro-batches per pass, the smaller the bubble. Where steps have several sizes, a pass has as many as divide
    all of them.
    """
    trainer = config.trainer
    each = trainer.sequence_length * trainer.micro_sequences * mesh.data
    count = trainer.batch_tokens // each
    common = math.gcd(count, *(phase.batch_tokens // each for phase in trainer.batch_schedule))
    together = (config.parallel.pipeline_micro_batches or common) if mesh.pipeline > 1 else 1
    return together, count // together


def uses_mesh_strategy(config: Config) -> bool:
    """Return whether Skytrain's mesh strategy is used; a single device and DDP use Lightning's own strategies.

    A degree of -1 (the remaining processes) counts as dividing, even if there is only one process.
    """
    parallel = config.parallel
    degrees = (getattr(parallel, name) for name in DIMENSIONS if name != "replicate")
    return uses_deepspeed(config) or parallel.cpu_offload or any(degree != 1 for degree in degrees)


def uses_deepspeed(config: Config) -> bool:
    """Return whether DeepSpeed's engine trains the model."""
    return config.parallel.name in DEEPSPEED


def uses_process_group(config: Config) -> bool:
    """Return whether the job needs a process group, even with one process."""
    return config.parallel.name == "auto" or config.parallel.replicate != 1 or uses_mesh_strategy(config)


def advice(mesh: Mesh, ranks_per_node: int) -> list[str]:
    """Return warnings about a mesh that works but is probably not intended."""
    if ranks_per_node % mesh.tensor:  # tensor ranks are adjacent, so they share a node if the degree divides its ranks
        return [
            f"parallel.tensor={mesh.tensor} crosses nodes of {ranks_per_node}: its ranks communicate in every layer, "
            f"which is slow over the network between nodes; try parallel.tensor={math.gcd(mesh.tensor, ranks_per_node)} parallel.shard=-1"
        ]
    return []


def _offer(config: Config, wanted: Mesh, world_size: int, hf: HFShape | None) -> str:
    """Return the valid meshes nearest to the requested one, as overrides to paste."""
    setups = (Setup(config, mesh, world_size, hf=hf) for mesh in _meshes(config, world_size))
    fitting = [setup.mesh for setup in setups if broken_rule(setup) is None]
    if not fitting:
        return f"no mesh of {world_size} processes fits this model and batch"

    def distance(mesh: Mesh) -> tuple[float, int]:
        # Of equally near meshes, prefer those without context parallelism, which is rarely intended.
        return sum(abs(math.log2(getattr(mesh, name) / getattr(wanted, name))) for name in DIMENSIONS), mesh.context

    near = sorted(fitting, key=distance)[:SHOWN]
    return "possible here: " + "  or  ".join(
        " ".join(f"parallel.{name}={getattr(mesh, name)}" for name in DIMENSIONS) for mesh in near
    )


def _meshes(config: Config, world_size: int) -> Iterator[Mesh]:
    for pipeline in divisors(world_size):
        for replicate in divisors(world_size // pipeline):
            for shard in divisors(world_size // pipeline // replicate):
                rest = world_size // pipeline // replicate // shard
                for context in divisors(rest):
                    degrees = (pipeline, replicate, shard, context, rest // context)
                    yield make_mesh(config.parallel, dict(zip(DIMENSIONS, degrees, strict=True)))
