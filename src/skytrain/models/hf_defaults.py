"""What a key that is missing from config.json means: the defaults of each family's own configuration class.

The tests compare this table with the classes of the installed transformers. EXAONE's class is not part of transformers;
its values are those of the code that the published models carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import SkytrainError, nearest

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "exaone": "ExaoneForCausalLM",
}
ROPE_THETA = 10000.0  # for every family
ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "exaone": {"num_hidden_layers": "num_layers"},
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
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
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "layer_types": None,
        "tie_word_embeddings": False,
    },
    "gemma2": {
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "layer_types": None,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": None,
        "tie_word_embeddings": True,
    },
    "exaone": {
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": None,
        "num_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "activation_function": "silu",
        "max_position_embeddings": 2048,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
}


def family_of(data: Mapping[str, Any], name: str) -> str:
    """The family of a config.json; raises for one that the built-in decoder does not have."""
    family = data.get("model_type")
    if isinstance(family, str) and family in ARCHITECTURES:
        return family
    guess = nearest(str(family), ARCHITECTURES)
    raise SkytrainError(
        f"{name}: the built-in decoder has no architecture {family!r} (model_type in config.json); it has {', '.join(ARCHITECTURES)}"
        + (f"\n  did you mean {guess}?" if guess else "")
        + "\n  model=hf model.name=FOLDER trains any causal language model that transformers has"
    )


def with_defaults(family: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """config.json under the family's own names, with what it leaves out."""
    aliases = ALIASES.get(family, {})
    return {**DEFAULTS[family], **{aliases.get(key, key): value for key, value in data.items()}}
