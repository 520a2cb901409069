"""`skytrain plan`: hardware, hours and dollars of a run, before anything is rented."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import ConfigDirs, Json, complete_setting, compose_overrides
from .output import tell
from .reads import refuse_options

if TYPE_CHECKING:
    from ..config import Config
    from ..pipelines.plan import CorpusPlan
    from ..planning import PlanRequest, Purchase
    from ..targets import Planned

InstanceType = Annotated[
    str | None,
    typer.Option(
        "--instance",
        metavar="TYPE",
        help="Only this instance type, such as g5.12xlarge, or these: p5.48xlarge,p4d.24xlarge.",
        show_default=False,
    ),
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, metavar="N", help="Only N machines.", show_default=False)]
Region = Annotated[
    str | None,
    typer.Option(
        "--region",
        metavar="NAME",
        help="Only this region. Default: with cloud=NAME the account's, else all.",
        show_default=False,
    ),
]
MarketOption = Annotated[
    Literal["spot", "on-demand"] | None, typer.Option("--market", help="Only this market.", show_default=False)
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Only offers of this service, such as sagemaker. Default: all whose prices are known, or that of cloud=NAME.",
        show_default=False,
    ),
]
MeshOption = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="MESH",
        help="Only this mesh: a preset (tp-fsdp, as in parallel=tp-fsdp) or degrees (shard=2,tensor=4).",
        show_default=False,
    ),
]
Deadline = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Choose the cheapest offer that finishes within TIME (12h, 2d) in nine of ten cases.",
        show_default=False,
    ),
]
Tokens = Annotated[
    bool,
    typer.Option(
        "--how-many-tokens",
        help="Show instead how many tokens budget.usd buys, within --deadline if given.",
    ),
]
Best = Annotated[
    bool,
    typer.Option(
        "--best",
        help="Choose the model too: its size, tokens, batch, learning rate and machines with the lowest expected loss "
        "for budget.usd.",
    ),
]
Trials = Annotated[
    int,
    typer.Option("--trials", min=0, metavar="N", help="Add the cost of N trials before the run, on the chosen offer."),
]
TrialSteps = Annotated[int, typer.Option("--trial-steps", min=1, metavar="N", help="Optimizer steps of each trial.")]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="First time --steps steps on this machine: the first, the median and the worst of them, hours and, with "
        "budget.usd_per_hour=N, dollars of the run, and of its search where tune is set. Later plans use the result too.",
    ),
]
MeasuredSteps = Annotated[int, typer.Option("--steps", min=20, metavar="N", help="Steps that --measure takes.")]
Documents = Annotated[
    str | None,
    typer.Option(
        "--documents", metavar="N", help="plan prepare: how many documents there are, such as 5M.", show_default=False
    ),
]
TextBytes = Annotated[
    str | None,
    typer.Option(
        "--bytes",
        metavar="SIZE",
        help="plan prepare: bytes of text, such as 1TB; default: the files' sizes.",
        show_default=False,
    ),
]
WHAT = "skytrain.planned"


def _without_job(context: typer.Context, arguments: list[str] | None) -> list[str]:
    """Return the settings; the context keeps whether training or a corpus is planned."""
    given = list(arguments or [])
    context.meta[WHAT] = given.pop(0) if given and given[0] in ("train", "prepare") else "train"
    return given


PlanArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[train|prepare] KEY=VALUE",
        callback=_without_job,
        autocompletion=complete_setting,
        help="What to plan, training by default, and its settings as for `skytrain train` or `skytrain prepare`.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the chosen plan.")]
Wide = Annotated[
    bool, typer.Option("--wide", help="Show all columns: price, memory, stops, quota, source of the speed.")
]
Rows = Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Number of offers to show.")]


def plan(
    context: typer.Context,
    overrides: PlanArguments = None,
    config_dir: ConfigDirs = None,
    instance: InstanceType = None,
    nodes: Nodes = None,
    region: Region = None,
    market: MarketOption = None,
    target: TargetOption = None,
    mesh: MeshOption = None,
    deadline: Deadline = None,
    how_many_tokens: Tokens = False,
    best: Best = False,
    trials: Trials = 0,
    trial_steps: TrialSteps = 500,
    measure: Measure = False,
    steps: MeasuredSteps = 20,
    out: Out = Path("plan.json"),
    rows: Rows = 12,
    wide: Wide = False,
    documents: Documents = None,
    text_bytes: TextBytes = None,
    as_json: Json = False,
) -> None:
    """List offers for a run: hardware, mesh, hours, dollars.

    Offers are ranked by dollars, with a range. The chosen one is written to plan.json. Uses no network and rents
    nothing. With cloud=eks the hourly cost of the cluster follows, idle and busy.

    With --best the budget is given and the model is found: one row for each of several budgets, the loss to expect
    by two laws, and the command that trains the chosen row. plan.serve_tokens=1T counts what serving costs,
    plan.most_parameters=1B limits the size, plan.data_tokens=2B says how much text there is. The plot is written
    beside the plan.

    `plan prepare` compares ways to prepare a corpus: one machine, clusters of EMR, EMR Serverless. It lists the
    source's files once for their sizes, unless --bytes gives them.

    \b
    Examples:
      skytrain plan recipe=gpt2-124m-pile budget.usd=150
      skytrain plan --best budget.usd=150
      skytrain plan recipe=gpt2-124m-pile --deadline 12h --market spot
      skytrain plan recipe=gpt2-124m-pile --target sagemaker
      skytrain plan model=llama-3.2-1b budget.usd=500 --how-many-tokens
      skytrain plan recipe=gpt2-124m-pile cloud=eks
      skytrain plan recipe=quickstart --measure --steps 20 budget.usd_per_hour=1.5
      skytrain plan prepare --documents 5M --bytes 15GB --region us-east-2
    """
    from ..aws import account_folders
    from ..pipelines.plan import measure_here
    from ..planning import EC2, PlanRequest
    from ..targets import Trials as TrialsWanted, compose_plan, find_seller, plan_run, plan_tokens, target_of
    from .console import reporter

    _refuse_others(context, measure=measure, trials=trials, best=best, how_many_tokens=how_many_tokens)
    settings = list(overrides or [])
    if any(word.startswith("cloud=") for word in settings):
        config_dir = account_folders(config_dir or [], settings, region)
    if context.meta[WHAT] == "prepare":
        given = (documents, text_bytes)
        corpus = compose_overrides(settings, config_dir).config
        plan = _corpus_plan(corpus, region, _hours(deadline), given)
        return _print_corpus_plan(plan, [*settings, *_typed_folders(context)], as_json)
    composed, open_mesh = compose_plan(settings, config_dir or [], mesh)
    if measure:
        with reporter() as console:
            chosen = {*composed.given, *composed.of_recipe}
            measure_here(composed.config, console, steps, sweep=any(key.startswith("tune.") for key in chosen))
    seller = find_seller(target).name if target else target_of(composed.config).priced
    _tell_of_prices(seller)
    request = PlanRequest(
        budget_usd=composed.config.budget.usd,
        deadline_hours=_hours(deadline),
        instance=instance,
        nodes=nodes,
        region=region or composed.config.cloud.region,  # a plan for another could not be launched there
        market=market,
        target=seller,
    )
    if best:
        return _plan_best(settings, config_dir or [], request, out, as_json)
    if how_many_tokens:
        wanted = replace(request, target=seller or EC2.name)
        return _print_tokens(composed.config, request, plan_tokens(composed, open_mesh, wanted, rows), as_json)
    planned = plan_run(composed, open_mesh, request, TrialsWanted(trials, trial_steps), out)
    _print_plan(composed.config, planned, request, Shown(rows, wide), as_json)
    if not as_json:
        if planned.sheet is None:
            _print_rest(context, settings, config_dir or [], request, planned, composed.config)
        print(f"\nwrote {out}")


def _tell_of_prices(name: str | None) -> None:
    """Say where the prices of a seller are those of EC2, because nobody has fetched its own."""
    from ..planning import EC2, load_catalog
    from ..targets import find_seller

    if name is None or (seller := find_seller(name)).has_prices(load_catalog()):
        return
    tell(
        f"{seller.title}'s prices are not known here, and {EC2.title}'s on demand stand in for them, which are lower: "
        "skytrain catalog refresh"
    )


OF_TRAINING = (
    *("instance", "nodes", "market", "target", "mesh", "how_many_tokens", "best", "trials", "trial_steps"),
    *("measure", "steps", "out", "rows", "wide"),
)
OF_CORPORA = ("documents", "text_bytes")


def _refuse_others(context: typer.Context, *, measure: bool, trials: int, best: bool, how_many_tokens: bool) -> None:
    """Refuse options that this kind of plan does not use."""
    if context.meta[WHAT] == "prepare":
        return refuse_options(context, OF_TRAINING, "it is about training, and this plans a corpus")
    refuse_options(context, OF_CORPORA, "it is for `skytrain plan prepare`")
    if not measure:
        refuse_options(context, ["steps"], "it is how many steps --measure takes")
    if not trials:
        refuse_options(context, ["trial_steps"], "it is the length of --trials")
    if best:
        refuse_options(context, ["mesh", "trials", "how_many_tokens", "rows", "wide"], "--best chooses the whole run")
    elif how_many_tokens:
        refuse_options(context, ["trials", "out", "wide"], "--how-many-tokens only shows what is bought")
    return None


@dataclass(frozen=True)
class Shown:
    """How much of the offers is printed."""

    rows: int
    wide: bool


def _print_plan(config: Config, planned: Planned, request: PlanRequest, shown: Shown, as_json: bool) -> None:
    """Print the offers and the choice; raise why there is none."""
    from ..aws import PREVIEW_NOTE, is_preview
    from ..pipelines.plan import costs_around, plan_as_json
    from ..report import choice_text, cluster_table, offers_text

    if as_json and planned.refusal is None:
        return print(plan_as_json(config, planned))
    if is_preview(config.cloud):
        tell(PREVIEW_NOTE)
    print(offers_text(config, planned, request, rows=shown.rows, wide=shown.wide))
    if planned.refusal is not None:
        raise planned.refusal
    print(f"\n{choice_text(planned)}")
    if costs := costs_around(config, planned):
        print(f"\n{cluster_table(costs)}")


def _plan_best(settings: list[str], config_dirs: list[Path], request: PlanRequest, out: Path, as_json: bool) -> None:
    from ..config import SkytrainError
    from ..pipelines.best import best_as_json, best_plan
    from ..planning import load_catalog
    from ..report import best_lines, best_svg, best_table, png_of, prices_note

    plot = out.with_suffix(".svg")
    if out.suffix in (".svg", ".png"):
        raise SkytrainError(
            f"--out {out}: the plots are written beside the plan\n  try --out {out.with_suffix('.json')}"
        )
    answer = best_plan(settings, config_dirs, request, out)
    choice = answer.choice
    svg = best_svg(answer.frontier, choice, answer.law, answer.second)
    plot.write_text(svg)
    plot.with_suffix(".png").write_bytes(png_of(svg))
    if as_json:
        return print(best_as_json(answer))
    print(f"What budgets buy, recipe={choice.recipe} on {answer.text}:\n")
    print(best_table(answer.frontier, choice, answer.second))
    print(f"\nOther sizes for ${choice.budget_usd:,.2f}:\n")
    print(best_table(answer.sizes, choice, answer.second))
    print()
    for line in [
        *answer.reasons,
        *best_lines(answer.law, answer.second, choice, len(answer.runs), answer.known_factor),
    ]:
        print(line)
    print(prices_note(load_catalog()))
    print(f"\nwrote {out}, {plot} and {plot.with_suffix('.png')}; to train the chosen row:")
    print(f"  skytrain prepare {shlex.join(answer.text_words)}")
    cloud = f"cloud={choice.config.cloud.target or choice.purchase.offer.seller.name}"
    launch = shlex.join([cloud, *answer.launch_words(settings)])
    print(f"  skytrain launch train --plan {shlex.quote(str(out))} {launch}")
    print("settings of the chosen row:")
    print(f"  {shlex.join(answer.words)}")


def _print_rest(
    context: typer.Context,
    settings: list[str],
    config_dirs: list[Path],
    request: PlanRequest,
    planned: Planned,
    config: Config,
) -> None:
    """Print what the rest of a budget could buy, with the command that says more."""
    from ..pipelines.best import rest_of_budget

    if line := rest_of_budget(settings, config_dirs, request, planned, config):
        limits = [
            word
            for name in ("instance", "nodes", "region", "market", "target", "deadline")
            if (value := context.params[name]) is not None
            for word in (f"--{name}", str(value))
        ]
        print(f"\n{line}\n  skytrain plan --best {shlex.join([*settings, *limits, *_typed_folders(context)])}")


def _typed_folders(context: typer.Context) -> list[str]:
    """Return the words of --config-dir, for a command to type next."""
    return [word for folder in context.params["config_dir"] or [] for word in ("--config-dir", str(folder))]


def _corpus_plan(
    config: Config, region: str | None, deadline: float | None, given: tuple[str | None, str | None]
) -> CorpusPlan:
    from ..config import SkytrainError, parse_bytes, parse_count
    from ..pipelines.plan import plan_corpus
    from ..storage import StoreError

    try:
        documents = None if given[0] is None else float(parse_count(given[0]))
        size = None if given[1] is None else float(parse_bytes(given[1]))
    except ValueError as error:
        raise SkytrainError(f"--documents or --bytes: {error}\n  for example: --documents 5M --bytes 15GB") from None
    try:
        return plan_corpus(config, region, deadline, documents, size)
    except StoreError as error:
        hint = "\n  ".join(
            filter(None, (error.hint, "or say how much text there is, such as --bytes 15GB: nothing is listed then"))
        )
        raise type(error)(error.operation, error.url, error.problem, hint=hint) from None


def _print_corpus_plan(plan: CorpusPlan, typed: list[str], as_json: bool) -> None:
    from ..report import corpus_text

    if as_json:
        print(json.dumps([asdict(offer) for offer in plan.offers], indent=1))
        return
    print(f"{corpus_text(plan.work, plan.notes, plan.offers)}\n\n{plan.advice}")
    chosen = plan.offers[0].words
    keys = {word.partition("=")[0] for word in chosen}
    print(
        f"  skytrain launch prepare {shlex.join([*(word for word in typed if word.partition('=')[0] not in keys), *chosen])}"
    )


def _hours(deadline: str | None) -> float | None:
    from ..config import SkytrainError, parse_seconds

    if deadline is None:
        return None
    try:
        hours = parse_seconds(deadline) / 3600
    except ValueError as error:
        raise SkytrainError(f"--deadline {deadline}: {error}\n  for example: --deadline 12h") from None
    if not 0 < hours < math.inf:
        raise SkytrainError(f"--deadline {deadline}: must be longer than 0 s, and finite")
    return hours


def _print_tokens(config: Config, request: PlanRequest, bought: list[Purchase], as_json: bool) -> None:
    from ..planning import load_catalog, purchase_rows
    from ..report import prices_note, tokens_table

    if as_json:
        print(json.dumps(purchase_rows(bought), indent=1))
        return
    print(tokens_table(bought, config, request))
    print(prices_note(load_catalog()))
