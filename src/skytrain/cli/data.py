"""`skytrain data`: show prepared data, and convert it for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from .options import ConfigDirs, Json, Overrides, Split, StoreOverrides, compose_overrides
from .output import drawn_output, tell
from .reads import refuse_options, split_words

app = typer.Typer(
    no_args_is_help=True,
    help="Show prepared data, and convert it for other tools.\n\nExample: skytrain data inspect recipe=quickstart",
    rich_markup_mode=None,
)

Prepared = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DATA",
        help="A prepared data set: NAME or NAME@VERSION, as `skytrain data list` shows them, or the KEY=VALUEs "
        "that it was prepared with. KEY=VALUEs also choose the store.",
        show_default=False,
    ),
]


@app.command()
def inspect(
    overrides: Overrides = None,
    folder: Annotated[
        str | None,
        typer.Option(
            "--folder",
            metavar="KEY",
            help="Tokens in the store: tokens/DATASET/VERSION/TOKENIZER. Default: those that KEY=VALUE chooses.",
            show_default=False,
        ),
    ] = None,
    split: Split = "train",
    samples: Annotated[int, typer.Option(min=0, metavar="N", help="Documents to show; seed=N chooses others.")] = 3,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare every hash.")] = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Show prepared tokens: manifest, lengths, samples.

    Example: skytrain data inspect recipe=quickstart --check
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.data import inspect as pipeline
    from .console import reporter

    with reporter() as console:
        inspection = pipeline(config, folder, split, samples, check, console)
    print(inspection.to_json() if as_json else inspection.to_text())
    if inspection.problems:
        raise SystemExit(2)


@app.command("list")
def list_(overrides: StoreOverrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """List prepared data sets and tokenizers.

    Example: skytrain data list store.root=s3://bucket/project
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.data import list_data

    listing = list_data(config)
    if not listing.datasets and not as_json:
        tell(f"no prepared data in {config.store.root} yet\n  make some: skytrain prepare")
    if as_json or listing.datasets or listing.tokenizers:
        print(listing.to_json() if as_json else listing.to_text())


@app.command()
def show(
    context: typer.Context,
    data: Prepared = None,
    config_dir: ConfigDirs = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Print a rendered conversation of data=chat with its trained part marked.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write the corpus as a page: stages, rules with examples, near-duplicates side by side.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what each rule removed, or a conversation.

    Of a corpus: what each rule removed, with examples. Of conversations: one as the model sees it.

    \b
    Examples:
      skytrain data show fineweb
      skytrain data show data=text data.source.paths='corpus/*.txt' --html corpus.html
      skytrain data show --sample data=chat data.source.paths='chats/*.jsonl' model=hf-weights model.weights=FOLDER
    """
    names, settings = _named(data)
    config = compose_overrides(settings, config_dir).config
    from ..pipelines.data import corpus_page, describe_corpus, marked, sample_conversations

    name = names[0] if names else None
    if sample:
        refuse_options(context, ["html"], "--sample prints a conversation")
        if name:
            raise typer.BadParameter("--sample reads conversations by the settings of data=chat", param_hint="DATA")
        for each in sample_conversations(config, count=1):
            print(marked(each, colour=sys.stdout.isatty()), file=drawn_output())
        return
    if html is not None:
        html.write_text(corpus_page(config, name), encoding="utf-8")
        return print(f"page: {html}")
    print(describe_corpus(config, name))


@app.command()
def convert(
    to: Annotated[
        Literal["llm.c", "llmc", "nanogpt", "megatron", "parquet", "webdataset"],
        typer.Option("--to", help="The format to write; llmc is llm.c."),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="The folder for the train and validation files.")
    ],
    overrides: Overrides = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier conversion.")] = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Write prepared tokens in another project's format.

    Example: skytrain data convert --to megatron --out for-megatron data=fineweb
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.data import convert as pipeline

    for path in pipeline(config, "llmc" if to == "llm.c" else to, out, overwrite):
        print(path)


@app.command()
def export(
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="The folder to write, or s3://bucket/folder.")],
    data: Prepared = None,
    kept: Annotated[
        bool,
        typer.Option(
            "--kept",
            help="The documents that rules and de-duplication kept. Others are not stored.",
            show_default=False,
        ),
    ] = True,
    compression: Annotated[
        Literal["snappy", "zstd", "none"], typer.Option("--compression", help="Compression of the parquet files.")
    ] = "zstd",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace parquet files in the folder.")] = False,
    config_dir: ConfigDirs = None,
) -> None:
    """Write the kept documents as parquet.

    Columns are id, text, source and meta (JSON). Interrupted and started again, it continues after the last file.

    \b
    Examples:
      skytrain data export fineweb --kept --compression snappy --out kept
      skytrain data export --out s3://bucket/kept data=fineweb data/cleaning=web store.root=s3://bucket/project
    """
    names, settings = _named(data)
    config = compose_overrides(settings, config_dir).config
    from ..pipelines.data import export_kept
    from .console import reporter

    with reporter() as console:
        for url in export_kept(config, names[0] if names else None, out, compression, overwrite, console):
            print(url)


@app.command()
def duplicates(
    data: Prepared = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Copy the parquet files here, or to s3://bucket/folder, with one of the clusters. "
            "Default: print where they are in the store.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="Known duplicates, for precision and recall: JSON lines, CSV or parquet with columns id and cluster; "
            "a and b, and duplicate (true, false); or id and duplicates (a list).",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace parquet files in the folder.")] = False,
    config_dir: ConfigDirs = None,
    as_json: Json = False,
) -> None:
    """Show duplicates: pairs, removed documents, clusters.

    Files `pairs-*.parquet` have every pair that was compared (a, b, similarity), `removed-*.parquet` every document
    that was removed (id, reason, duplicate_of, similarity). The curve says how probably a pair is compared at all.

    \b
    Examples:
      skytrain data duplicates fineweb --out duplicates
      skytrain data duplicates fineweb --labels known.jsonl store.root=s3://bucket/project
    """
    names, settings = _named(data)
    config = compose_overrides(settings, config_dir).config
    from ..pipelines.duplicates import summarize_duplicates
    from .console import reporter

    with reporter() as console:
        summary = summarize_duplicates(config, names[0] if names else None, out, labels, overwrite, console)
    if as_json:
        print(summary.to_json())
        return
    print(summary.to_text())
    print("", *summary.files, sep="\n")


def _named(words: list[str] | None) -> tuple[list[str], list[str]]:
    """Return the name of a prepared data set, if one is given, and the settings."""
    names, settings = split_words(words)
    if len(names) > 1:
        raise typer.BadParameter(f"several data sets: {', '.join(names)}; name one", param_hint="DATA")
    if names and (other := next((word for word in settings if word.startswith(("data=", "data.", "data/"))), None)):
        from ..config import SkytrainError

        raise SkytrainError(
            f"{other} has no effect beside {names[0]}, which is prepared already\n"
            "  leave out the name, and give all settings that it was prepared with; or leave out the setting"
        )
    return names, settings


@app.command("task")
def task_(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A multiple-choice task: hellaswag, or a file.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")],
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
) -> None:
    """Write a multiple-choice task as an evaluation file of llm.c.

    Example: skytrain data task hellaswag --out hellaswag_val.bin evaluation.data.hellaswag=hellaswag_val.jsonl
    """
    config = compose_overrides(overrides, config_dir).config
    from ..pipelines.data import write_task_file
    from .console import reporter

    with reporter() as console:
        count = write_task_file(config, task, out, console)
    print(f"{out}: {count} items")
