"""`skytrain models`: the models that `model=NAME` can choose."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .options import Json

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Only these families or models: llama, qwen3-8b.", show_default=False),
]
Length = Annotated[
    int, typer.Option("--length", min=1, metavar="N", help="Sequence length, for the FLOPs of attention.")
]

Vocabulary = Annotated[
    int,
    typer.Option(
        "--vocab-size",
        min=1,
        metavar="N",
        help="Vocabulary of your tokenizer, for models that take it from there. The default is GPT-2's.",
    ),
]


def models(names: Names = None, length: Length = 1024, vocab_size: Vocabulary = 50257, as_json: Json = False) -> None:
    """List the built-in models: parameters, FLOPs, memory.

    Example: skytrain models llama qwen3 --length 4096
    """
    from ..config import format_bytes, format_count
    from ..models import describe_sizes

    rows = describe_sizes(names or [], length, vocab_size)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    width = max(len(row.name) for row in rows)
    titles = f"{'model':<{width}}  {'family':<11}  {'vocabulary':>10}  {'parameters':>15}  {'active':>14}"
    print(f"{titles}  {'FLOP/token':>10}  {'to train':>9}  {'longest':>7}")
    for row in rows:
        size = f"{row.name:<{width}}  {row.family:<11}  {row.vocab_size:>10,}  {row.parameters:>15,}"
        active = f"{row.active_parameters:,}" if row.active_parameters < row.parameters else ""
        flops = format_count(row.flops_per_token)
        state = format_bytes(row.state_bytes)
        print(f"{size}  {active:>14}  {flops:>10}  {state:>9}  {row.max_length:>7}")
    print(f"""
Choose a model with model=NAME.
active      the parameters that one token uses, of models with experts
FLOP/token  forward and backward, with sequences of {length} tokens
to train    weights, gradients and AdamW's state in float32 on one device, without activations
longest     the longest sequence
The gpt2, micro and tiny models take the vocabulary of your tokenizer (--vocab-size, here {vocab_size:,}).""")
