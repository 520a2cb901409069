"""`skytrain merge`: several trained models become one."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .options import ConfigDirs, Json, Trusted, compose_overrides
from .reads import refuse_options, split_words

if TYPE_CHECKING:
    from ..config import Config

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL... KEY=VALUE",
        help="RUN, RUN@STEP, Hugging Face folders or llm.c files. Settings choose the name of the result (run=NAME) and "
        "the store (store.root=s3://bucket/project).",
        show_default=False,
    ),
]
Method = Annotated[
    Literal[
        "average", "greedy", "posterior", "ema", "slerp", "task-arithmetic", "ties", "dare", "dare-ties", "ensemble"
    ],
    typer.Option(
        help="average: of the weights. greedy: of the models that lower the held-out loss. posterior: weighted by how "
        "likely each model finds held-out text. ema: newer checkpoints count more. slerp: between two models, along the "
        "sphere. task-arithmetic, ties, dare, dare-ties: differences from --base, all of them, the largest that agree in "
        "sign, or a random part. ensemble: no merge, the models' probabilities are mixed when they are used."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="W,W,...",
        help="One for each model. Those of an average sum to 1. Default: equal ones; 1 each for task-arithmetic and dare.",
        show_default=False,
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="What differences are taken from. Default: the checkpoint that all models started from.",
        show_default=False,
    ),
]


T = Annotated[float, typer.Option("--t", metavar="NUMBER", help="slerp: 0 is the first model, 1 the second.")]
Density = Annotated[float, typer.Option(metavar="SHARE", help="ties, dare: the share of differences that is kept.")]
Scale = Annotated[float, typer.Option(metavar="FACTOR", help="Factor of the merged difference from --base.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="dare: what is dropped.")]
Last = Annotated[
    int | None,
    typer.Option(min=2, metavar="N", help="Average the last N checkpoints of one run (LAWA).", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Also write a Hugging Face folder.", show_default=False),
]
OutType = Annotated[Literal["bf16", "fp16", "fp32"], typer.Option(help="The type of the weights in --out.")]
Normalize = Annotated[
    bool | None,
    typer.Option(
        "--normalize/--no-normalize",
        help="ties, dare-ties: divide by the weights of the models that agree on a value. Default, as in mergekit: ties "
        "does, dare-ties does not.",
        show_default=False,
    ),
]
Decay = Annotated[float, typer.Option(metavar="WEIGHT", help="ema: the weight of what came before each model.")]
Prior = Annotated[
    Literal["uniform", "cached", "updating"],
    typer.Option(
        help="ensemble: what is expected of each model before any text. cached: their posterior on held-out text; "
        "updating: it follows the text of an evaluation."
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT",
        help="Use only the first COUNT tokens of the held-out text. Default: all; 100 windows for a posterior.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Merge models although no common ancestor of them is known.")]


def merge(
    context: typer.Context,
    sources: Sources = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    method: Method = "average",
    weights: Weights = None,
    base: Base = None,
    t: T = 0.5,
    density: Density = 0.5,
    scale: Scale = 1.0,
    seed: Seed = 0,
    normalize: Normalize = None,
    decay: Decay = 0.8,
    prior: Prior = "cached",
    tokens: Tokens = None,
    last: Last = None,
    out: Out = None,
    dtype: OutType = "bf16",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Merge trained models into one.

    The models have one architecture and one tokenizer, and were trained from one seed model. The result is a run with
    one checkpoint, for evaluate, generate, export and `train --from`; merge.json in its folder says what it was made
    of. Weights are read tensor by tensor: memory holds one tensor of each model. Held-out text is that of the data
    that KEY=VALUE names, or of the first run.

    \b
    Examples:
      skytrain merge code law run=both --weights 0.7,0.3 --out merged
      skytrain merge code law --method ties --base seed@2365 --density 0.2
      skytrain merge my-run --last 5
      skytrain merge code law --method posterior data=text data.name=mixed data.source.paths=mixed/*.txt
      skytrain merge code law --method ensemble run=forest
    """
    from ..pipelines.merge import HeldOutText, MergeRequest, merge as pipeline
    from .console import reporter

    _refuse_others(context, method, prior, out)
    config, models, has_text = _read_arguments(sources or [], config_dir, trust)
    request = MergeRequest(
        sources=models,
        method=method,
        weights=_numbers(weights),
        base=base,
        last=last,
        settings=_settings(method, t=t, density=density, scale=scale, seed=seed, decay=decay, normalize=normalize),
        prior=prior,
        text=HeldOutText(has_text, tokens),
        out=out,
        dtype=dtype,
        force=force,
        command=("skytrain", *sys.argv[1:]),
    )
    with reporter() as console:
        merged = pipeline(config, request, console)
    if as_json:
        print(
            json.dumps({"run": merged.run, "step": merged.step, "url": merged.url, **dataclasses.asdict(merged.made)})
        )
        return
    run = shlex.quote(merged.run)
    print(f"{merged.summary()}\n  try: skytrain evaluate --from {run}, skytrain generate --from {run}")


def _read_arguments(
    arguments: list[str], config_dir: list[Path] | None, trusted: list[str] | None
) -> tuple[Config, tuple[str, ...], bool]:
    """Return the configuration, the models, and whether the overrides name data."""
    from ..merging import is_weights_only
    from ..models import read_hf_decoder

    models, overrides = split_words(arguments)
    # A folder brings the settings of its model and its tokenizer.
    start = models[0] if models and is_weights_only(models[0]) and not Path(models[0]).is_file() else None
    if start and not any(word.startswith("model=") for word in overrides):
        length = min(1024, read_hf_decoder(start).max_length)
        adopted = ["model=hf-weights", f"model.weights='{start}'", f"trainer.sequence_length={length}"]
        overrides = [*adopted, *overrides]
    named = any(word.startswith(("data=", "data.", "loader.files")) for word in overrides)
    return compose_overrides(overrides, config_dir, trusted=trusted).config, tuple(models), named


SETTINGS = ("t", "density", "scale", "seed", "normalize", "decay")
SETTINGS_OF = {
    "ema": ("decay",),
    "slerp": ("t",),
    "task-arithmetic": ("scale",),
    "ties": ("density", "scale", "normalize"),
    "dare": ("density", "scale", "seed"),
    "dare-ties": ("density", "scale", "seed", "normalize"),
}


def _settings(method: str, **given: Any) -> dict[str, Any]:
    """Return the settings that apply to the method."""
    return {name: given[name] for name in SETTINGS_OF.get(method, ())}


def _refuse_others(context: typer.Context, method: str, prior: str, out: Path | None) -> None:
    """Refuse options that the method does not use."""
    others = [name for name in SETTINGS if name not in SETTINGS_OF.get(method, ())]
    if method != "ensemble":
        others.append("prior")
    if method not in ("greedy", "posterior") and not (method == "ensemble" and prior == "cached"):
        others.append("tokens")
    refuse_options(context, others, f"--method {method} does not use it")
    if out is None:
        refuse_options(context, ["dtype"], "it is the type of the weights in --out")


def _numbers(text: str | None) -> tuple[float, ...] | None:
    from ..config import SkytrainError

    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise SkytrainError(f"--weights {text}: give numbers with commas between, such as 0.7,0.3") from None
