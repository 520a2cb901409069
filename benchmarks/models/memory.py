"""Peak GPU memory and time of a GPT-2 124M training step, for each way to save memory.

python benchmarks/models/memory.py     prints a table, and writes it to its log beside this file
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from skytrain.config import DecoderConfig
from skytrain.models import Decoder, LossSettings, Recompute
from skytrain.models.initialise import initialise

# model=gpt2-124m, said outright: a GPU machine may have torch and nothing else that reads configuration files.
GPT2_124M = DecoderConfig(
    name="gpt2-124m", family="gpt2", layers=12, width=768, heads=12, kv_heads=None, head_size=None, mlp_width=None,
    vocab_size=50257, pad_vocab_to=128, max_length=1024, dropout=0.0, tied_head=True, norm="layernorm", norm_eps=1e-5,
    post_norms=False, qk_norm=False, activation="gelu_tanh", gated_mlp=False, bias="all", positions="learned",
    rope_theta=None, rope_scaling=None, window=None, window_every=1, attention_scale=None, attention_softcap=None,
    logit_softcap=None, scale_embedding=False, weights=None, parametrization="standard", base_width=None, base_layers=None,
    pre_norms=True, qk_norm_scope="head", full_every=None, window_theta=None, rope_except=None, experts=None,
)  # fmt: skip
BATCH = 32
LENGTH = 1024
STEPS = 5
CASES: list[tuple[Recompute, int | None]] = [
    ("none", None),
    ("selective", None),
    ("full", None),
    ("none", 4096),
    ("selective", 4096),
    ("full", 4096),
]


def measure(model: Decoder, recompute: Recompute, chunk: int | None, tokens: torch.Tensor) -> tuple[float, float]:
    """Peak GiB without weights and gradients, and milliseconds of a forward and backward pass."""
    model.recompute, model.loss_settings = recompute, LossSettings(chunk_tokens=chunk)
    for step in range(STEPS + 2):
        if step == 2:
            torch.cuda.synchronize()
            began = time.perf_counter()
        if step == 1:
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - began) / STEPS * 1e3
    return (torch.cuda.max_memory_allocated() - held) / 2**30, milliseconds


def main() -> None:
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU; its last log stays as it is", file=sys.stderr)
        return
    with torch.device("meta"):
        model = Decoder(GPT2_124M)
    initialise(model, seed=0, device="cuda")
    tokens = torch.randint(0, 50257, (BATCH, LENGTH + 1), device="cuda")
    lines = [
        f"GPT-2 124M, {BATCH} x {LENGTH} tokens, bf16-mixed, plain torch {torch.__version__}, {torch.cuda.get_device_name()}",
        "",
        "| activation checkpointing | loss chunk | memory for one pass, excluding weights and gradients | forward and backward |",
        "| --- | --- | --- | --- |",
    ]
    for recompute, chunk in CASES:
        gib, ms = measure(model, recompute, chunk, tokens)
        lines.append(f"| {recompute} | {chunk or 'none'} | {gib:.1f} GiB | {ms:.0f} ms |")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    Path(__file__).with_suffix(".log").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
