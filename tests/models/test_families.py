from __future__ import annotations

import dataclasses

import pytest
import torch
from benchmarks.models.parity import CASES, SMALL, measure, saved_weights, small_config
from transformers import AutoModelForCausalLM

from skytrain.config import ConfigError, DecoderConfig, SkytrainError, compose
from skytrain.evaluation import Sampling, WholeModel
from skytrain.evaluation.generation import generate_tokens
from skytrain.models import Decoder, build_model, hf_config, load_hf_folder, save_hf_folder
from skytrain.models.hf_form import read_hf_config
from skytrain.models.sizes import size_config, size_names
from skytrain.planning import decoder_size

# As Hugging Face counts them: the tied head once, no padding.
PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-1558m": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "exaone-3.5-2.4b": 2_405_327_360,
    "exaone-3.5-7.8b": 7_818_448_896,
    "solar-10.7b": 10_731_524_096,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-3-medium-4k": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "smollm3-3b": 3_075_098_624,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "olmoe-1b-7b": 6_919_161_856,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3": 671_026_419_200,
    "moonlight-16b-a3b": 15_960_110_208,
}


@pytest.mark.parametrize("case", CASES)
def test_a_family_equals_hugging_faces(case):
    parity = measure(case)
    assert parity.logits <= 1e-5
    assert parity.gradients <= 2e-6
    assert parity.worst_gradient <= 3e-6
    assert parity.same_tokens
    assert parity.round_trip


@pytest.mark.parametrize("name", size_names())
def test_a_published_size_has_hugging_faces_parameters(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = size_config(name)
    with torch.device("meta"):
        ours = Decoder(config)
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**hf_config(config)))
    padding = (config.padded_vocab - config.vocab_size) * config.width * (1 if config.tied_head else 2)
    count = sum(value.numel() for value in saved_weights(theirs).values())
    assert sum(parameter.numel() for parameter in ours.parameters()) - padding == count
    assert decoder_size(config).parameters == count
    assert PUBLISHED.get(name, count) == count


@pytest.mark.parametrize(
    "case",
    [
        "Mistral (window)",
        "Gemma 2",
        "Llama, dynamic RoPE",
        "Qwen 3",
        "OLMo 2",
        "Mixtral",
        "Gemma 3",
        "SmolLM3",
        "gpt-oss",
        "DeepSeek-V3",
    ],
)
def test_the_cache_changes_no_token_of_a_family_past_the_window_too(case):
    model = build_model(dataclasses.replace(small_config(case), max_length=64), seed=3)
    for parameter in model.parameters():
        parameter.data.mul_(4.0)
    sampling = Sampling(temperature=1.0, seed=4)
    with_cache, without = WholeModel(model), WholeModel(model)
    without.takes_cache = False
    cached = list(generate_tokens(with_cache, [5, 6, 7], sampling, max_tokens=90))
    assert cached == list(generate_tokens(without, [5, 6, 7], sampling, max_tokens=90))
    assert len(set(cached)) > 5


@pytest.mark.parametrize("name", size_names())
def test_a_size_is_chosen_by_its_name(name):
    config = size_config(name)
    assert config.name == name
    assert hf_config(config)["model_type"] == ("llama" if config.family == "exaone" else config.family)


def test_a_size_composes_into_a_run():
    model = compose(["model=llama-3.2-1b"]).config.model
    assert isinstance(model, DecoderConfig) and model.rope_scaling.original_length == 8192


def test_a_model_smaller_than_its_tokenizer_is_refused():
    with pytest.raises(
        ConfigError, match=r"model.vocab_size: 32000 is smaller than the 50257 tokens of tokenizer gpt2"
    ):
        compose(["model=llama-2-13b"])


def test_key_value_heads_that_do_not_divide_the_heads_are_refused():
    with pytest.raises(ConfigError, match=r"model.kv_heads: 3 key-value heads do not divide the 4 heads"):
        compose(["model=llama-tiny", "model.kv_heads=3"])


def test_an_unknown_size_is_named():
    with pytest.raises(SkytrainError, match=r"'qwen3-9b' is not a model.*\n.*did you mean qwen3-8b"):
        size_config("qwen3-9b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ({"attention_bias": True}, "attention_bias=True is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "of type 'longrope' are not supported"),
        ({"num_attention_heads": -4}, "config.json.heads: -4 must be at least 1"),
        ({"hidden_size": None}, "config.json has no 'hidden_size'"),
    ],
)
def test_a_config_that_the_decoder_cannot_follow_is_refused(change, message):
    data = {**hf_config(small_config("Llama 3")), **change}
    with pytest.raises(SkytrainError, match=message):
        read_hf_config(data, name="x", pad_vocab_to=1)


def test_rope_parameters_as_transformers_5_writes_them_are_read():
    data = hf_config(small_config("Llama 3"))
    new = {**data, "rope_parameters": {"rope_theta": data.pop("rope_theta"), **data.pop("rope_scaling")}}
    assert (
        read_hf_config(new, name="llama-3.1-8b", pad_vocab_to=SMALL["pad_vocab_to"]).rope_scaling
        == small_config("Llama 3").rope_scaling
    )


def test_what_balances_experts_is_exported_in_float32_though_weights_are_in_bf16(tmp_path):
    model = build_model(small_config("DeepSeek-V3"), seed=1)
    name = "blocks.1.mixture.router.load_bias"
    bias = torch.linspace(0.25, 0.26, 8)  # bf16 keeps 7 bits of it: not one of these stays apart from its neighbours
    with torch.no_grad():
        model.get_parameter(name).copy_(bias)
    save_hf_folder(model, tmp_path, dtype=torch.bfloat16)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(theirs.model.layers[1].mlp.gate.e_score_correction_bias, bias)
    assert theirs.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(load_hf_folder(tmp_path).get_parameter(name), bias)
