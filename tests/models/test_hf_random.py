"""Our reading of config.json against transformers', over random configurations with random keys left out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from benchmarks.models.random_configs import LENGTH, folder_of, measure, random_json, relative
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from skytrain.config import ConfigError
from skytrain.models import Decoder, build_model, load_hf_folder, save_hf_folder
from skytrain.models.families import FAMILIES, gpt_oss
from skytrain.models.families._rotary import ROPE_THETA
from skytrain.models.hf_form import hf_form, read_hf_config
from skytrain.models.hf_weights import state_from_hf

IN_TRANSFORMERS = [name for name, family in FAMILIES.items() if family.write]
# Of the configuration classes: what decides neither shapes nor arithmetic here, or is read with the rotary positions.
WITHOUT_EFFECT = {
    *("initializer_range", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "rope_parameters"),
    *("output_router_logits", "rope_theta", "num_mtp_layers"),
    *("attention_dropout", "embd_pdrop", "attn_pdrop", "pretraining_tp", "reorder_and_upcast_attn"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
}


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
@pytest.mark.parametrize("family", IN_TRANSFORMERS)
def test_a_config_with_keys_left_out_computes_what_transformers_computes(family, seed, tmp_path):
    found = measure(family, seed, tmp_path)
    assert found.logits <= 1e-5
    assert found.gradients <= 1e-4
    assert found.exported <= 1e-5


def test_yarn_of_a_length_that_is_shorter_than_a_few_turns_is_that_of_transformers(tmp_path):
    """The ramp then ends before it begins."""
    short = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 10, "beta_slow": 3.0}
    data = {**random_json("llama", 0), "rope_parameters": {**short, "rope_theta": 5e6}, "rope_scaling": None}
    theirs = folder_of(data, tmp_path)
    tokens = torch.randint(97, (2, LENGTH))
    with torch.no_grad():
        assert relative(load_hf_folder(tmp_path)(tokens)[..., :97], theirs(tokens).logits) <= 1e-5


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


def test_gemma_3_without_a_window_is_exported_as_one_whose_layers_see_everything(decoder_config, tmp_path):
    sizes = {"width": 32, "heads": 2, "kv_heads": 1, "head_size": 16, "mlp_width": 64, "layers": 2, "window": None}
    ours = build_model(decoder_config("gemma-3-270m", **sizes, vocab_size=101, max_length=48), seed=1).eval()
    save_hf_folder(ours, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(1, 101, (2, 32))
    with torch.no_grad():
        assert relative(ours(tokens)[..., :101], theirs(tokens).logits) <= 1e-5
    assert torch.equal(load_hf_folder(tmp_path)(tokens)[..., :101], ours(tokens)[..., :101])


def test_gemma_that_transformers_would_refuse_is_not_exported(decoder_config):
    config = decoder_config("gemma-2-2b", width=50, heads=4, kv_heads=2, head_size=12, mlp_width=64)
    with pytest.raises(
        ConfigError, match=r"model.width: 50 is not a multiple of the 4 heads, and transformers refuses"
    ):
        hf_form(config)
    with pytest.raises(ConfigError, match=r"model.window: null has no form in Hugging Face's Gemma2ForCausalLM"):
        hf_form(dataclasses.replace(config, width=48, window=None))
