from __future__ import annotations

import pytest
import torch

from skytrain.config import ConfigError, SkytrainError, compose
from skytrain.models import KVCache, build_model, flops_per_token, initial_value, lm_loss
from skytrain.planning import decoder_flops_per_token


def test_padding_of_the_vocabulary_is_never_predicted_and_costs_no_loss(decoder_config, random_tokens):
    tokens = random_tokens()
    padded = build_model(decoder_config(pad_vocab_to=64), seed=1)
    plain = build_model(decoder_config(pad_vocab_to=1), seed=1)
    plain.load_state_dict(
        {name: value[:101] if value.shape[0] == 128 else value for name, value in padded.state_dict().items()}
    )
    logits = padded(tokens)
    assert logits.shape == (2, 16, 128)
    assert torch.isinf(logits[..., 101:]).all() and (logits[..., 101:] < 0).all()
    torch.testing.assert_close(padded.loss(tokens, tokens), plain.loss(tokens, tokens))


def test_padding_rows_get_no_gradient(decoder_config, random_tokens):
    model = build_model(decoder_config(), seed=1)
    model.loss(random_tokens(), random_tokens(seed=1)).backward()
    assert model.embedding.tokens.weight.grad[101:].abs().max() == 0


def test_a_later_token_does_not_change_an_earlier_logit(decoder_config, random_tokens):
    model = build_model(decoder_config(), seed=1).eval()
    tokens = random_tokens()
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 101
    assert torch.equal(model(tokens)[:, :10], model(changed)[:, :10])


def test_initial_weights_depend_on_the_seed_and_the_name_only(decoder_config):
    config = decoder_config()
    model = build_model(config, seed=3)
    deeper = build_model(decoder_config(layers=3), seed=3)
    name = "blocks.1.attention.qkv.weight"
    assert torch.equal(model.get_parameter(name), deeper.get_parameter(name))
    assert torch.equal(model.get_parameter(name), initial_value(config, name, torch.Size((144, 48)), 3))
    assert not torch.equal(model.get_parameter(name), build_model(config, seed=4).get_parameter(name))
    assert not torch.equal(model.get_parameter(name), model.get_parameter("blocks.0.attention.qkv.weight"))


def test_initial_weights_have_gpt2s_scale(decoder_config):
    model = build_model(decoder_config(width=256, layers=8), seed=0)
    assert model.blocks["0"].mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.blocks["0"].mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert model.blocks["0"].mlp.up.bias.abs().max() == 0
    assert model.embedding.tokens.weight[101:].abs().max() == 0


def test_the_head_is_the_embedding_when_tied(decoder_config):
    model = build_model(decoder_config(), seed=0)
    assert model.head.projection.weight is model.embedding.tokens.weight
    assert "head.projection.weight" not in dict(model.named_parameters())


def test_flops_of_gpt2_124m_are_those_of_the_formula():
    config = compose(["model=gpt2-124m"]).config.model
    matmul = 12 * 12 * 768 * 768 + 50257 * 768
    assert decoder_flops_per_token(config, 1024) == 6 * matmul + 12 * 12 * 768 * 1024


def test_a_window_bounds_the_flops_of_its_layers(decoder_config):
    full = decoder_flops_per_token(decoder_config(), 32)
    windowed = decoder_flops_per_token(decoder_config(window=8, window_every=2), 32)
    assert full - windowed == 12 * 48 * (32 - 8)


@pytest.mark.parametrize(
    "changes", [{}, {"window": 5}, {"window": 5, "window_every": 2}, {"attention_softcap": 5.0, "window": 6}]
)
def test_a_cache_gives_the_logits_of_the_whole_sequence(decoder_config, random_tokens, changes):
    model = build_model(decoder_config(**changes), seed=2).eval()
    tokens = random_tokens(length=20)
    cache = KVCache(32)
    pieces = [model(part, cache) for part in tokens.split([7, 1, 1, 4, 7], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens), atol=1e-5, rtol=1e-5)


def test_dropout_acts_in_training_only(decoder_config, random_tokens):
    model = build_model(decoder_config(dropout=0.5), seed=1)
    tokens = random_tokens()
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


def test_a_sequence_longer_than_the_model_is_refused(decoder_config, random_tokens):
    with pytest.raises(SkytrainError, match=r"33 tokens is longer than the 32 positions"):
        build_model(decoder_config(), seed=0)(random_tokens(length=33))


@pytest.mark.parametrize("bad", [101, -1])
def test_a_token_outside_the_vocabulary_is_refused(decoder_config, bad):
    with pytest.raises(SkytrainError, match=rf"token id {bad} is outside the vocabulary of 101"):
        build_model(decoder_config(), seed=0)(torch.tensor([[0, bad]]))


def test_heads_that_do_not_divide_the_width_are_refused(decoder_config):
    with pytest.raises(ConfigError, match=r"5 heads do not divide the width 48"):
        build_model(decoder_config(heads=5), seed=0)


class Bigram(torch.nn.Module):
    """The least that the contract asks for."""

    def __init__(self, vocab_size: int, max_length: int, width: int = 8) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, width)
        self.out = torch.nn.Linear(width, vocab_size)

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(tokens_bt))


class WrongShape(Bigram):
    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens_bt)[:, -1]


class NoLength(torch.nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()


def custom(name: str, **args: object) -> list[str]:
    return [
        "model=custom",
        f"model.target={__name__}.{name}",
        *(f"model.args.{key}={value}" for key, value in args.items()),
    ]


def test_a_custom_model_needs_no_more_than_forward(random_tokens):
    config = compose([*custom("Bigram", width=16), "model.vocab_size=50257"]).config.model
    model = build_model(config, seed=5)
    tokens = random_tokens()
    assert lm_loss(model, tokens, tokens).item() == pytest.approx(
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).item()
    )
    assert flops_per_token(model, 128) == 6 * 16 * 50257
    assert model.config.max_length == 1024
    assert torch.equal(build_model(config, seed=5).out.weight, model.out.weight)
    assert not torch.equal(build_model(config, seed=6).out.weight, model.out.weight)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (custom("WrongShape"), r"WrongShape returns logits of shape \(1, 50257\), not \(1, 2, 50257\)"),
        (custom("NoLength"), r"NoLength does not take max_length"),
        (custom("Bigram", widht=4), r"model.args.widht: .* no such argument"),
        (custom("Bigram", vocab_size=4), r"model.args.vocab_size: is set by the model itself"),
        (["model=custom", "model.target=builtins.dict"], r"builtins.dict is not a torch.nn.Module"),
    ],
)
def test_a_custom_model_that_breaks_the_contract_is_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        build_model(compose(overrides).config.model, seed=0)
