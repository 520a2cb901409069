"""`skytrain generate`: text from a model, printed token by token."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .options import ConfigDirs, From, Overrides, Precision, Trusted, compose_overrides
from .output import drawn_output


def generate(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="The start of the text. Default: a new document.", show_default=False)
    ] = "",
    source: From = None,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Generate at most N tokens.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, metavar="T", help="Sampling temperature. 0 always takes the likeliest token.")
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Sample from the K likeliest tokens.", show_default=False)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="P",
            help="Sample from the likeliest tokens whose probabilities sum to P.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The same seed gives the same text.")] = 0,
    precision: Precision = None,
) -> None:
    """Generate text with a trained model.

    Uses a GPU if there is one; trainer.device=cpu avoids it.

    \b
    Examples:
      skytrain generate --prompt "Return the" --temperature 0.7
      skytrain generate --from my-run@5000 --max-tokens 500
      skytrain generate --from log124M/model_00004725.bin
    """
    config = compose_overrides(overrides, config_dir, trusted=trust).config
    from ..config import visible
    from ..evaluation import Sampling
    from ..pipelines.generate import generate as pipeline

    sampling = Sampling(temperature, top_k, top_p, seed)
    text = pipeline(config, source, prompt, sampling, max_tokens=max_tokens, precision=precision)
    first = next(text, "")  # computed before anything is printed, so that an error leaves no partial output
    out = sys.stdout if sys.stdout.isatty() else drawn_output()  # a program gets the text as the model wrote it
    shown = visible if sys.stdout.isatty() else str
    print(prompt + shown(first), end="", flush=True, file=out)
    for piece in text:
        print(shown(piece), end="", flush=True, file=out)
    print(file=out)
