"""Peak memory of one rank, part by part, in closed form.

The tensors that autograd saves are counted one by one for the built-in decoder. On one GPU and under DDP, torch's
autocast keeps weights, the residual stream and norms in float32, matrix products and attention in bfloat16 or float16.
With sharding, and with bf16-true, weights and everything computed from them are in bfloat16. Attention is a flash
kernel, so no tensor grows with the square of the length. After Korthikanti et al. 2022 (arXiv 2205.05198), whose
34·s·b·h for a GPT block is 36 here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from ..config import (
    Config,
    DecoderConfig,
    ExpertsConfig,
    OptimizerFacts,
    Precision,
    fused_mesh_problem,
    fused_model_problem,
)
from .flops import attention_matrices, decoder_size
from .mesh import Mesh

MIB = 2**20
KernelPath = Literal["eager", "compiled", "fused"]
ContextMethod = Literal["allgather", "ring", "ulysses"]
Schedule = Literal["gpipe", "1f1b", "interleaved-1f1b", "zbv"]

CONTEXT_BYTES = 768 * MIB  # CUDA context, cuBLAS and cuDNN handles, as measured on an H200; less on smaller GPUs
NCCL_BYTES = 700 * MIB  # communicators and their channels, when there is more than one GPU; assumed
WORKSPACE_BYTES = 96 * MIB  # cuBLAS workspaces and the kernels' scratch
# Rows of the busiest rank over the mean, with expert parallelism and routers that a loss or biases balance. Assumed.
IMBALANCE = 1.2
ADAMW = OptimizerFacts(state_bytes=8, fused=True)  # for jobs that do not come from a configuration
DEEPSPEED_BUCKET = (
    500_000_000  # gradients at most, of one block: in two buffers of bfloat16, and in float32 as they travel
)
DEEPSPEED_BUCKET_BYTES = 2 + 2 + 4
# Allocator overhead as a fraction of allocated memory, with the expandable segments that the trainer enables. With it
# the largest predicted micro-batches ran on an H200, and a quarter more did not (benchmarks/planning/h200.md).
FRAGMENTATION = 0.03
DRIVER_FRACTION = 0.985  # of the memory that EC2 states, what the driver offers (measured on an H200: 139.8 of 141 GiB)

Recomputation = Literal["none", "selective", "full"]  # from the fastest to the one that needs the least memory
RECOMPUTATIONS: tuple[Recomputation, ...] = get_args(Recomputation)


@dataclass(frozen=True)
class TrainingJob:
    """The properties of a run, besides its mesh, that determine memory and time on one rank."""

    model: DecoderConfig
    sequence_length: int
    micro_batch: int
    accumulation: int = 1  # micro-batches in one optimizer step
    precision: Precision = "bf16-mixed"
    optimizer: OptimizerFacts = ADAMW
    compiled: bool = False
    fused: bool = False  # Skytrain's kernels, with unsplit layers
    graphs: bool = False  # CUDA graphs of small micro-batches, on the fused path of one GPU
    loss_chunk_tokens: int | None = None  # compute logits in chunks of this many tokens, twice
    checkpointing: bool = False  # save only each block's input and recompute the block in the backward pass
    selective: bool = False  # save outputs of products and attention; recompute norms and activations
    fp8: bool = False  # products of the blocks
    schedule: Schedule = "1f1b"  # of a pipeline
    pipeline_micro_batches: int | None = None  # per pipeline pass; None: all of a step
    offload: bool = False  # keep the training state in host memory, on any mesh that the search finds
    offload_to_disk: bool = False  # offload to local disks instead of host memory
    context_method: ContextMethod = "ring"  # how attention works across a divided sequence
    reduce_once: bool = True  # reduce sharded gradients once per step (unsharded until then), or per micro-batch

    @property
    def recomputation(self) -> Recomputation:
        """Return the job's value of `trainer.activation_checkpointing`."""
        return "full" if self.checkpointing else "selective" if self.selective else "none"

    @property
    def together(self) -> int:
        """Return the number of micro-batches per pipeline pass."""
        return self.pipeline_micro_batches or self.accumulation

    def split(self, micro_batch: int, accumulation: int) -> TrainingJob:
        """Return the job with its batch split in another way, as `dataclasses.replace` does.

        A search does so tens of thousands of times, and that function takes ten times as long.
        """
        other = object.__new__(TrainingJob)
        other.__dict__.update(self.__dict__, micro_batch=micro_batch, accumulation=accumulation)
        return other


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank at the moment of its peak."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float  # copies of weights in bfloat16, unsharded blocks, gradient buckets, workspaces
    fragmentation: float
    runtime: float  # CUDA and NCCL themselves: outside torch's allocator

    @property
    def allocated(self) -> float:
        """Return what torch.cuda.max_memory_allocated() reports."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits + self.buffers

    @property
    def total(self) -> float:
        return self.allocated + self.fragmentation + self.runtime


def narrow_bytes(precision: Precision) -> int:
    """Return the bytes per element of the inputs and outputs of matrix products."""
    return 4 if precision == "32-true" else 2


def usable_bytes(gpu_memory_mib: int) -> float:
    """Return the memory available to a process on a GPU whose memory EC2 states as `gpu_memory_mib`."""
    return gpu_memory_mib * MIB * DRIVER_FRACTION


def path_of(job: TrainingJob, mesh: Mesh) -> KernelPath:
    """Return the kernel path (eager, compiled or fused) of the job on this mesh."""
    if (
        job.fused
        and job.precision == "bf16-mixed"
        and not (job.checkpointing or job.selective)
        and fused_mesh_problem(mesh) is None
        and _can_be_fused(job.model)
    ):
        return "fused"
    return "compiled" if job.compiled else "eager"


@lru_cache(maxsize=64)
def _can_be_fused(model: DecoderConfig) -> bool:
    return fused_model_problem(model) is None


def residual_bytes(job: TrainingJob, mesh: Mesh) -> int:
    """Return the bytes per element of the residual stream."""
    return 4 if job.precision == "32-true" or autocasts(job, mesh) else 2


def autocasts(job: TrainingJob, mesh: Mesh) -> bool:
    """Return whether torch's autocast is used, with weights and residual stream in float32."""
    mixed = job.precision in ("bf16-mixed", "16-mixed")
    return mixed and not mesh.divides and path_of(job, mesh) != "fused"


def block_activation_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Return the bytes that one block saves for its backward pass, for one micro-batch."""
    return activation_bytes_on(path_of(job, mesh), job, mesh)


def activation_bytes_on(path: KernelPath, job: TrainingJob, mesh: Mesh) -> float:
    """Return the bytes that one block saves for its backward pass on a given kernel path."""
    model = job.model
    mixed = job.precision in ("bf16-mixed", "16-mixed")
    wide = 4 if job.precision == "32-true" or (mixed and not mesh.divides and path != "fused") else 2
    narrow = narrow_bytes(job.precision)
    width = model.width
    heads = model.heads
    groups = model.groups
    head = model.head_width
    mlp = model.hidden_width
    queries = heads * head
    keys = groups * head

    norms = wide * width * (2 * model.pre_norms + 2 * model.post_norms)  # their inputs
    # Autocast casts the input of each product, so gate and up save a copy each; otherwise they share one.
    inputs = narrow * width * (3 if model.gated_mlp and narrow < wide else 2)
    attention = (
        narrow * (queries + 2 * keys) + narrow * queries + 4 * heads
    )  # q, k, v; output; the kernel's log-sum-exp
    if model.positions == "rope":
        attention += narrow * (queries + keys)  # rotated copies; the originals stay, because v is a view into them
    # Fused kernels normalize a head and turn it in one pass, and do so again for gradients; a norm over all heads is apart.
    if model.qk_norm and (path != "fused" or model.qk_norm_scope == "projection"):
        attention += wide * (queries + keys)
    if model.latent is not None:
        attention = _latent_activation_bytes(model, narrow, wide)
    # No flash kernel: scores, weights in float32 and in bfloat16. Fused kernels cap scores inside one.
    if model.sinks or (model.attention_softcap is not None and path != "fused"):
        attention += (8 if narrow == 2 else 12) * heads * job.sequence_length
    hidden: float = narrow * mlp * (4 if model.gated_mlp else 2)
    if path == "fused" and model.gated_mlp:
        hidden = narrow * mlp * 3  # the two products and what they become
    if path == "compiled":
        # The partitioner keeps what products made and what they read, once, and computes a gate's activation again.
        inputs = 2 * narrow * width
        hidden = narrow * mlp * (3 if model.gated_mlp else 2)
    if model.experts is not None:
        hidden = _expert_activation_bytes(model.experts, width, narrow, path) * imbalance(mesh)
    if mesh.tensor > 1:
        inputs = 2 * narrow * width * mesh.tensor  # the gathered sequence, whole on each rank
    tokens = job.micro_batch * job.sequence_length / mesh.context
    return tokens * (norms + inputs + attention + hidden) / mesh.tensor


def imbalance(mesh: Mesh) -> float:
    """Return how many rows the busiest rank's experts get, over the mean."""
    return IMBALANCE if mesh.expert > 1 else 1.0


def _latent_activation_bytes(model: DecoderConfig, narrow: int, wide: int) -> int:
    """Return the bytes that latent attention saves for a token."""
    latent = model.latent
    assert latent is not None
    compressed = latent.rank + (latent.query_rank or 0)
    norms = wide * compressed + narrow * compressed  # their inputs and outputs
    # Queries as they come and turned, keys, padded values and outputs; what keys and values are cut from; the log-sum-exp.
    heads = narrow * model.heads * (5 * model.head_width + latent.plain_size + latent.value_size) + 4 * model.heads
    return norms + heads + 2 * narrow * latent.rope_size


def _expert_activation_bytes(experts: ExpertsConfig, width: int, narrow: int, path: KernelPath) -> float:
    """Return the bytes that a mixture saves for a token: its rows, sorted and back in place, hidden sizes, and scores.

    Fused kernels weight rows before the last product, whose output they need not keep, and save three hidden sizes.
    """
    rows, sizes = (1, 3) if path == "fused" else (3, 4)
    each = experts.per_token * (rows * width + sizes * experts.width)
    return narrow * (each + sizes * (experts.shared_width or 0)) + 4 * 3 * experts.count


def selective_activation_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Return the bytes that one block saves under selective recomputation: input, product and attention outputs."""
    model = job.model
    narrow = narrow_bytes(job.precision)
    queries = model.heads * model.head_width
    keys = model.groups * model.head_width
    hidden = model.hidden_width * (2 if model.gated_mlp else 1)
    if model.experts is not None:
        hidden = model.experts.per_token * (2 * model.experts.width + model.width) + 2 * (
            model.experts.shared_width or 0
        )
    into = queries + 2 * keys if model.latent is None else sum(out for _, out in attention_matrices(model)[:-1])
    products = into + 2 * model.width + hidden
    attention = narrow * queries + 4 * model.heads
    tokens = job.micro_batch * job.sequence_length / mesh.context
    return tokens * (residual_bytes(job, mesh) * model.width + narrow * products + attention) / mesh.tensor


def in_flight(job: TrainingJob, mesh: Mesh) -> float:
    """Return the number of micro-batches whose activations the first pipeline stage holds at once."""
    if mesh.pipeline == 1:
        return 1
    if job.schedule == "gpipe":
        return job.together
    # Interleaved stages begin more before the first of them comes back (Narayanan et al. 2021, section 2.2).
    more = 1 + (mesh.pipeline - 1) / (mesh.pipeline * mesh.chunks) if job.schedule == "interleaved-1f1b" else 1.0
    return min(mesh.pipeline * more, job.together)


def kept_activation_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Return the activation bytes saved on the fullest rank, which is in the first pipeline stage."""
    layers = -(-job.model.layers // mesh.pipeline)
    wide = residual_bytes(job, mesh)
    tokens = job.micro_batch * job.sequence_length / mesh.context / mesh.tensor
    if job.checkpointing:
        block = wide * tokens * job.model.width
    else:
        block = selective_activation_bytes(job, mesh) if job.selective else block_activation_bytes(job, mesh)
    ends = tokens * job.model.width * (wide + 2)  # the last norm's and the head's input
    return layers * block * in_flight(job, mesh) + ends


def logit_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Return the loss's peak bytes, in its backward pass: log-probabilities, their gradient, the logits' gradient.

    The compiled loss keeps the logits and computes their gradient in one kernel; the fused one works in place.
    """
    narrow = narrow_bytes(job.precision)
    per_logit = {"eager": 12.0, "compiled": 2.0 * narrow, "fused": 2.0}[path_of(job, mesh)]
    if job.model.logit_softcap is not None and path_of(job, mesh) != "fused":
        per_logit += 4.0
    tokens = job.micro_batch * job.sequence_length / mesh.context
    if job.loss_chunk_tokens is not None:
        tokens = min(tokens, job.loss_chunk_tokens)
    return tokens * job.model.padded_vocab * per_logit / mesh.tensor


@dataclass(frozen=True)
class RankState:
    """Bytes that a rank holds between steps, and additional bytes during the optimizer step."""

    parameters: float
    gradients: float
    optimizer: float
    step: float


AVERAGE_BYTES = 4  # of a parameter's average (trainer.ema_decay), in memory and in a checkpoint


def update_facts(config: Config) -> OptimizerFacts:
    """Return the optimizer's facts, with what the average of the weights adds to the state of a parameter."""
    facts = config.optimizer.facts
    if config.trainer.ema_decay is None:
        return facts
    matrices = facts.matrix_state_bytes
    return replace(
        facts,
        state_bytes=facts.state_bytes + AVERAGE_BYTES,
        matrix_state_bytes=None if matrices is None else matrices + AVERAGE_BYTES,
    )


def optimizer_state_bytes(model: DecoderConfig, optimizer: OptimizerFacts) -> float:
    """Return the bytes of optimizer state per parameter, averaged over all parameters with their padding."""
    if optimizer.matrix_state_bytes is None:
        return optimizer.state_bytes
    size = decoder_size(model)
    saved = optimizer.state_bytes - optimizer.matrix_state_bytes
    return optimizer.state_bytes - saved * size.block_matrices / size.padded_parameters


def train_bytes_per_parameter(model: DecoderConfig, optimizer: OptimizerFacts) -> float:
    """Return the bytes of a parameter in training: itself and its gradient in float32, and its optimizer state."""
    return 4 + 4 + optimizer_state_bytes(model, optimizer)


def saved_weight_bytes(precision: Precision) -> int:
    """Return the bytes of a weight in a checkpoint: of bfloat16 weights, also of the float32 copy that is updated."""
    return 2 + 4 if precision == "bf16-true" else 4


def checkpoint_bytes(model: DecoderConfig, optimizer: OptimizerFacts, precision: Precision) -> float:
    """Return the bytes of a checkpoint: weights and optimizer state.

    Counters of the optimizer and random states, some kilobytes for each rank, are not counted.
    """
    per_parameter = saved_weight_bytes(precision) + optimizer_state_bytes(model, optimizer)
    return per_parameter * decoder_size(model).padded_parameters


def planned_precision(precision: Precision | Literal["auto"]) -> Precision:
    """Return what `auto` becomes on every GPU of the table."""
    return "bf16-mixed" if precision == "auto" else precision


def training_state(job: TrainingJob, mesh: Mesh, held: float) -> RankState:
    """Return the training state of a rank with `held` parameters after tensor and pipeline splits, before sharding."""
    if mesh.offload and mesh.zero == 3:
        return RankState(0.0, 0.0, 0.0, 0.0)
    ranks = mesh.sharing
    narrow = job.precision == "bf16-true" or (mesh.deepspeed and job.precision != "32-true")
    # DeepSpeed keeps a float32 copy of its part whatever the weights are, and adds gradients up in float32.
    state = (
        0.0
        if mesh.offload
        else optimizer_state_bytes(job.model, job.optimizer) + (4 if narrow or mesh.deepspeed else 0)
    )
    # Gradients in float32 for the copies, or the temporaries of an optimizer that is not one fused kernel.
    unfused = job.precision == "16-mixed" or not job.optimizer.fused
    return RankState(
        parameters=(2 if narrow else 4) * held / (ranks if mesh.zero == 3 else 1),
        gradients=(2 if job.precision == "bf16-true" else 4) * held / (ranks if mesh.zero >= 2 else 1),
        optimizer=state * held / ranks,
        step=4 * held / ranks if narrow or unfused else 0.0,
    )


def context_bytes(job: TrainingJob, mesh: Mesh) -> float:
    """Return the bytes of other ranks' keys and values, and their float32 gradients, during attention of one layer."""
    if (
        mesh.context == 1 or job.context_method == "ulysses"
    ):  # which exchanges heads for tokens, and holds as many numbers
        return 0.0
    parts = mesh.context if job.context_method == "allgather" else 2  # a ring's are here or on their way
    tokens = job.micro_batch * job.sequence_length / mesh.context
    keys = 2 * job.model.groups * job.model.head_width / mesh.tensor
    return parts * tokens * keys * (narrow_bytes(job.precision) + 4)


@dataclass(frozen=True)
class RankBuffers:
    """Bytes that a rank holds besides its state, activations and logits."""

    fixed: float  # at any moment: workspaces, gathered weights, buckets
    copies: float = 0.0  # of weights in bfloat16, from the forward to the backward pass
    every_copy: float = 0.0  # of them, while the forward pass holds all that autocast makes


def rank_buffers(job: TrainingJob, mesh: Mesh, held: float, table: float, block: float) -> RankBuffers:
    """Return a rank's buffers, given the parameters of the rank, of an embedding table and of one block."""
    size = decoder_size(job.model)
    fused = path_of(job, mesh) == "fused"
    fixed = WORKSPACE_BYTES + context_bytes(job, mesh)
    if mesh.deepspeed:
        fixed += DEEPSPEED_BUCKET_BYTES * min(block, DEEPSPEED_BUCKET)
    if gathers_weights(mesh):
        # Gathered in bfloat16: the tables and two blocks; a pipeline stage keeps all its blocks gathered for the step.
        gathered = held if mesh.pipeline > 1 else 2 * block + table * (1 if job.model.tied_head else 2)
        fixed += narrow_bytes(job.precision) * gathered + 4 * block  # and a block's gradients while they are sent
        return RankBuffers(fixed, copies=4 * table if fused else 0.0)  # the head's gradient, which the loss computes
    if fused:
        return RankBuffers(fixed, copies=2 * size.matmul_parameters + 4 * table)
    if not autocasts(job, mesh):
        return RankBuffers(fixed)
    # Autocast's copies of weights, held by the graph; a block that is computed again makes its own again.
    every_copy = 2 * size.matmul_parameters / mesh.tensor / mesh.pipeline
    return RankBuffers(fixed, 2 * (table + block) if job.checkpointing or job.selective else every_copy, every_copy)


def gathers_weights(mesh: Mesh) -> bool:
    return mesh.zero == 3 and (mesh.sharing > 1 or mesh.offload or mesh.alone)


def held_parameters(model: DecoderConfig, mesh: Mesh, *, padded: bool = False) -> float:
    """Return the parameters of a rank's layers and heads, before they are sharded; tensor parallelism copies experts.

    They are counted with the padding of the vocabulary only if `padded`.
    """
    size = decoder_size(model)
    whole = size.padded_parameters if padded else size.parameters
    return ((whole - size.expert_parameters) / mesh.tensor + size.expert_parameters) / mesh.pipeline


def gathered_block(model: DecoderConfig, mesh: Mesh) -> float:
    """Return the parameters of a block as its rank computes with them: with expert parallelism, some of the experts."""
    size = decoder_size(model)
    dense = (size.block_matrices - size.expert_parameters) / mesh.tensor
    return (dense + size.expert_parameters / mesh.expert) / model.layers


@lru_cache(maxsize=2**15)  # a plan asks for the same layouts on many machines
def rank_memory(job: TrainingJob, mesh: Mesh) -> Memory:
    """Return the peak memory of the fullest rank: in the loss, the first block's backward pass, or the update."""
    size = decoder_size(job.model)
    width = job.model.width
    table = job.model.padded_vocab * width / mesh.tensor  # the embedding, and the head where it is not tied
    held = held_parameters(job.model, mesh, padded=True)
    block_weights = gathered_block(job.model, mesh)
    state = training_state(job, mesh, held)
    buffers = rank_buffers(job, mesh, held, table, block_weights)
    gradients = state.gradients
    copies = buffers.copies
    whole_until_reduced = job.accumulation > 1 and (job.reduce_once or mesh.pipeline > 1) and not mesh.deepspeed
    if gathers_weights(mesh) and whole_until_reduced:
        gradients = 4 * (held - size.expert_parameters / mesh.pipeline * (1 - 1 / mesh.expert))

    # Gradients of earlier micro-batches exist during this one; with one micro-batch per step there are none yet.
    waiting = gradients if job.accumulation > 1 or mesh.gpus > 1 else 0.0
    kept = kept_activation_bytes(job, mesh)
    logits = logit_bytes(job, mesh)
    last_kept = kept if job.schedule == "gpipe" else kept / in_flight(job, mesh)
    block = block_activation_bytes(job, mesh)
    table_gradient = (2 if job.precision == "bf16-true" else 4) * table
    # A tied table has two gradients until they are added up, and then added to that of earlier micro-batches.
    ends = table_gradient * (job.model.tied_head + (waiting > 0))
    moments = (
        (waiting, last_kept, logits, copies),  # the loss' backward pass, on the last stage
        # Its forward pass, on the eager path: logits as the head computes them, in float32, and their logarithms. Autocast
        # still holds a copy of every weight, also of those that will be copied again.
        (waiting, last_kept, 10 / 12 * logits, buffers.every_copy if path_of(job, mesh) == "eager" else 0.0),
        (
            max(waiting, min(gradients, table_gradient)),
            kept + (block if job.checkpointing or job.selective else 0.5 * block),
            0.0,
            copies,
        ),
        (gradients, 0.0, 0.0, ends),  # the end of the backward pass
        (gradients, 0.0, 0.0, state.step),  # the update
    )
    at_gradients, at_activations, at_logits, at_copies = max(moments, key=sum)
    at_buffers = at_copies + buffers.fixed
    allocated = state.parameters + at_gradients + state.optimizer + at_activations + at_logits + at_buffers
    return Memory(
        parameters=state.parameters,
        gradients=at_gradients,
        optimizer=state.optimizer,
        activations=at_activations,
        logits=at_logits,
        buffers=at_buffers,
        fragmentation=allocated * FRAGMENTATION,
        runtime=CONTEXT_BYTES + (NCCL_BYTES if mesh.gpus > 1 else 0),
    )
