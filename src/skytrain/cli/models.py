"""`skytrain models`: the models that `model=NAME` can choose, and weights of the hub for the store."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .options import Json
from .reads import split_words

FETCH = "skytrain.fetch"


def _without_fetch(context: typer.Context, words: list[str] | None) -> list[str]:
    """Return the names; the context keeps whether models are fetched."""
    given = list(words or [])
    context.meta[FETCH] = given[:1] == ["fetch"]
    return given[1:] if context.meta[FETCH] else given


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[fetch] NAME [KEY=VALUE]",
        callback=_without_fetch,
        help="Only these families or models: llama, qwen3-8b. After `fetch`: OWNER/NAME[@REVISION] on the Hugging Face "
        "hub, and the settings of the store.",
        show_default=False,
    ),
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


def models(
    context: typer.Context,
    names: Names = None,
    length: Length = 1024,
    vocab_size: Vocabulary = 50257,
    as_json: Json = False,
) -> None:
    """List the built-in models, or fetch weights into the store.

    The list has parameters, FLOPs and memory of each model.

    `models fetch` copies weights and tokenizer of a model on the Hugging Face hub into the store, once: runs then find
    them there by the same name, and rented machines need no token. Only safetensors are copied, each file is compared
    with the hub's hash, and the same command resumes. Its license is shown. For a model that asks for a token, set
    HF_TOKEN; it is read from the environment and kept nowhere.

    \b
    Examples:
      skytrain models llama qwen3 --length 4096
      skytrain models fetch meta-llama/Llama-3.1-8B cloud=aws
      skytrain models fetch HuggingFaceTB/SmolLM2-135M store.root=skytrain-store
    """
    if context.meta[FETCH]:
        return _fetch(names or [], as_json)
    _list(names or [], length, vocab_size, as_json)


def _fetch(words: list[str], as_json: bool) -> None:
    from ..config import SkytrainError, format_bytes
    from ..pipelines.models import fetch_model
    from .console import reporter
    from .options import compose_cloud

    names, settings = split_words(words)
    if not names:
        raise SkytrainError("models fetch: which model?\n  for example: skytrain models fetch meta-llama/Llama-3.1-8B")
    config = compose_cloud(settings).config
    fetched = []
    with reporter() as console:
        for name in names:
            model, url = fetch_model(config, name, console)
            fetched.append({**asdict(model), "name": name, "url": url})
            console.note(f"{url}: {len(model.files)} files, {format_bytes(model.total_bytes)}")
    if as_json:
        print(json.dumps(fetched, indent=2))
        return
    for name in names:
        print(f"Start from it: model=hf-weights model.weights={name}")


def _list(names: list[str], length: int, vocab_size: int, as_json: bool) -> None:
    from ..config import format_bytes, format_count
    from ..models import describe_sizes

    rows = describe_sizes(names, length, vocab_size)
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
