"""`skytrain cloud`: connect this folder with an AWS account that Terraform has set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import ConfigDirs, Overrides, compose_overrides

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
    from ..aws import read_outputs, terraform_outputs
    from ..pipelines.cloud_init import cloud_init

    values = terraform_outputs(terraform) if outputs is None else read_outputs(_text(outputs), str(outputs))
    done = cloud_init(values, folder, owner, force)
    cloud = done.config.cloud
    root = done.config.store.root
    print(f"account {cloud.account}, region {cloud.region}, project {cloud.project}, store {root}")
    print(*(f"wrote {path}" for path in done.written), sep="\n")
    print("\nnext: skytrain doctor cloud=aws")


PlanFile = Annotated[Path, typer.Option("--plan", metavar="FILE", help="The plan whose machines the cluster has.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write it there. Default: print it.", show_default=False)
]
HeadType = Annotated[str, typer.Option("--head-type", metavar="TYPE", help="Machine of the head node.")]
FsxSize = Annotated[int, typer.Option("--fsx-gb", metavar="GB", help="Size of FSx for Lustre, in steps of 1200.")]
Reservation = Annotated[
    str | None,
    typer.Option(
        "--reservation",
        metavar="CR-ID",
        help="Capacity block that the plan's first machines are in.",
        show_default=False,
    ),
]


@app.command("cluster-config")
def cluster_config(
    overrides: Overrides = None,
    plan: PlanFile = Path("plan.json"),
    out: Out = None,
    head_type: HeadType = "m6i.xlarge",
    fsx_gb: FsxSize = 1200,
    reservation: Reservation = None,
    config_dir: ConfigDirs = None,
) -> None:
    """Write an AWS ParallelCluster configuration for a plan.

    One Slurm queue for each kind of machine in the plan, with EFA, placement group and GPU health checks where the
    machine has them; FSx for Lustre at /fsx, with the store's bucket linked to /fsx/store. Nothing is sent to AWS.
    `skytrain launch train cloud=slurm store.root=/fsx/store`, on the head node, then runs the plan (docs/slurm.md).

    \b
    Example:
      skytrain cloud cluster-config --plan plan.json --out cluster.yaml cloud=aws
    """
    import yaml  # type: ignore[import-untyped]

    from ..aws import Tags
    from ..config import SkytrainError
    from ..planning import read_plan
    from ..targets import ClusterSpec, cluster_config as make

    config = compose_overrides(overrides, config_dir).config
    if config.cloud.project is None:
        raise SkytrainError("no account is set up in this configuration\n  add cloud=aws (docs/aws.md)")
    tags = Tags(project=config.cloud.project, owner=config.cloud.owner or "unknown", run=None)
    spec = ClusterSpec(
        cloud=config.cloud,
        tags=tags,
        store=config.store.root,
        head_type=head_type,
        fsx_gb=fsx_gb,
        reservation=reservation,
    )
    text = yaml.safe_dump(make(spec, read_plan(plan).offers), sort_keys=False)
    if out is None:
        print(text, end="")
        return
    out.write_text(text)
    print(f"wrote {out}\n\nnext: pcluster create-cluster --cluster-name skytrain --cluster-configuration {out}")


Overlay = Annotated[Path, typer.Argument(metavar="OVERLAY", help="A folder of infra/kubernetes/overlays.")]


KeepServed = Annotated[
    bool,
    typer.Option(
        "--keep-served",
        help="Take the served model, its GPUs and the replicas from the cluster (cloud=eks cloud.eks.cluster=NAME).",
    ),
]


@app.command()
def manifests(
    overlay: Overlay, overrides: Overrides = None, keep_served: KeepServed = False, config_dir: ConfigDirs = None
) -> None:
    """Print the Kubernetes objects of an overlay.

    Every image in it must be named by digest. Apply them again at any time: add --keep-served once a model is served.

    \b
    Examples:
      skytrain cloud manifests infra/kubernetes/overlays/cluster | kubectl apply --server-side -f -
      skytrain cloud manifests infra/kubernetes/overlays/cluster --keep-served cloud=eks cloud.eks.cluster=training
    """
    from ..aws import render_manifests

    text = render_manifests(overlay)
    if keep_served:
        from ..targets import cluster_of, keep_served as keep

        text = keep(text, cluster_of(compose_overrides(overrides, config_dir).config))
    print(text, end="")


def _text(path: Path) -> str:
    from ..config import SkytrainError

    try:
        return typer.get_text_stream("stdin").read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise SkytrainError(f"--from {path}: {error.strerror}") from None
