from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from skytrain.config import SkytrainError, compose
from skytrain.evaluation import Sampling, WholeModel, generate
from skytrain.evaluation.generation import choose, generate_tokens
from skytrain.models import Decoder, build_model
from skytrain.tokens import StreamDecoder

GREEDY = Sampling(temperature=0)


class Bytes:
    """One token a byte, and the end of text."""

    name, id, vocab_size, eot, hash = "bytes", "bytes", 257, 256, ""
    stop_ids = frozenset([256])

    def encode_batch(self, texts):
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]

    def decode(self, ids):
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids):
        return b"".join(b"" if token == 256 else bytes([token]) for token in ids)

    def encode_prompt(self, prompt):
        return self.encode_batch([prompt])[0].tolist() or [self.eot]

    def stream(self, prompt=()):
        return StreamDecoder(self.decode, prompt)

    def save(self, folder):
        raise NotImplementedError


class Recite(torch.nn.Module):
    """Says a fixed text, whatever came before; takes no cache."""

    def __init__(self, tokens: list[int], start: int = 1) -> None:
        super().__init__()
        self.tokens, self.start = tokens, start
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.config = dataclasses.make_dataclass("C", ["vocab_size", "max_length"])(257, 512)

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens_bt.shape, 257)
        logits[:, -1, self.tokens[tokens_bt.size(1) - self.start]] = 50.0
        return logits * self.scale


@pytest.fixture(scope="module")
def model() -> Decoder:
    config = dataclasses.replace(
        compose(["model=gpt2-tiny"]).config.model,
        layers=2,
        width=32,
        heads=4,
        vocab_size=257,
        pad_vocab_to=64,
        max_length=24,
    )
    model = build_model(config, seed=1)
    for parameter in model.parameters():  # at its initial scale a model repeats itself
        parameter.data.mul_(8.0)
    return model.eval()


@settings(max_examples=25)
@given(
    prompt=st.lists(st.integers(0, 256), min_size=1, max_size=30),
    count=st.integers(1, 40),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([None, 1, 5, 1000]),
        top_p=st.sampled_from([None, 0.3, 1.0]),
        seed=st.integers(0, 9),
    ),
)
def test_the_cache_changes_no_token_within_the_window_and_past_it(model, prompt, count, sampling):
    without_cache = WholeModel(model)
    without_cache.takes_cache = False
    cached = list(generate_tokens(WholeModel(model), prompt, sampling, max_tokens=count))
    plain = list(generate_tokens(without_cache, prompt, sampling, max_tokens=count))
    assert cached == plain and len(cached) == count


def test_past_the_window_the_model_sees_the_last_tokens(model):
    prompt = list(range(40))
    first = next(generate_tokens(WholeModel(model), prompt, GREEDY, max_tokens=1))
    assert first == int(model(torch.tensor([prompt[-24:]]))[0, -1].argmax())


def test_within_the_window_each_token_is_computed_once(model, monkeypatch):
    lengths = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda tokens, cache=None: lengths.append(tokens.size(1)) or forward(tokens, cache)
    )
    list(generate_tokens(WholeModel(model), [1, 2, 3, 4], GREEDY, max_tokens=5))
    assert lengths == [4, 1, 1, 1, 1]


def test_greedy_is_the_likeliest_token_at_each_step(model):
    tokens = [1, 2, 3]
    for token in generate_tokens(WholeModel(model), tokens, GREEDY, max_tokens=8):
        assert token == int(model(torch.tensor([tokens]))[0, -1, :257].argmax())
        tokens = [*tokens, token]


def test_the_seed_decides_the_sample(model):
    def sample(seed: int) -> list[int]:
        return list(generate_tokens(WholeModel(model), [5], Sampling(seed=seed), max_tokens=20))

    assert sample(1) == sample(1) != sample(2)


def test_top_k_and_top_p_keep_the_likeliest():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()

    def drawn(**settings: float) -> set[int]:
        generator = torch.Generator().manual_seed(0)
        return {choose(logits, Sampling(**settings), generator) for _ in range(300)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.79) == {0, 1}
    assert drawn(top_p=0.81) == {0, 1, 2}
    assert drawn(top_p=0.01) == {0}
    assert drawn(temperature=1e-30) == {0}


def test_a_character_is_never_split():
    text = "a☕é👩‍👧 b"
    pieces = list(generate(WholeModel(Recite(list(text.encode()))), Bytes(), "", GREEDY, max_tokens=len(text.encode())))
    assert "".join(pieces) == text
    assert len(pieces) == len(text)


def test_bytes_that_are_no_character_are_shown_as_such():
    assert "".join(generate(WholeModel(Recite([0x61, 0xE2, 0x98])), Bytes(), "", GREEDY, max_tokens=3)) == "a�"


def test_the_end_of_text_ends_the_text_unless_asked_not_to():
    model = WholeModel(Recite([*b"ab", 256, *b"cd"]))
    assert "".join(generate(model, Bytes(), "", GREEDY, max_tokens=5)) == "ab"
    assert "".join(generate(model, Bytes(), "", GREEDY, max_tokens=5, stop_at_eot=False)) == "abcd"


def test_an_empty_prompt_begins_a_document(model):
    text = "".join(generate(WholeModel(model), Bytes(), "", GREEDY, max_tokens=6, stop_at_eot=False))
    assert text == Bytes().decode(list(generate_tokens(WholeModel(model), [256], GREEDY, max_tokens=6)))


def test_tokens_beyond_the_tokenizer_are_never_chosen(model):
    drawn = list(generate_tokens(WholeModel(model), [3], Sampling(temperature=50.0), max_tokens=60, limit=7))
    assert max(drawn) < 7


def test_a_model_in_training_is_left_in_training(model):
    model.train()
    try:
        for _ in generate_tokens(WholeModel(model), [1], GREEDY, max_tokens=2):
            assert model.training and not torch.is_inference_mode_enabled()
    finally:
        model.eval()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_tokens": 0}, "max_tokens 0 must be at least 1"),
        ({"temperature": -1.0}, r"temperature -1.0 must be 0 \(greedy\) or more"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": 0}, "top_k 0 must be at least 1"),
        ({"top_p": 0.0}, "top_p 0.0 must be more than 0"),
        ({"top_p": 1.5}, "top_p 1.5 must be more than 0 and at most 1"),
    ],
)
def test_numbers_out_of_range_are_named(model, wrong, message):
    wrong = dict(wrong)
    with pytest.raises(SkytrainError, match=message):
        tokens = wrong.pop("max_tokens", 4)
        generate(WholeModel(model), Bytes(), "a", Sampling(**wrong), max_tokens=tokens)


@pytest.mark.parametrize("bad", [257, -1])
def test_a_prompt_outside_the_vocabulary_is_named(model, bad):
    with pytest.raises(SkytrainError, match=rf"token id {bad} of the prompt is outside the model's vocabulary of 257"):
        generate_tokens(WholeModel(model), [1, bad], GREEDY, max_tokens=1)


def test_the_prompt_is_printed_only_when_there_is_something_to_follow_it(tmp_path, capsys):
    from skytrain.cli.generate import generate as command

    with pytest.raises(SkytrainError, match="no run 'nothing-here'"):
        command([f"store.root='{tmp_path}'"], prompt="Once upon", source="nothing-here", temperature=0.0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_predicts_no_numbers_is_told(temperature: float) -> None:
    with pytest.raises(SkytrainError, match="its weights are damaged, or its training diverged"):
        choose(torch.tensor([1.0, float("nan")]), Sampling(temperature), torch.Generator())
