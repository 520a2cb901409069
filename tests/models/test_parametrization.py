from __future__ import annotations

import dataclasses

import pytest
import torch
from benchmarks.models.coordinate_check import growth
from benchmarks.models.parity import small_config

from skytrain.config import ConfigError, DecoderConfig, compose
from skytrain.models import build_model, load_hf_folder, save_hf_folder, update_scales
from skytrain.models.parametrization import multipliers

SCALED = {"base_width": 12, "base_layers": 1}  # a quarter of the width, a third of the depth


def with_parametrization(case: str, kind: str) -> DecoderConfig:
    return dataclasses.replace(small_config(case), parametrization=kind, **SCALED)


@pytest.mark.parametrize("kind", ["mup", "completep"])
@pytest.mark.parametrize("case", ["GPT-2", "Llama 3", "Qwen 2.5", "Qwen 3", "Gemma 2"])
def test_an_export_folds_the_multipliers_into_plain_weights(case, kind, tmp_path, random_tokens):
    config = with_parametrization(case, kind)
    model = build_model(config, seed=1).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    save_hf_folder(model, tmp_path)
    plain = load_hf_folder(tmp_path, pad_vocab_to=config.pad_vocab_to)
    assert plain.config.parametrization == "standard"
    tokens = random_tokens(vocab_size=config.vocab_size)
    torch.testing.assert_close(plain(tokens), model(tokens), rtol=1e-5, atol=2e-6)
    assert not torch.allclose(multipliers_off(model)(tokens), model(tokens), atol=1e-3)


@pytest.mark.parametrize("kind", ["standard", "completep"])
@pytest.mark.parametrize("case", ["Mixtral", "Qwen 3 MoE", "OLMoE", "gpt-oss"])
def test_an_export_folds_the_scale_of_experts_that_config_json_has_no_key_for(case, kind, tmp_path, random_tokens):
    config = small_config(case) if kind == "standard" else with_parametrization(case, kind)
    config = dataclasses.replace(config, experts=dataclasses.replace(config.experts, scale=2.0))
    model = build_model(config, seed=1).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.1)
    save_hf_folder(model, tmp_path)
    plain = load_hf_folder(tmp_path, pad_vocab_to=config.pad_vocab_to).eval()
    assert plain.config.experts.scale == 1.0
    tokens = random_tokens(vocab_size=config.vocab_size)
    torch.testing.assert_close(plain(tokens), model(tokens), rtol=1e-5, atol=2e-6)


def multipliers_off(model):
    """The same weights in the standard parametrization, unfolded."""
    config = dataclasses.replace(model.config, parametrization="standard", base_width=None, base_layers=None)
    plain = build_model(config, seed=0).eval()
    plain.load_state_dict(model.state_dict())
    return plain


def test_factors_that_are_powers_of_two_fold_bit_for_bit(tmp_path, random_tokens, decoder_config):
    config = decoder_config(width=64, heads=1, layers=2, parametrization="completep", base_width=16, base_layers=1)
    model = build_model(config, seed=1).eval()
    save_hf_folder(model, tmp_path)
    assert torch.equal(load_hf_folder(tmp_path, pad_vocab_to=16)(random_tokens()), model(random_tokens()))


def test_at_the_base_the_parametrizations_are_the_standard_one_but_for_residual_starts(decoder_config):
    base = decoder_config(width=64, heads=1)
    same = dataclasses.replace(base, parametrization="completep", base_width=64, base_layers=2)
    assert multipliers(same) == multipliers(base)
    assert update_scales(same, "blocks.0.mlp.up.weight", matrix=True) == update_scales(
        base, "blocks.0.mlp.up.weight", matrix=True
    )
    ours, standard = build_model(same, seed=1), build_model(base, seed=1)
    assert torch.equal(ours.blocks["0"].mlp.up.weight, standard.blocks["0"].mlp.up.weight)
    torch.testing.assert_close(ours.blocks["0"].mlp.down.weight, standard.blocks["0"].mlp.down.weight * 2)


def test_the_rules_are_those_of_the_papers(decoder_config):
    config = decoder_config(width=64, layers=8, heads=2, parametrization="completep", base_width=16, base_layers=2)
    hidden = update_scales(config, "blocks.3.attention.qkv.weight", matrix=True)
    assert (hidden.lr, hidden.weight_decay, hidden.eps) == (1 / 4, 4, 1 / 16)
    for name, dimensions in (
        ("blocks.3.attention.qkv.bias", 1),
        ("embedding.tokens.weight", 2),
        ("head.norm.weight", 1),
    ):
        other = update_scales(config, name, matrix=dimensions > 1)
        assert (other.lr, other.weight_decay, other.eps) == (1, 1, 1 / 16)
    factors = multipliers(config)
    assert (factors.residual, factors.logits, factors.attention_scale) == (1 / 4, 1 / 4, pytest.approx(8 / 32))
    model = build_model(config, seed=0)
    assert model.blocks["0"].mlp.down.weight.std().item() == pytest.approx(0.02 / 2, rel=0.03)
    assert model.embedding.positions.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_a_parametrization_without_its_base_is_refused():
    with pytest.raises(ConfigError, match=r"model.base_width: must be given with model.parametrization=mup"):
        compose(["model=gpt2-tiny", "model.parametrization=mup"])
    with pytest.raises(ConfigError, match=r"model.base_layers: must be given"):
        compose(["model=gpt2-tiny", "model.parametrization=completep", "model.base_width=64"])


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("standard", 0.35, 2.0), ("mup", -0.2, 0.2), ("completep", -0.2, 0.2)]
)
def test_the_coordinate_check_over_widths(kind, low, high):
    """What a few steps do to the logits grows with the width in the standard parametrization, and stays in the others."""
    assert low < growth(kind, "width", sizes=(32, 64, 128), steps=4)["logits"] < high


@pytest.mark.parametrize(("kind", "low", "high"), [("mup", 0.3, 2.0), ("completep", -0.2, 0.2)])
def test_the_coordinate_check_over_depths(kind, low, high):
    assert low < growth(kind, "depth", sizes=(2, 4, 8, 16), steps=4)["stream"] < high
