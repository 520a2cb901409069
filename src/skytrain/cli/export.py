"""`skytrain export`: writes a trained model in another project's format, or pushes it to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import ConfigDirs, From, Trusted, compose_overrides
from .reads import refuse_options, split_words

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OWNER/NAME] KEY=VALUE",
        help="With --to hub, the repository. Settings choose the store: store.root=s3://bucket/project.",
        show_default=False,
    ),
]


def export(
    context: typer.Context,
    arguments: Arguments = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    source: From = None,
    to: Annotated[
        Literal["hf", "llm.c", "llmc", "hub"],
        typer.Option(
            help="hf: a folder for from_pretrained of transformers. llm.c (or llmc): its model file. "
            "hub: that folder, pushed to OWNER/NAME on the Hugging Face hub."
        ),
    ] = "hf",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="The folder or file to write. It must not exist, or be empty; with --to hub, a folder that was "
            "exported before is pushed as it is.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        typer.Option(
            help="The type of the weights. Default: bf16 in a Hugging Face folder, fp32 in llm.c's file.",
            show_default=False,
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="With --to hub: a repository that is created is public, not private.")
    ] = False,
) -> None:
    """Write a trained model for other tools, or to the HF hub.

    The folder has safetensors of at most 5 GB with their index, the tokenizer with its chat template,
    generation_config.json and a model card. The same command resumes an interrupted push.

    \b
    Examples:
      skytrain export --to hf --out my-model
      skytrain export --from my-run@5000 --to llm.c --out model.bin
      skytrain export --to hub my-team/my-model --public
    """
    from ..config import SkytrainError

    given = arguments or []
    names = split_words(given)[0] if to == "hub" else []
    if to == "hub" and len(names) != 1:
        raise SkytrainError("--to hub needs the repository, once\n  skytrain export --to hub OWNER/NAME")
    if to != "hub":
        refuse_options(context, ["public"], "it is for --to hub")
    if to != "hub" and out is None:
        raise SkytrainError(f"--to {to} needs the path to write\n  add --out PATH")
    config = compose_overrides([word for word in given if word not in names], config_dir, trusted=trust).config
    from ..pipelines.export import ExportRequest, export as pipeline
    from .console import reporter

    request = ExportRequest(
        source=source,
        out=out,
        to="llm.c" if to == "llmc" else to,
        dtype=dtype,
        repository=names[0] if names else None,
        private=not public,
    )
    with reporter() as console:
        print(pipeline(config, request, console))
