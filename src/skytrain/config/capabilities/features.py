"""Rules on settings that cannot be combined with a mesh or a model."""

from __future__ import annotations

import math

from ..mesh import nearest_divisor
from ..schema import OPTIMIZERS, Config, CustomModelConfig, has_layers, tag_of
from .rule import Rule, Setup

WHOLE_MATRIX_OPTIMIZERS = [
    f"`{name}`" for optimizer in OPTIMIZERS if optimizer.facts.whole_matrices for name in tag_of(optimizer)[1]
]


def _divided(setup: Setup, *dimensions: str) -> str | None:
    """Return the first of these dimensions that the mesh divides, as `parallel.tensor=2`; None if it divides none.

    While the number of ranks is unknown, the setting is returned unchanged.
    """
    dimension = next((name for name in dimensions if getattr(setup.mesh, name) > 1), None)
    known = setup.config.parallel if setup.processes is None else setup.mesh
    return dimension and f"parallel.{dimension}={getattr(known, dimension)}"


def _whole_matrices(setup: Setup) -> str | None:
    optimizer = setup.config.optimizer
    if not optimizer.facts.whole_matrices:
        return None
    if setup.mesh.deepspeed:
        return f"{optimizer.name!r} needs whole matrices, and DeepSpeed divides the state without regard to them"
    return f"{optimizer.name!r} gathers matrices on the GPU, and they are kept off it" if setup.mesh.offload else None


def _offloaded_optimizer(setup: Setup) -> str | None:
    optimizer = setup.config.optimizer
    if not (setup.mesh.deepspeed and setup.mesh.offload) or optimizer.facts.deepspeed_offload:
        return None
    return f"{optimizer.name!r}: DeepSpeed offloads AdamW only"


def _loss_of_its_own(config: Config) -> bool:
    return isinstance(config.model, CustomModelConfig)


def _z_loss(setup: Setup) -> str | None:
    value = setup.config.trainer.z_loss
    if not value:
        return None
    if _loss_of_its_own(setup.config):
        return f"{value} is not known to model={setup.config.model.name}, which computes its own loss"
    divided = _divided(setup, "tensor")
    return divided and f"{value}: {divided} divides the logits' vocabulary, over which the z-loss sums"


def _loss_chunks(setup: Setup) -> str | None:
    value = setup.config.trainer.loss_chunk_tokens
    if not value:
        return None
    if _loss_of_its_own(setup.config):
        return f"{value} is not known to model={setup.config.model.name}, which computes its own loss"
    if divided := _divided(setup, "tensor"):
        return f"{value}: {divided} divides the logits by vocabulary, and does not cut them into chunks too"
    divided = _divided(setup, "pipeline")
    return divided and f"{value}: {divided} takes whole logits from its last stage"


def _documents(setup: Setup) -> str | None:
    if not setup.config.loader.separate_documents:
        return None
    if isinstance(setup.config.model, CustomModelConfig):
        return f"model={setup.config.model.name} cannot keep documents apart; the built-in decoder and model=hf can"
    divided = _divided(setup, "context", "pipeline")
    return divided and f"{divided} does not keep documents apart"


def _projection_norm(setup: Setup) -> str | None:
    model = setup.config.model
    if not has_layers(model) or not model.qk_norm or model.qk_norm_scope == "head":
        return None
    divided = _divided(setup, "tensor")
    return divided and f"{divided} divides the heads, over all of which model.qk_norm_scope=projection normalizes"


def _precision(setup: Setup) -> str | None:
    precision = setup.config.trainer.precision
    if precision not in ("16-mixed", "bf16-true") or not setup.mesh.divides:
        return None
    return (
        f"{precision!r} is not for parallel={setup.mesh.preset}, which keeps weights in float32 and multiplies in bf16"
    )


def _recomputation(setup: Setup) -> str | None:
    wanted = setup.config.trainer.activation_checkpointing
    model = setup.config.model
    if setup.mesh.divides or wanted == "none" or wanted in model.facts.recomputes:
        return None
    return f"{wanted!r} is not known to model={model.name} on one device or copied to each"


def _model_cut(setup: Setup) -> str | None:
    if setup.config.model.facts.stages or setup.mesh.pipeline == 1:
        return None
    return f"model {setup.config.model.name} cannot be cut into stages; only the built-in decoder can"


def _hf_layers_cut(setup: Setup) -> str | None:
    if setup.mesh.tensor == 1 or setup.hf is None or setup.hf.has_tensor_plan is not False:
        return None
    return f"transformers has no plan that divides the layers of {setup.hf.name}"


def _sequence_cut(setup: Setup) -> str | None:
    if setup.config.model.facts.sequences or setup.mesh.context == 1:
        return None
    return f"model {setup.config.model.name} cannot divide its sequences; only the built-in decoder can"


def _context_attention(setup: Setup) -> str | None:
    """Return what ring and all-gather attention cannot compute: each piece calls a kernel that has only causal masks."""
    config = setup.config
    model = setup.config.model
    method = setup.config.parallel.context_method
    if setup.mesh.context == 1 or method == "ulysses" or not has_layers(model):
        return None
    length = config.trainer.sequence_length
    windows = [window for layer in range(model.layers) if (window := model.window_of(layer)) and window < length]
    unknown = {
        f"a window of {min(windows, default=0)} tokens (model.window)": bool(windows),
        "model.attention_softcap": model.attention_softcap is not None,
        f"model.dropout={model.dropout}": model.dropout > 0,
    }
    what = next((what for what, there in unknown.items() if there), None)
    return what and f"{method} computes attention in pieces, which does not go with {what}"


def _context_sinks(setup: Setup) -> str | None:
    model = setup.config.model
    if not has_layers(model) or not model.sinks:
        return None
    divided = _divided(setup, "context")
    return divided and f"{divided}: attention across ranks does not compute sinks (model.sinks)"


def _deepspeed_degrees(setup: Setup) -> str | None:
    mesh = setup.mesh
    if not mesh.deepspeed or mesh.gpus == mesh.shard:
        return None
    return (
        f"{setup.config.parallel.name} only divides state among all ranks; "
        "the degrees pipeline, context and tensor must be 1"
    )


def _experts(setup: Setup) -> str | None:
    mesh = setup.mesh
    model = setup.config.model
    experts = model.experts if has_layers(model) else None
    if mesh.expert == 1:
        return None
    if experts is None:
        return f"{mesh.expert}: model={model.name} has no experts to divide"
    ranks = 0 if setup.processes is None else mesh.sharing  # 0, which every number divides: not known yet
    shared = math.gcd(experts.count, mesh.expert)
    # Ranks that the asked number divides are also divided by its divisors.
    near = shared if not ranks and shared > 1 else nearest_divisor(math.gcd(experts.count, ranks), mesh.expert)
    if experts.count % mesh.expert:
        return f"{experts.count} experts do not divide among {mesh.expert} ranks; try parallel.expert={near}"
    if ranks % mesh.expert:
        return (
            f"the {ranks} ranks that share the state (shard x context) do not divide into groups of {mesh.expert}; "
            f"try parallel.expert={near}"
        )
    return None


def _replicated_in_stages(setup: Setup) -> str | None:
    """Return where a pipeline does not sum gradients of weights that tensor-parallel ranks hold alike for parts of sequences."""
    mesh = setup.mesh
    model = setup.config.model
    if not has_layers(model) or (model.experts is None and model.latent is None) or mesh.pipeline == 1:
        return None
    divided = _divided(setup, "tensor")
    if divided is None or (mesh.data == mesh.context == mesh.chunks == 1):
        return None
    what = "experts" if model.experts is not None else "latent attention"
    return (
        f"{divided}: in a pipeline, gradients of {what} are not summed over tensor-parallel ranks"
        " where others share the batch or a rank has several stages"
    )


def _recomputed_experts(setup: Setup) -> str | None:
    """Return where a second run of a block would gather experts by other operations than the first, which torch refuses."""
    if setup.mesh.expert == 1 or setup.config.trainer.activation_checkpointing != "selective":
        return None
    return f"'selective' does not go with parallel.expert={setup.mesh.expert}: ranks gather experts within a block"


def _deepspeed_experts(setup: Setup) -> str | None:
    model = setup.config.model
    if not setup.mesh.deepspeed or not has_layers(model) or model.experts is None:
        return None
    return f"DeepSpeed does not gather the experts and routers of model={model.name} for the backward pass"


def _deepspeed_spikes(setup: Setup) -> str | None:
    zscore = setup.config.trainer.spike_zscore
    if zscore is None or not setup.mesh.deepspeed:
        return None
    return f"{zscore:g}: DeepSpeed tells the gradient norm when the weights have changed already, too late to refuse it"


def _deepspeed_batches(setup: Setup) -> str | None:
    if not setup.config.trainer.batch_schedule or not setup.mesh.deepspeed:
        return None
    return "DeepSpeed's engine is built for one number of micro-batches a step"


def _deepspeed_average(setup: Setup) -> str | None:
    decay = setup.config.trainer.ema_decay
    if decay is None or not setup.mesh.deepspeed:
        return None
    return f"{decay:g}: DeepSpeed's engine keeps the weights in its own pieces, and saves nothing beside them"


def _average_of_bf16(setup: Setup) -> str | None:
    trainer = setup.config.trainer
    if trainer.ema_decay is None or trainer.precision != "bf16-true":
        return None
    return f"{trainer.ema_decay:g}: weights in bf16 (trainer.precision=bf16-true) lose what an average is made of"


def _deepspeed_compile(setup: Setup) -> str | None:
    return "true is not for DeepSpeed" if setup.config.trainer.compile and setup.mesh.deepspeed else None


def _offload_on_cpu(setup: Setup) -> str | None:
    offloads = setup.mesh.offload and not setup.mesh.deepspeed
    device = setup.known_device
    on_cpu = device is not None and device.kind == "cpu"
    return "there is nothing to offload from on a CPU" if offloads and on_cpu else None


def _offload_folder(setup: Setup) -> str | None:
    folder = setup.config.parallel.offload_folder
    mesh = setup.mesh
    if not folder or (mesh.deepspeed and mesh.offload and mesh.zero == 3):
        return None
    return f"{folder!r}: only ZeRO-3 with offloading keeps state on a disk"


FEATURE_RULES = (
    Rule(
        name="whole-matrices",
        key="optimizer.name",
        excludes=f"{', '.join(WHOLE_MATRIX_OPTIMIZERS)} with DeepSpeed or `parallel.cpu_offload`",
        problem=_whole_matrices,
        fix="try parallel=fsdp without offloading, or optimizer=adamw",
    ),
    Rule(
        name="offloaded-optimizer",
        key="optimizer.name",
        excludes="anything but `adamw` with DeepSpeed's offloading",
        problem=_offloaded_optimizer,
        fix="try optimizer=adamw, or parallel.cpu_offload=false",
    ),
    Rule(
        name="z-loss",
        key="trainer.z_loss",
        excludes="tensor parallelism, `model=custom`",
        problem=_z_loss,
        fix="try trainer.z_loss=0, or parallel=fsdp",
    ),
    Rule(
        name="chunked-loss",
        key="trainer.loss_chunk_tokens",
        excludes="tensor or pipeline parallelism, `model=custom`",
        problem=_loss_chunks,
        fix="try trainer.loss_chunk_tokens=null, or parallel=fsdp",
    ),
    Rule(
        name="separate-documents",
        key="loader.separate_documents",
        excludes="pipeline or context parallelism, `model=custom`",
        problem=_documents,
        fix="try loader.separate_documents=false, or parallel=fsdp with a model that can",
    ),
    Rule(
        name="precision",
        key="trainer.precision",
        excludes="`16-mixed` or `bf16-true` with any mesh but copies (`ddp`)",
        problem=_precision,
        fix="try trainer.precision=bf16-mixed",
    ),
    Rule(
        name="recomputation",
        key="trainer.activation_checkpointing",
        excludes="plugged-in models on one device or copied to each: `model=hf` has `none` and `full`, `model=custom` has `none`",
        problem=_recomputation,
        fix="try trainer.activation_checkpointing=none, or parallel=fsdp",
    ),
    Rule(
        name="stages",
        key="parallel.pipeline",
        excludes="plugged-in models",
        problem=_model_cut,
        fix="try parallel=fsdp",
    ),
    Rule(
        name="layers-of-transformers",
        key="parallel.tensor",
        excludes="`model=hf` of an architecture that transformers has no tensor-parallel plan for, such as GPT-2",
        problem=_hf_layers_cut,
        fix="try parallel=fsdp, which divides any model",
    ),
    Rule(
        name="parts-of-sequences",
        key="parallel.context",
        excludes="plugged-in models",
        problem=_sequence_cut,
        fix="try parallel=fsdp",
    ),
    Rule(
        name="context-attention",
        key="parallel.context_method",
        excludes="`ring` and `allgather` with windows, capped scores or dropout",
        problem=_context_attention,
        fix="try parallel.context_method=ulysses",
    ),
    Rule(
        name="context-sinks",
        key="parallel.context",
        excludes="`model.sinks` (gpt-oss)",
        problem=_context_sinks,
        fix="try parallel=ep-fsdp or parallel=tp-fsdp",
    ),
    Rule(
        name="projection-norm",
        key="parallel.tensor",
        excludes="`model.qk_norm_scope=projection` (OLMo 2)",
        problem=_projection_norm,
        fix="try parallel=fsdp or parallel=pp-fsdp",
    ),
    Rule(
        name="deepspeed-degrees",
        key="parallel.name",
        excludes="DeepSpeed with pipeline, context or tensor parallelism",
        problem=_deepspeed_degrees,
        fix="try parallel=tp-fsdp or parallel=pp-fsdp, which combine them",
    ),
    Rule(
        name="experts",
        key="parallel.expert",
        excludes="models without experts; numbers that do not divide both the experts and the ranks that share the state",
        problem=_experts,
        fix="parallel.expert=1, or a number that divides both model.experts.count and parallel.shard x parallel.context",
    ),
    Rule(
        name="experts-in-stages",
        key="parallel.tensor",
        excludes="`model.experts` or `model.latent` together with `parallel.pipeline`, but for pipeline x tensor with one stage a rank",
        problem=_replicated_in_stages,
        fix="try parallel=pp-ep-fsdp, or parallel=tp-fsdp with parallel.expert",
    ),
    Rule(
        name="recomputed-experts",
        key="trainer.activation_checkpointing",
        excludes="`selective` with `parallel.expert` above 1",
        problem=_recomputed_experts,
        fix="try trainer.activation_checkpointing=full, or parallel.expert=1",
    ),
    Rule(
        name="deepspeed-experts",
        key="parallel.name",
        excludes="DeepSpeed with `model.experts`",
        problem=_deepspeed_experts,
        fix="try parallel=fsdp or parallel=ep-fsdp, which divide the same state",
    ),
    Rule(
        name="deepspeed-spikes",
        key="trainer.spike_zscore",
        excludes="DeepSpeed",
        problem=_deepspeed_spikes,
        fix="set trainer.spike_zscore=null; updates that are not finite are still refused",
    ),
    Rule(
        name="deepspeed-batches",
        key="trainer.batch_schedule",
        excludes="DeepSpeed",
        problem=_deepspeed_batches,
        fix="try parallel=fsdp, which divides the same state, or trainer.batch_schedule=[]",
    ),
    Rule(
        name="deepspeed-average",
        key="trainer.ema_decay",
        excludes="DeepSpeed",
        problem=_deepspeed_average,
        fix="try parallel=fsdp, which divides the same state, or trainer.ema_decay=null",
    ),
    Rule(
        name="average-of-bf16",
        key="trainer.ema_decay",
        excludes="`trainer.precision=bf16-true`",
        problem=_average_of_bf16,
        fix="try trainer.precision=bf16-mixed, or trainer.ema_decay=null",
    ),
    Rule(
        name="deepspeed-compile",
        key="trainer.compile",
        excludes="DeepSpeed",
        problem=_deepspeed_compile,
        fix="try trainer.compile=false, or parallel=fsdp, which compiles by block",
    ),
    Rule(
        name="offload-device",
        key="parallel.cpu_offload",
        excludes="a CPU, except with DeepSpeed",
        problem=_offload_on_cpu,
        fix="try parallel.cpu_offload=false",
    ),
    Rule(
        name="offload-folder",
        key="parallel.offload_folder",
        excludes="anything but `deepspeed-zero3-offload`",
        problem=_offload_folder,
        fix="try parallel=deepspeed-zero3-offload, or parallel.offload_folder=null",
    ),
)
