"""`skytrain models`: the families and sizes that `model=` can choose."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .options import Json

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Only these families or sizes: llama, qwen3-8b.", show_default=False),
]
Length = Annotated[int, typer.Option("--length", min=1, help="Tokens in a sequence, for the FLOPs of attention.")]

Vocabulary = Annotated[
    int,
    typer.Option(
        "--vocab-size", min=1, help="Tokens of your tokenizer, for models that take its vocabulary (GPT-2's)."
    ),
]


def models(names: Names = None, length: Length = 1024, vocab_size: Vocabulary = 50257, as_json: Json = False) -> None:
    """List the built-in models: parameters, FLOPs, memory.

    skytrain models llama qwen3 --length 4096
    """
    from ..config import format_bytes, format_count
    from ..models import describe_sizes

    rows = describe_sizes(names or [], length, vocab_size)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    width = max(len(row.name) for row in rows)
    titles = f"{'model':<{width}}  {'family':<7}  {'vocabulary':>10}  {'parameters':>14}"
    print(f"{titles}  {'FLOP/token':>10}  {'to train':>9}  {'longest':>7}")
    for row in rows:
        size = f"{row.name:<{width}}  {row.family:<7}  {row.vocab_size:>10,}  {row.parameters:>14,}"
        flops, state = format_count(row.flops_per_token), format_bytes(row.state_bytes)
        print(f"{size}  {flops:>10}  {state:>9}  {row.max_length:>7}")
    print(
        f"\nFLOP/token: forward and backward at {length} tokens. To train: weights, gradients and AdamW's state in float32,"
    )
    print(
        "before activations, on one device. Choose one with model=NAME. gpt2 and tiny models take your tokenizer's vocabulary:"
    )
    print(f"--vocab-size, here {vocab_size:,}. Parameters are counted as `skytrain train` and Hugging Face count them.")
