"""`skytrain plan`: on what, how long, how much; before a dollar is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .options import ConfigDirs, Json, Overrides, compose_overrides

if TYPE_CHECKING:
    from ..config.compose import Composed
    from ..planning.catalog import Catalog
    from ..planning.measurements import Measurement
    from ..planning.offers import Offer, Wish

InstanceType = Annotated[
    str | None, typer.Option("--instance", help="Only this type, such as g5.12xlarge.", show_default=False)
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Only so many machines.", show_default=False)]
Region = Annotated[str | None, typer.Option("--region", help="Only this region.", show_default=False)]
MarketOption = Annotated[
    Literal["spot", "on-demand"] | None, typer.Option("--market", help="Only this market.", show_default=False)
]
MeshOption = Annotated[
    str | None,
    typer.Option(
        "--mesh", help="Only this mesh: a preset (tp-fsdp) or degrees (shard=2,tensor=4).", show_default=False
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", help="What must be finished within 12h, or 2d: what does it cost?", show_default=False),
]
Tokens = Annotated[
    bool,
    typer.Option("--how-many-tokens", help="Ask the other way round: the tokens that budget.usd buys on each offer."),
]
Trials = Annotated[
    int, typer.Option("--trials", min=0, help="A cost sheet of so many trials before the run, on the chosen offer.")
]
TrialSteps = Annotated[int, typer.Option("--trial-steps", min=1, help="Optimizer steps of each trial.")]
Measure = Annotated[
    bool, typer.Option("--measure", help="First run 20 steps here, and keep the result for this and later plans.")
]
Out = Annotated[Path, typer.Option("--out", help="Where the plan is written, for launch to follow.")]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Offers to show.")]


def plan(
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    instance: InstanceType = None,
    nodes: Nodes = None,
    region: Region = None,
    market: MarketOption = None,
    mesh: MeshOption = None,
    deadline: Deadline = None,
    how_many_tokens: Tokens = False,
    trials: Trials = 0,
    trial_steps: TrialSteps = 500,
    measure: Measure = False,
    out: Out = Path("plan.json"),
    rows: Rows = 12,
    as_json: Json = False,
) -> None:
    """Offers for a run: hardware, mesh, hours, dollars.

    Ranked by dollars, with a range; writes the choice to plan.json. Asks nobody, and rents nothing.

    skytrain plan recipe=gpt2-124m-pile budget.usd=150

    skytrain plan recipe=gpt2-124m-pile --deadline 12h --market spot
    """
    from ..planning.catalog import load_catalog
    from ..planning.measurements import load_measurements
    from ..planning.offers import Wish, choose, explain, find_offers, mesh_of, refuse

    composed = compose_overrides(overrides, config_dir)
    if measure:
        _measure_here(composed)
    catalog, measurements = load_catalog(), load_measurements()
    config = composed.config
    wish = Wish(config.budget.usd, _hours(deadline), instance, nodes, region, market, mesh or mesh_of(config))
    if how_many_tokens:
        _print_tokens(composed, catalog, wish, measurements, rows, as_json)
        return
    found = find_offers(config, catalog, wish, measurements)
    choice = choose(found)
    if choice is None:
        _print_offers(composed, found, None, rows, catalog)
        raise refuse(found, wish)
    why = explain(choice, found, wish)
    written = _write(composed, wish, choice, why, catalog, out)
    if as_json:
        from ..planning.plan_file import offer_rows

        print(json.dumps({"offers": offer_rows(found), "choice": written}, indent=1))
        return
    _print_offers(composed, found, choice, rows, catalog)
    _print_choice(choice, why)
    if trials:
        _print_trials(composed, choice, trials, trial_steps)
    print(f"\nwrote {out}")


def _hours(deadline: str | None) -> float | None:
    from ..config.errors import SkytrainError
    from ..config.units import parse_seconds

    if deadline is None:
        return None
    try:
        hours = parse_seconds(deadline) / 3600
    except ValueError as error:
        raise SkytrainError(f"--deadline {deadline}: {error}\n  for example: --deadline 12h") from None
    if hours <= 0:
        raise SkytrainError(f"--deadline {deadline}: must be longer than 0 s")
    return hours


def _write(composed: Composed, wish: Wish, choice: Offer, why: str, catalog: Catalog, out: Path) -> dict[str, Any]:
    from datetime import UTC, datetime

    from ..planning.plan_file import plan_dict, write_plan

    written = plan_dict(composed.values, wish, choice, why, catalog, datetime.now(UTC).date().isoformat())
    write_plan(written, out)
    return written


def _measure_here(composed: Composed) -> None:
    from ..config import format_count, format_seconds, total_steps
    from ..pipelines.measure import measure
    from .console import reporter

    with reporter() as console:
        measured = measure(composed.config, console)
        seconds = total_steps(composed.config) * measured.step_seconds
        rate = format_count(measured.tokens_per_s)
        console.note(
            f"measured on {measured.device}: {measured.step_seconds * 1e3:.0f} ms a step (the worst of steps 10 to 19), {rate} tokens/s; the whole run here: {format_seconds(seconds)}\n"
        )


def _print_offers(composed: Composed, found: list[Offer], choice: Offer | None, rows: int, catalog: Catalog) -> None:
    from ..planning.tables import offers_table, prices_note, run_lines

    for line in run_lines(composed.config):
        print(line)
    shown = found[:rows]
    if choice is not None and choice not in shown:
        shown = [*shown[:-1], choice]
    print()
    print(offers_table(shown, choice))
    if len(found) > len(shown):
        print(f"and {len(found) - len(shown)} more (--rows); ranked by dollars, those that break a limit last")
    print(prices_note(catalog))


def _print_choice(choice: Offer, why: str) -> None:
    from ..planning.tables import choice_lines

    print(f"\n{why}")
    for line in choice_lines(choice):
        print(line)


def _print_tokens(
    composed: Composed, catalog: Catalog, wish: Wish, measurements: list[Measurement], rows: int, as_json: bool
) -> None:
    from dataclasses import replace

    from ..config.errors import ConfigError
    from ..planning.offers import find_offers, tokens_for_budget
    from ..planning.tables import prices_note, tokens_table

    if wish.budget_usd is None:
        raise ConfigError("budget.usd", "--how-many-tokens needs a budget", hint="for example: budget.usd=150")
    found = [
        offer
        for offer in find_offers(composed.config, catalog, replace(wish, budget_usd=None), measurements)
        if offer.estimate
    ]
    bought = sorted(
        ((tokens_for_budget(composed.config, offer, wish.budget_usd), offer) for offer in found[: 4 * rows]),
        key=lambda pair: -pair[0],
    )
    if as_json:
        print(
            json.dumps(
                [
                    {
                        "region": offer.region,
                        "instance_type": offer.instance.type,
                        "nodes": offer.nodes,
                        "market": offer.market,
                        "tokens": tokens,
                    }
                    for tokens, offer in bought[:rows]
                ],
                indent=1,
            )
        )
        return
    print(tokens_table(bought[:rows], composed.config, wish.budget_usd))
    print(prices_note(catalog))


def _print_trials(composed: Composed, choice: Offer, trials: int, trial_steps: int) -> None:
    from ..config.errors import ConfigError
    from ..planning.experiments import cost_sheet, planned_trials
    from ..planning.tables import sheet_table

    if composed.config.budget.usd is None:
        raise ConfigError("budget.usd", "a cost sheet needs a budget", hint="for example: budget.usd=40")
    assert choice.price
    sheet = cost_sheet(
        planned_trials(composed.config, choice, trials, trial_steps),
        choice.price.usd_per_hour_max * choice.nodes,
        composed.config.budget.usd,
    )
    print(f"\n{sheet_table(sheet)}")
