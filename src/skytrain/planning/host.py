"""Host requirements of a run: memory for processes and offloaded state, disk for data."""

from __future__ import annotations

from ..config import format_bytes
from .communication import Node
from .costs import RunWork
from .flops import decoder_size
from .memory import TrainingJob, checkpoint_bytes, train_bytes_per_parameter
from .mesh import Mesh

BLOCKS = "loader.shuffle=blocks"  # in the reason of a machine whose disks the whole text does not fit
PROCESS_BYTES = 4e9  # per process: interpreter, torch, CUDA, loader; assumed
USABLE = 0.92  # fraction of the memory or disk stated by EC2; the system uses the rest


def host_bytes(job: TrainingJob, mesh: Mesh, node: Node) -> float:
    """Return the host memory needed by the fullest machine."""
    processes = min(node.gpus, mesh.gpus) * PROCESS_BYTES
    parameters = decoder_size(job.model).parameters * node_share(mesh, node)
    if mesh.offload:
        held = 0.0 if job.offload_to_disk else offloaded_bytes(job, mesh) * parameters
    elif mesh.deepspeed:  # DeepSpeed writes checkpoints directly from the state
        held = 0.0
    else:  # a checkpoint is copied to the host and written while training continues
        held = checkpoint_bytes(job.model, job.optimizer, job.precision) * node_share(mesh, node)
    return processes + held


def offloaded_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Return bytes per parameter: float32 weights, gradients, optimizer state; DeepSpeed stage 3 adds bf16 weights."""
    narrow = 2 if mesh.deepspeed and mesh.zero == 3 and job.precision != "32-true" else 0
    return train_bytes_per_parameter(job.model, job.optimizer) + narrow


def node_share(mesh: Mesh, node: Node) -> float:
    """Return the fraction of the training state held by the ranks of one machine, counting each piece once."""
    return min(1.0, node.gpus * mesh.replicate / mesh.gpus)


def disk_bytes(job: TrainingJob, mesh: Mesh, node: Node, work: RunWork) -> float:
    """Return the local disk space needed on one machine, for data shards and offloaded state."""
    state = offloaded_bytes(job, mesh) * decoder_size(job.model).parameters * node_share(mesh, node)
    return work.local_data_bytes + (state if mesh.offload and job.offload_to_disk else 0.0)


def host_problem(job: TrainingJob, mesh: Mesh, node: Node) -> str | None:
    """Return why the machine's memory is insufficient, or None."""
    needed = host_bytes(job, mesh, node)
    there = USABLE * node.memory_bytes
    return f"needs {format_bytes(needed)} of host memory, of {format_bytes(there)}" if needed > there else None


def disk_problem(job: TrainingJob, mesh: Mesh, node: Node, work: RunWork) -> str | None:
    """Return why the machine's disks are insufficient, or None."""
    needed = disk_bytes(job, mesh, node, work)
    there = USABLE * node.disk_bytes
    if needed <= there:
        return None
    blocks = f"; {BLOCKS} needs less" if work.local_data_bytes > there else ""
    return f"needs {format_bytes(needed)} of local disk, of {format_bytes(there)}{blocks}"
