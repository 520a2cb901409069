from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from skytrain.config import ConfigError, SkytrainError
from skytrain.models import build_model, hf_config, load_hf_folder, save_hf_folder
from skytrain.models.hf_form import read_hf_config
from skytrain.models.hf_weights import state_from_hf, state_to_hf
from skytrain.models.safetensors_io import INDEX, SINGLE, SafetensorsFolder, TensorSpec, write_folder


def test_weights_go_to_hugging_face_and_back_bit_for_bit(decoder_config):
    config = decoder_config()
    model = build_model(config, seed=1)
    again = state_from_hf(config, state_to_hf(config, model.state_dict()))
    for name, value in model.named_parameters():
        assert torch.equal(again[name], value), name


def test_a_folder_is_read_back_bit_for_bit(decoder_config, tmp_path):
    model = build_model(decoder_config(), seed=1)
    save_hf_folder(model, tmp_path, eot=100)
    again = load_hf_folder(tmp_path, pad_vocab_to=16)
    assert again.config.vocab_size == 101
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.head.projection.weight is again.embedding.tokens.weight


def test_a_folder_in_parts_is_one_model(decoder_config, tmp_path):
    model = build_model(decoder_config(), seed=1)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    save_hf_folder(model, whole)
    one = SafetensorsFolder(whole)
    specs = [TensorSpec(name, torch.float32, shape) for name, shape in one.shapes.items()]
    write_folder(parts, specs, (one.get(spec.name) for spec in specs), max_file_bytes=50_000)
    shutil.copy(whole / "config.json", parts)
    assert len(list(parts.glob("model-*.safetensors"))) > 1 and (parts / INDEX).is_file()
    assert torch.equal(load_hf_folder(parts).blocks["1"].mlp.up.weight, model.blocks["1"].mlp.up.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_our_files_are_safetensors(tmp_path, dtype):
    values = [torch.arange(6.0).view(2, 3).to(dtype), torch.ones(4, dtype=dtype)]
    write_folder(tmp_path, [TensorSpec("a", dtype, (2, 3)), TensorSpec("b", dtype, (4,))], values)
    read = load_file(tmp_path / SINGLE)
    assert torch.equal(read["a"], values[0]) and torch.equal(read["b"], values[1])


def test_published_files_without_the_prefix_load(decoder_config):
    config = decoder_config()
    model = build_model(config, seed=1)
    state = {
        name.removeprefix("transformer."): value for name, value in state_to_hf(config, model.state_dict()).items()
    }
    state["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)  # the causal mask that old files carry
    state["lm_head.weight"] = state["wte.weight"]
    assert torch.equal(state_from_hf(config, state)["head.norm.weight"], model.head.norm.weight)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("transformer.h.1.ln_2.bias"), r"transformer.h.1.ln_2.bias is missing"),
        (lambda state: state.update(extra=torch.ones(1)), r"extra has no place in the model"),
        (
            lambda state: state.update({"transformer.wpe.weight": torch.ones(8, 48)}),
            r"transformer.wpe.weight is \(8, 48\), the configuration asks for \(32, 48\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(decoder_config, spoil, message):
    config = decoder_config()
    state = state_to_hf(config, build_model(config, seed=1).state_dict())
    spoil(state)
    with pytest.raises(SkytrainError, match=message):
        state_from_hf(config, state)


def test_an_unknown_architecture_is_named():
    with pytest.raises(
        SkytrainError, match=r"no architecture 'gpt3' \(model_type in config.json\).*did you mean gpt2\?\n  model=hf"
    ):
        read_hf_config({"model_type": "gpt3"}, name="x", pad_vocab_to=1)


def test_a_name_is_suggested_only_for_an_architecture_that_is_near():
    with pytest.raises(SkytrainError, match="no architecture 'opt'") as raised:
        read_hf_config({"model_type": "opt"}, name="x", pad_vocab_to=1)
    assert "did you mean" not in str(raised.value)
    with pytest.raises(SkytrainError, match=r"^no model_type in x/config\.json"):
        read_hf_config({}, name="x", pad_vocab_to=1)


def test_what_hugging_face_cannot_say_is_refused(decoder_config):
    with pytest.raises(ConfigError, match=r"model.qk_norm: True has no form in Hugging Face's GPT2LMHeadModel"):
        hf_config(decoder_config(qk_norm=True))


def test_a_setting_that_the_decoder_has_not_is_refused(decoder_config):
    data = {**hf_config(decoder_config()), "scale_attn_by_inverse_layer_idx": True}
    with pytest.raises(SkytrainError, match=r"scale_attn_by_inverse_layer_idx=True is not supported"):
        read_hf_config(data, name="x", pad_vocab_to=1)


def test_a_learned_position_table_cannot_be_shortened(decoder_config):
    with pytest.raises(SkytrainError, match=r"position table has 32 rows"):
        read_hf_config(hf_config(decoder_config()), name="x", pad_vocab_to=1, max_length=16)


def test_folders_without_a_model_are_named(decoder_config, tmp_path):
    with pytest.raises(SkytrainError, match=r"is not a Hugging Face model"):
        load_hf_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(decoder_config())))
    with pytest.raises(SkytrainError, match=r"has no weights"):
        load_hf_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SkytrainError, match=r"pickled.*\n.*python -c .*save_pretrained"):
        load_hf_folder(tmp_path)
    (tmp_path / SINGLE).write_bytes(b"not a header")
    with pytest.raises(SkytrainError, match=r"model\.safetensors is damaged"):
        load_hf_folder(tmp_path)


STREAMS = """
import dataclasses, pathlib, resource, sys
import torch
from skytrain.models import build_model, load_hf_folder
from skytrain.models.hf import save_hf_folder
from skytrain.models.sizes import size_config

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

folder = pathlib.Path(sys.argv[2])
build_model(dataclasses.replace(size_config("llama-tiny"), width=16, mlp_width=16, vocab_size=16), seed=0)  # what torch loads at first use
if sys.argv[1] == "save":
    config = dataclasses.replace(size_config("llama-tiny"), layers=12, width=384, heads=6, kv_heads=3, mlp_width=1152, vocab_size=4096)
    model = build_model(config, seed=0).to(torch.bfloat16)
    before = peak()
    save_hf_folder(model, folder)
else:
    before = peak()
    model = load_hf_folder(folder, dtype=torch.float32)
    sum(float(parameter.detach().sum()) for parameter in model.parameters())  # pages that are mapped, not read, would not count
print((peak() - before) / sum(parameter.numel() * parameter.itemsize for parameter in model.parameters()))
"""


@pytest.mark.slow
def test_reading_and_writing_stream_tensor_by_tensor(tmp_path):
    def extra_memory(what: str) -> float:
        run = subprocess.run(
            [sys.executable, "-c", STREAMS, what, str(tmp_path)], capture_output=True, text=True, check=True
        )
        return float(run.stdout)

    assert extra_memory("save") < 0.3
    assert extra_memory("load") < 1.3


def test_a_loaded_model_does_not_write_to_its_file(decoder_config, tmp_path):
    save_hf_folder(build_model(decoder_config(), seed=1), tmp_path)
    model = load_hf_folder(tmp_path)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert load_hf_folder(tmp_path).head.norm.weight.sum() == 48
