"""Everything from the weights: `model=hf-weights` reads family, sizes and arithmetic from the folder's config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skytrain.cli.options import compose_overrides
from skytrain.config import (
    BPETokenizerConfig,
    DecoderConfig,
    HFModelConfig,
    HFTokenizerConfig,
    Llama3Rope,
    SkytrainError,
)
from skytrain.export import export_hf
from skytrain.models import (
    build_model,
    count_parameters,
    is_pretrained,
    load_pretrained,
    outline_model,
    save_hf_folder,
)
from skytrain.models.safetensors_io import SINGLE
from skytrain.tokens import train_bpe
from tests.corpus.hub import loopback_hub

BYTES = ["tokenizer=bytes", "trainer.sequence_length=16", "trainer.micro_batch=2", "trainer.batch_tokens=64"]
# config.json of the published models, without keys that say nothing about the arithmetic.
PUBLISHED = {
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    "gemma-2-9b": {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "torch_dtype": "float32",
        "vocab_size": 256000,
    },
    "SOLAR-10.7B-v1.0": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": 32000,
    },
    "EXAONE-3.5-7.8B-Instruct": {
        "activation_function": "silu",
        "architectures": ["ExaoneForCausalLM"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoModelForCausalLM": "modeling_exaone.ExaoneForCausalLM"},
        "embed_dropout": 0.0,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 32768,
        "model_type": "exaone",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_layers": 32,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 102400,
    },
    "Llama-2-13b-hf": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "num_attention_heads": 40,
        "num_hidden_layers": 40,
        "num_key_value_heads": 40,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": 32000,
    },
}
PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "gemma-2-9b": 9_241_705_984,
    "SOLAR-10.7B-v1.0": 10_731_524_096,
    "EXAONE-3.5-7.8B-Instruct": 7_818_448_896,
    "Llama-2-13b-hf": 13_015_864_320,
}


def chosen(folder: Path | str, *more: str) -> list[str]:
    return ["model=hf-weights", f"model.weights={folder}", *BYTES, *more]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_the_decoder_that_its_config_describes(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name]))
    (folder / SINGLE).write_bytes((2).to_bytes(8, "little") + b"{}")
    model = compose_overrides(chosen(folder)).config.model
    assert isinstance(model, DecoderConfig) and model.name == name
    outline = outline_model(model, seed=0, start_weights=False)
    assert all(parameter.is_meta for parameter in outline.parameters())
    assert count_parameters(outline) == PARAMETERS[name]
    if name == "gemma-2-9b":
        caps = (model.attention_softcap, model.logit_softcap, model.window, model.window_every, model.tied_head)
        assert caps == (50.0, 30.0, 4096, 2, True)
    if name.startswith("EXAONE"):
        assert (model.rope_theta, model.rope_scaling) == (1e6, Llama3Rope("llama3", 8.0, 1.0, 4.0, 8192))


@pytest.fixture
def llama(decoder_config, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    model = build_model(decoder_config("llama-tiny", kv_heads=2, vocab_size=300, rope_theta=777.0), seed=7)
    save_hf_folder(model, folder)
    return folder


def test_the_training_chooses_dropout_and_length_and_the_weights_the_rest(llama):
    composed = compose_overrides(chosen(llama, "model.dropout=0.25", "model.max_length=20"))
    model = composed.config.model
    assert (model.dropout, model.max_length, model.rope_theta, model.vocab_size) == (0.25, 20, 777.0, 300)
    assert composed.origins["model.rope_theta"] == f"{llama}/config.json"
    assert torch.equal(
        build_model(model, seed=0).head.projection.weight, load_pretrained(str(llama)).head.projection.weight
    )


def test_an_architecture_that_the_decoder_lacks_is_run_by_transformers(tmp_path, capsys):
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    theirs = AutoModelForCausalLM.from_config(GPTNeoXConfig(vocab_size=257, max_position_embeddings=64, **shape)).eval()
    theirs.save_pretrained(tmp_path / "neox")
    config = compose_overrides(chosen(tmp_path / "neox", "model.max_length=32")).config.model
    assert config == HFModelConfig(
        name=str(tmp_path / "neox"),
        family="hf",
        weights="pretrained",
        revision=None,
        trust_remote_code=False,
        vocab_size=257,
        max_length=32,
    )
    assert "no architecture 'gpt_neox'" in capsys.readouterr().err
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(build_model(config, seed=0).eval()(tokens), expected)
        torch.testing.assert_close(load_pretrained(str(tmp_path / "neox"))(tokens), expected)


@pytest.fixture
def neox(tmp_path):
    """A folder of an architecture that the decoder lacks, with dropout."""
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = GPTNeoXConfig(vocab_size=257, max_position_embeddings=64, hidden_dropout=0.5, **shape)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "mine")
    return tmp_path / "mine"


def test_a_model_of_transformers_begins_its_training_in_the_mode_that_it_is_resumed_in(neox):
    config = compose_overrides(chosen(neox)).config.model
    fresh, resumed = (build_model(config, seed=0, start_weights=start) for start in (True, False))
    # Dropout is active, and transformers recomputes activations, only in modules that are in training mode.
    assert all(module.training for model in (fresh, resumed) for module in model.modules())
    fresh.check_documents()  # compares results, without dropout
    assert all(module.training for module in fresh.modules())


def test_weights_without_some_of_the_parameters_are_refused(neox):
    weights = load_file(neox / SINGLE)
    weights.pop("embed_out.weight")
    save_file(weights, neox / SINGLE, metadata={"format": "pt"})
    config = compose_overrides(chosen(neox)).config.model
    with pytest.raises(SkytrainError, match=r"mine lack parameters of a causal language model: .*weight\n  give the"):
        build_model(config, seed=0)


@pytest.mark.parametrize(
    ("how", "message"),
    [("pickled", r"only pickled files.*\n  convert them"), ("truncated", r"truncated.*\n  download")],
)
def test_a_folder_for_transformers_that_cannot_be_used_ends_the_command_too(neox, how, message):
    spoil(neox, how)
    with pytest.raises(SkytrainError, match=message):
        compose_overrides(chosen(neox))
    with pytest.raises(SkytrainError, match=message):
        load_pretrained(str(neox))


def spoil(folder: Path, how: str) -> None:
    weights = folder / SINGLE
    if how == "no config":
        (folder / "config.json").unlink()
    elif how == "pickled":
        weights.rename(folder / "pytorch_model.bin")
    elif how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "missing part":
        weights.unlink()
        index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif how == "no JSON":
        (folder / "config.json").write_text("{")
    elif how == "no language model":
        (folder / "config.json").write_text('{"model_type": "vit"}')
    elif how == "unknown":
        (folder / "config.json").write_text('{"model_type": "frobnicate", "vocab_size": 257}')


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no config", r"mine is not a Hugging Face model: it has no config.json.*\n  give the folder that"),
        ("no JSON", r"config.json is damaged: it cannot be read"),
        ("no language model", r"config.json has no vocab_size, so it does not describe a language model"),
        ("unknown", r"nor transformers has the architecture 'frobnicate'.*\n  correct it"),
        ("pickled", r"only pickled files.*\n  convert them.* python -c .*save_pretrained"),
        ("truncated", r"model.safetensors has [\d,]+ bytes, its header asks for [\d,]+: .*truncated.*\n  download"),
        ("missing part", r"model-00001-of-00002.safetensors is named by .*index.json but missing\n  download"),
    ],
)
def test_a_folder_that_cannot_be_used_ends_the_command_before_any_work(llama, how, message):
    spoil(llama, how)
    with pytest.raises(SkytrainError, match=message) as raised:
        compose_overrides(chosen(llama))
    assert raised.value.exit_code == (9 if "damaged" in message else 2)
    with pytest.raises(SkytrainError, match=message):
        load_pretrained(str(llama))


def test_without_a_folder_the_command_asks_for_one():
    with pytest.raises(SkytrainError, match=r"model.weights: must be given with model=hf-weights\n  a Hugging Face"):
        compose_overrides(["model=hf-weights", *BYTES])
    with pytest.raises(SkytrainError, match=r"no-such-team/model: not a folder here, not in the hub's cache"):
        compose_overrides(chosen("no-such-team/model"))
    with pytest.raises(SkytrainError, match=r"tokenizer.name: must be given with tokenizer=hf\n  a folder"):
        compose_overrides(["tokenizer=hf"])
    with pytest.raises(SkytrainError, match=r"\./nowhere: no such folder\n  give a folder"):
        compose_overrides(BYTES, start="./nowhere")


def test_the_tokenizer_comes_from_the_folder_too(decoder_config, tmp_path):
    settings = BPETokenizerConfig(kind="bpe", name="tiny", vocab_size=280, sample_bytes=10**5)
    tokenizer = train_bpe(settings, ["the quick brown fox jumps over the lazy dog"] * 3)
    folder = export_hf(build_model(decoder_config("llama-tiny", vocab_size=300), seed=7), tokenizer, tmp_path / "mine")
    batch = [word for word in BYTES if not word.startswith("tokenizer")]
    store = f"store.root={tmp_path}/store"
    composed = compose_overrides(["model=hf-weights", f"model.weights={folder}", *batch, store])
    found = composed.config.tokenizer
    assert isinstance(found, HFTokenizerConfig) and found.vocab_size == tokenizer.vocab_size
    assert composed.config.model.vocab_size == 300
    started = compose_overrides(["model=hf-weights", *batch, store], start=str(folder)).config
    assert started.model.weights is None and started.tokenizer == found


def test_a_tokenizer_that_is_larger_than_the_embedding_is_refused(llama):
    words = [word for word in chosen(llama) if word != "tokenizer=bytes"]
    with pytest.raises(SkytrainError, match=r"300 is smaller than the 50257 tokens .*\n  .*resize_token_embeddings"):
        compose_overrides([*words, "tokenizer=gpt2"])


def test_a_name_on_the_hub_is_a_folder_whose_weights_are_downloaded_when_they_are_needed(llama, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is not the network
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with loopback_hub(llama, "team/model", kind="models") as endpoint:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", endpoint, raising=False)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        model = compose_overrides(chosen("team/model")).config.model
        assert (model.name, model.rope_theta) == ("model", 777.0)
        assert not list((tmp_path / "cache").rglob("*.safetensors"))
        assert is_pretrained("team/model") and not is_pretrained("run@5") and not is_pretrained("runs/run@5")
        started = outline_model(model, seed=0)
        expected = load_pretrained(str(llama)).head.projection.weight
        assert torch.equal(started.initial_values("head.projection.weight", expected.shape), expected)
        assert torch.equal(load_pretrained("team/model").head.projection.weight, expected)
