"""Doctor: every check that applies to this machine, this account and this plan, and the exit code they add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..config import Config
from ..models import compose_model
from ..planning import Plan, read_plan
from ..targets import Check, Finding, Preflight, find_inputs, plan_words, run_checks, target_of

# Of several failures the first of these decides: without credentials nothing else can be known.
ORDER = ("credentials", "store", "preflight", "quota", "capacity")


def doctor(
    config: Config, plan: Path | None, config_dirs: Sequence[Path] = (), typed: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield each finding as soon as it is known. AWS is asked only where an account is set up or a plan is given."""
    plan_words(plan, config_dirs, typed)  # refuses a plan that names code which nobody has typed
    planned = read_plan(plan) if plan else None
    checks, preflight = target_of(config).doctor_checks(Preflight(config, planned))
    if planned is not None:
        checks = [*checks, _input_check(planned, config_dirs)]
    yield from run_checks(checks, preflight)


def _input_check(plan: Plan, config_dirs: Sequence[Path]) -> Check:
    """Return the check that the machines of a plan will find what they read in this store."""

    def run(preflight: Preflight) -> str:
        # The store that machines will read, not the one of the folder in which the plan was made.
        words = [*plan.words, f"store.root={preflight.config.store.root}"]
        planned = compose_model(words, config_dirs, recipe_weights="if-stored").config
        asked = preflight.config  # apart from the budget, all that a launch of the plan may change
        here = replace(planned, store=asked.store, cloud=asked.cloud, run=asked.run or planned.run)
        return "; ".join(find_inputs(here, plan.job, plan.words)) or "nothing but its sources"

    return Check("inputs", run, "AWS", needs=("store",))


def doctor_exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 if nothing failed, otherwise the exit code of the failure to solve first."""
    failed = sorted((one for one in findings if one.verdict == "failed"), key=lambda one: ORDER.index(one.cause))
    return failed[0].exit_code if failed else 0
