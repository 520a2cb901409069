"""Text generation, token by token: greedy or sampled, with a KV cache where the model takes one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import SkytrainError
from ..tokens import StreamDecoder, Tokenizer
from .scorer import Scorer


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the most likely at temperature 0, else sampled within `top_k` and `top_p`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise SkytrainError(f"temperature {self.temperature} must be 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise SkytrainError(f"top_k {self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SkytrainError(f"top_p {self.top_p} must be more than 0 and at most 1")


def generate(
    model: Scorer,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    max_tokens: int,
    stop_at_eot: bool = True,
) -> Iterator[str]:
    """Yield the text after the prompt as it is generated, in whole characters only.

    An empty prompt starts a new document. The same arguments give the same text.
    """
    tokens = tokenizer.encode_prompt(prompt)
    stop_at = tokenizer.stop_ids if stop_at_eot else frozenset[int]()
    new = generate_tokens(model, tokens, sampling, max_tokens=max_tokens, limit=tokenizer.vocab_size, stop_at=stop_at)
    return _text(tokenizer.stream(tokens if prompt else ()), new)


def generate_after(
    model: Scorer, tokenizer: Tokenizer, tokens: Sequence[int], sampling: Sampling, *, max_tokens: int
) -> Iterator[str]:
    """Yield the text after a prompt of tokens, such as a rendered conversation, up to a token that ends it."""
    new = generate_tokens(
        model, tokens, sampling, max_tokens=max_tokens, limit=tokenizer.vocab_size, stop_at=tokenizer.stop_ids
    )
    return _text(tokenizer.stream(tokens), new)


def _text(decoder: StreamDecoder, tokens: Iterator[int]) -> Iterator[str]:
    for token in tokens:
        if piece := decoder.add(token):
            yield piece
    if rest := decoder.end():
        yield rest


def generate_tokens(
    model: Scorer,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    max_tokens: int,
    limit: int | None = None,
    stop_at: Collection[int] = (),
) -> Iterator[int]:
    """Yield the ids after the prompt.

    Ids from `limit` on are never chosen; a token of `stop_at` ends the text and is not part of it. Past the model's longest
    sequence the window slides: the model sees the last `max_length` tokens, with positions counted from the first of
    them. The cache has other positions, so each such step is computed without it.
    """
    vocab_size = model.config.vocab_size
    window = model.window
    if max_tokens < 1:
        raise SkytrainError(f"max_tokens {max_tokens} must be at least 1")
    if not prompt:
        raise SkytrainError("the prompt has no tokens: start a text with the end-of-text token")
    bad = [token for token in prompt if not 0 <= token < vocab_size]
    if bad:
        raise SkytrainError(f"token id {bad[0]} of the prompt is outside the model's vocabulary of {vocab_size}")
    limit = min(vocab_size, limit or vocab_size)
    cache = model.new_cache(len(prompt) + max_tokens)

    def tokens() -> Iterator[int]:
        seen = list(prompt)
        generator = torch.Generator().manual_seed(sampling.seed)  # on the CPU, so that every device draws the same
        for _ in range(max_tokens):
            if cache is None or len(seen) > cache.max_length:
                logits = model.last_logits(seen[-window:])
            else:
                logits = model.last_logits(seen, cache)
            token = choose(logits[:limit].float().cpu(), sampling, generator)
            if token in stop_at:
                return
            seen.append(token)
            yield token

    return tokens()


def choose(logits_v: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Choose one token and return its id."""
    if logits_v.isnan().any():
        raise SkytrainError("the model predicts no numbers (NaN): its weights are damaged, or its training diverged")
    if sampling.temperature == 0:
        return int(logits_v.argmax())
    if sampling.top_k is not None and sampling.top_k < logits_v.numel():
        kept = logits_v.topk(sampling.top_k)
        logits_v = torch.full_like(logits_v, float("-inf")).scatter(0, kept.indices, kept.values)
    # Minus the largest, so that a temperature near 0 does not overflow.
    probabilities = ((logits_v - logits_v.max()) / sampling.temperature).softmax(dim=-1)
    if sampling.top_p is not None:
        ordered, indices = probabilities.sort(descending=True)
        before = ordered.cumsum(0) - ordered  # of the more likely ones; the most likely is always kept
        ordered[before >= sampling.top_p] = 0
        probabilities = torch.zeros_like(probabilities).scatter(0, indices, ordered)
    return int(torch.multinomial(probabilities, 1, generator=generator))
