"""Our reading of config.json against transformers', over random configurations with random keys left out."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models.parity import in_files, saved_weights
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from skytrain.config import ConfigError
from skytrain.models import Decoder, build_model, load_hf_folder, save_hf_folder
from skytrain.models.families import FAMILIES, gpt_oss
from skytrain.models.families._rotary import ROPE_THETA
from skytrain.models.hf_form import hf_form, read_hf_config
from skytrain.models.hf_weights import state_from_hf, state_to_hf

IN_TRANSFORMERS = [name for name, family in FAMILIES.items() if family.write]
LENGTH = 40
# Sizes stay, as a model of 32 layers and width 4096 is no test; the arithmetic does not.
KEPT = {"model_type", "vocab_size", "hidden_size", "n_embd", "n_layer", "n_head", "n_positions"} | {
    "num_hidden_layers",
    "num_attention_heads",
    *("num_experts", "num_local_experts", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "first_k_dense_replace"),
}
# Of the configuration classes: what decides neither shapes nor arithmetic here, or is read with the rotary positions.
WITHOUT_EFFECT = {
    *("initializer_range", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "rope_parameters"),
    *("output_router_logits", "rope_theta", "num_mtp_layers"),
    *("attention_dropout", "embd_pdrop", "attn_pdrop", "pretraining_tp", "reorder_and_upcast_attn"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
}


def random_rope(rng: random.Random) -> dict[str, Any]:
    """Rotary positions in the words of transformers 4 or 5, any of them left out."""
    kind = rng.choice(["default", "default", "linear", "dynamic", "llama3", "yarn"])
    words: dict[str, Any] = {"factor": rng.choice([2.0, 4.0])} if kind != "default" else {}
    if kind == "llama3":
        words |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("dynamic", "llama3", "yarn") and rng.random() < 0.6:
        words["original_max_position_embeddings"] = rng.choice([8, 16, 24])
    if kind == "yarn" and rng.random() < 0.5:
        words |= {"beta_fast": 16.0, "beta_slow": 2.0}
    theta = {"rope_theta": rng.choice([100.0, 5000.0, 500000.0])} if rng.random() < 0.6 else {}
    length = {"max_position_embeddings": 24 if kind == "dynamic" else 64}
    if rng.random() < 0.5:
        style = {"rope_parameters": {"rope_type": kind, **theta, **words}}
        return {**length, **(style if kind != "default" or theta else {})}
    name = rng.choice(["rope_type", "type"])
    return {**length, **theta, **({"rope_scaling": {name: kind, **words}} if words else {})}


def random_json(family: str, seed: int) -> dict[str, Any]:
    """A small config.json of the family, with some of its keys."""
    rng = random.Random(f"{family} {seed}")
    if family == "gpt2":
        full = {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": rng.choice([2, 4]),
            "n_positions": 64,
            "n_inner": rng.choice([None, 96]),
            "layer_norm_epsilon": rng.choice([1e-5, 1e-2]),
            "activation_function": rng.choice(["gelu_new", "gelu_pytorch_tanh"]),
            "resid_pdrop": 0.0,
        }
    else:
        heads = rng.choice([4, 8, 32])
        full = {
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": heads,
            "num_key_value_heads": rng.choice([1, 2, heads]),
            "intermediate_size": 96,
            "rms_norm_eps": rng.choice([1e-6, 1e-2]),
            "head_dim": rng.choice([4, 16]),
            "hidden_act": "silu",
            "sliding_window": rng.choice([5, 12]),
            "use_sliding_window": rng.random() < 0.5,
            "max_window_layers": rng.choice([0, 3]),
            "query_pre_attn_scalar": rng.choice([9, 64]),
            "attn_logit_softcapping": rng.choice([None, 1.0, 20.0]),
            "final_logit_softcapping": rng.choice([None, 2.0, 20.0]),
            "attention_bias": False,
            "mlp_bias": False,
            "no_rope_layer_interval": rng.choice([2, 3]),
            "num_experts": rng.choice([4, 6]),
            "num_local_experts": rng.choice([4, 6]),
            "num_experts_per_tok": rng.choice([1, 2, 3]),
            "moe_intermediate_size": rng.choice([24, 40]),
            "norm_topk_prob": rng.random() < 0.5,
            "mlp_only_layers": rng.choice([[], [0], [0, 1]]),
            "swiglu_limit": rng.choice([0.4, 7.0]),
            "swiglu_alpha": rng.choice([1.0, 1.702, 3.0]),
            "n_routed_experts": 8,
            "n_shared_experts": rng.choice([1, 2]),
            "n_group": rng.choice([1, 2, 4]),
            "topk_group": 1,
            "first_k_dense_replace": rng.choice([0, 1, 2]),
            "routed_scaling_factor": rng.choice([1.0, 2.5]),
            "kv_lora_rank": rng.choice([8, 40]),
            "q_lora_rank": rng.choice([None, 24]),
            "qk_nope_head_dim": rng.choice([8, 24]),
            "qk_rope_head_dim": rng.choice([4, 16]),
            "v_head_dim": rng.choice([4, 12]),
            "rope_interleave": rng.random() < 0.5,
        }
        full = {key: value for key, value in full.items() if key in FAMILIES[family].defaults}
    if family == "gemma3_text":
        kinds = rng.choice([("sliding", "sliding", "full"), ("sliding", "full", "sliding"), ("sliding",) * 3])
        full |= {"attn_logit_softcapping": None, "layer_types": [f"{kind}_attention" for kind in kinds]}
    if family == "gpt_oss":
        kinds = rng.choice([("sliding", "full", "sliding"), ("full",) * 3, ("sliding",) * 3])
        full |= {"layer_types": [f"{kind}_attention" for kind in kinds], "attention_bias": True}
    if family == "deepseek_v3":
        full |= {"num_key_value_heads": full["num_attention_heads"], "topk_group": rng.choice([1, full["n_group"]])}
        full |= {"num_experts_per_tok": rng.choice([1, 2])}
    if family == "smollm3":
        full |= {"use_sliding_window": False}
    full |= {"tie_word_embeddings": rng.random() < 0.5}
    # Where the default number of key-value heads does not divide the heads, the file must say one.
    unfit = full.get("num_attention_heads", 1) % (FAMILIES[family].defaults.get("num_key_value_heads") or 1)
    kept = KEPT | ({"num_key_value_heads"} if unfit else set())
    if FAMILIES[family].defaults.keys() & {"num_experts", "num_local_experts", "n_routed_experts"}:
        # transformers' Mixtral does not compute dynamic positions without a head size.
        kept |= {"intermediate_size", "moe_intermediate_size", "head_dim"}
    left = {key: value for key, value in full.items() if key in kept or rng.random() < 0.6}
    if family == "gpt2":
        rope: dict[str, Any] = {}
    elif family == "phi3":  # which has no extended positions that the decoder computes
        rope = {"max_position_embeddings": 64, "rope_theta": rng.choice([100.0, 5000.0])}
    elif family == "gemma3_text":  # whose layers with a window have a base of their own
        local = {"rope_local_base_freq": rng.choice([50.0, 2000.0])} if rng.random() < 0.6 else {}
        scaling = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}} if rng.random() < 0.5 else {}
        rope = {"max_position_embeddings": 64, "rope_theta": rng.choice([100.0, 5000.0]), **local, **scaling}
    else:
        rope = random_rope(rng)
        own = rope.get("rope_parameters") or rope.get("rope_scaling") or {}
        if "yarn" in (own.get("rope_type"), own.get("type")):
            own |= rng.choice(
                [{}, {"truncate": False}, {"attention_factor": 1.2}, {"mscale": 0.7, "mscale_all_dim": 0.5}]
            )
    return {"model_type": family, "vocab_size": 97, "pad_token_id": None, **left, **rope}


def folder_of(data: dict[str, Any], folder: Path) -> Any:
    """transformers' model of this config.json with large random weights, which lie in the folder beside it."""
    (folder / "config.json").write_text(json.dumps(data))
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), attn_implementation="eager", dtype=torch.float32
    ).eval()
    generator = torch.Generator().manual_seed(0)
    weights = saved_weights(theirs)
    for name, parameter in weights.items():
        gain = parameter.ndim == 1 and name.endswith("weight") and not data["model_type"].startswith("gemma")
        parameter.data.normal_(1.0 if gain else 0.0, 0.15, generator=generator)
    save_file(in_files(data["model_type"], weights), folder / "model.safetensors")
    return theirs


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
@pytest.mark.parametrize("family", IN_TRANSFORMERS)
def test_a_config_with_keys_left_out_computes_what_transformers_computes(family, seed, tmp_path):
    theirs = folder_of(random_json(family, seed), tmp_path)
    ours = load_hf_folder(tmp_path, pad_vocab_to=16).eval()
    # Without token 0: Gemma takes it for padding and gives its embedding no gradient.
    tokens, targets = torch.randint(1, 97, (2, 2, LENGTH), generator=torch.Generator().manual_seed(seed))
    logits = theirs(tokens).logits
    assert relative(ours(tokens)[..., :97], logits) <= 1e-5

    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    ours.loss(tokens, targets).backward()
    expected = in_files(family, {name: parameter.grad for name, parameter in theirs.named_parameters()})
    found = state_to_hf(
        ours.config, {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    )
    assert found.keys() == expected.keys()
    off = torch.cat([(found[name] - expected[name]).flatten() for name in expected])
    assert off.norm() <= 1e-4 * torch.cat([value.flatten() for value in expected.values()]).norm()

    (tmp_path / "out").mkdir()
    save_hf_folder(ours, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    with torch.no_grad():
        assert relative(again(tokens).logits, logits) <= 1e-5


def default_theta(config: Any) -> float:
    theta = config.default_theta
    return theta["global"] if isinstance(theta, dict) else theta


@pytest.mark.parametrize("family", IN_TRANSFORMERS)
def test_the_defaults_are_those_of_transformers(family):
    config = CONFIG_MAPPING[family]
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    for key, value in FAMILIES[family].defaults.items():
        assert (default_theta(config) if key == "rope_theta" else fields[key]) == value, key
    inherited = {field.name for field in dataclasses.fields(config.__mro__[1])}
    assert {name for name in fields if name in config.__annotations__ or name not in inherited} <= {
        *FAMILIES[family].defaults,
        *WITHOUT_EFFECT,
    }
    rope = getattr(config(), "rope_parameters", None)
    plain = {"rope_type": "default", "rope_theta": FAMILIES[family].defaults.get("rope_theta", ROPE_THETA)}
    rope = (rope or {}).get("full_attention", rope)  # where layers with a window have others
    if family == "gpt_oss":
        plain |= gpt_oss.ROPE
    assert rope is None or rope in (plain, {**plain, "partial_rotary_factor": 1.0})


@pytest.mark.parametrize("seed", range(3))
def test_exaone_computes_what_llama_computes_and_is_exported_as_llama(seed, tmp_path):
    llama = random_json("llama", seed)
    spelled = {**FAMILIES["llama"].defaults, **llama}
    renamed = {
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    exaone = {renamed.get(key, key): value for key, value in spelled.items()} | {"model_type": "exaone"}
    theirs = folder_of(spelled, tmp_path)
    config = read_hf_config(exaone, name="x", pad_vocab_to=16)
    assert config.family == "exaone" and hf_form(config).family == "llama"
    ours = Decoder(config).eval()
    ours.load_state_dict(state_from_hf(hf_form(config), dict(theirs.named_parameters())), strict=False)
    tokens = torch.randint(97, (2, LENGTH))
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert relative(ours(tokens)[..., :97], expected) <= 1e-5
        (tmp_path / "out").mkdir()
        save_hf_folder(ours, tmp_path / "out")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
        assert relative(again(tokens).logits, expected) <= 1e-5


def test_every_parameter_of_exaone_has_a_name():
    assert FAMILIES["exaone"].modules.keys() == FAMILIES["llama"].modules.keys()


@pytest.mark.parametrize("family", ["llama", "exaone"])
def test_llama_with_a_width_that_is_no_multiple_of_its_heads_is_exported_as_mistral(decoder_config, family, tmp_path):
    """transformers refuses such a LlamaConfig; Mistral without a window computes the same."""
    changes = {"family": family, "width": 50, "heads": 4, "kv_heads": 2, "head_size": 12, "mlp_width": 64}
    ours = build_model(decoder_config("llama-tiny", **changes), seed=1).eval()
    save_hf_folder(ours, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == "MistralForCausalLM"
    tokens = torch.randint(101, (2, 32))
    with torch.no_grad():
        assert relative(ours(tokens)[..., :101], theirs(tokens).logits) <= 1e-5


def test_gemma_that_transformers_would_refuse_is_not_exported(decoder_config):
    config = decoder_config("gemma-2-2b", width=50, heads=4, kv_heads=2, head_size=12, mlp_width=64)
    with pytest.raises(ConfigError, match=r"model.width: 50 is no multiple of the 4 heads, and transformers refuses"):
        hf_form(config)
    with pytest.raises(ConfigError, match=r"model.window: null has no form in Hugging Face's Gemma2ForCausalLM"):
        hf_form(dataclasses.replace(config, width=48, window=None))
