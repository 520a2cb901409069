from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from skytrain.config import ConfigError, HFModelConfig
from skytrain.models import build_model
from skytrain.parallel import Settings
from skytrain.parallel.apply import parallelize


@pytest.mark.parametrize(
    ("heads", "kv_heads", "hidden", "problem"),
    [
        (4, 1, 64, "1 key-value heads"),
        (6, 3, 64, "3 key-value heads"),
        (3, 3, 64, "3 attention heads"),
        (4, 2, 65, "65 columns of the MLP"),
    ],
)
def test_a_hugging_face_model_that_does_not_divide_among_tensor_ranks_is_refused(
    tmp_path, heads, kv_heads, hidden, problem
):
    from transformers import LlamaConfig

    shape = {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": hidden, "max_position_embeddings": 32}
    config = LlamaConfig(vocab_size=96, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8, **shape)
    config.save_pretrained(tmp_path)
    model = build_model(HFModelConfig(str(tmp_path), "hf", "random", None, False, 96, 32), seed=1)
    mesh = {"pipeline": SimpleNamespace(size=lambda: 1), "tensor": SimpleNamespace(size=lambda: 2)}
    settings = Settings(sequence_length=16, micro_batch=1, micro_batches=1, dtype=torch.float32)
    with pytest.raises(ConfigError, match=f"parallel.tensor: the {problem} of .* do not divide among 2 ranks"):
        parallelize(model, mesh, settings)
