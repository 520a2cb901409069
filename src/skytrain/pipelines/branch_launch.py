"""Branch on rented machines: every expert is a launch of its own, side by side, and one budget is divided among them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ..aws import AwsSession
from ..config import Composed, SkytrainError, total_steps
from ..merging import DomainsFile
from ..planning import Budget, Plan, PlannedOffer, PlanRequest, leaves_mesh_open
from ..runs import LaunchRecord, Reporter, launch_key, launches_of, spent_usd
from ..storage import Store, is_amount, record_of
from ..targets import PlannedJob, Trials, ask_account, find_inputs, live_launch, plan_run
from .branch import Compose, expert_words, find_expert, is_done


@dataclass(frozen=True)
class ExpertLaunch:
    """One expert that is to be launched, with its share of the budget."""

    domain: str
    run: str
    job: PlannedJob
    usd: float  # planned
    share_usd: float | None  # of what is left of the budget; None: there is none


@dataclass(frozen=True)
class _Expert:
    """An expert that is neither done nor launched."""

    domain: str
    run: str
    overrides: list[str]
    plan: Plan  # of the steps that it has left


def plan_experts(
    domains: DomainsFile, compose: Compose, store: Store, session: AwsSession, reporter: Reporter
) -> list[ExpertLaunch]:
    """Return a plan for each expert that is neither done nor launched.

    `budget.usd` is for all of them: what the others have spent, and what those that run may still spend, is taken from it.
    """
    _check_seed(domains, store)
    waiting = []
    reserved = 0.0
    budget = None
    for domain in domains.experts:
        overrides = expert_words(domains, domain)
        run = domains.run_name(domain)
        composed = compose(overrides)
        budget = composed.config.budget.usd
        record = find_expert(store, run)
        launches = launches_of(store, run)
        now = datetime.now(UTC)
        live = live_launch(launches, store, now, ask_account(session, store))
        reserved += spent_usd(store, run)
        if is_done(domains, record, composed.config):
            reporter.note(f"{run}: done before")
        elif live is not None:
            # The most of any that may live: machines may add a launch to those of their run.
            shares = [_share_of(each, store) for each in launches if not each.failed and each.over_at > now]
            reserved += max(0.0, max(shares) - spent_usd(store, run))
            reporter.note(f"{run}: launched at {live.launched_at}, and not over")
        else:
            waiting.append(_Expert(domain, run, overrides, _planned(compose, overrides, _first_step(domains))))
    left = None if budget is None else max(0.0, budget - reserved)
    total = sum(one.plan.choice.cost.usd for one in waiting)
    if left is not None and total > left:
        raise SkytrainError(
            f"the experts {', '.join(one.run for one in waiting)} are planned at ${total:.2f}, and ${left:.2f} of "
            f"budget.usd={budget:g} is left\n  raise budget.usd, or train them here in turn: leave out --launch"
        )
    experts = [_launch(one, domains, compose, store, (left, total, len(waiting))) for one in waiting]
    for expert in experts:
        find_inputs(expert.job.composed.config, "train", expert.job.composed.overrides)
    return experts


def _launch(
    expert: _Expert, domains: DomainsFile, compose: Callable[[list[str]], Composed], store: Store,
    money: tuple[float | None, float, int],
) -> ExpertLaunch:  # fmt: skip
    """Divide what is left by the planned dollars. AWS ends the machines when the expert's share is spent."""
    left, total, count = money
    usd = expert.plan.choice.cost.usd
    overrides = expert.overrides
    share = None if left is None else left * usd / total
    if share is not None:  # a run's budget counts what it has spent before
        overrides = [*overrides, f"budget.usd={spent_usd(store, expert.run) + share:.2f}"]
    composed = compose(overrides)
    offers = [_limited(offer, share, count) for offer in expert.plan.offers]
    plan = replace(
        expert.plan, offers=offers, config=dict(composed.values), words=list(composed.overrides), budget_usd=share
    )
    options = ["--from", domains.seed, *(["--weights-only"] if domains.weights_only else [])]
    if domains.at_step is not None:
        options += ["--at-step", str(domains.at_step)]
    return ExpertLaunch(
        domain=expert.domain,
        run=expert.run,
        job=PlannedJob(composed, plan, options=tuple(options)),
        usd=usd,
        share_usd=share,
    )


def _limited(offer: PlannedOffer, share_usd: float | None, count: int) -> PlannedOffer:
    quota = replace(offer.quota, vcpus=offer.quota.vcpus * count)  # of all experts, which run at the same time
    most = Budget(share_usd).hours_at(offer.nodes * offer.max_usd_per_hour_each) * 3600
    return replace(offer, quota=quota, kill_after_seconds=min(offer.kill_after_seconds, most))


def _planned(compose: Compose, overrides: Sequence[str], first_step: int) -> Plan:
    """Plan the steps from the seed on: the steps before it are paid for."""
    whole = compose(list(overrides))
    steps = total_steps(whole.config) - first_step
    if steps <= 0:
        raise SkytrainError(
            f"the seed is at step {first_step}, and the experts end at {total_steps(whole.config)}\n  raise trainer.steps"
        )
    composed = compose([*overrides, f"trainer.steps={steps}", "trainer.tokens=null"])
    config = composed.config
    if config.cloud.region is None:
        raise SkytrainError("cloud.region is not set\n  add cloud=ec2")
    open_mesh = leaves_mesh_open(config.parallel) and "parallel=single" not in overrides
    with tempfile.TemporaryDirectory() as folder:
        request = PlanRequest(None, region=config.cloud.region)
        planned = plan_run(composed, open_mesh, request, Trials(0, 1), Path(folder) / "plan.json")
    if planned.plan is None:
        raise planned.refusal or SkytrainError("no plan was found")
    return planned.plan


def _first_step(domains: DomainsFile) -> int:
    step = domains.seed.partition("@")[2]
    if domains.at_step is not None:
        return domains.at_step
    return int(step) if step.isdigit() and not domains.weights_only else 0


def _check_seed(domains: DomainsFile, store: Store) -> None:
    run = domains.seed.partition("@")[0]
    if not store.exists(f"runs/{run}/run.json"):
        raise SkytrainError(
            f"seed {domains.seed}: rented machines read it from {store.root}, which has no run {run}\n"
            "  copy the run there: skytrain store copy; or train the experts here: leave out --launch"
        )


def _share_of(record: LaunchRecord, store: Store) -> float:
    """Return the dollars that a launch may spend, by its command line."""
    given = [word.partition("=")[2] for word in record.words if word.startswith("budget.usd=")]
    with record_of(store, launch_key(record.run, record.id)):  # its machines may write it
        share = float(given[-1]) if given else 0.0
        if not is_amount(share):
            raise ValueError(f"budget.usd cannot be {share}")
    return share
