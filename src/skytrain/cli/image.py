"""`skytrain image`: the training image for SageMaker, Kubernetes and plain docker."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .confirm import Yes, confirm
from .options import ConfigDirs, Json, Overrides, compose_cloud
from .output import tell

# AWS's PyTorch container for EC2 and EKS. Each build resolves the tag to a digest and keeps it in the image's labels.
BASE = "public.ecr.aws/deep-learning-containers/pytorch:2.13-cu133-amzn2023"

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
Base = Annotated[
    str,
    typer.Option(
        "--base",
        metavar="IMAGE",
        help="Image to build on, with Python 3.12 and PyTorch in /opt/venv. A tag is resolved to its digest.",
    ),
]
Context = Annotated[Path, typer.Option("--context", metavar="DIR", help="Skytrain's checkout, with docker/Dockerfile.")]


@app.callback()
def group() -> None:
    """Build and push the training image.

    \b
    Example:
      skytrain image push cloud=aws
    """


@app.command()
def build(base: Base = BASE, context: Context = Path()) -> None:
    """Build the training image with docker, and print its name.

    The base's tag is resolved to a digest first. Files that are not committed are refused.

    \b
    Example:
      skytrain image build --context ~/skytrain
    """
    from ..pipelines.image import build as pipeline, find_source

    name, resolved = pipeline(find_source(context), base)
    print(name)
    tell(f"base {resolved}\nNext: docker run --rm {name} node --help")


@app.command()
def push(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    base: Base = BASE,
    context: Context = Path(),
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Build the training image and push it to ECR.

    It goes to the base's repository, and its digest is recorded in the store: `launch cloud=sagemaker` then uses it
    unless cloud.sagemaker.image names another. An image that the repository has is not built again. ECR charges for
    storage: $0.10 per GB and month.

    \b
    Examples:
      skytrain image push
      skytrain image push cloud=aws --context ~/skytrain --yes
    """
    from ..aws import image_repository, open_session
    from ..pipelines.image import find_source, push as pipeline
    from .console import reporter

    config = compose_cloud(overrides, config_dir).config
    repository = image_repository(config.cloud)
    source = find_source(context)
    session = open_session(repository.region, config.cloud.account)
    confirm(session, f"Push to {repository.url}?", 0.0, yes)
    with reporter() as console:
        image = pipeline(config, session, source, base, console.note)
    if as_json:
        print(json.dumps(asdict(image), indent=1))
    else:
        print(image.uri)
        typer.echo("Next: skytrain launch train --plan plan.json cloud=sagemaker", err=True)


Bundle = Annotated[
    str | None,
    typer.Option("--bundle", metavar="KEY", help="Packages of a launch: `bundle` of its record, such as bundles/0123."),
]


@app.command()
def sbom(overrides: Overrides = None, config_dir: ConfigDirs = None, bundle: Bundle = None) -> None:
    """Print a software bill of materials (CycloneDX, JSON).

    It lists the packages that are installed where the command runs: `docker run IMAGE image sbom` prints those of an
    image. With --bundle it lists the packages of a launch's machines, with the hashes that they check.

    \b
    Examples:
      skytrain image sbom > sbom.json
      skytrain image sbom --bundle bundles/84819cba2451f0fb cloud=aws
    """
    from ..pipelines.sbom import bundle_sbom, installed_sbom

    found = installed_sbom() if bundle is None else bundle_sbom(compose_cloud(overrides, config_dir).config, bundle)
    print(json.dumps(found, indent=1))


VALUES = Path("infra", "kubernetes", "karpenter", "values.yaml")
LOCK = Path("infra", "kubernetes", "components", "images", "kustomization.yaml")
Lock = Annotated[Path, typer.Option("--lock", metavar="FILE", help="The list of images.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=IMAGE", help="Another image for NAME. Repeatable.", show_default=False),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no registry: show the list, and what --set changes.")]


@app.command()
def resolve(lock: Lock = LOCK, to_set: Set = None, offline: Offline = False, as_json: Json = False) -> None:
    """Write the digests of the Kubernetes images into their list.

    The list is infra/kubernetes's; the digests are those that the registries state now.

    Nothing is pulled. A digest that differs from the one in the list is reported. Exit code 2 while one is missing.

    \b
    Examples:
      skytrain image resolve
      skytrain image resolve --set skytrain=$IMAGE
      skytrain image resolve --offline
    """
    from ..config import SkytrainError
    from ..pipelines.image import resolve as pipeline
    from ..report import text_table

    images = pipeline(lock, to_set or [], tell, offline=offline)
    if as_json:
        print(json.dumps([asdict(image) for image in images], indent=1))
    else:
        rows = [[image.name, image.repository, image.tag or "", image.digest or "missing"] for image in images]
        print(text_table([("image", "repository", "tag", "digest"), *rows]))
    if missing := [image.name for image in images if image.digest is None]:
        raise SkytrainError(
            f"no digest: {', '.join(missing)}\n  ours comes from `skytrain image push`: --set skytrain=IMAGE@sha256:..."
        )


Values = Annotated[Path, typer.Option("--values", metavar="FILE", help="The values of Karpenter's chart.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be copied, and copy nothing.")]


@app.command()
def mirror(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    lock: Lock = LOCK,
    values: Values = VALUES,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Copy a cluster's images into the project's ECR repository.

    For closed networks, whose nodes reach no public registry. Images are those of the list (`skytrain image resolve`) and
    Karpenter's, copied by digest for linux/amd64 with every byte checked, without docker. The list and the values of the
    chart then name the copies. It runs where both the registries and ECR can be reached. ECR charges for storage.

    \b
    Examples:
      skytrain image mirror cloud=aws --dry-run
      skytrain image mirror cloud=aws
    """
    from ..aws import RegistryRepository, image_repository, open_session, registry_password
    from ..config import format_bytes
    from ..pipelines.image import find_mirrored, mirror as pipeline
    from ..planning import unit_prices
    from ..report import text_table
    from .console import reporter

    config = compose_cloud(overrides, config_dir).config
    repository = image_repository(config.cloud)
    found = find_mirrored(lock, values, RegistryRepository(repository.url))
    rows = [[one.locked.name, one.locked.repository, one.image.digest, format_bytes(one.bytes)] for one in found]
    print(text_table([("image", "from", "digest", "size"), *rows]))
    total = sum(one.bytes for one in found)
    month = unit_prices()["ecr"].usd * total / 1e9
    tell(f"{len(found)} images, {format_bytes(total)}: ${month:.2f} per month in {repository.url}")
    if dry_run or not found:
        return
    session = open_session(repository.region, config.cloud.account)
    confirm(session, f"Copy them to {repository.url}?", 0.0, yes)
    target = RegistryRepository(repository.url, registry_password(session, repository))
    with reporter() as console:
        pipeline(found, lock, values, target, console)
    typer.echo("Next: skytrain cloud manifests OVERLAY; Karpenter: helm upgrade with the same values", err=True)
