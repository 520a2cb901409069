"""Plans and prices as text tables. Numbers that were not measured are marked."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from ..config import Config, format_bytes, format_count, format_seconds, total_steps
from .catalog import STALE_DAYS, Catalog
from .chinchilla import BESIROGLU, HOFFMANN
from .experiments import CostSheet
from .flops import decoder_flops_per_token, decoder_size
from .memory import usable_bytes
from .offers import LONGEST_HOURS, NODES, Offer, PlanRequest
from .search import Placement
from .tokens import Purchase
from .workload import job_of

TARGETS = {"ec2": "EC2", "sagemaker": "SageMaker"}
MARKS = {"measured": "measured", "calibrated": "calibrated", "assumed": "assumed"}


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[int] = frozenset()) -> str:
    """Format a table with right-aligned columns, except those in `left`."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def run_lines(config: Config) -> list[str]:
    """Describe the planned training and its compute-optimal number of tokens."""
    job = job_of(config)
    size = decoder_size(job.model)
    steps = total_steps(config)
    tokens = steps * config.trainer.batch_tokens
    per_token = decoder_flops_per_token(job.model, job.sequence_length)
    optimal = ", ".join(
        f"{format_count(law.optimal_tokens(size.parameters))} ({law.name})" for law in (BESIROGLU, HOFFMANN)
    )
    return [
        f"{job.model.name}: {format_count(size.parameters)} parameters, {format_count(per_token)}FLOP a token, {job.precision}",
        f"{format_count(tokens)} tokens = {steps} steps of {config.trainer.batch_tokens:,}; {per_token * tokens:.2e} FLOP in all",
        f"compute-optimal for this size: {optimal} tokens",
    ]


def offers_table(found: Sequence[Offer], choice: Offer | None) -> str:
    head = (
        "",
        "target",
        "where",
        "instance",
        "nodes",
        "market",
        "$/h",
        "mesh",
        "micro",
        "GB/GPU",
        "tok/s",
        "hours",
        "stops",
        "total $ [p10-p90]",
        "quota",
        "speed",
        "note",
    )
    return text_table(
        head, [_offer_row(offer, offer is choice) for offer in found], left=frozenset({0, 1, 2, 3, 5, 7, 14, 15, 16})
    )


def _offer_row(offer: Offer, chosen: bool) -> list[str]:
    placement = offer.placement
    estimate = offer.estimate
    price = offer.price
    per_hour = f"{price.usd_per_hour_min * offer.nodes:.2f}" if price else "-"
    if price and price.usd_per_hour_max > price.usd_per_hour_min:
        per_hour += f"-{price.usd_per_hour_max * offer.nodes:.2f}"
    limit = usable_bytes(offer.instance.gpu_memory_mib)
    return [
        ">" if chosen else "",
        TARGETS[offer.target],
        offer.region,
        offer.machine,
        str(offer.nodes),
        offer.market,
        per_hour,
        _layout(placement) if placement else "-",
        str(placement.job.micro_batch) if placement else "-",
        f"{placement.memory.total / 1e9:.1f}/{limit / 1e9:.0f}" if placement else f"-/{limit / 1e9:.0f}",
        format_count(placement.tokens_per_s) if placement else "-",
        f"{estimate.hours:.1f}" if estimate else "-",
        f"{estimate.interruptions:.1f}" if estimate else "-",
        f"{estimate.usd:,.2f} [{estimate.usd_p10:,.2f}-{estimate.usd_p90:,.2f}]" if estimate else "-",
        _quota(offer),
        MARKS[placement.prediction.source] if placement else "",
        offer.problem or "",
    ]


def _quota(offer: Offer) -> str:
    if offer.target == "sagemaker":
        return f"{offer.nodes} of SageMaker's own"
    return f"{offer.quota_vcpus} {offer.instance.quota_code(offer.market) or 'unknown code'}"


def _layout(placement: Placement) -> str:
    again = "+recompute" if placement.job.checkpointing else "+selective" if placement.job.selective else ""
    return f"{placement.mesh}{again}"


def choice_lines(choice: Offer) -> list[str]:
    """Describe the breakdown of the choice's dollars and memory, and the source of its speed."""
    assert choice.placement and choice.estimate
    memory = choice.placement.memory
    prediction = choice.placement.prediction
    dollars = ", ".join(f"{name} {usd:,.2f}" for name, usd in choice.estimate.parts_usd.items())
    parts = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers", "fragmentation", "runtime")
    held = ", ".join(f"{name} {format_bytes(getattr(memory, name))}" for name in parts if getattr(memory, name))
    lines = [
        f"  dollars, on average: {dollars}",
        f"  memory per GPU: {held}",
        f"  step: {prediction.seconds * 1e3:,.0f} ms, {prediction.source} ({prediction.because})",
        f"  quota: {choice.quota_vcpus} vCPUs of {choice.instance.quota_code(choice.market) or 'a code that public sources do not agree on'} in {choice.region}",
    ]
    return lines


def legend(request: PlanRequest) -> list[str]:
    """Explain the table's columns and the scope of the search."""
    lines = [
        "$/h is for all nodes together. total $ is the median; p10-p90: of 1,000 simulated runs one in ten costs less, one in ten more.",
        "A limit (budget, deadline) counts as kept where nine in ten keep it.",
    ]
    if request.nodes is None:
        tried = ", ".join(str(nodes) for nodes in NODES)
        lines.append(f"node counts tried: {tried}, as far as the run is long enough; --nodes asks for another")
        if request.deadline_hours is None and not request.tokens_open:
            lines.append(
                f"runs of more than {LONGEST_HOURS / 24:.0f} days are not offered without --deadline or --nodes"
            )
    return lines


def targets_note(catalog: Catalog, request: PlanRequest) -> str:
    """Say whether SageMaker is ranked."""
    if request.target is not None:
        return f"only {TARGETS[request.target]} (--target)"
    if not catalog.sagemaker_prices:
        return "SageMaker is not ranked: its prices are not known here; skytrain catalog refresh fetches them"
    if request.market == "spot":
        return "SageMaker is not ranked: managed spot has no published price; --target sagemaker shows its most"
    return "EC2 and SageMaker are ranked together; SageMaker on demand"


def prices_note(catalog: Catalog, today: datetime.date | None = None) -> str:
    age = catalog.age_days(today or datetime.datetime.now(datetime.UTC).date())
    note = f"prices: {catalog.origin} catalogue of {catalog.date}, {age} days old"
    return note + ("; stale, refresh with: skytrain catalog refresh" if age > STALE_DAYS else "")


def tokens_table(bought: Sequence[Purchase], config: Config, request: PlanRequest) -> str:
    rows = []
    for one in bought:
        offer = one.offer
        assert offer.placement
        rows.append(
            [
                offer.region,
                offer.instance.type,
                str(offer.nodes),
                offer.market,
                _layout(offer.placement),
                format_count(offer.placement.tokens_per_s),
                f"{one.estimate.hours:.1f}",
                f"{one.estimate.usd:,.2f}",
                format_count(one.tokens),
                f"{one.tokens // config.trainer.batch_tokens:,}",
                offer.placement.prediction.source,
            ]
        )
    head = ("where", "instance", "nodes", "market", "mesh", "tok/s", "hours", "$", "tokens", "steps", "speed")
    within = f" within {format_seconds(3600 * request.deadline_hours)}" if request.deadline_hours is not None else ""
    return (
        f"${request.budget_usd:,.2f} buys{within}, at p90 of cost and time (hours and $ are medians):\n"
        + text_table(head, rows, left=frozenset({0, 1, 3, 4, 10}))
    )


def sheet_table(sheet: CostSheet) -> str:
    head = ("trial", "$/h with margin", "steps", "ms/step", "hours", "$", "speed")
    rows = [
        [
            row.trial.name,
            f"{row.usd_per_hour:.3f}",
            f"{row.trial.steps:,}",
            f"{row.trial.step_seconds * 1e3:,.0f}",
            f"{row.hours:.2f}",
            f"{row.usd:,.2f}",
            row.trial.source,
        ]
        for row in sheet.rows
    ]
    return (
        text_table(head, rows, left=frozenset({0, 6}))
        + f"\nin all ${sheet.usd:,.2f} of ${sheet.budget_usd:,.2f}; ${sheet.left_usd:,.2f} left"
    )
