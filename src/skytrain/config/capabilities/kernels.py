"""Rules on the models that fused kernels and fp8 support."""

from __future__ import annotations

from ..mesh import Mesh
from ..schema import Config, has_layers
from .rule import Device, Rule, Setup

FP8_CAPABILITY = (8, 9)
FP8_MULTIPLE = 16  # of a product's sizes that the kernels take
ALONE = Mesh()


def fused_model_problem(model: object) -> str | None:
    """Return what the fused kernels cannot compute of this model; None for decoders of GPT-2's and of Llama's shape."""
    if not has_layers(model):
        return "a model that is not the built-in decoder"
    both: dict[str, bool] = {
        "latent attention": model.latent is not None,
        "attention sinks": model.sinks,
        "a clamped or scaled activation": model.activation_clamp is not None or model.activation_gain != 1.0,
        "dropout": model.dropout > 0,
        "muP or CompleteP": model.parametrization != "standard",
    }
    gpt2: dict[str, bool] = {
        "LayerNorm with layers that have no bias": model.bias != "all",
        "LayerNorm with a gated MLP": model.gated_mlp,
        "LayerNorm with an activation other than GELU": model.activation == "silu",
        "LayerNorm with rotary positions": model.positions != "learned",
        "LayerNorm with grouped queries": model.groups != model.heads,
        "LayerNorm with query and key norms": model.qk_norm,
        "LayerNorm with experts": model.experts is not None,
        "LayerNorm with post-norms": model.post_norms or not model.pre_norms,
        "LayerNorm with soft-capping": model.attention_softcap is not None,
        "LayerNorm with sliding windows": model.window is not None,
        "LayerNorm with scaled embeddings": model.scale_embedding,
    }
    llama: dict[str, bool] = {
        "RMSNorm with a bias in every layer": model.bias == "all",
        "RMSNorm with an MLP that is not gated": not model.gated_mlp,
        "experts with an activation other than SiLU": model.experts is not None and model.activation != "silu",
        "RMSNorm with learned positions": model.positions != "rope",
    }
    asks = {**both, **(gpt2 if model.norm == "layernorm" else llama)}
    return next((name for name, true in asks.items() if true), None)


def fused_mesh_problem(mesh: Mesh) -> str | None:
    """Return why the fused kernels cannot run on a mesh, or None: they compute whole layers over whole sequences."""
    if mesh.deepspeed:
        return "DeepSpeed"
    if mesh.expert > 1:
        return "experts that are divided among ranks"
    return "a model divided by layers, tensors or sequence" if mesh.tensor * mesh.pipeline * mesh.context > 1 else None


def fused_settings_problem(config: Config) -> str | None:
    """Return which setting excludes the fused kernels whatever the model, mesh and device are, or None."""
    trainer = config.trainer
    if trainer.precision not in ("bf16-mixed", "auto"):
        return f"trainer.precision={trainer.precision}"
    if trainer.activation_checkpointing != "none":
        return "activation checkpointing"
    if trainer.loss_chunk_tokens:
        return "a chunked loss"
    if trainer.fp8 != "off":
        return "trainer.fp8"
    return None


def fused_problem(setup: Setup) -> str | None:
    """Return the first reason why a run cannot use the fused kernels, or None."""
    return (
        (_fused_device_problem(device) if (device := setup.known_device) is not None else None)
        or fused_settings_problem(setup.config)
        or fused_mesh_problem(setup.mesh)
        or fused_model_problem(setup.config.model)
    )


def _fused_device_problem(device: Device) -> str | None:
    if device.kind != "cuda":
        return "a CPU"
    return None if device.kernels else f"{device.name} without Triton and bf16"


def _fused_on(setup: Setup) -> str | None:
    if setup.config.trainer.fused != "on":
        return None
    problem = fused_problem(setup)
    return problem and f"'on': the fused path does not serve {problem}"


def _fp8(setup: Setup) -> str | None:
    config = setup.config
    scaling = setup.config.trainer.fp8
    if scaling == "off":
        return None
    problem = _fp8_problem(config, setup.mesh, setup.known_device)
    return problem and f"{scaling!r}: {problem}"


def _fp8_problem(config: Config, mesh: Mesh, device: Device | None) -> str | None:
    model = config.model
    if not has_layers(model):
        return f"model={model.name} is not the built-in decoder"
    if device is not None and (device.kind != "cuda" or device.capability < FP8_CAPABILITY):
        return "it needs a GPU that multiplies fp8: Ada (L4), Hopper (H100, H200) or later"
    if mesh != ALONE:
        return "it works on only one GPU"
    if not config.trainer.compile:
        return "rounding takes longer than the products gain unless trainer.compile=true fuses it with the operations around it"
    sizes = {
        "model.width": model.width,
        "the MLP's width": model.hidden_width,
        "queries, keys and values": (model.heads + 2 * model.groups) * model.head_width,
    }
    return next(
        (f"{name} {size} is not a multiple of {FP8_MULTIPLE}" for name, size in sizes.items() if size % FP8_MULTIPLE),
        None,
    )


KERNEL_RULES = (
    Rule(
        name="fused-kernels",
        key="trainer.fused",
        excludes="`on` with anything but decoders of GPT-2's shape, or of Llama's and its descendants', in bf16 on a GPU, whole layers and sequences, and a loss in one piece",
        problem=_fused_on,
        fix="try trainer.fused=auto",
    ),
    Rule(
        name="fp8",
        key="trainer.fp8",
        excludes="several processes, plugged-in models, GPUs before Ada, `trainer.compile=false`, "
        f"widths that are not multiples of {FP8_MULTIPLE}",
        problem=_fp8,
        fix="try trainer.fp8=off",
    ),
)
