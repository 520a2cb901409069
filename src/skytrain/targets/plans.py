"""Plans: offers of hardware for a run with their cost, the chosen one written to a file, and the plan of a launch.

Nothing is rented here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..config import (
    Composed,
    Config,
    ConfigError,
    RecipeWeights,
    SkytrainError,
    check_words_of_file,
)
from ..models import compose_model
from ..parallel import laid_out, problem_of
from ..planning import (
    DIMENSIONS,
    EC2,
    Catalog,
    CostSheet,
    Offer,
    Placement,
    Plan,
    PlanMaterial,
    PlannedData,
    PlanRequest,
    Purchase,
    Workload,
    choose,
    cost_sheet,
    costly_settings,
    explain,
    fallbacks,
    find_offers,
    leaves_mesh_open,
    load_catalog,
    load_measurements,
    make_plan,
    mesh_words,
    most_tokens,
    offer_rows,
    plan_document,
    planned_trials,
    read_plan,
    refuse,
    work_of,
    workload_of,
    write_plan,
)
from ..storage import data_of
from .base import LaunchRequest
from .jobs import plan_finishing, plan_preparation
from .registry import sellers, target_of

MESH_OVERRIDES = ("parallel=", *(f"parallel.{name}=" for name in DIMENSIONS))


@dataclass(frozen=True)
class Trials:
    """Trials that are paid from the same budget."""

    count: int
    steps: int


@dataclass(frozen=True)
class Planned:
    """Every offer, and the chosen one with its reasons; or why there is none."""

    offers: list[Offer]
    choice: Offer | None = None
    refusal: SkytrainError | None = None
    why: str = ""
    costly: tuple[str, ...] = ()  # settings that cost money
    sheet: CostSheet | None = None
    plan: Plan | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the table of offers, the best first: hardware, mesh, hours, dollars, and what rules one out."""
        return offer_rows(self.offers)


@dataclass(frozen=True)
class PlannedJob:
    """A job as its user asked for it. A smoke run is another configuration with a plan of its own."""

    composed: Composed
    plan: Plan
    keep_seconds: float = 0.0  # for which machines stay after a failure
    options: tuple[str, ...] = ()  # of `skytrain node`: --from SEED


def compose_plan(
    overrides: Sequence[str], config_dirs: Sequence[Path], mesh: str | None, *, recipe_weights: RecipeWeights = "skip"
) -> tuple[Composed, bool]:
    """Return the configuration, with `--mesh` translated to `parallel`; and whether the mesh is left to the search.

    A plan needs only the shape of a model, which a recipe has; a launch also reads what its weights bring.
    """
    if mesh is not None:
        overrides = [word for word in overrides if not word.startswith(MESH_OVERRIDES)] + mesh_words(mesh)
    composed = compose_model(list(overrides), config_dirs, recipe_weights=recipe_weights)
    if composed.config.trainer.device == "cpu":
        raise ConfigError("trainer.device", "'cpu': plan offers machines with GPUs", hint="try trainer.device=auto")
    return composed, leaves_mesh_open(composed.config.parallel) and "parallel=single" not in overrides


def plan_run(composed: Composed, open_mesh: bool, request: PlanRequest, trials: Trials, out: Path) -> Planned:
    """Find offers for the run and choose the cheapest within every limit.

    Its plan is written to `out`; nothing is written where there is none.
    """
    catalog = load_catalog()
    request = _for_block(composed.config, request)
    workload = planned_workload(composed, open_mesh)
    offers = startable(composed.config, find_offers(workload, catalog, request, sellers()))
    choice = choose(offers)
    if choice is None:
        return Planned(offers, refusal=refuse(offers, request, workload))
    why = " ".join(filter(None, (explain(choice, offers, request), _other_micro_batch(composed, choice, workload))))
    costly = costly_settings(
        composed.config, choice, lambda changed: planned_workload(replace(composed, config=changed), open_mesh)
    )
    sheet = _sheet(composed.config, choice, trials) if trials.count else None
    data = PlannedData(f"tokens/{composed.config.data.name}", workload.work.data_bytes)
    material = PlanMaterial(
        values=composed.values,
        overrides=composed.overrides,
        request=request,
        catalog=catalog,
        now=datetime.now(UTC),
    )
    plan = make_plan(
        [choice, *fallbacks(choice, offers)],
        material,
        why=why,
        data=data,
        local_bytes=workload.work.local_data_bytes,
    )
    write_plan(plan, out)
    return Planned(
        offers=offers,
        choice=choice,
        refusal=None,
        why=why,
        costly=tuple(costly),
        sheet=sheet,
        plan=plan,
    )


def _other_micro_batch(composed: Composed, choice: Offer, workload: Workload) -> str | None:
    """Return why the plan has another micro-batch than the recipe; None if it has the recipe's."""
    wanted = composed.config.trainer.micro_batch
    placement = choice.placement
    if "trainer.micro_batch" not in composed.of_recipe or wanted is None or placement is None:
        return None
    planned = placement.job.micro_batch
    if planned == wanted:
        return None
    reason = (
        "the mesh is open, and this is its fastest"
        if workload.fixed.micro_batch is None
        else "that does not fit, or does not divide the batch"
    )
    return f"The recipe has trainer.micro_batch={wanted}; {planned} is planned: {reason}."


def startable(config: Config, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers, those first whose machines the target can start; the others say why they are not chosen."""
    target = target_of(config)
    families = target.families(config)
    able = [offer for offer in offers if not families or offer.instance.family in families]
    known = {id(offer) for offer in able}
    problem = f"cloud={target.name} starts {', '.join(families)} only: cloud.{target.name}.instance_families"
    return [*able, *(replace(offer, problem=offer.problem or problem) for offer in offers if id(offer) not in known)]


def startable_machines(config: Config, catalog: Catalog, request: PlanRequest) -> Catalog:
    """Return the catalogue with those machines that the target can start.

    Raises ConfigError if it has none of them, or if one is asked for by name that the target cannot start.
    """
    target = target_of(config)
    if not (families := target.families(config)):
        return catalog
    able = tuple(one for one in catalog.instances if one.family in families)
    unable = [name for name in request.instances if catalog.instance(name).family not in families]
    if unable or not able:
        raise ConfigError(
            f"cloud.{target.name}.instance_families",
            f"cloud={target.name} starts {', '.join(families)} only, and not {unable[0] if unable else 'any GPU known here'}",
            hint="leave out --instance, or name the families that the cluster starts",
        )
    return replace(catalog, instances=able)


def _for_block(config: Config, request: PlanRequest) -> PlanRequest:
    """Return the request for machines of a capacity block, which has one type and the price of on-demand machines."""
    if config.cloud.reservation is None:
        return request
    if len(request.instances) != 1:
        raise ConfigError(
            "cloud.reservation", "name the type of the block's machines", hint="skytrain plan --instance p5.48xlarge"
        )
    if request.market == "spot":
        raise ConfigError("cloud.reservation", "a capacity block is not spot", hint="leave out --market")
    return replace(request, market="on-demand")


def plan_tokens(composed: Composed, open_mesh: bool, request: PlanRequest, rows: int) -> list[Purchase]:
    """Return the offers that train most tokens for `budget.usd`, within the deadline if there is one."""
    if request.budget_usd is None:
        raise ConfigError("budget.usd", "--how-many-tokens needs a budget", hint="for example: budget.usd=150")
    config = composed.config
    workload = replace(planned_workload(composed, open_mesh), work=work_of(config, steps=1))
    catalog = startable_machines(config, load_catalog(), request)
    offers = find_offers(workload, catalog, replace(request, tokens_open=True), sellers())
    if not any(offer.placement for offer in offers):
        raise refuse(offers, request, workload)
    return most_tokens(config, offers, request.budget_usd, request.deadline_hours, rows)


def planned_workload(composed: Composed, open_mesh: bool) -> Workload:
    """Return the run as the planner needs it; layouts that `train` would refuse are excluded."""
    config = composed.config

    def problem(placement: Placement) -> str | None:
        return problem_of(laid_out(config, placement), placement.mesh.gpus)

    return workload_of(
        config,
        composed.given,
        of_recipe=composed.of_recipe,
        open_mesh=open_mesh,
        measurements=load_measurements(),
        problem=problem,
    )


def _sheet(config: Config, choice: Offer, trials: Trials) -> CostSheet:
    if config.budget.usd is None:
        raise ConfigError("budget.usd", "a cost sheet needs a budget", hint="for example: budget.usd=40")
    assert choice.price
    planned = planned_trials(config, choice, trials.count, trials.steps)
    return cost_sheet(planned, choice.price.usd_per_hour_max * choice.nodes, config.budget.usd)


def compose_without_plan(request: LaunchRequest) -> Composed:
    """Return the configuration of `launch prepare` or `launch finish`, which take no plan."""
    if request.plan is not None:
        raise SkytrainError(f"launch {request.job} makes its plan itself\n  leave out --plan")
    return request.compose(request.overrides)


def plan_words(file: Path | None, folders: Sequence[Path], typed: Sequence[str]) -> list[str]:
    """Return the settings of a plan's file.

    Raises Untrusted if they name code that the person, who has `typed` other settings, has not named: a plan may be
    somebody else's file.
    """
    if file is None:
        return []
    words = read_plan(file).words
    check_words_of_file(words, typed, folders, f"the plan {file}", "whoever made this plan")
    return words


def training_plan(file: Path) -> Plan:
    """Return the plan of a file. Raises SkytrainError for that of another job, which has other rights and no budget of a run."""
    plan = read_plan(file)
    if plan.job != "train":
        raise SkytrainError(
            f"{file} is a plan for launch {plan.job}, which makes its plan itself\n"
            "  leave out --plan there; for a run: skytrain plan recipe=NAME"
        )
    return plan


def planned_job(request: LaunchRequest, priced: str = EC2.name) -> tuple[Composed, Plan]:
    """Return the configuration and the plan: the file's, or a new one with prices of `priced`.

    A dry run keeps no plan that it makes.
    """
    file = request.plan
    if request.job == "prepare":
        composed = compose_without_plan(request)
        return composed, plan_preparation(composed)
    if request.job == "finish":
        composed = compose_without_plan(request)
        return composed, plan_finishing(composed)
    if file is not None and request.chooses:
        raise SkytrainError(
            "--instance, --nodes and --market choose machines for a new plan\n  leave them out with --plan"
        )
    given = training_plan(file) if file is not None else None
    overrides = [*plan_words(file, request.folders, request.overrides), *request.overrides]
    composed, open_mesh = compose_plan(overrides, request.folders, None, recipe_weights=request.recipe_weights)
    if given is not None and not request.replan:
        return composed, given
    config = composed.config
    if given is not None:
        with data_of(str(file), "make one: skytrain plan"):
            wanted = PlanRequest(**given.request)
    else:
        wanted = PlanRequest(config.budget.usd, region=config.cloud.region, target=priced, **request.only)
    kept = None if request.dry_run else file
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_run(composed, open_mesh, wanted, Trials(0, 1), kept or Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    return composed, planned.plan


def plan_file(plan: Plan | None) -> dict[str, bytes]:
    """Return the file of a plan for its launch's folder, by name."""
    return {} if plan is None else {"plan.json": json.dumps(plan_document(plan), indent=1).encode()}
