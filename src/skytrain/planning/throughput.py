"""Time of one optimizer step: a roofline of the decoder's kernels, plus exposed communication and pipeline bubbles.

The time of a matrix product is its FLOPs at a fraction of peak plus its bytes at memory bandwidth, so the efficiency
of narrow models and fast GPUs drops without special cases. All other kernels move bytes in proportion to what is saved
for the backward pass. The fractions depend on the software; `benchmarks/planning/published.py` fits them on
published runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ..config import DecoderConfig
from .communication import Exchange, Node, bubble_fraction, exchanges
from .flops import attention_matrices, decoder_flops_per_token
from .memory import Precision, TrainingJob, activation_bytes_on, held_parameters, imbalance, narrow_bytes, path_of
from .mesh import Mesh

Source = Literal["measured", "calibrated", "assumed"]

BANDWIDTH = 0.85  # of the datasheet's memory rate, reached by streaming kernels
# Tail time of a matrix product per element of its inner dimension: the last tiles leave half of the SMs idle.
# Half of the time that one of Hopper's 132 SMs needs for a tile of 128 x 256; assumed to be the same elsewhere.
TAIL_SECONDS = 6.7e-9
FP8_SPEED = 1.58  # of products in fp8 relative to bf16, rounding included; fitted on published runs (published.log)
FP32_FRACTION = 0.8  # of the float32 peak, reached by products without tensor cores
OVERLAP = 0.8  # of the computing time, the part that can cover communication; the first and last block cannot
BACKWARD = 2 / 3  # share of a micro-batch's time
# Exponent of the power mean that combines host and device time. In one part of a step the device waits for the host,
# in another the host for the device, so if both take about the same time the step takes longer than either.
SHARPNESS = 4
GRAPHED_TOKENS = 32 * 1024  # of a micro-batch: up to there training records it as a CUDA graph
GRAPHED_SECONDS = 0.003  # of the host in a step of such micro-batches: replays, the norm, the update; assumed
OPTIMIZER_BYTES = 44  # per parameter and step: AdamW reads 16 and writes 12, the norm reads 4, clipping reads and writes 8, clearing 4
UNFUSED_BYTES = (
    44  # more, where AdamW is a kernel for each of its operations: six of them read and write two or three numbers
)
MASTER_BYTES = 12  # in addition, if weights are bfloat16: gradients to float32, and the updated copies back
# For each token and element of the width: a block's two norms, in one kernel each, and its additions to the residual
# stream. Forward 4 and 6 bytes, backward 6 and 6, twice.
NORM_BYTES = 44
WEIGHT_BYTES = 20  # per parameter and micro-batch: casts to bfloat16 and back, and adding up gradients


# Of the step, for each doubling of the machines: the slowest of more ranks is slower, and collectives have more hops.
STRAGGLING = 0.008  # fitted on published runs (benchmarks/planning/published.log)


@dataclass(frozen=True)
class Software:
    """The efficiency of an implementation on given hardware."""

    name: str
    gemm: float  # speed of large matrix products relative to what the GPU sustains in bfloat16
    traffic: float  # bytes moved outside products, per byte kept for the backward pass
    host_seconds: float  # to launch a step's kernels, by layer; the GPU waits where this is longer than its work
    tensor_hidden: float = (
        0.0  # part of tensor parallelism's traffic that is computed over (asynchronous tensor parallelism)
    )
    attention: float = 1.0  # speed of its attention kernel relative to what the GPU's generation is listed with
    straggling: float = STRAGGLING
    blocks: float = 1.0  # speed of the blocks' products relative to the head's: above 1 for fp8, in which no head is
    weight_bytes: float = WEIGHT_BYTES
    norm_bytes: float = 0.0  # moved for each token and element of the width, by a block's norms of several kernels
    sequence_parallel: bool = True  # tensor ranks share norms and the residual stream; otherwise each computes all


# Traffic: compiled, fitted on published runs (benchmarks/planning/published.log); eager and fused, on steps of our own on an H200
# (benchmarks/planning/h200.md), as is what the fused path's products gain by algorithms that were timed (h200_steps.csv; on
# other GPUs assumed). Host: eager and fused as measured on the host of that H200, compiled assumed.
EAGER = Software(name="torch-eager", gemm=1.0, traffic=5.0, host_seconds=0.00215)
FUSED = Software(name="fused", gemm=1.1, traffic=0.8, host_seconds=0.0021)
COMPILED = Software(name="torch-compile", gemm=1.0, traffic=1.07, host_seconds=0.00015)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, by cause."""

    products: float
    attention: float
    traffic: float
    optimizer: float
    host: float  # time that the device loses by waiting for the host's launches
    communication: float  # time that computation does not cover
    bubble: float

    @property
    def device(self) -> float:
        """Return the step time if the host never delays the device."""
        return self.products + self.attention + self.traffic + self.optimizer + self.communication + self.bubble

    @property
    def seconds(self) -> float:
        return self.device + self.host


def software_for(job: TrainingJob, mesh: Mesh) -> Software:
    return {"eager": EAGER, "compiled": COMPILED, "fused": FUSED}[path_of(job, mesh)]


def launch_seconds(job: TrainingJob, mesh: Mesh, software: Software | None = None) -> float:
    """Return the host's time to launch the kernels of one optimizer step, whatever their size."""
    software = software or software_for(job, mesh)
    small = job.micro_batch * job.sequence_length <= GRAPHED_TOKENS
    if job.graphs and small and mesh.gpus == 1 and path_of(job, mesh) == "fused":
        return GRAPHED_SECONDS
    again = 4 / 3 if job.checkpointing or job.selective else 1.0
    return job.accumulation * software.host_seconds * again * job.model.layers / mesh.pipeline


def together(device_seconds: float, host_seconds: float) -> float:
    """Return the time of a step from its device time and its host launch time."""
    longer = max(device_seconds, host_seconds)
    shorter = min(device_seconds, host_seconds)
    return longer * (1 + (shorter / longer) ** SHARPNESS) ** (1 / SHARPNESS)


def step_time(job: TrainingJob, mesh: Mesh, node: Node, software: Software | None = None) -> StepTime:
    """Return the time of one optimizer step of `job.accumulation` micro-batches. The device's peak must be known."""
    software = software or software_for(job, mesh)
    peak = node.gpu.fp32_flops if job.precision == "32-true" else node.gpu.peak_flops
    assert peak is not None, f"{node.gpu.name} has no peak"
    memory = node.gpu.memory_bytes_per_s * BANDWIDTH
    micro = job.accumulation
    model = job.model
    tokens = job.micro_batch * job.sequence_length / mesh.context
    layers = model.layers / mesh.pipeline
    product_rate = peak * node.gpu.gemm * software.gemm
    attention_rate = peak * node.gpu.attention(fused=software is FUSED) * software.attention
    if job.precision == "32-true":
        product_rate = attention_rate = peak * FP32_FRACTION
    again = 4 / 3 if job.checkpointing else 1.0  # one more forward pass of the blocks
    traffic_again = 4 / 3 if job.checkpointing or job.selective else 1.0  # selective: of all but products and attention

    block = _products(model, tokens, mesh.tensor, narrow_bytes(job.precision))
    head_again = 1.0 if job.loss_chunk_tokens is None else 4 / 3
    share = 1 / mesh.pipeline  # the head's stage works longer, but stages are balanced by cost
    products = layers * again * block.seconds(product_rate * software.blocks * (FP8_SPEED if job.fp8 else 1.0), memory)
    if mesh.expert > 1:  # all wait for the rank whose experts have most rows
        products *= 1 + (imbalance(mesh) - 1) * _expert_share(model)
    products += share * head_again * _head(model, tokens, mesh.tensor).seconds(product_rate, memory)

    attention_flops = tokens * _attention_flops(model, job.sequence_length) / mesh.tensor / mesh.pipeline
    attention = attention_flops * (9 / 7 if job.checkpointing else 1) / attention_rate

    # The software's factor says what it saves of this. Fused kernels move the same bytes on every mesh that they serve.
    laid_out = Mesh() if path_of(job, mesh) == "fused" else mesh
    kept = activation_bytes_on("eager", job, laid_out)
    logits = 12 * tokens * model.padded_vocab / mesh.tensor
    traffic = software.traffic * (layers * traffic_again * kept + share * logits) / memory
    shared = mesh.tensor if software.sequence_parallel else 1
    repeated = NORM_BYTES * (1 / shared - 1 / mesh.tensor)  # the class's factor has what is divided
    traffic += layers * traffic_again * tokens * model.width * (software.norm_bytes / shared + repeated) / memory
    held = held_parameters(model, mesh)
    traffic += software.weight_bytes * held / memory

    gpu = micro * (products + attention + traffic)
    optimizer = 0.0 if mesh.offload else optimizer_bytes(job.precision) * held / mesh.sharing / memory
    if job.optimizer.matrix_flops is not None:
        optimizer += _update_flops(model, job.optimizer.matrix_flops) / mesh.tensor / mesh.pipeline / product_rate
    host = together(gpu + optimizer, launch_seconds(job, mesh, software)) - gpu - optimizer
    computing = gpu + host
    uncovered = _uncovered(exchanges(job, mesh, node), computing, job, software)
    uncovered += software.straggling * math.log2(max(1.0, mesh.gpus / node.gpus)) * (computing + uncovered)
    waiting = bubble_fraction(job, mesh)
    bubble = (computing + uncovered) * waiting / (1 - waiting)
    return StepTime(
        products=micro * products,
        attention=micro * attention,
        traffic=micro * traffic,
        optimizer=optimizer,
        host=host,
        communication=uncovered,
        bubble=bubble,
    )


def most_tokens_per_s(job: TrainingJob, node: Node, gpus: int, batch_tokens: int) -> float:
    """Return a rate that no layout of the job exceeds: what its kernels compute and move, and no waiting for others."""
    peak = node.gpu.fp32_flops if job.precision == "32-true" else node.gpu.peak_flops
    assert peak is not None, f"{node.gpu.name} has no peak"
    model = job.model
    memory = node.gpu.memory_bytes_per_s * BANDWIDTH
    narrow = narrow_bytes(job.precision)
    blocks = model.layers * _products(model, 1.0, 1, narrow).flops
    attention = _attention_flops(model, job.sequence_length)
    moved = 3 * narrow * model.layers * sum(inputs + outputs for inputs, outputs in _matrices(model, 1))
    update = 0.0
    if job.optimizer.matrix_flops is not None:  # tensor and pipeline ranks divide it
        update = _update_flops(model, job.optimizer.matrix_flops) / batch_tokens
    one = replace(job, micro_batch=1)
    # Some meshes keep a residual stream of two bytes an element, and none keeps less. Fused kernels gain nothing by that.
    lean = replace(one, precision="bf16-true") if gpus > 1 and job.precision != "32-true" else one

    def seconds(software: Software) -> float:
        """Return the time of one GPU for a token."""
        product_rate = peak * node.gpu.gemm * software.gemm
        attention_rate = peak * node.gpu.attention(fused=software is FUSED) * software.attention
        if job.precision == "32-true":
            product_rate = attention_rate = peak * FP32_FRACTION
        products = blocks / (product_rate * (FP8_SPEED if job.fp8 else 1.0))
        products += (_head(model, 1.0, 1).flops + update) / product_rate
        kept = activation_bytes_on("eager", one if software is FUSED else lean, Mesh(offload=job.offload))
        traffic = software.traffic * (model.layers * kept / job.sequence_length + 12 * model.padded_vocab) + moved
        return products + attention / attention_rate + traffic / memory

    possible = [COMPILED if job.compiled else EAGER, *([FUSED] if job.fused else [])]
    slower = 1 + STRAGGLING * math.log2(max(1.0, gpus / node.gpus))
    return gpus / (slower * min(map(seconds, possible)))


def _expert_share(model: DecoderConfig) -> float:
    """Return the share of a block's products that the experts of a token have."""
    assert model.experts is not None
    routed = 3 * model.width * model.experts.per_token * model.experts.width
    return routed / sum(inputs * outputs for inputs, outputs in _matrices(model, 1))


def _update_flops(model: DecoderConfig, matrix_flops: Callable[[float, float], float]) -> float:
    """Return the FLOPs of one update of the blocks' matrices, on every rank that holds them."""
    shapes = list(_matrices(model, 1))
    if model.experts is not None:
        shapes = [*shapes[:-3], *(3 * model.experts.count * [(float(model.width), float(model.experts.width))])]
    return model.layers * sum(matrix_flops(*sorted(shape)) for shape in shapes)


def optimizer_bytes(precision: Precision) -> float:
    """Return the bytes per parameter that an update moves."""
    more = {"16-mixed": UNFUSED_BYTES, "bf16-true": MASTER_BYTES}
    return OPTIMIZER_BYTES + more.get(precision, 0)


def tokens_per_step(job: TrainingJob, mesh: Mesh) -> int:
    return job.micro_batch * job.sequence_length * job.accumulation * mesh.data


def mfu(job: TrainingJob, mesh: Mesh, node: Node, step_seconds: float) -> float | None:
    """Return model FLOPs utilization of the dense bf16 peak; None for a device without a known peak."""
    if node.gpu.peak_flops is None:
        return None
    flops = decoder_flops_per_token(job.model, job.sequence_length) * tokens_per_step(job, mesh)
    return flops / step_seconds / (node.gpu.peak_flops * mesh.gpus)


def _uncovered(exchanges: list[Exchange], computing: float, job: TrainingJob, software: Software) -> float:
    """Return exposed communication: what cannot overlap, and what exceeds the computation it overlaps with."""
    exposed = sum(exchange.seconds for exchange in exchanges if not exchange.overlapped) * (1 - software.tensor_hidden)
    steady = sum(exchange.seconds for exchange in exchanges if exchange.overlapped and not exchange.once)
    once = sum(exchange.seconds for exchange in exchanges if exchange.overlapped and exchange.once)
    last_backward = computing / job.accumulation * BACKWARD
    left = max(0.0, OVERLAP * computing - steady)
    return exposed + max(0.0, steady - OVERLAP * computing) + max(0.0, once - min(left, OVERLAP * last_backward))


def _matrices(model: DecoderConfig, tensor: int) -> Iterator[tuple[float, float]]:
    """Yield (inputs, outputs) of a block's products on one rank; pairs are split by columns, then by rows."""
    if model.latent is None:
        (width, packed), (queries, _) = attention_matrices(model)
        yield width, packed / tensor
        yield queries / tensor, model.width
    else:
        for inputs, outputs in attention_matrices(model):  # each rank compresses its part of the sequence
            yield inputs / tensor, float(outputs)
    experts = model.experts
    if experts is None:
        hidden = model.hidden_width / tensor
    else:  # per token: its experts side by side, and the shared one
        hidden = (experts.per_token * experts.width + (experts.shared_width or 0)) / tensor
    for _ in range(2 if model.gated_mlp else 1):
        yield model.width, hidden
    yield hidden, model.width


def _attention_flops(model: DecoderConfig, sequence_length: int) -> float:
    """Return the FLOPs of a token, in all layers.

    Half of the square; forward 2 products, backward 5 (it computes the scores again). Values are padded to the size of keys.
    """
    return 7.0 * model.heads * model.head_width * _attended(model, sequence_length)


@lru_cache(maxsize=64)
def _attended(model: DecoderConfig, sequence_length: int) -> int:
    """Return the number of attended tokens, summed over all layers."""
    return sum(min(sequence_length, model.window_of(layer) or sequence_length) for layer in range(model.layers))


@dataclass(frozen=True)
class Products:
    """Matrix products of one micro-batch, forward and backward."""

    flops: float
    moved_bytes: float
    inner: float  # sum of the inner dimensions of those whose outputs grow with the tokens

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        return self.flops / flops_per_s + self.moved_bytes / bytes_per_s + self.inner * TAIL_SECONDS


@lru_cache(maxsize=4096)
def _products(model: DecoderConfig, tokens: float, tensor: int, element: int) -> Products:
    """Return the products of one block."""
    flops = moved = inner = 0.0
    for inputs, outputs in _matrices(model, tensor):
        flops += 6 * tokens * inputs * outputs
        moved += 3 * element * (tokens * inputs + inputs * outputs + tokens * outputs)
        inner += inputs + outputs
    return Products(flops, moved, inner)


def _head(model: DecoderConfig, tokens: float, tensor: int) -> Products:
    inputs = model.width
    outputs = model.padded_vocab / tensor
    moved = 6 * (tokens * inputs + inputs * outputs + tokens * outputs)
    return Products(6 * tokens * inputs * outputs, moved, inputs + outputs)
