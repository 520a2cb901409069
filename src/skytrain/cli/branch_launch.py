"""`skytrain branch --launch`: every expert on rented machines of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .options import compose_overrides

if TYPE_CHECKING:
    from ..config import Composed
    from ..merging import DomainsFile
    from ..pipelines.branch_launch import ExpertLaunch
    from ..targets import Finding, PreparedLaunch


def launch_experts(domains: DomainsFile, folders: list[Path], yes: bool, dry_run: bool) -> None:
    """Rent the machines of all experts that are neither done nor running, or print the requests for them."""
    from ..aws import render_calls
    from ..pipelines.branch_launch import plan_experts
    from ..storage import open_store
    from ..targets import Preflight, config_files, prepare_launch, start_launch
    from .confirm import confirm
    from .console import print_table, reporter

    def compose(words: list[str]) -> Composed:
        return compose_overrides(words, folders, domains.seed)

    config = compose([*domains.overrides(next(iter(domains.experts)))]).config
    session = Preflight(config=config).session
    console = reporter()
    experts = plan_experts(domains, compose, open_store(config.store), session, console)
    if not experts:
        print("every expert is done or running")
        return
    prepared = [
        prepare_launch(
            one.job, Preflight(config=one.job.composed.config, plan=one.job.plan), _show if not n else _quiet
        )
        for n, one in enumerate(experts)
    ]
    if dry_run:
        print(render_calls([call for one in prepared for call in one.calls]))
        return
    print_table(_rows(experts, prepared))
    confirm(session, f"Launch {len(prepared)}?", sum(one.usd_per_hour for one in prepared), yes)
    with console:
        for one in prepared:  # one that fails leaves those before it running: the same command launches the others
            start_launch(one, config_files([*folders, Path()]), console)
            console.note(f"launched {one.run}")
    print("The machines need neither this terminal nor this computer.\n\nNext:")
    for one in prepared:
        print(f"  skytrain status {one.run} cloud=ec2")
    runs = " ".join(domains.run_name(domain) for domain in domains.experts)
    print(f"  skytrain merge {runs} cloud=ec2   # when all are done")


def _rows(experts: list[ExpertLaunch], prepared: list[PreparedLaunch]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("DOMAIN", "RUN", "MACHINES", "$/HOUR", "PLANNED", "AT MOST", "KILL TIME")]
    for one, launch in zip(experts, prepared, strict=True):
        offer = launch.plan.choice
        first = launch.record.groups[0]
        share = "-" if one.share_usd is None else f"${one.share_usd:.2f}"
        machines = f"{offer.nodes} x {offer.instance_type} ({offer.market})"
        price = f"{launch.usd_per_hour:.2f}"
        rows.append((one.domain, one.run, machines, price, f"${one.usd:.2f}", share, first.kill_at))
    return rows


def _show(finding: Finding) -> None:
    from .launch import show_finding

    show_finding(finding)


def _quiet(finding: Finding) -> None:
    """The account was checked for the first expert; a failure is raised all the same."""
    return
