from __future__ import annotations

import pytest
import torch

from skytrain.config import SkytrainError
from skytrain.evaluation import Sampling, WholeModel
from skytrain.evaluation.generation import generate_tokens
from skytrain.export import export_llmc
from skytrain.models import build_model, load_llmc
from skytrain.models.sizes import size_config

from .llmc_reader import read_llmc_file


@pytest.fixture(scope="module")
def model():
    """A GPT-2 whose biases and gains tell themselves apart, and whose logits differ clearly."""
    model = build_model(size_config("gpt2-tiny", vocab_size=300), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        model.embedding.tokens.weight[300:] = 0  # the padding of the vocabulary
    return model.eval()


@pytest.mark.parametrize(("dtype", "version"), [("fp32", 3), ("bf16", 5)])
def test_a_file_goes_round_and_a_reader_of_the_format_generates_the_same(model, tmp_path, dtype, version):
    path = export_llmc(model, tmp_path / "model.bin", dtype)
    back = load_llmc(path)
    for name, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value if dtype == "fp32" else value.bfloat16().float()), name
    assert export_llmc(back, tmp_path / "again.bin", dtype).read_bytes() == path.read_bytes()
    theirs = read_llmc_file(path)
    assert theirs.version == version
    tokens = [5, 17, 200]
    ours = generate_tokens(WholeModel(back), tokens, Sampling(temperature=0), max_tokens=12)
    for token in ours:
        expected, lead = theirs.next_token(tokens)
        assert lead > 1e-4, "two tokens are equally likely: choose another model"
        assert token == expected
        tokens.append(token)
    assert len(tokens) == 15


def test_a_type_that_llm_c_has_not_is_refused(model, tmp_path):
    with pytest.raises(SkytrainError, match=r"float32 or bfloat16 weights\n  --dtype fp32"):
        export_llmc(model, tmp_path / "model.bin", "fp16")


def test_an_exported_file_holds_the_model_and_is_never_overwritten(tmp_path):
    model = build_model(size_config("gpt2-tiny"), seed=1)
    path = export_llmc(model, tmp_path / "new" / "model.bin")
    assert torch.equal(load_llmc(path).head.norm.weight, model.head.norm.weight)
    with pytest.raises(SkytrainError, match=r"model.bin exists"):
        export_llmc(model, path)


def test_an_export_that_cannot_be_leaves_nothing(tmp_path):
    with pytest.raises(SkytrainError, match="only the built-in decoder"):
        export_llmc(torch.nn.Linear(2, 2), tmp_path / "model.bin")
    with pytest.raises(SkytrainError, match=r"has no form in llm\.c"):
        export_llmc(build_model(size_config("llama-tiny"), seed=1), tmp_path / "model.bin")
    assert list(tmp_path.iterdir()) == []
