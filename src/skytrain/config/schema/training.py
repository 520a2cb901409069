"""How the model learns: optimizer, learning-rate schedule, parallelism, trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..units import parse_seconds
from .kinds import (
    Count,
    Degree,
    Every,
    Fraction,
    MicroBatch,
    NonNegative,
    Positive,
    PositiveFloat,
    Range,
    Seconds,
    Unit,
    Whole,
)


@dataclass(frozen=True)
class AdamWConfig:
    name: Literal["adamw"]
    lr: PositiveFloat
    beta1: Fraction
    beta2: Fraction
    eps: PositiveFloat
    weight_decay: NonNegative  # on matrices only; biases, norms and other vectors are spared


@dataclass(frozen=True)
class LionConfig:
    name: Literal["lion"]
    lr: PositiveFloat
    beta1: Fraction
    beta2: Fraction
    weight_decay: NonNegative


@dataclass(frozen=True)
class MuonConfig:
    """torch's Muon on the matrices between embedding and head, AdamW on everything else; one learning rate for both."""

    name: Literal["muon"]
    lr: PositiveFloat  # as for AdamW: Muon's steps are scaled to the size of AdamW's
    momentum: Fraction
    beta1: Fraction  # this and the next two are AdamW's
    beta2: Fraction
    eps: PositiveFloat
    weight_decay: NonNegative


OptimizerConfig = AdamWConfig | LionConfig | MuonConfig


@dataclass(frozen=True)
class DecayScheduleConfig:
    """Warm up, then fall to `final_fraction` of the peak at the horizon."""

    name: Literal["cosine", "linear"]
    warmup_steps: Whole
    final_fraction: Fraction


@dataclass(frozen=True)
class ConstantScheduleConfig:
    name: Literal["constant"]
    warmup_steps: Whole


@dataclass(frozen=True)
class WSDScheduleConfig:
    """Warm up, stay, then decay over the last `decay_fraction` of the steps."""

    name: Literal["wsd"]
    warmup_steps: Whole
    decay_fraction: Fraction
    final_fraction: Fraction


LRScheduleConfig = DecayScheduleConfig | ConstantScheduleConfig | WSDScheduleConfig


@dataclass(frozen=True)
class ParallelConfig:
    """How processes share the work. The degrees multiply to their number; one may be -1: the rest of them."""

    name: Literal["single", "ddp", "fsdp", "hsdp", "tp", "tp-fsdp", "pp", "pp-fsdp", "pp-tp-fsdp", "cp", "auto",
                  "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3", "deepspeed-zero3-offload"]  # fmt: skip
    pipeline: Degree  # stages of consecutive layers
    replicate: Degree | None  # copies of the whole state; null: one for each node, or two on a single one
    shard: Degree  # ranks that divide one copy's parameters, gradients and optimizer state
    context: Degree  # ranks that divide each sequence
    tensor: Degree  # ranks that divide each layer; best inside a node
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zbv"]
    pipeline_micro_batches: Positive | None  # that go through the pipeline together; null: all of a step's
    context_method: Literal["allgather", "ring", "ulysses"]  # how attention reaches over a divided sequence
    reduce_once: bool  # gradients travel once a step, not once a micro-batch; holds them whole meanwhile
    timeout: Annotated[
        float, Unit(parse_seconds, "seconds"), Range(min=5)
    ]  # nothing moves for so long: the job stops, and says where
    # Parameters, gradients and optimizer state live in the machine's own memory; with DeepSpeed below ZeRO-3, the last alone.
    cpu_offload: bool
    offload_folder: str | None  # on an NVMe disk, where DeepSpeed keeps them instead; null: in memory


@dataclass(frozen=True)
class KernelsConfig:
    """Techniques of the fused path, each with its switch (docs/performance.md says what each gave)."""

    attention: Literal["auto", "cudnn", "flash", "sdpa"]
    loss: bool
    gelu: bool
    norm: bool
    products: bool  # the fastest of cuBLASLt's algorithms for each shape, found when it is first seen
    epilogue: bool  # bias and GELU inside of products, where that is the faster way
    residual: Literal["bf16", "fp32"]  # what the stream between blocks is kept in; autocast has fp32


@dataclass(frozen=True)
class TrainerConfig:
    sequence_length: Positive
    batch_tokens: Count  # per optimizer step, over all devices
    micro_batch: MicroBatch  # sequences per device and pass, or auto: the fastest measured; accumulation follows
    steps: Positive | None  # the schedule's horizon; give this or `tokens`
    tokens: Count | None
    stop_at_step: Positive | None  # end early; the schedule keeps its full horizon
    clip_norm: PositiveFloat | None
    # What to do, before the weights change, when loss or gradient norm is not finite, or a spike.
    on_anomaly: Literal["stop", "skip", "ignore"]
    spike_zscore: PositiveFloat | None  # this many deviations above the last 128 steps is a spike; null: none is
    activation_checkpointing: Literal["none", "selective", "full"]  # what blocks compute again in the backward pass
    loss_chunk_tokens: Count | None  # logits of so many tokens exist at a time; null: of all
    z_loss: NonNegative  # weight of the squared log of the softmax's sum
    # bf16-true: weights too, with float32 copies in the optimizer; 16-mixed scales the loss, and needs a GPU
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"]
    device: Literal["auto", "cpu", "cuda"]
    fused: Literal["auto", "on", "off"]  # kernels of our own for decoders of GPT-2's shape on a GPU, in bf16
    kernels: KernelsConfig
    cuda_graphs: Literal["auto", "on", "off"]  # a micro-batch's kernels asked for at once; auto: where it is small
    compile: bool  # torch.compile, where the fused path is not taken
    fp8: Literal["off", "tensorwise", "rowwise"]  # the blocks' products, for wide models; needs compile
    profile: bool  # a trace of three steps and a snapshot of GPU memory, in the run's folder
    deterministic: bool  # torch's deterministic algorithms on a GPU; slower
    validate_every: Positive | None  # steps
    validate_tokens: Count
    sample_every: Positive | None  # steps
    sample_prompt: str
    sample_tokens: Positive
    checkpoint_every: Every | None  # steps, a time, or auto: by what a save costs and how often machines vanish
    interrupted_every: (
        Seconds  # on average, for checkpoint_every=auto; what the run itself has seen counts once it is enough
    )
    keep_checkpoints: Annotated[int, Range(min=2)]  # the newest
    keep_every: Positive | None  # beside them, those at every so many steps
    keep_best: Whole  # and so many with the lowest validation loss
    log_every: Positive  # steps
    loggers: list[Literal["tensorboard", "wandb", "cloudwatch"]]  # metrics files are always written
    workers: Whole  # data loader processes
    max_restarts: Whole  # after crashes, each time from the last committed checkpoint
    stop_within: Seconds  # of being asked to; what has not saved and stopped by then is killed

    @property
    def micro_sequences(self) -> int:
        """The micro-batch of a run whose `auto` has been resolved."""
        assert self.micro_batch is not None, "trainer.micro_batch=auto has not been resolved"
        return self.micro_batch
