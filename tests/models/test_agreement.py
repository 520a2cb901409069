"""Weights and arithmetic come together: a folder's config.json is adopted, or contradictions are refused line by line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from skytrain.cli.options import compose_overrides
from skytrain.config import ConfigError, DecoderConfig, SkytrainError
from skytrain.config.schema import LinearRope
from skytrain.models import as_typed, build_model, read_hf_decoder, save_hf_folder
from skytrain.models.agreement import NOT_ADOPTED, NOT_COMPARED, check_agreement
from skytrain.models.sizes import size_config

SIZES = ["trainer.sequence_length=16", "trainer.micro_batch=2", "trainer.batch_tokens=64"]
BATCH = ["tokenizer=bpe-4k", "tokenizer.vocab_size=257", *SIZES]


@pytest.fixture
def llama(decoder_config, tmp_path):
    changes = {"kv_heads": 2, "mlp_width": 64, "vocab_size": 300, "rope_theta": 777.0, "norm_eps": 1e-3}
    model = build_model(decoder_config("llama-tiny", **changes), seed=7)
    (tmp_path / "mine").mkdir()
    save_hf_folder(model, tmp_path / "mine")
    return str(tmp_path / "mine")


@pytest.mark.parametrize("recipe", [[], ["recipe=quickstart", "lr_schedule.warmup_steps=0"]])
def test_without_a_model_of_its_own_the_command_takes_the_folders(llama, recipe):
    composed = compose_overrides([*recipe, *BATCH, f"model.weights={llama}"])
    model = composed.config.model
    assert (model.name, model.family, model.rope_theta, model.norm_eps) == ("mine", "llama", 777.0, 1e-3)
    assert composed.origins["model.rope_theta"] == f"{llama}/config.json"
    build_model(model, seed=0)


def test_from_a_folder_takes_its_model_too(llama):
    model = compose_overrides(BATCH, start=llama).config.model
    assert model.rope_theta == 777.0 and model.weights is None


def test_the_training_chooses_dropout_and_the_longest_sequence(llama):
    model = compose_overrides(
        [*BATCH, f"model.weights={llama}", "model.dropout=0.25", "model.max_length=20"]
    ).config.model
    assert (model.dropout, model.max_length, model.rope_theta) == (0.25, 20, 777.0)


def test_a_setting_that_contradicts_the_folder_is_refused(llama):
    with pytest.raises(ConfigError) as caught:
        compose_overrides([*BATCH, f"model.weights={llama}", "model.rope_theta=5", "model.layers=2"])
    assert str(caught.value).splitlines()[1:-1] == [
        "  model.rope_theta: configured 5.0, the weights have 777.0; set model.rope_theta=777.0"
    ]


def test_a_model_that_was_chosen_is_refused_line_by_line(llama):
    with pytest.raises(ConfigError) as caught:
        compose_overrides([*BATCH, "model=gpt2-tiny", f"model.weights={llama}"])
    lines = str(caught.value).splitlines()
    assert "  model.activation: configured gelu_tanh, the weights have silu; set model.activation=silu" in lines
    assert "  model.tied_head: configured true, the weights have false; set model.tied_head=false" in lines
    assert "leave out model=NAME" in lines[-1]


def test_a_run_started_from_python_is_checked_too(llama):
    found = read_hf_decoder(Path(llama))
    build_model(dataclasses.replace(found, weights=llama), seed=0)
    with pytest.raises(ConfigError, match=r"model.rope_scaling: configured .*; set model.rope_scaling=null"):
        scaling = LinearRope("linear", 2.0)
        build_model(dataclasses.replace(found, weights=llama, rope_scaling=scaling), seed=0)


OTHER = {
    "rope_scaling": LinearRope("linear", 2.0),
    "norm": "rmsnorm_plus_one",
    "activation": "gelu_tanh",
    "bias": "qkv",
    "positions": "learned",
    "parametrization": "mup",
    "experts": size_config("mixtral-tiny").experts,
    "latent": size_config("deepseek-tiny").latent,
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(DecoderConfig)])
def test_every_field_that_decides_arithmetic_is_compared(decoder_config, field):
    config = decoder_config("llama-tiny", kv_heads=2, window=8, qk_norm=True)
    value = getattr(config, field)
    if isinstance(value, bool):
        other = not value
    else:
        other = OTHER.get(field, "gpt2" if isinstance(value, str) else (value or 1) * 2)
    changed = dataclasses.replace(config, **{field: other})
    if field in NOT_COMPARED or field == "max_length":
        check_agreement(changed, config, "x")
    else:
        with pytest.raises(ConfigError, match=rf"model.{field}: configured "):
            check_agreement(changed, config, "x")


def test_what_the_training_chooses_is_neither_compared_nor_adopted():
    assert set(NOT_ADOPTED) - {"parametrization"} <= set(NOT_COMPARED)


def test_exaone_starts_from_its_own_export_which_is_llamas(decoder_config, tmp_path):
    config = decoder_config("llama-tiny", family="exaone")
    save_hf_folder(build_model(config, seed=7), tmp_path)
    again = build_model(dataclasses.replace(config, weights=str(tmp_path)), seed=1)
    assert again.config.family == "exaone" and read_hf_decoder(tmp_path).family == "llama"


def test_a_tokenizer_that_is_larger_than_the_weights_vocabulary_is_refused(llama):
    with pytest.raises(ConfigError, match=r"300 is smaller than the 50257 tokens .*\n  choose the tokenizer that the"):
        compose_overrides(["trainer.sequence_length=16", f"model.weights={llama}"])


@pytest.fixture
def described(llama) -> Path:
    """A folder with config.json and nothing else."""
    folder = Path(llama)
    for path in folder.iterdir():
        if path.name != "config.json":
            path.unlink()
    return folder


def test_a_plan_needs_only_the_config_of_a_models_folder(described, caplog):
    composed = compose_overrides(["model=hf-weights", f"model.weights={described}", *SIZES], recipe_weights="skip")
    assert (composed.config.model.family, composed.config.model.rope_theta) == ("llama", 777.0)
    assert composed.config.tokenizer.vocab_size == 300
    assert f"{described} has a config.json and no weights" in caplog.text


def test_training_needs_the_tokenizer_and_the_weights_of_a_models_folder(described, tmp_path):
    words = ["model=hf-weights", f"model.weights={described}", *SIZES]
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        compose_overrides(words)
    with pytest.raises(SkytrainError, match="has no weights"):
        compose_overrides([*words, *BATCH])


def test_a_damaged_folder_is_refused_by_a_plan_too(described):
    (described / "model.safetensors").write_bytes(b"half")
    with pytest.raises(SkytrainError, match=r"model\.safetensors is damaged"):
        compose_overrides(["model=hf-weights", f"model.weights={described}", *SIZES], recipe_weights="skip")


def test_another_tokenizer_is_read_although_the_models_folder_has_none(described, tmp_path):
    words = ["tokenizer=hf", f"tokenizer.name={tmp_path}"]
    with pytest.raises(ConfigError, match=rf"{tmp_path} has no tokenizer\.json"):
        compose_overrides(["model=hf-weights", f"model.weights={described}", *words, *SIZES], recipe_weights="skip")


def test_a_setting_to_type_is_quoted_as_a_shell_needs_it():
    assert as_typed("model.window", None) == "model.window=null"
    assert as_typed("model.sizes", [4]) == "'model.sizes=[4]'"  # zsh looks for files of such a name
    assert as_typed("model.rope_scaling", {"kind": "linear"}) == "'model.rope_scaling={kind: linear}'"
