"""Plan: measure this machine, price a chosen plan, and compare ways to prepare a corpus.

`targets.plan_run` makes the plan of a training run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median

from ..config import Config, SkytrainError, batch_sizes, format_count, format_seconds, total_steps
from ..planning import (
    EC2,
    CorpusWork,
    PlanMaterial,
    PlanRequest,
    PreparationOption,
    PrepareWork,
    corpus_work,
    full_steps,
    load_catalog,
    offer_rows,
    plan_document,
    prepare_plan,
    rank_options,
    scratch_bytes_per_document,
)
from ..runs import Reporter
from ..targets import ClusterCosts, Planned, built_in_targets, prepare_work, target_of
from ..tuning import plan_sweep

DEFAULT_REGION = "us-east-2"
DEFAULT_HOURS = 6.0
# benchmarks/corpus/growth.log: 117 CPU-microseconds for a document of 583 bytes, of which its text takes 96 (at 6.1 MB
# per CPU-second); the other 21 are as much work as these bytes.
BYTES_OF_A_DOCUMENT = 130.0


def measure_here(config: Config, reporter: Reporter, steps: int, *, sweep: bool) -> None:
    """Time a few steps on this machine, and report what the run takes and costs; with `sweep`, also its search.

    Later plans use the measured speed.
    """
    from ..bench import measure  # loads torch

    timed = measure(config, reporter, steps)
    measured = timed.measurement
    ms = [f"{1e3 * seconds:.0f} ms" for seconds in (timed.seconds[0], median(timed.seconds[1:]), measured.step_seconds)]
    reporter.note(
        f"measured on {measured.device}, {steps} steps: first {ms[0]}, median {ms[1]}, worst of the warm ones {ms[2]}, "
        f"{format_count(measured.tokens_per_s)} tokens/s"
    )
    seconds = full_steps(batch_sizes(config.trainer), total_steps(config)) * measured.step_seconds
    reporter.note(f"the whole run at its worst: {_hours_and_usd(config, seconds, config.budget.usd_per_hour)}")
    if sweep:
        reporter.note(_sweep_line(config, reporter))


def _sweep_line(config: Config, reporter: Reporter) -> str:
    """Return what the search takes and costs, from measured steps of its models."""
    from .tune import dry_run

    price = config.tune.usd_per_hour if config.tune.usd_per_hour is not None else config.budget.usd_per_hour
    here = replace(config, tune=replace(config.tune, instance=None, usd_per_hour=price))
    schedule = plan_sweep(here, reporter, dry_run)
    usd = sum(trial.usd for trial in schedule.trials)
    hours = f", {format_seconds(3600 * usd / price)}" if price else ""
    return f"the search at its worst: {len(schedule.trials)} trials{hours}, ${usd:,.2f} of ${schedule.budget_usd:,.2f}"


def _hours_and_usd(config: Config, seconds: float, usd_per_hour: float | None) -> str:
    line = f"{total_steps(config):,} steps, {format_seconds(seconds)}"
    if usd_per_hour is None:
        return f"{line}; budget.usd_per_hour=N adds what it costs"
    return f"{line}, ${seconds / 3600 * usd_per_hour:,.2f} at ${usd_per_hour:g} an hour"


def plan_as_json(config: Config, planned: Planned) -> str:
    """Return the offers and the chosen plan, with the hourly cost of the cluster where there is one."""
    assert planned.plan is not None
    facts: dict[str, object] = {"offers": offer_rows(planned.offers), "plan": plan_document(planned.plan)}
    if costs := costs_around(config, planned):
        facts["cluster"] = {
            **asdict(costs),
            "idle_usd_per_hour": costs.idle_usd_per_hour,
            "busy_usd_per_hour": costs.busy_usd_per_hour,
        }
    return json.dumps(facts, indent=1)


def costs_around(config: Config, planned: Planned) -> ClusterCosts | None:
    """Return what the target costs around the chosen machines; None without a choice or a cluster."""
    if planned.choice is None:
        return None
    return target_of(config).costs_around(config, planned.choice)


@dataclass(frozen=True)
class CorpusPlan:
    """The ways to prepare a corpus, the best first."""

    work: CorpusWork
    region: str
    offers: list[PreparationOption]
    advice: str
    notes: list[str]  # about the prices


def plan_corpus(
    config: Config, region: str | None, deadline: float | None, documents: float | None, text_bytes: float | None
) -> CorpusPlan:
    """Compare the ways to prepare a corpus. Without `text_bytes`, the source's files are listed for their sizes."""
    place = region or config.cloud.region or DEFAULT_REGION
    hours = deadline or DEFAULT_HOURS
    if (text_bytes is not None and text_bytes <= 0) or (documents is not None and documents <= 0):
        raise SkytrainError("--bytes and --documents must be more than 0")
    asked = prepare_work(config) if text_bytes is None else PrepareWork(text_bytes, text_bytes / 3, "tokens")
    work = corpus_work(asked, documents)
    catalog = load_catalog()
    request = PlanRequest(None, hours, region=place)
    text = work.text_bytes + work.documents * BYTES_OF_A_DOCUMENT
    alone = replace(
        asked,
        text_bytes=text,
        documents=work.documents,
        scratch_bytes_per_document=scratch_bytes_per_document(config.data.near_dedup),
    )
    chosen = prepare_plan(
        alone,
        PlanMaterial(
            values={"store": {"root": ""}}, overrides=(), request=request, catalog=catalog, now=datetime.now(UTC)
        ),
    ).choice
    cost = chosen.cost
    one = PreparationOption(
        how="one machine",
        machines=f"{chosen.instance_type} ({chosen.market})",
        hours=cost.hours,
        hours_p90=cost.hours_p90,
        usd=cost.usd,
        usd_p90=cost.usd_p90,
        fee_usd=0.0,
        words=(f"cloud={EC2.name}",),
    )
    options = [one]
    notes: list[str] = []
    for target in built_in_targets():
        its_options, its_notes = target.preparation_options(config, work, catalog, place, hours)
        options += its_options
        notes += its_notes
    offers = rank_options(options, hours)
    return CorpusPlan(work=work, region=place, offers=offers, advice=_advice(one, offers, hours), notes=notes)


def _advice(one: PreparationOption, offers: list[PreparationOption], hours: float) -> str:
    best = offers[0]
    if best.hours_p90 > hours * 1.01:
        fastest = min(offers, key=lambda offer: offer.hours_p90)
        return (
            f"Nothing is sure to be done within {format_seconds(hours * 3600)} (--deadline); the fastest is "
            f"{fastest.how}, {fastest.machines}: {fastest.hours_p90:.1f} h (p90) for ${fastest.usd:.2f}. "
            f"The cheapest is {best.how}: ${best.usd:.2f} in {best.hours:.1f} h."
        )
    if best is one and len(offers) > 1:
        cluster = min(offers[1:], key=lambda offer: offer.usd)
        return (
            f"One machine is cheaper: ${one.usd:.2f} in {one.hours:.1f} h; the cheapest cluster is {cluster.how} with "
            f"${cluster.usd:.2f} in {cluster.hours:.1f} h."
        )
    if one.hours_p90 > hours:
        return (
            f"One machine may take {one.hours_p90:.1f} h, longer than {hours:g} h (--deadline): {best.how}, "
            f"{best.machines}, does it in {best.hours:.1f} h for ${best.usd:.2f}; one machine would cost ${one.usd:.2f}."
        )
    return f"{best.how}, {best.machines}, is the cheapest: ${best.usd:.2f}; one machine would cost ${one.usd:.2f}."
