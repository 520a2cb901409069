"""`skytrain generate`: text from a model, as it comes."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import ConfigDirs, From, Overrides, Precision, compose_overrides


def generate(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    prompt: Annotated[str, typer.Option(help="What the text begins with; empty starts a new document.")] = "",
    source: From = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="How many tokens at most.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Choose among the k likeliest.", show_default=False)] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Choose among the likeliest that hold this much probability.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
    precision: Precision = None,
) -> None:
    """Let a model write.

    skytrain generate --prompt "Return the" --temperature 0.7

    Runs on a GPU where there is one; trainer.device=cpu keeps it off.
    """
    config = compose_overrides(overrides, config_dir).config
    from ..evaluation import Sampling
    from ..pipelines.generate import generate as story

    sampling = Sampling(temperature, top_k, top_p, seed)
    text = story(config, source, prompt, sampling, max_tokens=max_tokens, precision=precision)
    first = next(text, "")  # computed before anything is printed: an error leaves no half of an answer
    print(prompt + first, end="", flush=True)
    for piece in text:
        print(piece, end="", flush=True)
    print()
