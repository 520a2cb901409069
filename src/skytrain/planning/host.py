"""What a run needs of a machine besides its GPUs: memory for processes and offloaded state, disk for the data."""

from __future__ import annotations

from skytrain.config import format_bytes

from .communication import Node
from .costs import RunWork
from .flops import decoder_size
from .memory import TrainingJob, optimizer_state_bytes
from .mesh import Mesh

PROCESS_BYTES = 4e9  # of one process: interpreter, torch, CUDA, loader; assumed
USABLE = 0.92  # of memory or disk that EC2 states; the system has the rest


def host_bytes(job: TrainingJob, mesh: Mesh, node: Node) -> float:
    """Memory that the fullest machine needs."""
    processes = min(node.gpus, mesh.gpus) * PROCESS_BYTES
    parameters = decoder_size(job.model).parameters * node_share(mesh, node)
    if mesh.offload:
        held = 0.0 if job.offload_to_disk else offloaded_bytes(job, mesh) * parameters
    elif mesh.deepspeed:  # which writes from where the state is
        held = 0.0
    else:  # a checkpoint is copied to the host and written while training continues
        held = (4 + optimizer_state_bytes(job)) * parameters
    return processes + held


def offloaded_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Of a parameter: weights, gradients and optimizer state in float32, and DeepSpeed's bf16 weights at stage 3."""
    narrow = 2 if mesh.deepspeed and mesh.zero == 3 and job.precision != "32-true" else 0
    return 4 + 4 + optimizer_state_bytes(job) + narrow


def node_share(mesh: Mesh, node: Node) -> float:
    """The part of the training state that the ranks of one machine hold together, each piece counted once."""
    return min(1.0, node.gpus * mesh.replicate / mesh.gpus)


def disk_bytes(job: TrainingJob, mesh: Mesh, node: Node, work: RunWork) -> float:
    """On the local disks of one machine: the shards that must be there, and state that is offloaded to it."""
    state = offloaded_bytes(job, mesh) * decoder_size(job.model).parameters * node_share(mesh, node)
    return work.local_data_bytes + (state if mesh.offload and job.offload_to_disk else 0.0)


def host_problem(job: TrainingJob, mesh: Mesh, node: Node) -> str | None:
    """Why the machine's memory does not do, or None."""
    needed, there = host_bytes(job, mesh, node), USABLE * node.memory_bytes
    return f"needs {format_bytes(needed)} of host memory, of {format_bytes(there)}" if needed > there else None


def disk_problem(job: TrainingJob, mesh: Mesh, node: Node, work: RunWork) -> str | None:
    """Why the machine's disks do not do, or None."""
    needed, there = disk_bytes(job, mesh, node, work), USABLE * node.disk_bytes
    if needed <= there:
        return None
    blocks = "; loader.shuffle=blocks does with less" if work.local_data_bytes > there else ""
    return f"needs {format_bytes(needed)} of local disk, of {format_bytes(there)}{blocks}"
