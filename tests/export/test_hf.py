from __future__ import annotations

import copy
import json
import os

import pytest
import torch

from skytrain.config import BatchSizes, BPETokenizerConfig, HFModelConfig, SkytrainError, compose
from skytrain.export import HFExport, TrainingFacts, export_hf
from skytrain.models import build_model
from skytrain.pipelines.export import _base_model
from skytrain.tokens import train_bpe

TEXT = "The quick brown fox jumps over the lazy dog. Return the value of the argument, or the default: naïve café ☕."


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(BPETokenizerConfig(kind="bpe", name="tiny", vocab_size=300, sample_bytes=10**6), [TEXT] * 5)


@pytest.fixture(scope="module")
def model(tokenizer):
    small = ["layers=2", "width=32", "heads=4", "max_length=24", f"vocab_size={tokenizer.vocab_size}"]
    overrides = ["model=gpt2-tiny", "tokenizer=bpe-4k", "tokenizer.vocab_size=257", "trainer.sequence_length=8"]
    return build_model(compose([*overrides, *(f"model.{each}" for each in small)]).config.model, seed=1).eval()


def test_transformers_loads_the_export_with_equal_logits(model, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = export_hf(model, tokenizer, tmp_path / "out", HFExport("fp32"))
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode_batch([TEXT])[0].tolist()
    assert their_tokenizer(TEXT)["input_ids"] == ids
    tokens = torch.tensor([ids[:24]])
    with torch.no_grad():
        difference = theirs(tokens).logits - model(tokens)[..., : tokenizer.vocab_size]
    assert difference.abs().max() <= 1e-5
    assert theirs.generation_config.eos_token_id == tokenizer.eot


@pytest.mark.parametrize("size", ["modern-124m", "modern-350m", "modern-1b"])
def test_modern_recipes_export_to_transformers_own_qwen_3(size, tokenizer, tmp_path):
    """Heads, their norms, rotary positions and the tied head as the recipe has them; fewer layers and tokens."""
    from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

    words = [f"model={size}", "tokenizer=bpe-4k", "tokenizer.vocab_size=257", "model.layers=1", "model.max_length=1024"]
    model = build_model(compose([*words, f"model.vocab_size={tokenizer.vocab_size}"]).config.model, seed=1).eval()
    theirs = AutoModelForCausalLM.from_pretrained(
        export_hf(model, tokenizer, tmp_path / "out", HFExport("fp32"))
    ).eval()
    assert type(theirs) is Qwen3ForCausalLM
    tokens = torch.tensor([tokenizer.encode_batch([TEXT])[0].tolist()[:24]])
    with torch.no_grad():
        difference = theirs(tokens).logits - model(tokens)[..., : tokenizer.vocab_size]
    assert difference.abs().max() <= 1e-4


def hf_model(tokenizer, folder):
    """A model that transformers runs, with random weights."""
    from transformers import LlamaConfig

    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaConfig(vocab_size=tokenizer.vocab_size, **shape).save_pretrained(folder)
    return build_model(
        HFModelConfig(
            name=str(folder),
            family="hf",
            weights="random",
            revision=None,
            trust_remote_code=False,
            vocab_size=tokenizer.vocab_size,
            max_length=24,
        ),
        seed=1,
    )


@pytest.mark.parametrize("kind", ["decoder", "hf"])
def test_an_export_is_bf16_in_several_files_and_the_model_stays_as_it_was(model, tokenizer, tmp_path, kind):
    from transformers import AutoModelForCausalLM

    model = hf_model(tokenizer, tmp_path / "llama").eval() if kind == "hf" else model
    before = {name: value.clone() for name, value in model.named_parameters()}
    folder = export_hf(model, tokenizer, tmp_path / "out", HFExport(max_file_bytes=12_000))
    weights = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(weights["weight_map"].values())) == len(list(folder.glob("*.safetensors"))) > 1
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert theirs.dtype == torch.bfloat16
    tokens = torch.tensor([tokenizer.encode_batch([TEXT])[0].tolist()[:24]])
    rounded = copy.deepcopy(model).bfloat16().float()
    with torch.no_grad():
        difference = theirs.float()(tokens).logits - rounded(tokens)[..., : tokenizer.vocab_size]
    assert difference.abs().max() <= 1e-5


def test_the_model_card_says_what_was_trained_on_what_and_for_how_much(model, tokenizer, tmp_path):
    facts = TrainingFacts(
        run="mine",
        step=100,
        total_steps=200,
        batches=BatchSizes(65536),
        sequence_length=1024,
        optimizer="adamw",
        learning_rate=3e-4,
        precision="bf16-mixed",
        seed=7,
        data={"tokens/pile/ab12/gpt2/train": 2_500_000_000},
        tokenizer="gpt2",
        metrics={"train/loss": 3.21, "val/loss": 3.3, "cost/usd": 12.5},
        device="NVIDIA A10G",
        ranks=4,
        train_seconds=7200.0,
        started_from="openai-community/gpt2@main",
    )
    card = (export_hf(model, tokenizer, tmp_path / "out", HFExport(training=facts)) / "README.md").read_text()
    assert 'base_model: "openai-community/gpt2"' in card.split("---")[1]
    for line in (
        "| data | tokens/pile/ab12/gpt2/train (2,500,000,000 tokens) |",
        "| tokens trained on | 6,553,600 (65,536 per step) |",
        "| validation loss | 3.3000 |",
        "| hardware | 4 x NVIDIA A10G |",
        "| cost | $12.50 |",
    ):
        assert line in card


def test_the_vocabulary_is_exported_without_its_padding(model, tokenizer, tmp_path):
    folder = export_hf(model, tokenizer, tmp_path / "out")
    assert model.config.padded_vocab > tokenizer.vocab_size
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == tokenizer.vocab_size


def test_a_folder_with_something_in_it_is_left_alone(model, tokenizer, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(SkytrainError, match=r"exists and is not an empty folder"):
        export_hf(model, tokenizer, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_that_fails_leaves_nothing(model, tokenizer, tmp_path, monkeypatch):
    def full(folder: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(tokenizer, "save", full)
    with pytest.raises(SkytrainError, match=r"out cannot be written: No space left"):
        export_hf(model, tokenizer, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_ones_own_has_no_hugging_face_form(tokenizer, tmp_path):
    with pytest.raises(SkytrainError, match=r"only the built-in decoder"):
        export_hf(torch.nn.Linear(2, 2), tokenizer, tmp_path / "out")


@pytest.mark.parametrize("kind", ["decoder", "hf"])
def test_an_export_has_the_modes_of_the_umask(model, tokenizer, tmp_path, kind):
    model = hf_model(tokenizer, tmp_path / "llama") if kind == "hf" else model
    before = os.umask(0o027)
    try:
        folder = export_hf(model, tokenizer, tmp_path / "out")
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("s3://bucket/demo/models/meta-llama/Llama-3.1-8B@" + 40 * "a", "meta-llama/Llama-3.1-8B"),
        ("/data/store/models/gpt2@" + 40 * "0", "gpt2"),
        ("meta-llama/Llama-3.1-8B@main", "meta-llama/Llama-3.1-8B@main"),
        ("/home/me/weights/my-llama", "my-llama"),
        ("s3://bucket/inputs/my-llama/", "my-llama"),
        ("other-run@100", "other-run@100"),
        (None, None),
    ],
)
def test_the_base_model_is_named_and_no_path_of_a_machine(source, name):
    assert _base_model(source) == name


def test_a_folder_that_says_where_it_comes_from_is_named_by_that(tmp_path):
    (tmp_path / "config.json").write_text('{"_name_or_path": "upstage/SOLAR-10.7B-v1.0"}')
    assert _base_model(str(tmp_path)) == "upstage/SOLAR-10.7B-v1.0"
