"""`skytrain cloud`: connect this folder with an AWS account that Terraform has set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

BASE = Path("infra", "terraform", "base")
Outputs = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FILE", help="What `terraform output -json` printed; - for stdin.", show_default=False
    ),
]
Terraform = Annotated[
    Path, typer.Option("--terraform", metavar="DIR", help="The applied base; its outputs are read with terraform.")
]
Folder = Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Where cloud/aws.yaml is written.")]
Owner = Annotated[
    str | None,
    typer.Option("--owner", metavar="NAME", help="cloud.owner. Default: the caller's name.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that have other contents.")]


@app.callback()
def group() -> None:
    """Connect this folder with an AWS account.

    \b
    Example:
      skytrain cloud init --terraform infra/terraform/base
    """


@app.command()
def init(
    outputs: Outputs = None,
    terraform: Terraform = BASE,
    folder: Folder = Path(),
    owner: Owner = None,
    force: Force = False,
) -> None:
    """Write cloud/aws.yaml from Terraform's outputs.

    After that, cloud=aws chooses this account: its network, roles and store. Nothing is sent to AWS.

    \b
    Examples:
      skytrain cloud init --terraform infra/terraform/base
      skytrain cloud init --from outputs.json --owner ada
    """
    from ..cloud import read_outputs, terraform_outputs
    from ..pipelines.cloud_init import cloud_init

    found = terraform_outputs(terraform) if outputs is None else read_outputs(_text(outputs), str(outputs))
    done = cloud_init(found, folder, owner, force)
    cloud, root = done.config.cloud, done.config.store.root
    print(f"account {cloud.account}, region {cloud.region}, project {cloud.project}, store {root}")
    print(*(f"wrote {path}" for path in done.written), sep="\n")
    print("\nnext: skytrain doctor cloud=aws")


def _text(path: Path) -> str:
    from ..config import SkytrainError

    try:
        return typer.get_text_stream("stdin").read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise SkytrainError(f"--from {path}: {error.strerror}") from None
