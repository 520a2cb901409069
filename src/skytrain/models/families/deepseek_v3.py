"""DeepSeek-V3: latent attention, dense first layers, many experts in groups beside a shared one, balanced by biases.

Also Moonlight and Kimi K2. Multi-token prediction layers, which published files may have at the end, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig, YarnCustomRope, YarnRope
from ..yarn import yarn_magnitude
from ._experts import EXPERT_MODULES, experts_of, needs_experts
from ._family import SILU, ModelFamily, UnsupportedArchitecture, refuse
from ._rotary import read_rotary, write_rotary


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(data, hidden_act=SILU, topk_method=("noaux_tc", None), scoring_func=("sigmoid", None), moe_layer_freq=1)
    # `head_dim` is that of the rotary part there.
    plain = read_rotary({**data, "num_key_value_heads": None, "head_dim": None})
    if data["num_key_value_heads"] not in (None, plain["heads"]):
        raise UnsupportedArchitecture("config.json: latent attention with fewer key-value heads than heads")
    latent = {
        "rank": data["kv_lora_rank"],
        "query_rank": data["q_lora_rank"],
        "plain_size": data["qk_nope_head_dim"],
        "rope_size": data["qk_rope_head_dim"],
        "value_size": data["v_head_dim"],
        "interleaved": data["rope_interleave"],
    }
    experts = {
        "count": data["n_routed_experts"],
        "per_token": data["num_experts_per_tok"],
        "width": data["moe_intermediate_size"],
        "shared_width": data["moe_intermediate_size"] * data["n_shared_experts"] or None,
        "dense_layers": data["first_k_dense_replace"],
        "scores": "sigmoid",
        "normalize": data["norm_topk_prob"],
        "scale": data["routed_scaling_factor"],
        "groups": data["n_group"],
        "groups_per_token": data["topk_group"],
        "bias": True,
    }
    return {**plain, "attention_scale": _read_scale(data, latent), "latent": latent, "experts": experts}


def _read_scale(data: Mapping[str, Any], latent: Mapping[str, Any]) -> float | None:
    """Return the factor of the scores, which `mscale_all_dim` of YaRN enlarges; None: that of the head's size."""
    rope = data.get("rope_scaling") or data.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default" or not rope.get("mscale_all_dim"):
        return None
    if kind != "yarn":
        raise UnsupportedArchitecture(f"config.json: mscale_all_dim with rotary positions of type {kind!r}")
    size = latent["plain_size"] + latent["rope_size"]
    return float(size**-0.5 * yarn_magnitude(rope["factor"], rope["mscale_all_dim"]) ** 2)


def write(config: DecoderConfig) -> dict[str, Any]:
    latent = config.latent
    assert latent is not None
    experts = experts_of(config)
    return {
        **{key: value for key, value in write_rotary(config).items() if key != "head_dim"},
        **_write_scale(config),
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank,
        "qk_nope_head_dim": latent.plain_size,
        "qk_rope_head_dim": latent.rope_size,
        "v_head_dim": latent.value_size,
        "rope_interleave": latent.interleaved,
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": (experts.shared_width or 0) // experts.width,
        "first_k_dense_replace": experts.dense_layers,
        "norm_topk_prob": experts.normalize,
        "routed_scaling_factor": experts.scale,
        "n_group": experts.groups,
        "topk_group": experts.groups_per_token,
        "num_nextn_predict_layers": 0,
        # What other readers of such files, vLLM among them, ask for.
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "moe_layer_freq": 1,
    }


def _write_scale(config: DecoderConfig) -> dict[str, Any]:
    """Return YaRN's dictionary with the two scales that give its magnitude and the factor of the scores."""
    rope = config.rope_scaling
    if config.attention_scale is None or not isinstance(rope, (YarnRope, YarnCustomRope)) or rope.factor <= 1:
        return {}
    whole = math.sqrt(config.attention_scale * math.sqrt(config.head_width))
    magnitude = rope.magnitude if isinstance(rope, YarnCustomRope) else yarn_magnitude(rope.factor)
    # Rounded, since 1.0 comes back from the roots and logarithms as 0.9999999999999998.
    scales = {
        "mscale": round((magnitude * whole - 1) / (0.1 * math.log(rope.factor)), 9),
        "mscale_all_dim": round((whole - 1) / (0.1 * math.log(rope.factor)), 9),
    }
    written = write_rotary(config)["rope_scaling"]
    return {"rope_scaling": {**{key: each for key, each in written.items() if key != "attention_factor"}, **scales}}


def export_problem(config: DecoderConfig) -> tuple[str, str] | None:
    experts = config.experts
    if config.latent is None:
        return "model.latent", "null has no form in Hugging Face's"
    if experts is not None and not experts.shared_width:
        return "model.experts.shared_width", "null has no form in Hugging Face's"
    if experts is not None and experts.count // experts.groups < 2:
        return "model.experts.groups", "groups of one expert have no form in Hugging Face's"
    return needs_experts(config)


def spell(name: str, config: DecoderConfig) -> str:
    """Return a tensor's name in files: that of the balancing biases differs, and that of queries that are not compressed."""
    if config.latent is not None and config.latent.query_rank is None:
        name = name.replace(".q_b_proj.", ".q_proj.")
    return name.replace(".mlp.gate.load_bias", ".mlp.gate.e_score_correction_bias")


SHARED = "model.layers.{}.mlp.shared_experts"
ATTENTION = "model.layers.{}.self_attn"
FAMILY = ModelFamily(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    defaults={
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_interleave": True,
        "attention_bias": False,
    },
    read=read,
    write=write,
    modules={
        **{ours: theirs for ours, theirs in EXPERT_MODULES.items() if not str(ours).endswith("attention.qkv")},
        "blocks.{}.attention.q_down": f"{ATTENTION}.q_a_proj",
        "blocks.{}.attention.q_norm": f"{ATTENTION}.q_a_layernorm",
        "blocks.{}.attention.q_up": f"{ATTENTION}.q_b_proj",
        "blocks.{}.attention.kv_down": f"{ATTENTION}.kv_a_proj_with_mqa",
        "blocks.{}.attention.kv_norm": f"{ATTENTION}.kv_a_layernorm",
        "blocks.{}.attention.kv_up": f"{ATTENTION}.kv_b_proj",
        "blocks.{}.mixture.shared.gate": f"{SHARED}.gate_proj",
        "blocks.{}.mixture.shared.up": f"{SHARED}.up_proj",
        "blocks.{}.mixture.shared.down": f"{SHARED}.down_proj",
    },
    aliases={"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"},
    spell=spell,
    scales_experts=True,
    extra_layer=True,
    export_problem=export_problem,
)
