"""A reader and a forward pass of llm.c's model files, written from the format alone: nothing of this project is used.

256 int32: magic 20240326, version (3: float32, 5: bfloat16), positions, vocabulary, layers, heads, channels, padded
vocabulary. Then the tensors, each kind for all layers together: wte, wpe, ln1w, ln1b, qkvw, qkvb, attprojw, attprojb,
ln2w, ln2b, fcw, fcb, fcprojw, fcprojb, lnfw, lnfb. Matrices are (out, in); rows of qkv are all queries, keys, values.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class LlmcModel:
    version: int
    positions: int
    vocab: int
    layers: int
    heads: int
    channels: int
    tensors: dict[str, np.ndarray]

    def next_token(self, tokens: list[int]) -> tuple[int, float]:
        """The likeliest next token, and by how much its logit leads."""
        w, c, t = self.tensors, self.channels, len(tokens)
        x = w["wte"][tokens] + w["wpe"][:t]
        hidden = np.triu(np.full((t, t), -np.inf), 1)
        for layer in range(self.layers):
            h = norm(x, w["ln1w"][layer], w["ln1b"][layer])
            qkv = h @ w["qkvw"][layer].T + w["qkvb"][layer]
            q, k, v = (each.reshape(t, self.heads, -1).transpose(1, 0, 2) for each in np.split(qkv, 3, axis=1))
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(c // self.heads) + hidden
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(t, c)
            x = x + mixed @ w["attprojw"][layer].T + w["attprojb"][layer]
            h = norm(x, w["ln2w"][layer], w["ln2b"][layer]) @ w["fcw"][layer].T + w["fcb"][layer]
            h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
            x = x + h @ w["fcprojw"][layer].T + w["fcprojb"][layer]
        logits = (norm(x[-1], w["lnfw"], w["lnfb"]) @ w["wte"].T)[: self.vocab]
        best, second = np.sort(logits)[::-1][:2]
        return int(logits.argmax()), float(best - second)


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias


def read_llmc_file(path: Path) -> LlmcModel:
    data = path.read_bytes()
    magic, version, positions, vocab, layers, heads, c, padded = np.frombuffer(data, "<i4", 8).tolist()
    assert magic == 20240326 and version in (3, 5)
    if version == 3:
        flat = np.frombuffer(data, "<f4", offset=1024).astype(np.float64)
    else:  # bfloat16 is the upper half of a float32
        flat = (np.frombuffer(data, "<u2", offset=1024).astype("<u4") << 16).view("<f4").astype(np.float64)
    shapes = {"wte": (padded, c), "wpe": (positions, c), "ln1w": (layers, c), "ln1b": (layers, c)}
    shapes |= {"qkvw": (layers, 3 * c, c), "qkvb": (layers, 3 * c), "attprojw": (layers, c, c), "attprojb": (layers, c)}
    shapes |= {"ln2w": (layers, c), "ln2b": (layers, c), "fcw": (layers, 4 * c, c), "fcb": (layers, 4 * c)}
    shapes |= {"fcprojw": (layers, c, 4 * c), "fcprojb": (layers, c), "lnfw": (c,), "lnfb": (c,)}
    tensors, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        tensors[name] = flat[start : start + size].reshape(shape)
        start += size
    assert start == flat.size, "bytes are left over"
    return LlmcModel(
        version=version, positions=positions, vocab=vocab, layers=layers, heads=heads, channels=c, tensors=tensors
    )
