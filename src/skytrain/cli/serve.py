"""`skytrain serve`: an OpenAI-compatible endpoint from a run, a step, a folder or a merged model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigDirs

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
        "--target", metavar="NAME", help="Where to serve. local: this machine; eks: the cluster of cloud=eks."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="The model's name in requests. Default: RUN@STEP.", show_default=False),
]
Host = Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: reachable from other machines.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        help="A file with the API key. Default: SKYTRAIN_API_KEY, or a new key, which is shown once.",
        show_default=False,
    ),
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command; start nothing.")]


def serve(
    arguments: Arguments = None,
    config_dir: ConfigDirs = None,
    target: Target = "local",
    name: Name = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: KeyFile = None,
    dry_run: DryRun = False,
    fetch: Fetch = None,
) -> None:
    """Serve a model: an OpenAI-compatible endpoint.

    Exports the model if needed, once, verifies its hashes, starts vLLM and waits until it answers: /v1/completions,
    /v1/chat/completions with the model's chat template, /v1/models and /metrics. Ctrl-C ends it, and leaves no process.

    \b
    Examples:
      skytrain serve my-run@5000 serve.python=~/vllm/bin/python
      skytrain serve my-model --port 8001 --api-key-file key.txt
      skytrain serve both --dry-run
      skytrain serve my-run@5000 --target eks cloud=eks cloud.eks.cluster=training
    """
    from ..config import SkytrainError
    from ..pipelines.serve import ServeJob, ServeRequest, fetch_model, serve as pipeline
    from .console import reporter
    from .options import compose_cloud, compose_overrides

    words = arguments or []
    sources = [word for word in words if "=" not in word]
    if len(sources) > 1:
        raise SkytrainError(f"give one model, not {len(sources)}: {', '.join(sources)}")
    settings = [word for word in words if word not in sources]
    composed = (compose_overrides if target == "local" else compose_cloud)(settings, config_dir)
    request = ServeRequest(sources[0] if sources else None, target, name, host, port, api_key_file, dry_run)
    with reporter() as console:
        if fetch is not None:
            model = fetch_model(ServeJob(composed, request), fetch, console)
            return console.note(f"{fetch}: {model.parameters:,} parameters, all hashes as exported")
        code = pipeline(ServeJob(composed, request), console)
    raise SystemExit(code)
