from __future__ import annotations

import dataclasses

import pytest
import torch

from skytrain.config import ConfigError, HFModelConfig, SkytrainError, compose
from skytrain.evaluation import Sampling, WholeModel
from skytrain.evaluation.generation import generate_tokens
from skytrain.models import HFCausalLM, LossSettings, build_model, flops_per_token, lm_loss, save_hf_folder, save_llmc

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 48,
}


@pytest.fixture
def neox(tmp_path):
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    model = AutoModelForCausalLM.from_config(GPTNeoXConfig(vocab_size=96, **TINY))
    model.save_pretrained(tmp_path / "neox")
    return tmp_path / "neox", model


def hf(path, **changes) -> HFModelConfig:
    plain = HFModelConfig(
        name=str(path),
        family="hf",
        weights="random",
        revision=None,
        trust_remote_code=False,
        vocab_size=90,
        max_length=48,
    )
    return dataclasses.replace(plain, **changes)


def test_a_hugging_face_model_follows_the_contract(neox, random_tokens):
    path, _ = neox
    model = build_model(hf(path), seed=1)
    tokens = random_tokens(vocab_size=90)
    assert isinstance(model, HFCausalLM)
    assert model(tokens).shape == (2, 16, 90)
    lm_loss(model, tokens, tokens).backward()
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 64) + 90 * 32
    assert flops_per_token(model, 40) == 6 * matrices + 12 * 2 * 32 * 40
    assert len(list(generate_tokens(WholeModel(model), [1, 2], Sampling(temperature=0), max_tokens=60))) == 60


def test_new_weights_of_a_hugging_face_model_follow_the_seed(neox):
    path, _ = neox
    one, same, other = (build_model(hf(path), seed=seed).state_dict() for seed in (1, 1, 2))
    name = "model.gpt_neox.layers.0.attention.dense.weight"
    assert torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name])


def test_a_hugging_face_model_continues_from_its_own_weights(neox, random_tokens):
    path, theirs = neox
    model = build_model(hf(path, weights="pretrained"), seed=1).eval()
    tokens = random_tokens(vocab_size=90)
    assert torch.equal(model(tokens), theirs.eval()(tokens).logits)


def test_special_tokens_beyond_the_vocabulary_are_forgotten_and_the_padding_token_learns(tmp_path):
    from transformers import LlamaConfig

    for pad in (500, 3):  # beyond the 90 tokens of the run's tokenizer, and an ordinary one of them
        LlamaConfig(vocab_size=512, pad_token_id=pad, eos_token_id=[1, 511], **TINY).save_pretrained(tmp_path)
        model = build_model(hf(tmp_path), seed=1)
        tokens = torch.full((1, 4), 3)
        lm_loss(model, tokens, tokens).backward()
        assert model.model.get_input_embeddings().weight.grad[3].norm() > 0
        assert model.model.config.eos_token_id is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no-such-folder"}, r"model.name: 'no-such-folder' is not a causal language model"),
        ({"max_length": 49}, r"model.max_length: 49 is longer than the 48 positions"),
        ({"weights": "pretrained", "vocab_size": 97}, r"model.vocab_size: 97 is more than the 96 tokens"),
    ],
)
def test_a_hugging_face_model_that_does_not_fit_is_named(neox, changes, message):
    with pytest.raises(ConfigError, match=message):
        build_model(hf(neox[0], **changes), seed=0)


def test_a_config_that_transformers_refuses_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}')
    with pytest.raises(ConfigError, match=r"is not a causal language model that transformers can build here"):
        build_model(hf(tmp_path), seed=0)


def test_a_folder_of_an_architecture_that_is_no_language_model_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ConfigError, match=r"is not a causal language model"):
        build_model(hf(tmp_path), seed=0)


@pytest.mark.parametrize("form", ["folder", "llm.c file"])
def test_the_decoder_starts_from_given_weights(decoder_config, tmp_path, form):
    start = build_model(decoder_config(), seed=7)
    source = tmp_path if form == "folder" else tmp_path / "model.bin"
    save_hf_folder(start, tmp_path) if form == "folder" else save_llmc(start, source)
    config = decoder_config(weights=str(source), pad_vocab_to=32)
    model = build_model(config, seed=1)
    assert torch.equal(model.embedding.tokens.weight[:101], start.embedding.tokens.weight[:101])
    assert torch.equal(model.blocks["1"].attention.qkv.weight, start.blocks["1"].attention.qkv.weight)
    assert model.head.projection.weight is model.embedding.tokens.weight
    fresh = build_model(config, seed=1, start_weights=False)
    assert not torch.equal(fresh.embedding.tokens.weight[:101], start.embedding.tokens.weight[:101])


def test_weights_of_another_shape_are_named(decoder_config, tmp_path):
    save_hf_folder(build_model(decoder_config(), seed=7), tmp_path)
    with pytest.raises(ConfigError, match=r"model.layers: configured 3, the weights have 2; set model.layers=2"):
        build_model(decoder_config(layers=3, weights=str(tmp_path)), seed=0)
    with pytest.raises(SkytrainError, match=r"nowhere: not a folder here, not in the hub's cache"):
        build_model(decoder_config(weights="nowhere"), seed=0)


def test_a_run_is_named_after_the_model_and_not_its_owner():
    from skytrain.runs import run_name

    config = compose(["model=hf", "model.name=EleutherAI/pythia-160m"]).config
    assert run_name(config).startswith("pythia-160m-python-docs-")


def test_a_hugging_face_model_keeps_documents_apart_by_their_positions(neox):
    model = build_model(hf(neox[0]), seed=1).eval()
    one, other = torch.tensor([[89, 1, 2, 3]]), torch.tensor([[89, 4, 5]])
    row = torch.cat([one, other, torch.tensor([[6, 7]])], dim=1)
    apart = model(row, document_starts_bt=(row == 89) | (row == 6))
    model.check_documents()
    for begin, end, document in ((0, 4, one), (4, 7, other), (7, 9, torch.tensor([[6, 7]]))):
        torch.testing.assert_close(apart[:, begin:end], model(document), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_a_chunked_loss_of_a_hugging_face_model_has_the_same_gradients(neox, random_tokens, z_loss):
    model, tokens = build_model(hf(neox[0]), seed=1), random_tokens(vocab_size=90)
    found = []
    for chunk in (None, 5):
        model.loss_settings = LossSettings(z_loss, chunk)
        loss = lm_loss(model, tokens, tokens.flip(1))
        found.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    model.check_chunks()
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-5)


def test_a_hugging_face_model_that_cannot_do_either_is_refused_by_trying_it(tmp_path):
    from transformers import AutoModelForCausalLM, BloomConfig, CohereConfig

    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    scaled = CohereConfig(
        **sizes, intermediate_size=32, logit_scale=0.5, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    AutoModelForCausalLM.from_config(scaled).save_pretrained(tmp_path / "cohere")
    with pytest.raises(ConfigError, match=r"trainer.loss_chunk_tokens: .* more to its logits"):
        build_model(hf(tmp_path / "cohere"), seed=0).check_chunks()
    bloom = BloomConfig(vocab_size=96, hidden_size=32, n_layer=1, n_head=2)  # has no positions but a bias by distance
    AutoModelForCausalLM.from_config(bloom).save_pretrained(tmp_path / "bloom")
    model = build_model(hf(tmp_path / "bloom"), seed=0)
    with pytest.raises(ConfigError, match=r"loader.separate_documents: .* does not keep documents apart"):
        model.check_documents()
