"""Tables for a terminal: plans and prices, runs, machines, sweeps and evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import zip_longest
from typing import TypeVar

from ..config import Config, batch_sizes, format_bytes, format_count, format_seconds, plural, total_steps, visible
from ..evaluation import Measure, ModelResults, PairedDifference
from ..planning import (
    BESIROGLU,
    EC2,
    HOFFMANN,
    HOURS_PER_MONTH,
    LAWS,
    LONGEST_HOURS,
    NODES,
    SHUFFLE_BYTES_PER_DOCUMENT,
    STALE_DAYS,
    BestRow,
    Catalog,
    CorpusWork,
    CostSheet,
    CpuMachine,
    LossLaw,
    Offer,
    Placement,
    PlanRequest,
    PreparationOption,
    Purchase,
    Ranked,
    Seller,
    decoder_flops_per_token,
    decoder_size,
    expected_loss_text,
    job_of,
    load_catalog,
    repetition_text,
    usable_bytes,
)
from ..runs import RunStatus
from ..targets import LAUNCHED, AccountState, ClusterCosts, CostLine, NodeView, Planned, RunView, sellers
from ..tuning import Observation, SweepStatus
from .terminal import metric_curve, score_text

T = TypeVar("T")
MONTHLY_HOURS = (40, 160)  # of runs, for which the bill of a cluster is shown


def text_table(rows: Sequence[Sequence[str]], *, left: frozenset[int] | None = None) -> str:
    """Format rows in columns, header first. A cell may have several lines.

    Columns are aligned to the right except those in `left`; without it all are aligned to the left.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(line) for row in rows for line in row[column].split("\n")) for column in range(len(rows[0]))]

    def aligned(column: int, text: str) -> str:
        return text.ljust(widths[column]) if left is None or column in left else text.rjust(widths[column])

    return "\n".join(
        "  ".join(aligned(column, text) for column, text in enumerate(line)).rstrip()
        for row in rows
        for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    )


def offers_text(config: Config, planned: Planned, request: PlanRequest, *, rows: int, wide: bool) -> str:
    """Return what is planned, the first `rows` of its offers with the choice, and what the table rests on."""
    shown = planned.offers[:rows]
    if planned.choice is not None and planned.choice not in shown:
        shown = [*shown[:-1], planned.choice]
    lines = [*run_lines(config), "", offers_table(shown, planned.choice, wide)]
    if more := len(planned.offers) - len(shown):
        lines.append(f"and {more} more (--rows N shows them, --wide all columns); offers that break a limit come last")
    catalog = load_catalog()
    lines += [*offers_legend(request, wide), sellers_note(sellers(), catalog, request), prices_note(catalog)]
    return "\n".join(lines)


def choice_text(planned: Planned) -> str:
    """Return why an offer is chosen, what its dollars are made of, and which settings make it dearer."""
    assert planned.choice is not None
    lines = [planned.why, *choice_lines(planned.choice), *(f"  {line}" for line in planned.costly)]
    if planned.sheet is not None:
        lines += ["", sheet_table(planned.sheet)]
    return "\n".join(lines)


def run_lines(config: Config) -> list[str]:
    """Describe the planned training and its compute-optimal number of tokens."""
    job = job_of(config)
    size = decoder_size(job.model)
    steps = total_steps(config)
    batches = batch_sizes(config.trainer)
    tokens = batches.before(steps)
    per_token = decoder_flops_per_token(job.model, job.sequence_length)
    active = "" if job.model.experts is None else f" ({format_count(size.active_parameters)} active)"
    optimal = ", ".join(
        f"{format_count(law.optimal_tokens(size.active_parameters))} ({law.name})" for law in (BESIROGLU, HOFFMANN)
    )
    counted = " + ".join(f"{count} steps of {each:,}" for each, count in batches.counts(steps))
    return [
        f"{job.model.name}: {format_count(size.parameters)} parameters{active}, {format_count(per_token)}FLOP a token, {job.precision}",
        f"{format_count(tokens)} tokens = {counted}; {per_token * tokens:.2e} FLOP in all",
        *([repeats] if (repeats := repetition_text(config)) is not None else []),
        f"compute-optimal for this size: {optimal} tokens",
        *([f"to expect: {expected}"] if (expected := expected_loss_text(config)) is not None else []),
    ]


NARROW = (0, 3, 4, 5, 7, 10, 11, 13)  # columns that are shown by default: what is rented, how it is used, what it costs


def offers_table(offers: Sequence[Offer], choice: Offer | None, wide: bool = True) -> str:
    """Return one line for each offer; without `wide`, the columns that decide, and the region with the machine."""
    head: tuple[str, ...] = (
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
    rows = [list(head), *(_offer_row(offer, offer is choice) for offer in offers)]
    if wide:
        return text_table(rows, left=frozenset({0, 1, 2, 3, 5, 7, 14, 15, 16}))
    short = [[row[number] for number in NARROW] for row in rows]
    for number, offer in enumerate(offers, 1):
        seller = "" if offer.seller.name == EC2.name else f", {offer.seller.title}"
        short[number][3] = f"{offer.market} {offer.region}{seller}"
    short[0][3] = "where"
    if any(offer.problem for offer in offers):
        for row, note in zip(short, ["note", *(offer.problem or "" for offer in offers)], strict=True):
            row.append(note)
    return text_table(short, left=frozenset({0, 1, 3, 4, 8}))


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
        offer.seller.title,
        offer.region,
        offer.machine,
        str(offer.nodes),
        offer.market,
        per_hour,
        _placement_text(placement) if placement else "-",
        str(placement.job.micro_batch) if placement else "-",
        f"{placement.memory.total / 1e9:.1f}/{limit / 1e9:.0f}" if placement else f"-/{limit / 1e9:.0f}",
        format_count(placement.tokens_per_s) if placement else "-",
        f"{estimate.hours:.1f}" if estimate else "-",
        f"{estimate.interruptions:.1f}" if estimate else "-",
        f"{estimate.usd:,.2f} [{estimate.usd_p10:,.2f}-{estimate.usd_p90:,.2f}]" if estimate else "-",
        _quota_text(offer),
        placement.prediction.source if placement else "",
        offer.problem or "",
    ]


def _quota_text(offer: Offer) -> str:
    if offer.seller.quota:
        return offer.seller.quota.format(nodes=offer.nodes)
    return f"{offer.quota_vcpus} {offer.instance.quota_code(offer.market) or 'unknown code'}"


def _placement_text(placement: Placement) -> str:
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
        f"  quota: {choice.quota_vcpus} vCPUs of {choice.instance.quota_code(choice.market) or 'a code that public sources do not agree on'} in {choice.region}"
        ", the code in AWS's Service Quotas (EC2) whose value must be at least that; `skytrain doctor` checks it",
    ]
    return lines


def offers_legend(request: PlanRequest, wide: bool = True) -> list[str]:
    """Explain the table's columns and the scope of the search."""
    lines = [
        *(["$/h is for all nodes together."] if wide else []),
        "total $ is the median; p10-p90: of 1,000 simulated runs one in ten costs less, one in ten more.",
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


def sellers_note(sellers: Sequence[Seller], catalog: Catalog, request: PlanRequest) -> str:
    """Say whose offers are ranked, and why others are not."""
    if request.target is not None:
        return f"only {next(seller.title for seller in sellers if seller.name == request.target)} (--target)"
    return "\n".join(_seller_note(seller, catalog, request) for seller in sellers if seller != EC2)


def _seller_note(seller: Seller, catalog: Catalog, request: PlanRequest) -> str:
    name = seller.title
    if not seller.has_prices(catalog):
        return f"{name} is not ranked: its prices are not known here; skytrain catalog refresh fetches them"
    if request.market == "spot" and not seller.spot_priced:
        return f"{name} is not ranked: managed spot has no published price; --target {seller.name} shows its most"
    return f"{EC2.title} and {name} are ranked together; {name} on demand"


def prices_note(catalog: Catalog, today: date | None = None) -> str:
    age = catalog.age_days(today or datetime.now(UTC).date())
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
                _placement_text(offer.placement),
                format_count(offer.placement.tokens_per_s),
                f"{one.estimate.hours:.1f}",
                f"{one.estimate.usd:,.2f}",
                format_count(one.tokens),
                f"{batch_sizes(config.trainer).steps_in(one.tokens):,}",
                offer.placement.prediction.source,
            ]
        )
    head = ("where", "instance", "nodes", "market", "mesh", "tok/s", "hours", "$", "tokens", "steps", "speed")
    within = f" within {format_seconds(3600 * request.deadline_hours)}" if request.deadline_hours is not None else ""
    return (
        f"${request.budget_usd:,.2f} buys{within}, at p90 of cost and time (hours and $ are medians):\n"
        + text_table([head, *rows], left=frozenset({0, 1, 3, 4, 10}))
    )


def best_lines(law: LossLaw, second: LossLaw, choice: BestRow, runs: int, known_text: bool) -> list[str]:
    """Say which law decides, on what it rests, and what of it is extrapolation."""
    config = choice.config
    level = (
        f"the level of {config.data.name} is known from public runs"
        if known_text
        else f"no public run is known on {config.data.name}: the level of the loss is a guess, differences are not"
    )
    own = (
        f"refitted on {runs} of your own runs on this text"
        if runs
        else "no run of yours on this text that the law can use is in the store"
    )
    lines = [
        f"law: {law.name} ({law.date}), {law.source}; {own}; {level}",
        f"second law: {second.name} ({second.date}), {second.source}. plan.law=NAME decides by: {', '.join(LAWS)}",
    ]
    if extrapolated := _extrapolated(law, choice):
        lines.append(f"extrapolation: {extrapolated}")
    return lines


def _extrapolated(law: LossLaw, row: BestRow) -> str:
    """Return in what a row is beyond the runs that the law was fitted on."""
    beyond = []
    least, most = law.sizes
    counted = law.counted(row.size)
    each = row.tokens / row.size.parameters
    if not least <= counted <= most:
        which = "parameters without embeddings and head" if law.blocks_only else "parameters"
        beyond.append(
            f"the fit has models of {format_count(least)} to {format_count(most)} {which}, "
            f"and this one has {format_count(counted)}"
        )
    if each < law.fewest_tokens:
        beyond.append(
            f"it has no run with fewer than {law.fewest_tokens:g} tokens a parameter, and this one has {each:.0f}"
        )
    if each > law.most_tokens:
        beyond.append(
            f"it has no run with more than {law.most_tokens:g} tokens a parameter, and this one has {each:,.0f}"
        )
    if row.epochs > 4:
        beyond.append(
            f"the text is read {row.epochs:.1f} times; up to about 4 a repetition is worth almost as much as fresh text"
        )
    return "; ".join(beyond)


def best_table(rows: Sequence[BestRow], choice: BestRow, second: LossLaw) -> str:
    """Return one line for each row: dollars, machines, model, tokens and the loss to expect."""
    head = (
        "",
        "budget $",
        "median $",
        "hours",
        "machines",
        "layers x width",
        "parameters",
        "tokens",
        "epochs",
        "loss [80%]",
        second.name,
        "HellaSwag",
    )
    lines = []
    for row in rows:
        offer = row.purchase.offer
        forecast = row.forecast
        lines.append(
            [
                ">" if row is choice else "",
                f"{row.budget_usd:,.2f}",
                f"{row.usd:,.2f}",
                f"{row.purchase.estimate.hours:,.1f}",
                f"{offer.nodes} x {offer.machine} {offer.market} {offer.region}",
                f"{row.model.layers} x {row.model.width}",
                format_count(row.size.parameters),
                format_count(row.tokens),
                "-" if math.isnan(row.epochs) else f"{row.epochs:.2f}",
                f"{forecast.loss:.3f} [{forecast.low:.2f}-{forecast.high:.2f}]",
                f"{row.other.loss:.3f}",
                "-" if row.hellaswag is None else f"{100 * row.hellaswag:.0f}%",
            ]
        )
    return text_table([head, *lines], left=frozenset({0, 4}))


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
        text_table([head, *rows], left=frozenset({0, 6}))
        + f"\nin all ${sheet.usd:,.2f} of ${sheet.budget_usd:,.2f}; ${sheet.left_usd:,.2f} left"
    )


def cluster_table(costs: ClusterCosts) -> str:
    """Return the bill as text: what an idle cluster costs, what a run adds, what lowers it."""
    rows = [*map(_cost_line, costs.idle), ["idle cluster", f"{costs.idle_usd_per_hour:.2f}", "", _monthly_text(costs)]]
    rows += [*map(_cost_line, costs.busy), ["busy cluster", f"{costs.busy_usd_per_hour:.2f}", "", _hours_text(costs)]]
    rows += [[f"saves: {line.name}", f"-{line.usd_per_hour:.2f}", line.price_date, line.note] for line in costs.savings]
    return text_table([("cluster", "$/h", "price of", "what"), *rows], left=frozenset({0, 2, 3}))


def _cost_line(line: CostLine) -> list[str]:
    return [line.name, f"{line.usd_per_hour:.3f}", line.price_date, line.note]


def _monthly_text(costs: ClusterCosts) -> str:
    return f"${costs.usd_per_month(0):,.0f} a month before any run"


def _hours_text(costs: ClusterCosts) -> str:
    by_hours = ", ".join(f"${costs.usd_per_month(hours):,.0f} with {hours} h of runs" for hours in MONTHLY_HOURS)
    return f"a month: {by_hours}, ${costs.usd_per_month(HOURS_PER_MONTH):,.0f} without a pause"


def corpus_text(work: CorpusWork, notes: Sequence[str], offers: Sequence[PreparationOption]) -> str:
    """Return the ways to prepare a corpus as text, after what they rest on."""
    return "\n".join([*corpus_lines(work, notes), "", corpus_table(offers)])


def corpus_table(offers: Sequence[PreparationOption]) -> str:
    head = ("#", "how", "machines", "hours", "p90", "dollars", "p90", "of which fee")
    rows = [
        (
            str(number), offer.how, offer.machines, f"{offer.hours:.1f}", f"{offer.hours_p90:.1f}", f"{offer.usd:.2f}",
            f"{offer.usd_p90:.2f}", f"{offer.fee_usd:.2f}" if offer.fee_usd else "-",
        )
        for number, offer in enumerate(offers, 1)
    ]  # fmt: skip
    return text_table([head, *rows], left=frozenset({1, 2}))


def corpus_lines(work: CorpusWork, notes: Sequence[str]) -> list[str]:
    """Return what the table rests on; `notes` are about the prices."""
    documents = f"{format_count(work.documents)} documents"
    documents += " (3000 bytes each assumed; --documents N says otherwise)" if work.assumed_documents else ""
    return [
        f"{format_bytes(work.text_bytes)} of text, {documents}; {work.vcpu_seconds / 3600:,.1f} vCPU-hours on Spark, "
        f"{format_bytes(work.documents * SHUFFLE_BYTES_PER_DOCUMENT)} shuffled",
        *notes,
        "speed: 4 MB of text per vCPU and second and 75 CPU-microseconds a document, measured on 2 cores up to 1M "
        "documents; beyond that extrapolated, p90 1.8 times as slow",
    ]


def catalog_table(rows: Sequence[Ranked]) -> str:
    head = (
        "instance",
        "GPUs",
        "GB each",
        "TFLOP/s",
        "vCPU",
        "RAM GiB",
        "Gbit/s",
        "EFA",
        "NVMe GB",
        "where",
        "market",
        "$/h",
        "MFU",
        "$/EFLOP",
    )

    def show(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    cells = [
        [row.type, f"{row.gpus} x {row.gpu}", f"{row.gpu_memory_gb:.0f}", show(row.peak_tflops, ",.0f"), str(row.vcpus), f"{row.memory_gib:,.0f}", f"{row.network_gbps:g}", str(row.efa_interfaces), f"{row.nvme_gb:,}", row.region, row.market, show(row.usd_per_hour, ",.3f"), show(row.mfu, ".0%"), show(row.usd_per_effective_exaflop, ".4f")]
        for row in rows
    ]  # fmt: skip
    return text_table([head, *cells], left=frozenset({0, 1, 9, 10}))


def cpu_table(rows: Sequence[CpuMachine]) -> str:
    head = ("instance", "vCPU", "RAM GiB", "Gbit/s", "where", "market", "$/h", "$/vCPU h", "quota")
    cells = [
        (
            row.type,
            str(row.vcpus),
            f"{row.memory_gib:,.0f}",
            f"{row.network_gbps:g}",
            row.region,
            row.market,
            f"{row.usd_per_hour:.3f}",
            f"{row.usd_per_vcpu_hour:.4f}",
            row.quota_code or "-",
        )
        for row in rows
    ]
    return text_table([head, *cells], left=frozenset({0, 4, 5, 8}))


def describe_status(status: RunStatus) -> list[tuple[str, str]]:
    """Return the status of one run as rows; unknown values have no row."""
    heard = {
        "running": "",
        "starting": "",
        "stale": f", no sign of life since {status.since}",
        "failed": f" at {status.since}",
    }
    state = status.state + heard.get(status.state, f" since {status.since}" if status.since else "")
    speed = _if_known(status.tokens_per_s, lambda value: f"{format_count(value)} tokens/s")
    lines = {
        "state": state + (f" on {status.host}" if status.host else ""),
        "reason": status.reason or status.cause or "",
        "step": f"{status.step}/{status.total_steps}"
        + _if_known(status.eta_seconds, lambda s: f", {format_seconds(s)} to go"),
        "loss": _if_known(status.loss, "{:.4f}".format) + _if_known(status.val_loss, ", validation {:.4f}".format),
        "speed": speed + _if_known(status.mfu, ", MFU {:.1%}".format),
        "cost": _cost_text(status),
        "checkpoint": _if_known(status.checkpoint_step, "step {}".format)
        + _if_known(status.checkpoint_age_seconds, lambda s: f", {format_seconds(max(s, 0.0))} ago"),
        "attempts": f"{status.attempts}; interrupted or failed: {status.interruptions}",
        "slowest rank": _if_known(status.slowest_rank, str)
        + _if_known(status.straggler_ratio, ", {:.2f} times the median".format),
    }
    return [(name, text) for name, text in lines.items() if text]


def _cost_text(status: RunStatus) -> str:
    if status.usd is None:
        return ""
    return (
        f"${status.usd:.2f}"
        + _if_known(status.metered_usd, " by EC2's own times, ${:.2f} by the meter while it ran".format)
        + _if_known(status.projected_usd, ", ${:.2f} when it is done".format)
        + _if_known(status.budget_usd, ", budget ${:g}".format)
    )


def status_rows(runs: list[RunStatus]) -> list[tuple[str, ...]]:
    """Return the runs as a table, header first."""
    rows: list[tuple[str, ...]] = [
        ("RUN", "STATE", "STEP", "LOSS", "TOKENS/S", "SPENT", "PROJECTED", "TO GO", "CHECKPOINT", "ATTEMPTS")
    ]
    for each in runs:
        rows.append(
            (
                each.run,
                each.state,
                f"{each.step}/{each.total_steps}",
                _if_known(each.loss, "{:.4f}".format) or "-",
                _if_known(each.tokens_per_s, format_count) or "-",
                _if_known(each.usd, "${:.2f}".format) or "-",
                _if_known(each.projected_usd, "${:.2f}".format) or "-",
                _if_known(each.eta_seconds, format_seconds) or "-",
                _if_known(each.checkpoint_age_seconds, lambda s: f"{format_seconds(max(s, 0.0))} ago") or "-",
                str(each.attempts),
            )
        )
    return rows


def failure_lines(runs: list[RunStatus]) -> list[str]:
    """Return the lines below the table: why runs have failed, and what is damaged."""
    return [
        f"{each.run}: {each.reason}" if each.state == "damaged" else f"{each.run} failed: {each.reason.splitlines()[0]}"
        for each in runs
        if each.reason
    ]


def _if_known(value: T | None, form: Callable[[T], str]) -> str:
    return "" if value is None else form(value)


def machine_rows(state: AccountState) -> list[tuple[str, ...]]:
    """Return the machines as a table, header first."""
    rows: list[tuple[str, ...]] = [
        ("RUN", "MACHINE", "TYPE", "MARKET", "ZONE", "OWNER", "STATE", "UP", "$/HOUR", "SO FAR", "ENDS AT")
    ]
    for each in state.machines:
        rows.append(
            (
                (each.run or "-") + ("" if each.in_store else " (not in this store)"),
                each.instance,
                each.type,
                each.market,
                each.zone or each.region,
                each.owner,
                each.state,
                format_seconds(round(each.age_seconds)),
                "?" if each.usd_per_hour is None else f"{each.usd_per_hour:.2f}",
                "?" if each.usd is None else f"{each.usd:.2f}",
                each.ends_at or "never",
            )
        )
    return rows


def machine_notes(state: AccountState, runs: Iterable[RunStatus]) -> list[str]:
    """Return the lines below the table: the sum, and what does not fit together."""
    lines = [f"{plural(len(state.machines), 'machine')}, ${state.usd_per_hour:.2f} per hour"] if state.machines else []
    busy = {machine.run for machine in state.machines}
    lines += [f"{run.run}: {run.state}, but none of the machines here" for run in runs if _lost(run, busy)]
    endless = [machine.instance for machine in state.machines if machine.ends_at is None]
    if endless:
        lines.append(f"without a kill time: {', '.join(endless)}; `skytrain gc` lists and deletes what is left over")
    return [*lines, *(f"unknown: {problem}" for problem in state.problems)]


def _lost(run: RunStatus, busy: set[str | None]) -> bool:
    return run.state == "stale" and run.run not in busy


def headline(view: RunView) -> str:
    """Return the state of the run in a few words."""
    ready = sum(node.state in ("waits", "joins") for node in view.nodes)
    if not view.by_agents or view.trains:
        return view.state
    if view.generation is not None and view.generation.exit_code is not None:
        return f"over, exit code {view.generation.exit_code}"
    if not view.nodes:
        return "launched: no machine has started" if view.state == LAUNCHED else "no machine is there"
    return f"{ready} of {plural(view.wanted or len(view.nodes), 'node')} ready"


def view_rows(view: RunView) -> list[tuple[str, str]]:
    """Return the run as rows of a table."""
    rows = [("run", f"{view.status.run}: {headline(view)}" if view.by_agents else view.status.run)]
    if view.launch is not None:
        launch = view.launch
        tried = f", offer {launch.offer} of {launch.offers}" if launch.offers > 1 else ""
        rows.append(("machines", f"{launch.machines}, ${launch.usd_per_hour:.2f} an hour{tried}"))
    if view.generation is not None:
        ended = f", ended: {view.generation.end_reason}" if view.generation.end_reason else ""
        rows.append(("generation", f"{view.generation.number}{ended}"))
    rows += [(_node_name(node), _node_text(node)) for node in view.nodes]
    if view.trouble:
        rows.append(("trouble", view.trouble))
    if view.left:
        rows.append(("left", plural(view.left, "node")))
    hidden = {"state", "attempts"} if view.by_agents else set[str]()
    hidden |= set() if view.state == "running" else {"speed", "slowest rank"}  # values of an earlier attempt
    hidden |= {"reason"} if view.state == "starting" else set()
    rows += [(name, text) for name, text in describe_status(view.status) if name not in hidden and text != "0/0"]
    if view.launch is not None:
        rows += _launch_rows(view)
    return rows


def _launch_rows(view: RunView) -> Iterator[tuple[str, str]]:
    assert view.launch is not None
    if view.launch.planned_usd is not None:
        yield "planned", f"${view.launch.planned_usd:.2f}"
    if not view.launch.kill_at:
        return
    left = (datetime.fromisoformat(view.launch.kill_at) - datetime.fromisoformat(view.at)).total_seconds()
    yield "kill time", f"{view.launch.kill_at}, {f'in {format_seconds(left)}' if left > 0 else 'over'}"


def _node_name(node: NodeView) -> str:
    return f"node {node.rank}" if node.rank is not None else "node"


def _node_text(node: NodeView) -> str:
    return f"{node.machine} {node.state}" + (f" for {format_seconds(round(node.seconds))}" if node.seconds else "")


def view_line(view: RunView) -> str:
    """Return the run in one line, for a log."""
    status = view.status
    nodes = [node.state for node in view.nodes]
    running = view.state == "running"
    counted = ", ".join(f"{nodes.count(state)} {state}" for state in sorted(set(nodes)))
    parts = [
        headline(view),
        f"generation {view.generation.number}" if view.generation is not None else "",
        f"nodes: {counted}" if counted else "",
        f"step {status.step}/{status.total_steps}" if status.total_steps else "",
        f"loss {status.loss:.4f}" if status.loss is not None else "",
        f"{format_count(status.tokens_per_s)} tokens/s" if running and status.tokens_per_s is not None else "",
        f"MFU {status.mfu:.1%}" if running and status.mfu is not None else "",
        _dollars(status),
        f"kill time {view.launch.kill_at}" if view.launch is not None and view.launch.kill_at else "",
        " ".join(view.trouble.split()) if view.trouble else "",
    ]
    return f"{view.at} {status.run} " + " | ".join(part for part in parts if part)


def _dollars(status: RunStatus) -> str:
    if status.usd is None:
        return ""
    of = f" of ${status.projected_usd:.2f}" if status.projected_usd is not None else ""
    of = of if status.metered_usd is None else " by EC2's own times"
    return f"${status.usd:.2f}{of}" + (f", budget ${status.budget_usd:g}" if status.budget_usd is not None else "")


def sweep_rows(sweep: SweepStatus) -> list[tuple[str, str]]:
    """Return the status of a sweep as rows; unknown values have no row."""
    interval = f", 80% interval {sweep.low:.3g} to {sweep.high:.3g}" if sweep.low and sweep.high else ""
    rows = {
        "sweep": f"{sweep.sweep}: {sweep.state}",
        "trials": f"{sweep.finished} finished, {len(sweep.running)} running",
        **{f"trial {one.partition(' ')[0]}": one.partition(" ")[2] for one in sweep.running},
        "spent": f"${sweep.spent_usd:.4f}, final run at most ${sweep.final_usd:.4f}",
        "processes": ", ".join(sweep.sessions),
        "machines": ", ".join(sweep.machines),
        "answer": f"{sweep.answer:.4g}{interval}" if sweep.answer is not None else "",
    }
    return [(name, text) for name, text in rows.items() if text]


def trial_rows(history: Sequence[Observation]) -> list[tuple[str, ...]]:
    """Return the trials as a table, header first; each scored task, such as HellaSwag, has its own column."""
    scored = {name for one in history for name in one.extra if name.startswith("eval/") and name.count("/") == 2}
    tasks = sorted(name for name in scored if not name.endswith(("_stderr", "/items", "/truncated")))
    rows: list[tuple[str, ...]] = [
        ("", "rung", "value", "val loss", "hours", "cost", *(name.removeprefix("eval/") for name in tasks))
    ]
    for number, one in enumerate(history, 1):
        loss = f"{one.loss:.4f}" if one.finite else ("diverged" if one.diverged else "stopped")
        scores = (f"{one.extra[name]:.4f}" if name in one.extra else "-" for name in tasks)
        hours = f"{one.seconds / 3600:.4f}"
        rows.append((str(number), one.trial.rung, f"{one.trial.rate:.3g}", loss, hours, _trial_usd(one.usd), *scores))
    return rows


def results_table(models: Sequence[ModelResults]) -> str:
    """Show one row for each scoring with a column for each model; over three steps or more of a run, a curve too."""
    rows = [("TASK", "SCORING", *(each.model for each in models), "ITEMS")]
    for number, task in enumerate(models[0].results):
        same = [each.results[number] for each in models]
        for scoring, measure in task.measures.items():
            values = [_with_error(one.measures.get(scoring)) for one in same]
            count = len(measure.weights)
            items = f"{count}" if count == task.available else f"{count} of {task.available}"
            rows.append((task.task, scoring, *values, items))
    lines = [text_table(rows)]
    for number, task in enumerate(models[0].results):
        cut = max(each.results[number].truncated for each in models)
        if cut:
            lines.append(f"{task.task}: {cut} items lost the beginning of a context that is longer than the model sees")
    return "\n".join([*lines, *_curves_over_steps(models)])


def _with_error(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    return score_text(measure.value) + ("" if math.isnan(measure.stderr) else f" ± {score_text(measure.stderr)}")


def _curves_over_steps(models: Sequence[ModelResults]) -> Iterator[str]:
    steps = [each.step for each in models]
    if len(models) < 3 or None in steps or len({each.model.partition("@")[0] for each in models}) > 1:
        return
    for number, task in enumerate(models[0].results):
        scoring = "harness_acc_norm" if "harness_acc_norm" in task.measures else next(iter(task.measures))
        points = [(each.step, each.results[number].measures[scoring].value) for each in models if each.step is not None]
        yield "\n" + metric_curve(points, f"{task.task}: {scoring}")


def comparison_table(first: str, second: str, differences: Sequence[PairedDifference]) -> str:
    """Show the differences of two models over the same items."""
    rows = [("TASK", "SCORING", "FIRST", "SECOND", "DIFFERENCE", "95% INTERVAL", "P", "VERDICT")]
    for each in differences:
        interval = f"{score_text(each.low, '+')} to {score_text(each.high, '+')}"
        scores = (score_text(each.first), score_text(each.second), score_text(each.difference, "+"))
        values = (*scores, interval, f"{each.p_value:.3g}")
        rows.append((each.task, each.scoring, *values, each.verdict))
    return f"second ({second}) minus first ({first}), over the same items:\n{text_table(rows)}"


def _trial_usd(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.4f}"
