from __future__ import annotations

import json

from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import compose
from skytrain.models import build_model, count_parameters


def test_models_lists_sizes_with_parameters_flops_and_memory():
    lines = CliRunner().invoke(app, ["models", "gpt2", "llama-2-13b"]).stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:7]}
    assert rows["gpt2-124m"] == ["gpt2", "50,257", "124,439,808", "854M", "1.99", "GB", "1024"]
    assert rows["llama-2-13b"][2] == "13,015,864,320"
    assert "qwen3-8b" not in rows


def test_models_prints_json_for_programs():
    rows = json.loads(CliRunner().invoke(app, ["models", "gpt2-124m", "--length", "512", "--json"]).stdout)
    assert rows == [
        {
            "name": "gpt2-124m",
            "family": "gpt2",
            "vocab_size": 50257,
            "parameters": 124_439_808,
            "active_parameters": 124_439_808,
            "flops_per_token": 6 * 123_532_032 + 12 * 12 * 768 * 512,
            "state_bytes": 16 * 124_439_808,
            "max_length": 1024,
        }
    ]


def test_models_names_the_nearest_right_word():
    result = CliRunner().invoke(app, ["models", "lama"])
    assert "did you mean llama?" in str(result.exception)


def test_models_lists_the_families_where_no_word_is_near():
    result = CliRunner().invoke(app, ["models", "zzzz"])
    said = str(result.exception)
    assert (
        "families: deepseek_v3, exaone, gemma2, gemma3_text, gpt_oss, gpt2, llama" in said
        and "`skytrain models` lists" in said
    )


def test_models_and_train_count_the_same_parameters():
    rows = json.loads(CliRunner().invoke(app, ["models", "gpt2-tiny", "--vocab-size", "4000", "--json"]).stdout)
    model = build_model(
        compose(
            ["model=gpt2-tiny", "model.vocab_size=4000", "tokenizer=bpe-4k", "tokenizer.vocab_size=4000"]
        ).config.model,
        seed=1,
    )
    assert model.config.padded_vocab > 4000
    assert rows[0]["parameters"] == count_parameters(model)
