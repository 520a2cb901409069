from __future__ import annotations

import pytest
import torch

from skytrain.config import SkytrainError
from skytrain.export import export_llmc
from skytrain.models import build_model, load_llmc
from skytrain.models.sizes import size_config


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
