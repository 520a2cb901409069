"""`skytrain serve`: an OpenAI-compatible endpoint from a run, a step, a folder or a merged model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..planning import Market
from .confirm import Yes, confirm
from .options import ConfigDirs, Trusted
from .reads import split_words

if TYPE_CHECKING:
    from ..aws import AwsSession

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SOURCE] KEY=VALUE",
        help="SOURCE is a run, RUN@STEP, a merged run, a Hugging Face folder, or the s3:// URL of an exported one. "
        "Default: the newest run. Settings: serve.python=~/vllm/bin/python, serve.max_length=4096, store.root=...",
        show_default=False,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Where to serve. local: this machine; ec2: a rented one; eks: the cluster of cloud=eks.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="The model's name in requests. Default: RUN@STEP.", show_default=False),
]
Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Address to listen on. 0.0.0.0: reachable from other machines.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any free one.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="A file with the API key. Default: SKYTRAIN_API_KEY, or a new key, which is shown once.",
        show_default=False,
    ),
]
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        help="Whether to answer over https. Default: where --host can be reached from other machines.",
        show_default=False,
    ),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="The certificate, in PEM form, with --certificate-key. Default: one is made, for `skytrain chat --ca FILE`.",
        show_default=False,
    ),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option("--certificate-key", metavar="FILE", help="The key of --certificate.", show_default=False),
]
Fetch = Annotated[
    Path | None,
    typer.Option(
        "--fetch",
        metavar="FOLDER",
        help="Only copy an exported SOURCE to this folder and compare it with its hashes; start nothing.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command, or the requests to AWS; start nothing.")]
Hours = Annotated[
    float | None,
    typer.Option(
        metavar="H",
        min=0.1,
        help="With --target ec2: AWS ends the machine so long after its launch. Default: when budget.usd is spent.",
        show_default=False,
    ),
]
MarketOption = Annotated[
    Market | None,
    typer.Option(
        "--market",
        help="With --target ec2: spot costs less, and can be interrupted. Default: on-demand.",
        show_default=False,
    ),
]


def serve(
    arguments: Arguments = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    target: Target = "local",
    name: Name = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: KeyFile = None,
    tls: Tls = None,
    certificate: CertificateFile = None,
    certificate_key: CertificateKey = None,
    dry_run: DryRun = False,
    fetch: Fetch = None,
    hours: Hours = None,
    market: MarketOption = None,
    yes: Yes = False,
) -> None:
    """Serve a model: an OpenAI-compatible endpoint.

    Exports the model if needed, once, verifies its hashes, starts vLLM and waits until it answers: /v1/completions,
    /v1/chat/completions with the model's chat template, /v1/models and /metrics. Ctrl-C ends it, and leaves no process.

    nginx, where it is installed, stands in front: no other path of vLLM answers, and all but /health ask for the key.
    An address that other machines can reach needs it, and answers over https.

    --target ec2 rents the cheapest machine that has room for the model, until a kill time. It is reached through
    Session Manager: no port is open.

    \b
    Examples:
      skytrain serve my-run@5000 serve.python=~/vllm/bin/python
      skytrain serve my-model --port 8001 --api-key-file key.txt
      skytrain serve both --dry-run
      skytrain serve my-run@5000 --target eks cloud=eks cloud.eks.cluster=training
      skytrain serve my-run --target ec2 --hours 4 --dry-run
    """
    from ..aws import account_folders
    from ..config import SkytrainError, trust as trust_words
    from ..pipelines.serve import ServeJob, ServeRequest, fetch_model, serve as pipeline
    from ..targets import find_serve_target
    from .console import reporter
    from .options import compose_overrides

    given = arguments or []
    sources, settings = split_words(given)
    if len(sources) > 1:
        raise SkytrainError(f"give one model, not {len(sources)}: {', '.join(sources)}")
    cloud = find_serve_target(target).cloud
    if cloud is not None and not any(word.startswith("cloud=") for word in settings):
        settings.insert(0, f"cloud={cloud}")
    # Without an account, a dry run shows the requests with placeholders.
    folders = account_folders(config_dir or [], settings) if dry_run and cloud is not None else config_dir
    composed = compose_overrides(settings, folders, recipe_weights="read" if cloud is None else "skip")
    trust_words(trust or [])
    source = sources[0] if sources else None
    request = ServeRequest(
        source=source,
        target=target,
        name=name,
        host=host,
        port=port,
        api_key_file=api_key_file,
        tls=tls,
        certificate=certificate,
        certificate_key=certificate_key,
        dry_run=dry_run,
        hours=hours,
        market=market,
    )

    def ask(session: AwsSession, question: str, usd_per_hour: float) -> None:
        confirm(session, question, usd_per_hour, yes)

    with reporter() as console:
        job = ServeJob(composed, request, (*(folders or []), Path()), ask)
        if fetch is not None:
            model = fetch_model(job, fetch, console)
            return console.note(f"{fetch}: {model.parameters:,} parameters, all hashes as exported")
        code = pipeline(job, console)
    raise SystemExit(code)
