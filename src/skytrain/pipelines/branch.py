"""Branch: one seed model in, one expert for each domain out, in turn and within one budget."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from ..checkpoints import committed_steps
from ..config import EXIT_CODES, Composed, Config, SkytrainError, total_steps
from ..merging import DomainsFile
from ..runs import Reporter, RunRecord, Start, check_run_name, config_changes, load_run, plain, spent_usd
from ..storage import Store, open_store
from ..tokens import find_training_data

Compose = Callable[[list[str]], Composed]


@dataclass(frozen=True)
class PlannedExpert:
    """An expert to train: `skytrain train OVERRIDES --from SEED`."""

    domain: str
    run: str
    overrides: list[str]
    config: Config
    start: Start


@dataclass(frozen=True)
class BranchedExpert:
    """An expert after its training."""

    domain: str
    run: str
    step: int
    total_steps: int
    usd: float
    done: bool


def branch(
    domains: DomainsFile, compose: Compose, train_one: Callable[[PlannedExpert], int], reporter: Reporter
) -> tuple[int, list[BranchedExpert]]:
    """Train the experts one after another; return the exit code and the progress of each.

    The same call again skips those that are done and resumes the first that is not. The rest of a budget is divided
    equally among the experts that are not done.
    """
    # All are checked first: a mistake in the last domain is found before the first is trained.
    configs = {domain: compose(expert_words(domains, domain)).config for domain in domains.experts}
    store = open_store(next(iter(configs.values())).store)
    code = 0
    for domain, config in configs.items():
        check_run_name(domains.run_name(domain))
        if not is_done(domains, find_expert(store, domains.run_name(domain)), config):
            find_training_data(store, config)
    for number, (domain, config) in enumerate(configs.items()):
        run = domains.run_name(domain)
        record = find_expert(store, domains.run_name(domain))
        if is_done(domains, record, config):
            reporter.note(f"{number + 1}/{len(configs)} {run}: done before")
            continue
        words = expert_words(domains, domain)
        if config.budget.usd is not None:
            words.append(f"budget.usd={_allowance(store, domains, domain, config.budget.usd):.6f}")
        start = _start(domains)
        reporter.note(f"{number + 1}/{len(configs)} {run}: from {start.label}")
        ended = train_one(
            PlannedExpert(domain=domain, run=run, overrides=words, config=compose(words).config, start=start)
        )
        code = code or ended
        if ended not in (0, EXIT_CODES["budget"]):  # one that has spent its share leaves the others theirs
            break
    return code, [_result(store, domains, domain, config) for domain, config in configs.items()]


def expert_words(domains: DomainsFile, domain: str) -> list[str]:
    return [*domains.overrides(domain), f"run={domains.run_name(domain)}"]


def find_expert(store: Store, run: str) -> RunRecord | None:
    return load_run(store, run) if store.exists(f"runs/{run}/run.json") else None


def is_done(domains: DomainsFile, record: RunRecord | None, config: Config) -> bool:
    """Return whether the expert is trained. Raise if a finished run of its name has another seed, data or settings."""
    if record is None or record.finished_at is None:
        return False
    wanted = _start(domains).label
    remedy = f"or delete it: skytrain runs delete {shlex.quote(record.name)}"
    if record.started_from != wanted:
        raise SkytrainError(
            f"run {record.name} is done, but it began from {record.started_from or 'scratch'}, not from {wanted}\n"
            f"  give the experts other names, {remedy}"
        )
    # What was `auto` has been decided, and a version of the data was chosen, when the expert was trained.
    changes = [
        line
        for line in config_changes(record.config, plain(config))
        if not line.startswith("data.version:") and not line.endswith("-> 'auto'")
    ]
    if changes:
        lines = "".join(f"\n  {line}" for line in changes)
        raise SkytrainError(
            f"run {record.name} is done, with other settings:{lines}\n  give the domain another name, {remedy}"
        )
    return True


def _start(domains: DomainsFile) -> Start:
    return Start(domains.seed, domains.weights_only, domains.at_step)


def _allowance(store: Store, domains: DomainsFile, domain: str, total_usd: float) -> float:
    """Return the expert's spending limit: what it has spent, and its share of what is left."""
    runs = {name: domains.run_name(name) for name in domains.experts}
    spent = {name: spent_usd(store, run) for name, run in runs.items()}
    waiting = [
        name for name, run in runs.items() if (record := find_expert(store, run)) is None or record.finished_at is None
    ]
    return spent[domain] + max(0.0, total_usd - sum(spent.values())) / len(waiting)


def _result(store: Store, domains: DomainsFile, domain: str, config: Config) -> BranchedExpert:
    run = domains.run_name(domain)
    record = find_expert(store, run)
    steps = committed_steps(store, run)
    done = record is not None and record.finished_at is not None
    usd = spent_usd(store, run)
    return BranchedExpert(
        domain=domain, run=run, step=steps[-1] if steps else 0, total_steps=total_steps(config), usd=usd, done=done
    )
