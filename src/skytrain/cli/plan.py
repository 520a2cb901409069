"""`skytrain plan`: on what, how long, how much; before a dollar is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import ConfigDirs, Json, Overrides

if TYPE_CHECKING:
    from ..config import Composed
    from ..pipelines.plan import Planned
    from ..planning import PlanRequest, Purchase

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
        "--mesh",
        help="Only this mesh: a preset, the same as parallel=tp-fsdp, or degrees (shard=2,tensor=4).",
        show_default=False,
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline", help="The cheapest that finishes within 12h, or 2d, in nine of ten cases.", show_default=False
    ),
]
Tokens = Annotated[
    bool,
    typer.Option(
        "--how-many-tokens",
        help="Ask the other way round: the tokens that budget.usd buys, within --deadline if given.",
    ),
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
    from ..pipelines.plan import Trials as TrialsWanted, compose_plan, plan_run, plan_tokens
    from ..planning import PlanRequest

    composed, open_mesh = compose_plan(overrides or [], config_dir or [], mesh)
    if measure:
        _measure_here(composed)
    request = PlanRequest(composed.config.budget.usd, _hours(deadline), instance, nodes, region, market)
    if how_many_tokens:
        _print_tokens(composed, request, plan_tokens(composed, open_mesh, request, rows), as_json)
        return
    planned = plan_run(composed, open_mesh, request, TrialsWanted(trials, trial_steps), out)
    if planned.refusal is not None:
        _print_offers(composed, planned, request, rows)
        raise planned.refusal
    if as_json:
        from ..planning import offer_rows

        print(json.dumps({"offers": offer_rows(planned.offers), "choice": planned.written}, indent=1))
        return
    _print_offers(composed, planned, request, rows)
    _print_choice(planned)
    print(f"\nwrote {out}")


def _hours(deadline: str | None) -> float | None:
    from ..config import SkytrainError, parse_seconds

    if deadline is None:
        return None
    try:
        hours = parse_seconds(deadline) / 3600
    except ValueError as error:
        raise SkytrainError(f"--deadline {deadline}: {error}\n  for example: --deadline 12h") from None
    if hours <= 0:
        raise SkytrainError(f"--deadline {deadline}: must be longer than 0 s")
    return hours


def _measure_here(composed: Composed) -> None:
    from ..bench import measure
    from ..config import format_count, format_seconds, total_steps
    from .console import reporter

    with reporter() as console:
        measured = measure(composed.config, console)
        seconds = total_steps(composed.config) * measured.step_seconds
        rate = format_count(measured.tokens_per_s)
        console.note(
            f"measured on {measured.device}: {measured.step_seconds * 1e3:.0f} ms a step (the worst of steps 10 to 19), {rate} tokens/s; the whole run here: {format_seconds(seconds)}\n"
        )


def _print_offers(composed: Composed, planned: Planned, request: PlanRequest, rows: int) -> None:
    from ..planning import legend, load_catalog, offers_table, prices_note, run_lines

    for line in run_lines(composed.config):
        print(line)
    shown = planned.offers[:rows]
    if planned.choice is not None and planned.choice not in shown:
        shown = [*shown[:-1], planned.choice]
    print()
    print(offers_table(shown, planned.choice))
    if len(planned.offers) > len(shown):
        print(f"and {len(planned.offers) - len(shown)} more (--rows); ranked by dollars, those that break a limit last")
    for line in legend(request):
        print(line)
    print(prices_note(load_catalog()))


def _print_choice(planned: Planned) -> None:
    from ..planning import choice_lines, sheet_table

    assert planned.choice is not None
    print(f"\n{planned.why}")
    for line in choice_lines(planned.choice):
        print(line)
    for line in planned.costly:
        print(f"  {line}")
    if planned.sheet is not None:
        print(f"\n{sheet_table(planned.sheet)}")


def _print_tokens(composed: Composed, request: PlanRequest, bought: list[Purchase], as_json: bool) -> None:
    from ..planning import load_catalog, prices_note, purchase_rows, tokens_table

    if as_json:
        print(json.dumps(purchase_rows(bought), indent=1))
        return
    print(tokens_table(bought, composed.config, request))
    print(prices_note(load_catalog()))
