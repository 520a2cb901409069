"""How the model learns: learning-rate schedule, parallelism, trainer. Optimizers have their own package."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ..units import parse_seconds
from .declare import EXECUTION, NUMBERS, setting, settings
from .kinds import (
    TIME,
    Count,
    Decay,
    Degree,
    Every,
    Fraction,
    MicroBatch,
    NonNegative,
    OtherKeys,
    Positive,
    PositiveFloat,
    Precision,
    Range,
    Seconds,
    Unit,
    Whole,
)


@settings
class DecayScheduleConfig:
    """Warm up, then fall to `final_fraction` of the peak at the horizon."""

    name: Literal["cosine", "linear"] = setting(NUMBERS, "Shape of the decay.")
    warmup_steps: Whole = setting(NUMBERS, "Steps over which the learning rate rises to its peak.")
    final_fraction: Fraction = setting(NUMBERS, "Learning rate at the last step, as a share of the peak.")


@settings
class PowerScheduleConfig:
    """Warm up, then fall to `final_fraction` of the peak as the rest of the run to a power."""

    name: Literal["power"] = setting(NUMBERS, "Shape of the decay.")
    warmup_steps: Whole = setting(NUMBERS, "Steps over which the learning rate rises to its peak.")
    power: PositiveFloat = setting(NUMBERS, "Power of the part of the run that is left; 1: a line.")
    final_fraction: Fraction = setting(NUMBERS, "Learning rate at the last step, as a share of the peak.")


@settings
class ConstantScheduleConfig:
    """Warm up, then stay at the peak."""

    name: Literal["constant"] = setting(NUMBERS, "Shape of the schedule.")
    warmup_steps: Whole = setting(NUMBERS, "Steps over which the learning rate rises to its peak.")


@settings
class WSDScheduleConfig:
    """Warm up, stay, then decay over the last `decay_fraction` of the steps."""

    name: Literal["wsd"] = setting(NUMBERS, "Shape of the schedule.")
    warmup_steps: Whole = setting(NUMBERS, "Steps over which the learning rate rises to its peak.")
    decay_fraction: Fraction = setting(NUMBERS, "Share of the steps, at the end, in which the learning rate decays.")
    decay_power: PositiveFloat = setting(NUMBERS, "Power of the part of the decay that is left; 1: a line.")
    final_fraction: Fraction = setting(NUMBERS, "Learning rate at the last step, as a share of the peak.")


LRScheduleConfig = DecayScheduleConfig | PowerScheduleConfig | ConstantScheduleConfig | WSDScheduleConfig


@settings
class ParallelConfig:
    """How processes share the work. The degrees multiply to their number; one may be -1: the rest of them."""

    name: Literal["single", "ddp", "fsdp", "hsdp", "tp", "tp-fsdp", "pp", "pp-fsdp", "pp-tp-fsdp", "cp", "ep-fsdp", "pp-ep-fsdp",
                  "auto",
                  "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3", "deepspeed-zero3-offload"] = setting(
        EXECUTION, "The preset that the degrees come from; auto: chosen for the hardware."
    )  # fmt: skip
    pipeline: Degree = setting(EXECUTION, "Stages of consecutive layers.")
    replicate: Degree | None = setting(
        EXECUTION, "Copies of the whole state; null: one for each node, or two on a single one."
    )
    shard: Degree = setting(EXECUTION, "Ranks that divide one copy's parameters, gradients and optimizer state.")
    context: Degree = setting(EXECUTION, "Ranks that divide each sequence.")
    tensor: Degree = setting(EXECUTION, "Ranks that divide each layer; best inside a node.")
    expert: Positive = setting(
        EXECUTION,
        "Neighbours, among the ranks that share the state (shard x context), that divide each layer's experts.",
    )
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zbv"] = setting(EXECUTION, "Schedule of the pipeline.")
    chunks: Positive | None = setting(
        EXECUTION,
        "Parts of the model on each rank of an interleaved-1f1b pipeline: more of them wait less and send more; null: 2.",
    )
    pipeline_micro_batches: Positive | None = setting(
        EXECUTION, "Micro-batches that go through the pipeline together; null: all of a step's."
    )
    context_method: Literal["allgather", "ring", "ulysses"] = setting(
        EXECUTION, "How attention reaches over a divided sequence."
    )
    reduce_once: bool = setting(
        EXECUTION, "Reduce gradients once per step, not once per micro-batch; they are held whole meanwhile."
    )
    timeout: Annotated[float, Unit(parse_seconds, TIME), Range(min=5)] = setting(
        EXECUTION, "The job stops after so long without progress, and reports where it waited."
    )
    cpu_offload: bool = setting(
        EXECUTION,
        "Keep parameters, gradients and optimizer state in the machine's memory; with DeepSpeed below ZeRO-3, only the last.",
    )
    offload_folder: str | None = setting(
        EXECUTION, "A folder on an NVMe disk where DeepSpeed keeps them instead; null: in memory."
    )


@settings
class KernelsConfig:
    """Techniques of the fused path, each with its switch (docs/performance.md says what each gave)."""

    attention: Literal["auto", "cudnn", "flash", "sdpa"] = setting(EXECUTION, "The attention kernel.")
    loss: bool = setting(EXECUTION, "A loss that reads its logits once.")
    gelu: bool = setting(EXECUTION, "A fused GELU.")
    norm: bool = setting(EXECUTION, "A fused norm.")
    products: bool = setting(
        EXECUTION, "The fastest of cuBLASLt's algorithms for each shape, found when it is first seen."
    )
    epilogue: bool = setting(EXECUTION, "Bias and GELU inside of products, where that is faster.")
    residual: Literal["bf16", "fp32"] = setting(
        NUMBERS, "Precision of the stream between blocks on the fused path; autocast has fp32."
    )


@settings
class EvaluatorConfig:
    """An evaluator of the user's own; further keys are arguments of its class."""

    target: str = setting(EXECUTION, "Path of the class, such as `my_package.MyEvaluator`.")
    every: Positive = setting(EXECUTION, "Steps between its runs.")
    args: Annotated[dict[str, Any], OtherKeys()] = setting(
        EXECUTION, "Arguments of that class, written directly next to `target`."
    )


@settings
class BatchPhaseConfig:
    """The beginning of a run, with batches of another size."""

    batch_tokens: Count = setting(NUMBERS, "Tokens per optimizer step, over all devices.")
    until_tokens: Count = setting(
        NUMBERS, "Tokens from the start of the run: steps that begin before so many have this size."
    )


@settings
class CallbackConfig:
    """A Lightning callback, of the user's own or of a package; further keys are arguments of its class."""

    target: str = setting(EXECUTION, "Path of the class, such as `my_package.MyCallback`.")
    args: Annotated[dict[str, Any], OtherKeys()] = setting(
        EXECUTION, "Arguments of that class, written directly next to `target`."
    )


@settings
class TrainerConfig:
    """Batches, length, precision and reporting of a training."""

    sequence_length: Positive = setting(NUMBERS, "Tokens in one sequence.")
    batch_tokens: Count = setting(NUMBERS, "Tokens per optimizer step, over all devices.")
    batch_schedule: list[BatchPhaseConfig] = setting(
        NUMBERS,
        "Other batches first, such as [{batch_tokens: 64K, until_tokens: 20M}]; steps after the last phase have "
        "`batch_tokens`. Learning rates fall with the tokens, not the steps.",
    )
    micro_batch: MicroBatch = setting(
        EXECUTION, "Sequences per device and pass, or auto: the fastest measured; accumulation follows."
    )
    steps: Positive | None = setting(NUMBERS, "Optimizer steps, the horizon of the schedule; give this or `tokens`.")
    tokens: Count | None = setting(NUMBERS, "Tokens to train on, in place of `steps`.")
    stop_at_step: Positive | None = setting(EXECUTION, "End early; the schedule keeps its full horizon.")
    ema_decay: Decay | None = setting(
        NUMBERS,
        "Decay, in each step, of an average of the weights: evaluated, exported and served in their place; null: none.",
    )
    ema_start: Fraction = setting(NUMBERS, "Share of the steps after which that average begins.")
    clip_norm: PositiveFloat | None = setting(NUMBERS, "Largest norm of the gradients; null: they are not clipped.")
    on_anomaly: Literal["stop", "skip", "ignore"] = setting(
        NUMBERS, "What to do, before the weights change, when loss or gradient norm is not finite, or is a spike."
    )
    spike_zscore: PositiveFloat | None = setting(
        NUMBERS,
        "Standard deviations above the mean of the last 128 steps from which a value is a spike; null: nothing is.",
    )
    activation_checkpointing: Literal["none", "selective", "full"] = setting(
        EXECUTION, "What blocks compute again in the backward pass, to save memory."
    )
    loss_chunk_tokens: Count | None = setting(
        EXECUTION, "Tokens whose logits exist at the same time, to save memory; null: all of a micro-batch."
    )
    z_loss: NonNegative = setting(NUMBERS, "Weight of the squared log of the softmax's sum.")
    precision: Literal["auto", Precision] = setting(
        NUMBERS,
        "auto: bf16-mixed on a GPU that has it, 32-true elsewhere, decided once for each run; bf16-true: weights too, "
        "with float32 copies in the optimizer; 16-mixed scales the loss, and needs a GPU.",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(EXECUTION, "Where to train; auto: on a GPU where there is one.")
    fused: Literal["auto", "on", "off"] = setting(
        EXECUTION, "Our own kernels, for decoders of GPT-2's, Llama's or Qwen's shape on a GPU, in bf16."
    )
    kernels: KernelsConfig
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        EXECUTION, "Launch the kernels of a micro-batch at once; auto: where it is small."
    )
    compile: bool = setting(EXECUTION, "Use torch.compile, where the fused path is not taken.")
    fp8: Literal["off", "tensorwise", "rowwise"] = setting(
        NUMBERS, "Compute the blocks' products in fp8, for wide models; needs compile."
    )
    profile: bool = setting(EXECUTION, "Write a trace of three steps and a snapshot of GPU memory to the run's folder.")
    deterministic: bool = setting(EXECUTION, "Use torch's deterministic algorithms on a GPU; slower.")
    validate_every: Positive | None = setting(EXECUTION, "Steps between validations; null: never.")
    validate_tokens: Count = setting(EXECUTION, "Tokens of the validation split that are used.")
    sample_every: Positive | None = setting(EXECUTION, "Steps between samples of text; null: never.")
    sample_prompt: str = setting(EXECUTION, "How samples begin.")
    sample_tokens: Positive = setting(EXECUTION, "Length of a sample.")
    evaluators: list[EvaluatorConfig] = setting(
        EXECUTION, "Further evaluators, such as [{target: my_package.MyEvaluator, every: 500}]; see docs/extending.md."
    )
    checkpoint_every: Every | None = setting(
        EXECUTION,
        "Steps or time between checkpoints, or auto: by what a save costs and how often machines vanish; null: only at the end.",
    )
    interrupted_every: Seconds = setting(
        EXECUTION,
        "Mean time between interruptions, for checkpoint_every=auto; what the run itself has seen counts once it is enough.",
    )
    keep_checkpoints: Annotated[int, Range(min=2)] = setting(EXECUTION, "Newest checkpoints to keep.")
    keep_every: Positive | None = setting(
        EXECUTION, "Also keep a checkpoint each time this many steps have passed; null: none."
    )
    keep_best: Whole = setting(EXECUTION, "Number of checkpoints with the lowest validation loss that are also kept.")
    log_every: Positive = setting(EXECUTION, "Steps between lines of the log.")
    loggers: list[str] = setting(
        EXECUTION,
        "Where metrics go, in addition to the metrics files that are always written: tensorboard, wandb, cloudwatch, or "
        "the path of a class of Lightning's loggers, which is created without arguments.",
    )
    callbacks: list[CallbackConfig] = setting(
        EXECUTION,
        "Further callbacks of Lightning, such as [my_package.MyCallback], or [{target: my_package.MyCallback, every: 10}] "
        "with arguments; they act after the step is logged and before it is saved, and checkpoints hold what they did, "
        "their state and that of Python's and NumPy's generators.",
    )
    workers: Whole = setting(EXECUTION, "Data loader processes per rank.")
    lost_steps: Literal["stop", "retrain"] = setting(
        EXECUTION,
        "Where records show that later steps were saved than a checkpoint is there for: stop, or train them again.",
    )
    max_restarts: Whole = setting(EXECUTION, "Restarts after crashes, each time from the last committed checkpoint.")
    stop_within: Seconds = setting(
        EXECUTION, "Time to save and stop after being asked to; what has not stopped by then is killed."
    )
    diverged_nats: PositiveFloat | None = setting(
        EXECUTION, "Stop when the smoothed loss is so far above its lowest; null: never."
    )

    @property
    def compute_precision(self) -> Precision:
        """Return the precision of a run whose `auto` has been resolved."""
        assert self.precision != "auto", "trainer.precision=auto has not been resolved"
        return self.precision

    @property
    def micro_sequences(self) -> int:
        """Return the micro-batch of a run whose `auto` has been resolved."""
        assert self.micro_batch is not None, "trainer.micro_batch=auto has not been resolved"
        return self.micro_batch
