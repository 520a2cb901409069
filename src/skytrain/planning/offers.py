"""Offers: where a run could go, how long it would take and what it would cost; the choice among them, and the questions asked backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skytrain.config import Config, ConfigError, DecoderConfig, SkytrainError, format_seconds, total_steps
from skytrain.config.capabilities import fused_settings_problem, mesh_works

from .catalog import MARKETS, Catalog, Instance, Market, Price
from .communication import Node
from .costs import Estimate, Work, estimate, work_of
from .measurements import Measurement
from .memory import Job
from .mesh import DIMENSIONS, Mesh, parse_mesh
from .search import NoPlacement, Placement, best_placement

NODES = (1, 2, 4)
MORE_NODES = (8, 16, 32, 64)  # tried only where nothing smaller holds the model


@dataclass(frozen=True)
class Wish:
    """What the user asks for beyond the configuration; None leaves it open."""

    budget_usd: float | None = None
    deadline_hours: float | None = None
    instance: str | None = None
    nodes: int | None = None
    region: str | None = None
    market: Market | None = None
    mesh: str | None = None


@dataclass(frozen=True)
class Offer:
    region: str
    instance: Instance
    nodes: int
    market: Market
    price: Price | None
    placement: Placement | None
    estimate: Estimate | None
    problem: str | None  # why it cannot be had, or breaks a limit; None for one that may be chosen

    @property
    def quota_vcpus(self) -> int:
        return self.instance.vcpus * self.nodes

    @property
    def gpus(self) -> int:
        return self.instance.gpus * self.nodes


def job_of(config: Config) -> Job:
    """What the configuration trains, as memory and time see it."""
    model, trainer = config.model, config.trainer
    if not isinstance(model, DecoderConfig):
        raise ConfigError(
            "model.family",
            f"{model.name} is a plugged-in model, whose size is not known without building it",
            hint="plan with the built-in decoder of a like shape, or measure it here: skytrain plan --measure",
        )
    return Job(
        model,
        trainer.sequence_length,
        trainer.micro_batch or 1,
        precision="bf16-mixed" if trainer.precision == "auto" else trainer.precision,  # GPUs of the catalogue have it
        optimizer=config.optimizer.name,
        compiled=trainer.compile,
        fused=trainer.fused != "off" and fused_settings_problem(config) is None,
        graphs=trainer.cuda_graphs != "off" and not config.loader.separate_documents,
        loss_chunk_tokens=trainer.loss_chunk_tokens,
        checkpointing=trainer.activation_checkpointing == "full",
        context_method=config.parallel.context_method,
    )


def mesh_of(config: Config) -> str | None:
    """The mesh that `parallel` asks for, as a wish has it; None for one device, which leaves the mesh to the search."""
    degrees = [f"{name}={degree}" for name in DIMENSIONS if (degree := getattr(config.parallel, name, 1)) != 1]
    return ",".join(degrees) or None


def find_offers(config: Config, catalog: Catalog, wish: Wish, measurements: Sequence[Measurement] = ()) -> list[Offer]:
    """Every offer that the wish leaves open, best first: those that may be chosen by dollars, then the others with their reasons."""
    job, work = job_of(config), work_of(config.trainer, _decoder(config), total_steps(config))
    if wish.region:
        catalog.check_region(wish.region)
    instances = [catalog.instance(wish.instance)] if wish.instance else list(catalog.instances)
    placed: dict[tuple[object, ...], Placement | NoPlacement] = {}
    found: list[Offer] = []
    for counts in ((wish.nodes,),) if wish.nodes else (NODES, MORE_NODES):
        for instance in instances:
            for nodes in counts:
                assert nodes is not None
                found += _offers_of(config, job, work, instance, nodes, catalog, wish, measurements, placed)
        if any(offer.placement for offer in found):
            break
    return sorted(found, key=_rank)


def choose(found: Sequence[Offer]) -> Offer | None:
    """The cheapest that keeps every limit; among those, one that `train` can run today where there is one."""
    able = [offer for offer in found if offer.problem is None]
    ready = [offer for offer in able if offer.placement and offer.placement.runnable]
    return next(iter(ready or able), None)


def explain(choice: Offer, found: Sequence[Offer], wish: Wish) -> str:
    """Two sentences: why this one, and what else there was."""
    assert choice.estimate and choice.placement
    able = [offer for offer in found if offer.problem is None and offer is not choice]
    limit = "".join(
        [
            f" within ${wish.budget_usd:,.0f} even at its p90 of ${choice.estimate.usd_p90:,.0f}"
            if wish.budget_usd is not None
            else "",
            f" before {wish.deadline_hours:g} h" if wish.deadline_hours is not None else "",
        ]
    )
    kind = "that `train` can run today " if choice.placement.runnable else ""
    first = f"{choice.nodes} x {choice.instance.type} ({choice.market}, {choice.region}) is the cheapest offer {kind}that finishes{limit}."
    faster = [offer for offer in able if offer.estimate and offer.estimate.hours < 0.95 * choice.estimate.hours]
    if not faster:
        return f"{first} Nothing else among the offers is both allowed and faster."
    quick = min(faster, key=lambda offer: offer.estimate.hours if offer.estimate else 0.0)
    assert quick.estimate and quick.placement
    note = "" if quick.placement.runnable else f", but its mesh {quick.placement.mesh.preset} is on paper only"
    return f"{first} The fastest allowed is {quick.nodes} x {quick.instance.type} ({quick.market}, {quick.region}): {quick.estimate.hours:.1f} h instead of {choice.estimate.hours:.1f} h for ${quick.estimate.usd:,.0f}{note}."


def refuse(found: Sequence[Offer], wish: Wish) -> SkytrainError:
    """Why there is no choice, with the least that would work."""
    priced = [offer for offer in found if offer.estimate]
    if not any(offer.placement for offer in found):
        least = next((offer.problem for offer in found if offer.problem), "nothing was offered")
        return SkytrainError(
            f"the model fits no offer: on {found[0].nodes} x {found[0].instance.type} it {least}\n  try more nodes (--nodes), a larger instance, or a smaller model"
            if found
            else "the catalogue has no such instance"
        )
    if not priced:
        return SkytrainError(f"nothing that fits is sold that way: {found[0].problem}")
    cheapest = min(priced, key=lambda offer: offer.estimate.usd_p90 if offer.estimate else 0.0)
    assert cheapest.estimate
    what = f"{cheapest.nodes} x {cheapest.instance.type}, {cheapest.market}, {cheapest.region}"
    if wish.deadline_hours is not None and all(
        offer.estimate and offer.estimate.hours_p90 > wish.deadline_hours for offer in priced
    ):
        quick = min(priced, key=lambda offer: offer.estimate.hours_p90 if offer.estimate else 0.0)
        assert quick.estimate
        return SkytrainError(
            f"no offer finishes within {format_seconds(3600 * wish.deadline_hours)}: the quickest takes {quick.estimate.hours_p90:.1f} h at p90 ({quick.nodes} x {quick.instance.type})"
        )
    return SkytrainError(
        f"budget.usd={wish.budget_usd:g} is too small for every offer: the least that works is ${cheapest.estimate.usd_p90:,.2f} ({what})\n  try: budget.usd={_round_up(cheapest.estimate.usd_p90)}, or fewer tokens: skytrain plan --how-many-tokens"
    )


def tokens_for_budget(config: Config, offer: Offer, budget_usd: float) -> int:
    """How many tokens the budget buys on this offer, at p90: whole optimizer steps, 0 where not even starting fits."""
    assert offer.placement and offer.price
    seconds, source = offer.placement.prediction.seconds, offer.placement.prediction.source
    model = _decoder(config)

    def usd(steps: int) -> float:
        assert offer.price
        return estimate(
            work_of(config.trainer, model, steps), seconds, source, offer.instance, offer.nodes, offer.price
        ).usd_p90

    if usd(1) > budget_usd:
        return 0
    low, high = 1, 2
    while usd(high) <= budget_usd:
        low, high = high, high * 2
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if usd(middle) <= budget_usd else (low, middle)
    return low * config.trainer.batch_tokens


def _offers_of(
    config: Config,
    job: Job,
    work: Work,
    instance: Instance,
    nodes: int,
    catalog: Catalog,
    wish: Wish,
    measurements: Sequence[Measurement],
    placed: dict[tuple[object, ...], Placement | NoPlacement],
) -> list[Offer]:
    node = Node.of(instance)
    mesh = parse_mesh(wish.mesh, nodes * instance.gpus, instance.gpus) if wish.mesh else None
    key = (node.gpu.name, instance.gpu_memory_mib, instance.gpus, nodes, instance.network_gbps if nodes > 1 else None)
    if key not in placed:
        placed[key] = _place(config, job, instance, nodes, node, measurements, mesh)
    placement = placed[key]
    rows = []
    for region in [wish.region] if wish.region else catalog.regions:
        for market in [wish.market] if wish.market else MARKETS:
            price = catalog.price(instance.type, region, market)
            if isinstance(placement, NoPlacement):
                rows.append(Offer(region, instance, nodes, market, price, None, None, placement.reason))
            elif price is None:
                if wish.region or wish.instance:
                    rows.append(
                        Offer(region, instance, nodes, market, None, placement, None, f"not sold {market} in {region}")
                    )
            else:
                found = estimate(
                    work, placement.prediction.seconds, placement.prediction.source, instance, nodes, price
                )
                rows.append(Offer(region, instance, nodes, market, price, placement, found, _limit(found, wish)))
    return rows


def _place(
    config: Config,
    job: Job,
    instance: Instance,
    nodes: int,
    node: Node,
    measurements: Sequence[Measurement],
    mesh: Mesh | None,
) -> Placement | NoPlacement:
    if node.gpu.peak_flops is None and job.precision != "32-true":
        return NoPlacement(f"{node.gpu.name} has no verified bf16 peak; measure there: skytrain plan --measure")

    return best_placement(
        job,
        gpus=nodes * instance.gpus,
        node=node,
        gpu_memory_mib=instance.gpu_memory_mib,
        batch_tokens=config.trainer.batch_tokens,
        measurements=measurements,
        prefer=lambda placement: placement.runnable,
        mesh=mesh,
        works=lambda one: mesh_works(config, one),
    )


def _limit(found: Estimate, wish: Wish) -> str | None:
    if wish.budget_usd is not None and found.usd_p90 > wish.budget_usd:
        return f"over the budget at p90 (${found.usd_p90:,.0f})"
    if wish.deadline_hours is not None and found.hours_p90 > wish.deadline_hours:
        return f"past the deadline at p90 ({found.hours_p90:.1f} h)"
    return None


def _rank(offer: Offer) -> tuple[float, ...]:
    usd = offer.estimate.usd if offer.estimate else float("inf")
    return (offer.problem is not None, offer.estimate is None, usd, offer.nodes)


def _decoder(config: Config) -> DecoderConfig:
    return job_of(config).model


def _round_up(usd: float) -> int:
    return int(-(-usd // 1))
