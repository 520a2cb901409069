"""The start-up table: every setting that matters, printed before the first step."""

from __future__ import annotations

from ..config import format_count, uses_deepspeed, uses_process_group
from ..models import flops_per_token
from ..tokens import describe_begin
from .context import RunContext
from .factory import TrainingPlan, make_average
from .opening import OpenedRun
from .schedules import warmup_steps

Row = tuple[str, str]
FAST_CPU = 1e12  # FLOP/s, which few CPUs reach


def describe_run(context: RunContext, run: OpenedRun) -> list[Row]:
    return [*_model_and_data(context, run), *_steps(context, run), *_hardware(context, run)]


def _model_and_data(context: RunContext, run: OpenedRun) -> list[Row]:
    config = context.config
    blend = run.data.blend
    model = config.model
    vocabulary = run.prepared.train.tokenizer.vocab_size
    sources = " + ".join(blend.names) if config.loader.mixture else config.data.name
    return [
        ("model", f"{model.name}, {run.record.parameters:,} parameters, vocabulary {model.vocab_size:,}"),
        ("data", f"{sources}, {format_count(blend.tokens)} tokens, {blend.summary()}"),
        ("tokenizer", f"{run.prepared.tokenizer_id}, {vocabulary} tokens, {describe_begin(run.tokenizer)}"),
    ]


def _steps(context: RunContext, run: OpenedRun) -> list[Row]:
    config = context.config
    plan = context.plan
    trainer = context.config.trainer
    stop = f", stopping at {plan.stop_step}" if plan.stop_step < plan.total_steps else ""
    devices = f"{plan.mesh.data} ranks x " if plan.mesh.data > 1 else ""
    through = f"{plan.micro_batch // trainer.micro_sequences} x " if plan.mesh.pipeline > 1 else ""
    sequences = f"{trainer.micro_batch} sequences of {trainer.sequence_length}"
    tokens = plan.tokens
    epochs = ", ".join(
        f"{count:.2f}" + (f" of {name}" if config.loader.mixture else "")
        for name, count in run.data.blend.epochs(tokens // trainer.sequence_length).items()
    )
    per_token = flops_per_token(run.model, trainer.sequence_length)
    optimizer = config.optimizer
    schedule = config.lr_schedule
    warmup = warmup_steps(schedule, plan.total_steps)
    configured = schedule.warmup_steps
    rates = f"lr {optimizer.lr:g} ({schedule.name}, {warmup} warmup)"
    rows = [
        ("steps", f"{plan.total_steps}{stop}"),
        ("batch", f"{plan.batch_tokens} tokens = {devices}{plan.micro_batches} x {through}{sequences}"),
        *_smaller_steps(plan),
        ("tokens", f"{format_count(tokens)}, {epochs} epochs"),
        ("compute", _compute(per_token, tokens, on_cpu=run.record.hardware["device"] == "cpu")),
        ("optimizer", f"{optimizer.name}, {rates}, decay {optimizer.weight_decay:g}, clip {trainer.clip_norm}"),
    ]
    if trainer.ema_decay is not None:
        first = make_average(config, plan)
        assert first is not None
        rows.append(
            ("average", f"of the weights after step {first.first_step}, decay {first.decay:g}: validated and exported")
        )
    if warmup != configured:
        steps = f"{warmup} step{'s' * (warmup > 1)}"
        rows.append(
            ("warm-up", f"{steps}: lr_schedule.warmup_steps={configured} is more than the run's {plan.total_steps}")
        )
    return rows


def _compute(per_token: float, tokens: int, *, on_cpu: bool) -> str:
    """Return the FLOPs of the run; on a CPU, where the first step may take an hour, with the days that they take."""
    total = per_token * tokens
    text = f"{format_count(per_token)}FLOP a token, {total:.2e} FLOP in all"
    days = total / FAST_CPU / 86400
    return f"{text}: {days:,.0f} days on a CPU of 1 TFLOP/s" if on_cpu and days >= 1 else text


def _smaller_steps(plan: TrainingPlan) -> list[Row]:
    """Return the sizes of the steps where they differ."""
    counts = plan.batches.counts(plan.total_steps)
    if len(counts) == 1 and counts[0][0] == plan.batch_tokens:
        return []
    return [("batches", ", ".join(f"{steps} steps of {size} tokens" for size, steps in counts))]


def _hardware(context: RunContext, run: OpenedRun) -> list[Row]:
    config = context.config
    plan = context.plan
    network = context.job.network
    compiled = ", compiled" if config.trainer.compile else ""
    mesh = f"{config.parallel.name} x {plan.ranks.world_size}" if uses_deepspeed(config) else str(plan.mesh)
    return [
        ("device", f"{run.record.hardware['device']}, {config.trainer.compute_precision}{compiled}"),
        *([("mesh", f"{mesh} on {plan.ranks.nodes} node(s)")] if uses_process_group(config) else []),
        *([("network", network.summary())] if network and plan.ranks.world_size > 1 else []),
        ("seed", str(config.seed)),
    ]
