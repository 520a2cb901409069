"""GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config import DecoderConfig
from ._family import ModelFamily, need, refuse


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    refuse(
        data,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        activation_function=("gelu_new", "gelu_pytorch_tanh"),
    )
    return {
        "layers": need(data, "n_layer"),
        "width": need(data, "n_embd"),
        "heads": need(data, "n_head"),
        "mlp_width": data["n_inner"],
        "max_length": need(data, "n_positions"),
        "dropout": data["resid_pdrop"],
        "norm_eps": data["layer_norm_epsilon"],
    }


def write(config: DecoderConfig) -> dict[str, Any]:
    return {
        "n_layer": config.layers,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.mlp_width,
        "n_positions": config.max_length,
        "n_ctx": config.max_length,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }


FAMILY = ModelFamily(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    defaults={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    read=read,
    write=write,
    modules={
        "embedding.tokens": "transformer.wte",
        "embedding.positions": "transformer.wpe",
        "blocks.{}.attention_norm": "transformer.h.{}.ln_1",
        "blocks.{}.attention.qkv": "transformer.h.{}.attn.c_attn",
        "blocks.{}.attention.out": "transformer.h.{}.attn.c_proj",
        "blocks.{}.mlp_norm": "transformer.h.{}.ln_2",
        "blocks.{}.mlp.up": "transformer.h.{}.mlp.c_fc",
        "blocks.{}.mlp.down": "transformer.h.{}.mlp.c_proj",
        "head.norm": "transformer.ln_f",
        "head.projection": "lm_head",
    },
    prefix="transformer.",
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    conv1d=True,
)
