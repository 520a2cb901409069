"""What a check is: a function that returns what it found to be well, or raises what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from ...aws import AwsSession, CapacityBlock, CloudError, MachineImage, PreviewSession, is_preview, open_session
from ...config import EXIT_CODES, Config, SkytrainError
from ...planning import Plan, PlannedOffer

Group = Literal["this machine", "AWS"]
CAUSES = {code: cause for cause, code in EXIT_CODES.items()}


class Failed(Exception):
    """The check found a problem. `fix` is the one line that solves it; `cause` names a row of the exit codes."""

    def __init__(self, problem: str, fix: str, *, link: str = "", cause: str = "preflight") -> None:
        self.problem = problem
        self.fix = fix
        self.link = link
        self.cause = cause
        super().__init__(problem)


class NotChecked(Exception):
    """The check does not apply, or lacks something that it needs."""


@dataclass
class Preflight:
    """What the checks look at. What one of them finds out, the later ones use."""

    config: Config
    plan: Plan | None = None
    open: Callable[[str | None, str | None], AwsSession] = open_session
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    image: MachineImage | None = None
    block: CapacityBlock | None = None  # that the plan's machines come from
    offered_zones: tuple[str, ...] = ()  # zones that sell the planned type

    @property
    def offer(self) -> PlannedOffer:
        if self.plan is None:
            raise NotChecked("no plan; add --plan plan.json")
        return self.plan.choice

    @property
    def region(self) -> str | None:
        return self.config.cloud.region or (self.plan.choice.region if self.plan else None)

    @property
    def preview(self) -> bool:
        """Whether the account does not exist: nobody can be asked."""
        return is_preview(self.config.cloud)

    @cached_property
    def session(self) -> AwsSession:
        if self.preview:
            return PreviewSession(str(self.region))
        return self.open(self.region, self.config.cloud.account)

    @property
    def subnets(self) -> dict[str, str]:
        """The subnets that machines start in, by zone."""
        subnets = self.config.cloud.subnets
        return subnets.private if subnets.nodes == "private" else subnets.public


@dataclass(frozen=True)
class Check:
    """One check. `actions` are IAM's."""

    name: str
    run: Callable[[Preflight], str]
    group: Group
    needs: tuple[str, ...] = ()  # checks that must have found all well
    unless_failed: tuple[str, ...] = ()  # checks that must not have found a problem; nothing is asked of them
    actions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """The result of one check, as `doctor --json` prints it."""

    name: str
    group: Group
    verdict: Literal["ok", "failed", "not checked"]
    text: str
    fix: str = ""
    link: str = ""
    cause: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.cause] if self.verdict == "failed" else 0


def run_checks(checks: Iterable[Check], preflight: Preflight) -> Iterator[Finding]:
    """Yield the finding of each check as soon as it is known.

    A check is left out if one that it needs does not apply: a machine without a GPU needs one line, not five.
    """
    well: set[str] = set()
    failed: set[str] = set()
    without: set[str] = set()  # checks that did not apply
    for check in checks:
        missing = [name for name in check.needs if name not in well]
        missing += [name for name in check.unless_failed if name in failed]
        if without.intersection(check.needs):
            without.add(check.name)
            continue
        if missing:
            yield Finding(check.name, check.group, "not checked", f"needs {', '.join(missing)}")
            continue
        finding = _run(check, preflight)
        if finding.verdict == "ok":
            well.add(check.name)
        elif finding.verdict == "not checked":
            without.add(check.name)
        else:
            failed.add(check.name)
        yield finding


def _run(check: Check, preflight: Preflight) -> Finding:
    try:
        return Finding(check.name, check.group, "ok", check.run(preflight))
    except NotChecked as reason:
        return Finding(check.name, check.group, "not checked", str(reason))
    except Failed as error:
        return Finding(
            name=check.name,
            group=check.group,
            verdict="failed",
            text=error.problem,
            fix=error.fix,
            link=error.link,
            cause=error.cause,
        )
    except CloudError as error:
        return Finding(
            name=check.name,
            group=check.group,
            verdict="failed",
            text=error.problem,
            fix=error.fix,
            link=error.link,
            cause=error.cause,
        )
    except SkytrainError as error:
        problem, _, fix = str(error).partition("\n")
        cause = CAUSES[error.exit_code] if error.exit_code in (10, 11) else "preflight"
        return Finding(
            name=check.name, group=check.group, verdict="failed", text=problem, fix=" ".join(fix.split()), cause=cause
        )
