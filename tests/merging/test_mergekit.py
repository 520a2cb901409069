"""Merges of Hugging Face folders against mergekit's, which runs in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from skytrain.export import HFExport, export_hf
from skytrain.models import build_model
from skytrain.models.sizes import size_config
from skytrain.pipelines.merge import MergeRequest, merge
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from skytrain.storage import open_store
from skytrain.tokens import open_tokenizer
from tests.support.mergekit import merge_with_mergekit
from tests.support.tiny import tiny_config

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"merge_method": "linear"}, {"method": "average", "weights": (0.7, 0.3)}),
    "slerp": ({"merge_method": "slerp", "parameters": {"t": 0.3}}, {"method": "slerp", "settings": {"t": 0.3}}),
    "task_arithmetic": (
        {"merge_method": "task_arithmetic", "parameters": {"lambda": 0.8}},
        {"method": "task-arithmetic", "weights": (0.7, 0.3), "settings": {"scale": 0.8}},
    ),
    "dare_ties": (  # nothing is dropped: each draws its own numbers
        {"merge_method": "dare_ties", "parameters": {"density": 1.0}},
        {"method": "dare-ties", "weights": (0.7, 0.3), "settings": {"density": 1.0}},
    ),
    "ties_bf16": (  # thousands of differences have the size at which they are trimmed
        {"merge_method": "ties", "parameters": {"density": 0.2}},
        {"method": "ties", "weights": (0.7, 0.3), "settings": {"density": 0.2}},
    ),
    "ties": (
        {"merge_method": "ties", "parameters": {"density": 0.4, "lambda": 0.8}},
        {"method": "ties", "weights": (0.7, 0.3), "settings": {"density": 0.4, "scale": 0.8}},
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A base and two models near it, as folders in float32."""
    root = tmp_path_factory.mktemp("folders")
    config = tiny_config(root / "store")
    prepare(config, Silent())
    tokenizer = open_tokenizer(config.tokenizer, open_store(config.store))
    for number, name in enumerate(("base", "one", "two")):
        model = build_model(size_config("llama-tiny", vocab_size=tokenizer.vocab_size), seed=1)
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        export_hf(model, tokenizer, root / name, HFExport("fp32"))
        export_hf(model, tokenizer, root / f"{name}-bf16", HFExport("bf16"))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_merge_equals_mergekits(folders, tmp_path, case):
    theirs, ours = CASES[case]
    kind = "-bf16" if case.endswith("bf16") else ""
    models = [
        {"model": str(folders / f"{name}{kind}"), "parameters": {"weight": weight}}
        for name, weight in (("one", 0.7), ("two", 0.3))
    ]
    recipe: dict[str, Any] = {"models": models, "dtype": "float32", **theirs}
    if case == "slerp":
        recipe |= {"models": [{"model": each["model"]} for each in models], "base_model": models[0]["model"]}
    elif case != "linear":
        recipe["base_model"] = str(folders / f"base{kind}")
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    merge_with_mergekit(tmp_path / "recipe.yaml", tmp_path / "theirs")

    base = str(folders / f"base{kind}") if "base_model" in recipe and case != "slerp" else None
    request = MergeRequest(
        (str(folders / f"one{kind}"), str(folders / f"two{kind}")),
        base=base,
        out=tmp_path / "ours",
        dtype="fp32",
        force=True,
        **ours,
    )
    merge(tiny_config(folders / "store", "model=llama-tiny", f"run={case}"), request, Silent())
    expected, found = load_folder(tmp_path / "theirs"), load_folder(tmp_path / "ours")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-6, msg=name)


def load_folder(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    return {name: value for name, value in tensors.items() if name != "lm_head.weight"}
