"""Choose an offer, explain the choice and the cost of settings, or say what to do if no offer is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..config import Config, SkytrainError, format_seconds
from .costs import BOOT_SECONDS
from .offers import LONGEST_HOURS, Offer, PlanRequest, estimate_offer, place
from .search import SCHEDULES, TOO_MANY, Placement
from .workload import Workload

MOST_NODES = 4096  # more of one machine than this nobody rents
WORTH_TELLING = 0.01  # smallest saving by another setting that is reported, as a fraction of the run's dollars


def choose(offers: Sequence[Offer]) -> Offer | None:
    """Return the cheapest offer within all limits."""
    return next((offer for offer in offers if offer.problem is None), None)


def explain(choice: Offer, offers: Sequence[Offer], request: PlanRequest) -> str:
    """Explain the choice and its alternatives; if its speed is assumed, name the cheapest measured offer."""
    assert choice.estimate and choice.placement
    able = [offer for offer in offers if offer.problem is None and offer is not choice]
    limit = "".join(
        [
            f" within ${request.budget_usd:,.0f} even at its p90 of ${choice.estimate.usd_p90:,.0f}"
            if request.budget_usd is not None
            else "",
            f" in at most {format_seconds(3600 * request.deadline_hours)}"
            if request.deadline_hours is not None
            else "",
        ]
    )
    sentences = [f"{choice.name} is the cheapest offer that finishes{limit}."]
    faster = [offer for offer in able if offer.estimate and offer.estimate.hours < 0.95 * choice.estimate.hours]
    if faster:
        quick = min(faster, key=lambda offer: offer.estimate.hours if offer.estimate else 0.0)
        assert quick.estimate
        sentences.append(
            f"The fastest allowed is {quick.name}: {quick.estimate.hours:.1f} h instead of {choice.estimate.hours:.1f} h for ${quick.estimate.usd:,.0f}."
        )
    else:
        sentences.append("Nothing else among the offers is both allowed and faster.")
    if choice.placement.prediction.source == "assumed":
        known = [offer for offer in able if offer.placement and offer.placement.prediction.source != "assumed"]
        if known and known[0].estimate:
            sentences.append(
                f"Its speed is assumed; the cheapest whose speed follows from a measurement is {known[0].name} for ${known[0].estimate.usd:,.2f}."
            )
    return " ".join(sentences)


def costly_settings(config: Config, choice: Offer, workload_for: Callable[[Config], Workload]) -> list[str]:
    """Return the settings that make the choice more expensive than necessary, with the dollars.

    `workload_for` returns the workload of a changed configuration. An alternative that `train` would refuse has no
    placement and is not suggested.
    """
    assert choice.estimate and choice.placement
    trainer = config.trainer
    cheaper: list[tuple[str, str, dict[str, Any]]] = []
    if choice.placement.job.precision == "32-true":
        cheaper.append(("trainer.precision=32-true", "trainer.precision=bf16-mixed", {"precision": "bf16-mixed"}))
    if trainer.fused == "off":
        cheaper.append(("trainer.fused=off", "trainer.fused=auto", {"fused": "auto"}))
    if not trainer.compile:
        cheaper.append(("trainer.compile=false", "trainer.compile=true", {"compile": True}))
    lines = []
    alternatives = [
        (setting, instead, replace(config, trainer=replace(trainer, **changes)))
        for setting, instead, changes in cheaper
    ]
    if choice.placement.mesh.pipeline > 1:
        used = choice.placement.job.schedule
        alternatives += [
            (
                f"parallel.schedule={used}",
                f"parallel.schedule={one}",
                replace(config, parallel=replace(config.parallel, schedule=one)),
            )
            for one in SCHEDULES
            if one != used
        ]
    for setting, instead, changed in alternatives:
        other = workload_for(changed)
        placement = place(other, choice.instance, choice.nodes)
        if not isinstance(placement, Placement):
            continue
        usd = estimate_offer(other, placement, choice).usd
        if choice.estimate.usd - usd > WORTH_TELLING * choice.estimate.usd:
            lines.append(
                f"{setting} costs ${choice.estimate.usd - usd:,.2f} here: ${choice.estimate.usd:,.2f} instead of ${usd:,.2f} with {instead}"
            )
    return lines


def refuse(offers: Sequence[Offer], request: PlanRequest, workload: Workload) -> SkytrainError:
    """Return an error that says why no offer can be chosen and what would be the minimum to make one possible."""
    priced = [offer for offer in offers if offer.estimate]
    if not any(offer.placement for offer in offers):
        if not offers:
            return SkytrainError("the catalogue has no such instance")
        least = min(offers, key=_distance_from_fitting)
        more = "more nodes (--nodes), " if request.nodes is not None else ""  # otherwise many were tried
        hint = f"{more}a larger instance, another mesh, or a smaller model"
        if TOO_MANY in (least.problem or ""):
            hint = "fewer nodes (--nodes), or a larger trainer.batch_tokens"
        return SkytrainError(
            f"the model does not fit any offer: on {least.nodes} x {least.instance.type}: {least.problem}\n  try {hint}"
        )
    if not priced:
        return SkytrainError(
            f"nothing that fits is sold that way: {offers[0].problem}\n  try another --region or --market"
        )
    if request.longest_hours is not None and all(
        offer.estimate and offer.estimate.hours_p90 > request.longest_hours for offer in priced
    ):
        return _too_slow(priced, request.longest_hours, request, workload)
    in_time = [
        offer
        for offer in priced
        if request.longest_hours is None or (offer.estimate and offer.estimate.hours_p90 <= request.longest_hours)
    ]
    cheapest = min(in_time, key=lambda offer: offer.estimate.usd_p90 if offer.estimate else 0.0)
    assert cheapest.estimate
    if request.budget_usd is None or cheapest.estimate.usd_p90 <= request.budget_usd:
        return SkytrainError(
            f"no offer can be used: {cheapest.name}: {cheapest.problem}\n  try another --instance, or without it"
        )
    return SkytrainError(
        f"budget.usd={request.budget_usd:g} is too small for every offer: the least that works is ${cheapest.estimate.usd_p90:,.2f} ({cheapest.name})\n  try: budget.usd={math.ceil(cheapest.estimate.usd_p90)}, or fewer tokens: with --how-many-tokens, plan says how many it buys"
    )


def _enough_nodes(quick: Offer, hours: float, workload: Workload) -> int | None:
    """Return how many machines like those of the quickest offer finish in time; None if no number does."""
    assert quick.estimate
    # Powers of two, so that batches and layers divide evenly; fewer than at the same speed a node are never enough.
    nodes = 2 ** math.ceil(math.log2(quick.nodes * quick.estimate.hours_p90 / hours))
    while nodes <= MOST_NODES:
        placement = place(workload, quick.instance, nodes)
        if isinstance(placement, Placement):
            larger = estimate_offer(workload, placement, replace(quick, nodes=nodes))
            if larger.hours_p90 <= hours:
                return nodes
            if larger.hours_p90 > quick.estimate.hours_p90:  # they wait for each other
                return None
        nodes *= 2
    return None


def _distance_from_fitting(offer: Offer) -> tuple[bool, int]:
    """Sort key for offers that are too small: those with most memory first, those with unknown speed last."""
    return offer.instance.device.peak_flops is None, -offer.nodes * offer.instance.gpu_memory_mib


def _too_slow(priced: Sequence[Offer], hours: float, request: PlanRequest, workload: Workload) -> SkytrainError:
    quick = min(priced, key=lambda offer: offer.estimate.hours_p90 if offer.estimate else 0.0)
    assert quick.estimate
    within = f"{LONGEST_HOURS / 24:.0f} days" if request.deadline_hours is None else format_seconds(3600 * hours)
    if 3600 * hours < BOOT_SECONDS[1]:
        hint = f"a later --deadline: machines boot for up to {format_seconds(BOOT_SECONDS[1])}, which no number of them shortens"
    elif nodes := _enough_nodes(quick, hours, workload):
        hint = f"{nodes} nodes would be enough: --nodes {nodes}"
    else:
        hint = f"no number of nodes up to {MOST_NODES:,} would be enough: a smaller model, fewer tokens, larger and fewer steps (trainer.batch_tokens), or a later --deadline"
    return SkytrainError(
        f"no offer finishes within {within}: the quickest takes {quick.estimate.hours_p90:,.1f} h at p90 ({quick.name})\n  {hint}"
    )
