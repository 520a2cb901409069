from __future__ import annotations

import numpy as np
import pytest
import torch

from skytrain.config import ConfigError, SkytrainError
from skytrain.models import build_model, load_llmc, save_llmc
from skytrain.models.hf_weights import state_to_hf


@pytest.fixture
def model(decoder_config):
    model = build_model(decoder_config(pad_vocab_to=128), seed=1)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases and gains that tell themselves apart
            parameter.data.normal_(1.0, 0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_file_is_read_back_bit_for_bit(model, tmp_path, dtype):
    model.to(dtype)
    save_llmc(model, tmp_path / "model.bin")
    again = load_llmc(tmp_path / "model.bin", dtype=dtype)
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_the_file_is_laid_out_as_llm_c_reads_it(model, tmp_path):
    save_llmc(model, tmp_path / "model.bin")
    header = np.fromfile(tmp_path / "model.bin", dtype=np.int32, count=256)
    assert header[:8].tolist() == [20240326, 3, 32, 101, 2, 4, 48, 128]
    weights = torch.from_numpy(np.fromfile(tmp_path / "model.bin", dtype=np.float32, offset=1024))
    theirs = state_to_hf(model.config, model.state_dict())  # Conv1D's (in, out), llm.c's (out, in)
    at = (128 + 32) * 48
    expected = [theirs[f"transformer.h.{layer}.ln_1.weight"] for layer in (0, 1)]
    expected += [theirs[f"transformer.h.{layer}.ln_1.bias"] for layer in (0, 1)]
    expected += [theirs[f"transformer.h.{layer}.attn.c_attn.weight"].t() for layer in (0, 1)]
    flat = torch.cat([tensor.reshape(-1) for tensor in expected])
    assert torch.equal(weights[at : at + flat.numel()], flat)
    assert torch.equal(weights[-96:], torch.cat((theirs["transformer.ln_f.weight"], theirs["transformer.ln_f.bias"])))


def test_a_file_cut_short_is_refused(model, tmp_path):
    save_llmc(model, tmp_path / "model.bin")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "model.bin").read_bytes()[:-4])
    with pytest.raises(SkytrainError, match=r"cut.bin has \d+ bytes; its header asks for"):
        load_llmc(tmp_path / "cut.bin")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "not a model file of llm.c"), (b"\0" * 2048, "not a model file of llm.c")]
)
def test_another_file_is_refused(tmp_path, content, message):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(SkytrainError, match=message):
        load_llmc(tmp_path / "x.bin")


def test_a_header_whose_lies_cancel_out_is_refused(tmp_path):
    """Thousands of layers, and a vocabulary of less than nothing: the file has the size that the sum asks for."""
    header = np.zeros(256, dtype="<i4")
    layers = 10_000  # more are refused for that
    header[:8] = (20240326, 3, 1, 1, layers, 1, 1, 9 - 25 * layers)
    (tmp_path / "lies.bin").write_bytes(header.tobytes() + np.zeros(12, np.float32).tobytes())
    with pytest.raises(SkytrainError, match="is cut short or altered"):
        load_llmc(tmp_path / "lies.bin")


def test_an_unknown_version_is_refused(model, tmp_path):
    save_llmc(model, tmp_path / "model.bin")
    data = bytearray((tmp_path / "model.bin").read_bytes())
    data[4] = 9
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(SkytrainError, match="is of version 9; versions 3 and 5 are known"):
        load_llmc(tmp_path / "model.bin")


def test_a_model_that_is_not_gpt2_is_refused(decoder_config, tmp_path):
    with pytest.raises(ConfigError, match=r"^model.family: llama has no form in llm.c, which trains GPT-2\n.*--to hf"):
        save_llmc(build_model(decoder_config("llama-tiny", kv_heads=2, mlp_width=96), seed=0), tmp_path / "x.bin")
