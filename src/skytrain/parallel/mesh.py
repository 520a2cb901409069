"""From settings to a mesh that fits the processes, the model and the batch; or a message with the ones that would."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..config import Config, ConfigError, DecoderConfig
from ..planning.mesh import DIMENSIONS as DEGREES
from ..planning.mesh import Mesh

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved-1f1b": 2, "zbv": 2}  # of the model that each pipeline rank holds
SHOWN = 3  # meshes offered in place of one that does not fit


def resolve_mesh(config: Config, world_size: int, nodes: int = 1) -> Mesh:
    """The mesh that `parallel` asks for on so many processes. Raises ConfigError where it cannot be had."""
    parallel = config.parallel
    if parallel.name == "auto":
        raise ConfigError(
            "parallel.name",
            "auto is for `skytrain train`, which chooses when it starts",
            hint="name a mesh here, such as single",
        )
    wanted = {name: getattr(parallel, name) for name in DEGREES}
    if wanted["replicate"] is None:
        wanted["replicate"] = nodes if nodes > 1 else 2
    for name, degree in wanted.items():
        if degree == 0:
            raise ConfigError(
                f"parallel.{name}", "0 is no degree: it is at least 1, or -1 for the rest of the processes"
            )
    rest = [name for name, degree in wanted.items() if degree == -1]
    if len(rest) > 1:
        raise ConfigError(f"parallel.{rest[1]}", f"only one degree may be -1, and parallel.{rest[0]} is")
    fixed = math.prod(degree for degree in wanted.values() if degree != -1)
    if rest:
        wanted[rest[0]] = max(1, world_size // fixed)
    mesh = _mesh(config, wanted)
    if problem := _problem(config, mesh, world_size):
        key, text = problem
        raise ConfigError(key, text, hint=_offer(config, mesh, world_size))
    return mesh


def mesh_problem(config: Config, world_size: int) -> str | None:
    """What keeps a mesh whose degrees are all given from working; None for one that works."""
    problem = _problem(config, _mesh(config, {name: getattr(config.parallel, name) for name in DEGREES}), world_size)
    return ": ".join(problem) if problem else None


def step_batches(config: Config, mesh: Mesh) -> tuple[int, int]:
    """How a step's batch is cut on each rank: micro-batches that go through together, and how often that is done.

    Without a pipeline one goes at a time. A pipeline takes the whole step's at once unless told otherwise: the more go
    together, the less it stands idle.
    """
    trainer = config.trainer
    count = trainer.batch_tokens // trainer.sequence_length // (trainer.micro_sequences * mesh.data)
    together = (config.parallel.pipeline_micro_batches or count) if mesh.pipeline > 1 else 1
    return together, count // together


def uses_mesh_strategy(config: Config) -> bool:
    """Whether this is more than one device alone or Lightning's own data parallelism."""
    return config.parallel.name != "ddp" and (
        config.parallel.name != "single" or any(getattr(config.parallel, name) != 1 for name in DEGREES)
    )


def uses_deepspeed(config: Config) -> bool:
    """Whether DeepSpeed's engine trains the model; its ranks only replicate, as far as a mesh is concerned."""
    return config.parallel.name.startswith("deepspeed-")


def uses_process_group(config: Config) -> bool:
    """Whether the processes of the job, or the only one, meet in a group."""
    return config.parallel.name == "ddp" or uses_mesh_strategy(config)


def advice(mesh: Mesh, ranks_per_node: int) -> list[str]:
    """What fits but is likely not meant."""
    if ranks_per_node % mesh.tensor:  # tensor ranks are neighbours, so they share a node where they divide it
        return [
            f"parallel.tensor={mesh.tensor} crosses nodes of {ranks_per_node}: its ranks talk in every layer, over the network "
            f"between nodes this is slow; try parallel.tensor={math.gcd(mesh.tensor, ranks_per_node)} parallel.shard=-1"
        ]
    return []


def _mesh(config: Config, degrees: dict[str, int]) -> Mesh:
    chunks = CHUNKS[config.parallel.schedule] if degrees["pipeline"] > 1 else 1
    pipeline, replicate, shard, context, tensor = (degrees[name] for name in DEGREES)
    return Mesh(pipeline, replicate, shard, context, tensor, chunks=chunks, offload=config.parallel.cpu_offload)


def _problem(config: Config, mesh: Mesh, world_size: int) -> tuple[str, str] | None:
    """The first thing that keeps a mesh from working, as a key and a text that names the numbers."""
    parallel = config.parallel
    if mesh.gpus != world_size:
        product = " x ".join(f"{name} {getattr(mesh, name)}" for name in DEGREES if getattr(mesh, name) > 1) or "1"
        return "parallel", f"the mesh {product} is for {mesh.gpus} processes, but there are {world_size}"
    if parallel.name == "ddp" and mesh.gpus != mesh.replicate:
        return "parallel.name", "ddp only replicates; other degrees than parallel.replicate must be 1"
    if uses_deepspeed(config) and mesh.gpus != mesh.replicate:
        return (
            "parallel.name",
            f"{parallel.name} only divides state among all ranks; the degrees pipeline, shard, context and tensor must be 1 "
            "(parallel=tp-fsdp or parallel=pp-fsdp combine them)",
        )
    if parallel.offload_folder and not (uses_deepspeed(config) and parallel.cpu_offload):
        return (
            "parallel.offload_folder",
            f"{parallel.offload_folder!r}: only parallel=deepspeed-zero3-offload keeps state on a disk",
        )
    if parallel.cpu_offload and config.trainer.device == "cpu" and not uses_deepspeed(config):
        return "parallel.cpu_offload", "there is nothing to offload from with trainer.device=cpu"
    precision = config.trainer.precision
    if uses_mesh_strategy(config) and precision not in ("32-true", "bf16-mixed"):
        return (
            "trainer.precision",
            f"{precision!r} is not for parallel={parallel.name} on a mesh, which keeps weights in float32; try trainer.precision=bf16-mixed",
        )
    if config.trainer.sample_every and uses_mesh_strategy(config):
        return (
            "trainer.sample_every",
            f"no rank holds a whole model to sample from with parallel={parallel.name}; set it to null, and use `skytrain generate` on a checkpoint",
        )
    return _model_problem(config, mesh) or _batch_problem(config, mesh)


def _model_problem(config: Config, mesh: Mesh) -> tuple[str, str] | None:
    model, tensor, stages = config.model, mesh.tensor, mesh.pipeline * mesh.chunks
    if not isinstance(model, DecoderConfig):
        if mesh.pipeline > 1:
            return "parallel.pipeline", f"model {model.name} cannot be cut into stages; only the built-in decoder can"
        if mesh.context > 1:
            return "parallel.context", f"model {model.name} cannot divide its sequences; only the built-in decoder can"
        return None
    if mesh.pipeline > 1 and model.layers < stages:
        each = f" ({mesh.chunks} on each of {mesh.pipeline} ranks)" if mesh.chunks > 1 else ""
        return "parallel.pipeline", f"{model.layers} layers are fewer than {stages} stages{each}"
    if problem := _context_problem(config, mesh):
        return problem
    divided = {
        "model.heads": model.heads,
        "model.kv_heads": model.groups,
        "model.mlp_width": model.hidden_width,
        "the padded vocabulary (model.pad_vocab_to)": model.padded_vocab,
        "the part of a sequence (trainer.sequence_length)": config.trainer.sequence_length // mesh.context,
    }
    for key, count in divided.items():
        if count % tensor:
            return "parallel.tensor", f"{key}, which is {count}, does not divide among {tensor} ranks"
    return None


def _context_problem(config: Config, mesh: Mesh) -> tuple[str, str] | None:
    """What keeps sequences from being divided among ranks."""
    model, ranks, length, method = (
        config.model,
        mesh.context,
        config.trainer.sequence_length,
        config.parallel.context_method,
    )
    if ranks == 1:
        return None
    assert isinstance(model, DecoderConfig)
    pieces = ranks * (1 if method == "ulysses" else 2)
    if length % pieces:
        below, above = length // pieces * pieces, -(-length // pieces) * pieces
        near = " or ".join(f"trainer.sequence_length={n}" for n in (below, above) if 0 < n <= model.max_length)
        twice = "" if method == "ulysses" else ", two for each so that all have the same to do"
        return (
            "trainer.sequence_length",
            f"{length} tokens do not divide into {pieces} pieces for {ranks} ranks (parallel.context{twice})"
            + (f"; try {near}" if near else ""),
        )
    if config.loader.separate_documents:
        return "loader.separate_documents", f"parallel.context={ranks} does not keep documents apart"
    heads = model.heads // mesh.tensor
    if method == "ulysses":
        if heads % ranks:
            divided = f" ({model.heads} over parallel.tensor={mesh.tensor})" if mesh.tensor > 1 else ""
            return (
                "parallel.context_method",
                f"ulysses deals heads to ranks, and {heads} heads{divided} do not divide among {ranks}; try parallel.context_method=ring",
            )
        return None
    windows = [window for layer in range(model.layers) if (window := model.window_of(layer)) and window < length]
    unknown = {
        f"a window of {min(windows, default=0)} tokens (model.window)": bool(windows),
        "model.attention_softcap": model.attention_softcap is not None,
        f"model.dropout={model.dropout}": model.dropout > 0,
    }
    for what, there in unknown.items():
        if there:
            return (
                "parallel.context_method",
                f"{method} computes attention in pieces, which does not go with {what}; try parallel.context_method=ulysses",
            )
    return None


def _batch_problem(config: Config, mesh: Mesh) -> tuple[str, str] | None:
    trainer = config.trainer
    sequences, together = trainer.batch_tokens // trainer.sequence_length, trainer.micro_sequences * mesh.data
    if sequences % together:
        return (
            "trainer.batch_tokens",
            f"{sequences} sequences a step do not divide over {mesh.data} data-parallel ranks x {trainer.micro_batch} (trainer.micro_batch); "
            f"try trainer.batch_tokens={max(1, round(sequences / together)) * together * trainer.sequence_length}",
        )
    if mesh.pipeline == 1:
        return None
    count = sequences // together
    given = config.parallel.pipeline_micro_batches
    through = given or count
    if count % through:
        return "parallel.pipeline_micro_batches", f"{through} does not divide the {count} micro-batches of a step"
    if through < mesh.pipeline or (mesh.chunks > 1 and through % mesh.pipeline):
        rule = "a multiple of" if mesh.chunks > 1 else "at least"
        return (
            "parallel.pipeline_micro_batches" if given else "trainer.micro_batch",
            f"{through} micro-batches go through a pipeline of {mesh.pipeline} ranks at a time; "
            f"the {config.parallel.schedule} schedule needs {rule} {mesh.pipeline} (a larger trainer.batch_tokens or a smaller trainer.micro_batch)",
        )
    return None


def _offer(config: Config, wanted: Mesh, world_size: int) -> str:
    """The possible meshes nearest to the one that was wanted, as overrides to paste."""
    fitting = [mesh for mesh in _meshes(config, world_size) if _problem(config, mesh, world_size) is None]
    if not fitting:
        return f"no mesh of {world_size} processes fits this model and batch"

    def distance(mesh: Mesh) -> tuple[float, int]:
        # As near, but with its sequences divided, is rarely what was meant.
        return sum(abs(math.log2(getattr(mesh, name) / getattr(wanted, name))) for name in DEGREES), mesh.context

    near = sorted(fitting, key=distance)[:SHOWN]
    return "possible here: " + "  or  ".join(
        " ".join(f"parallel.{name}={getattr(mesh, name)}" for name in DEGREES) for mesh in near
    )


def _meshes(config: Config, world_size: int) -> Iterator[Mesh]:
    def divisors(whole: int) -> list[int]:
        return [part for part in range(1, whole + 1) if whole % part == 0]

    for pipeline in divisors(world_size):
        for replicate in divisors(world_size // pipeline):
            for shard in divisors(world_size // pipeline // replicate):
                rest = world_size // pipeline // replicate // shard
                for context in divisors(rest):
                    degrees = (pipeline, replicate, shard, context, rest // context)
                    yield _mesh(config, dict(zip(DEGREES, degrees, strict=True)))
