"""`skytrain catalog`: EC2 instances and prices, ranked; `catalog refresh` fetches them from AWS."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from .options import Json

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

Regions = Annotated[
    list[str] | None,
    typer.Option("--region", metavar="NAME", help="Only this region. Repeatable.", show_default=False),
]
MarketOption = Annotated[Literal["spot", "on-demand"], typer.Option("--market", help="The market to rank by.")]
Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="Rank by the speed of this model (see `skytrain models`) on each GPU."
    ),
]
Cpu = Annotated[bool, typer.Option("--cpu", help="List machines without GPUs, for `prepare`, cheapest per vCPU first.")]


@app.callback()
def catalog(
    context: typer.Context,
    region: Regions = None,
    market: MarketOption = "spot",
    model: Model = "gpt2-124m",
    cpu: Cpu = False,
    as_json: Json = False,
) -> None:
    """List GPU instances, cheapest per effective FLOP first.

    \b
    Examples:
      skytrain catalog --region us-east-2 --market on-demand
      skytrain catalog --cpu
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from ..planning import load_catalog, rank_catalog, rank_cpu_machines
    from ..report import catalog_table, cpu_table, prices_note
    from .options import compose_overrides

    loaded = load_catalog()
    for name in region or []:
        loaded.check_region(name)
    regions = region or loaded.regions
    if cpu:
        machines = rank_cpu_machines(loaded, market, regions)
        rows = [asdict(row) for row in machines]
        table = cpu_table(machines)
    else:
        ranked = rank_catalog(loaded, compose_overrides([f"model={model}"]).config.model, market, regions)
        rows = [asdict(row) for row in ranked]
        table = catalog_table(ranked)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    print(table)
    print(prices_note(loaded))


@app.command()
def refresh(region: Regions = None) -> None:
    """Fetch today's instances and prices from AWS into your cache.

    Needs AWS credentials and the aws extra. Later plans use the fetched prices.

    Example: skytrain catalog refresh --region us-east-2
    """
    from ..planning import REGIONS, load_catalog, refresh_catalog, save_catalog
    from ..report import prices_note
    from ..targets import service_prices
    from .console import reporter

    done = 0.0

    def advance(what: str, by: float) -> None:
        nonlocal done
        done += by
        console.progress("refresh", 100 * done, 100, what)

    with reporter() as console:
        folder = save_catalog(refresh_catalog(region or REGIONS, service_prices(), progress=advance))
    print(f"{prices_note(load_catalog())}\n  in {folder}")
