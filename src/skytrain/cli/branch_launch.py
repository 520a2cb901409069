"""`skytrain branch --launch`: every expert on rented machines of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from .options import compose_overrides

if TYPE_CHECKING:
    from ..config import Composed
    from ..merging import DomainsFile
    from ..pipelines.branch_launch import ExpertLaunch
    from ..targets import ReadyJob


def launch_experts(domains: DomainsFile, folders: list[Path], yes: bool, dry_run: bool) -> None:
    """Rent the machines of all experts that are neither done nor running, or print the requests for them."""
    from ..pipelines.branch_launch import plan_experts
    from ..storage import open_store
    from ..targets import Preflight, config_files, target_of
    from .confirm import confirm
    from .console import print_table, reporter
    from .launch import show_finding

    def compose(overrides: list[str]) -> Composed:
        return compose_overrides(overrides, folders, domains.seed)

    config = compose([*domains.overrides(next(iter(domains.experts)))]).config
    session = Preflight(config=config).session
    console = reporter()
    experts = plan_experts(domains, compose, open_store(config.store), session, console)
    if not experts:
        print("every expert is done or running")
        return
    files = config_files([*folders, Path()])
    job = target_of(config).prepare_together([one.job for one in experts], files, show_finding)
    if dry_run:
        print(job.requests)
        return
    print_table(_rows(experts, job))
    confirm(session, f"Launch {len(experts)}?", job.usd_per_hour, yes)
    with console:
        said = job.start(console)
    print(*said, "\nNext:", sep="\n")
    where = " ".join(job.next_arguments)
    for one in experts:
        print(f"  skytrain status {shlex.quote(one.run)} {where}")
    runs = shlex.join(domains.run_name(domain) for domain in domains.experts)
    print(f"  skytrain merge {runs} {where}   # when all are done")


def _rows(experts: list[ExpertLaunch], job: ReadyJob) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("DOMAIN", "RUN", "MACHINES", "$/HOUR", "PLANNED", "AT MOST", "KILL TIME")]
    for one, record in zip(experts, job.records, strict=True):
        first = record.groups[0]
        share = "-" if one.share_usd is None else f"${one.share_usd:.2f}"
        machines = f"{first.nodes} x {first.instance_type} ({first.market})"
        price = f"{first.nodes * first.usd_per_hour:.2f}"
        rows.append((one.domain, one.run, machines, price, f"${one.usd:.2f}", share, first.kill_at))
    return rows
