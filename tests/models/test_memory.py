from __future__ import annotations

import pytest
import torch
from benchmarks.models.parity import small_config
from torch.autograd.graph import saved_tensors_hooks

from skytrain.models import LossSettings, build_model, token_loss


def gradients(model, tokens, targets):
    model.zero_grad()
    loss = model.loss(tokens, targets)
    loss = sum(loss) if isinstance(loss, tuple) else loss  # with the auxiliary loss of experts
    loss.backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in trained.items()}


def kept_bytes(model, tokens, targets) -> int:
    """Bytes of the distinct tensors that autograd holds between forward and backward, parameters aside."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor):
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model.loss(tokens, targets)
    return sum(kept.values())


@pytest.mark.parametrize("case", ["GPT-2", "Llama 3", "Gemma 2", "Mixtral", "gpt-oss", "DeepSeek-V3"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_bit_of_the_gradients(case, recompute, random_tokens):
    model = build_model(small_config(case), seed=1)
    tokens, targets = random_tokens(vocab_size=200), random_tokens(vocab_size=200, seed=1)
    loss, plain = gradients(model, tokens, targets)
    model.recompute = recompute
    again, found = gradients(model, tokens, targets)
    assert torch.equal(loss, again)
    assert all(torch.equal(plain[name], found[name]) for name in plain)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_routers_count_a_token_once_though_a_block_runs_twice(recompute, random_tokens):
    model = build_model(small_config("Mixtral"), seed=1)
    model.recompute = recompute
    tokens = random_tokens(vocab_size=200)
    for _ in range(3):  # micro-batches of a step
        gradients(model, tokens, tokens)
    mixtures = [block.mixture for block in model.blocks.values()]
    rows = 3 * tokens.numel() * model.config.experts.per_token
    assert [int(mixture.router.take_load().sum()) for mixture in mixtures] == [rows] * len(mixtures)
    assert [int(mixture.experts.take_served()) for mixture in mixtures] == [rows] * len(mixtures)


def test_recomputing_repeats_dropout_as_it_was(decoder_config, random_tokens):
    model = build_model(decoder_config(dropout=0.3), seed=1)
    results = []
    for recompute in ("none", "full"):
        model.recompute = recompute
        torch.manual_seed(0)
        results.append(gradients(model, random_tokens(), random_tokens(seed=1))[1])
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_recomputing_keeps_less(random_tokens):
    model = build_model(small_config("Llama 3"), seed=1)
    tokens = random_tokens(vocab_size=200, length=64)
    kept = {}
    for recompute in ("none", "selective", "full"):
        model.recompute = recompute
        kept[recompute] = kept_bytes(model, tokens, tokens)
    assert kept["full"] < kept["none"] / 2
    assert kept["selective"] <= kept["none"]


@pytest.mark.parametrize("chunk", [7, 16, 1000])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_a_chunked_loss_has_the_same_gradients(chunk, z_loss, random_tokens):
    model = build_model(small_config("Gemma 2"), seed=1)
    tokens, targets = random_tokens(vocab_size=200), random_tokens(vocab_size=200, seed=1)
    targets[0, :3] = -100
    model.loss_settings = LossSettings(z_loss=z_loss)
    loss, plain = gradients(model, tokens, targets)
    model.loss_settings = LossSettings(z_loss=z_loss, chunk_tokens=chunk)
    again, found = gradients(model, tokens, targets)
    torch.testing.assert_close(again, loss)
    for name in plain:
        torch.testing.assert_close(found[name], plain[name], rtol=1e-5, atol=1e-7)


def test_a_chunked_loss_keeps_no_logits(decoder_config, random_tokens):
    model = build_model(decoder_config(vocab_size=4000, layers=1), seed=1)
    tokens = random_tokens(length=32)
    whole = kept_bytes(model, tokens, tokens)
    model.loss_settings = LossSettings(chunk_tokens=8)
    assert whole - kept_bytes(model, tokens, tokens) > 0.9 * 64 * 4000 * 4


def test_z_loss_is_the_mean_square_of_the_log_sum(random_tokens):
    logits = torch.randn(2, 16, 101, generator=torch.Generator().manual_seed(0))
    extra = token_loss(logits, random_tokens(), z_loss=0.1) - token_loss(logits, random_tokens())
    torch.testing.assert_close(extra, 0.1 * logits.logsumexp(-1).square().mean(), rtol=1e-4, atol=1e-5)


def test_z_loss_is_part_of_training_and_not_of_evaluation(decoder_config, random_tokens):
    model = build_model(decoder_config(), seed=1)
    plain = model.loss(random_tokens(), random_tokens())
    model.loss_settings = LossSettings(z_loss=0.1)
    assert model.loss(random_tokens(), random_tokens()) > plain
    assert torch.equal(model.eval().loss(random_tokens(), random_tokens()), plain)
