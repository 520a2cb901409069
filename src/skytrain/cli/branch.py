"""`skytrain branch`: experts from one seed model, each on its own domain."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError
from .branch_launch import launch_experts
from .confirm import DryRun, Yes
from .options import ConfigDirs, Json, Overrides, Trusted, compose_overrides
from .train import Processes, check_installed, worker_options

if TYPE_CHECKING:
    from ..config import Composed
    from ..merging import DomainsFile
    from ..pipelines.branch import PlannedExpert

Experts = Annotated[
    Path,
    typer.Option(
        "--experts", metavar="FILE", help="A YAML file that names the seed and the domains (docs/merging.md)."
    ),
]


Launch = Annotated[
    bool, typer.Option("--launch", help="Rent machines for each expert, as `skytrain launch` does: cloud=ec2.")
]


def branch(
    experts: Experts,
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    processes: Processes = None,
    as_json: Json = False,
    launch: Launch = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Train an expert for each domain, from one seed model.

    The experts are trained here, one after another, as `skytrain train --from SEED` would. The same command resumes
    them. budget.usd is for all of them together.

    With --launch each expert gets its own rented machines, and all train at the same time; the budget is divided by
    planned dollars. The same command launches those that are neither done nor running.

    \b
    The file:
      seed: base@2365
      settings: [trainer.steps=4725]
      experts:
        code: [data=jsonl, data.name=code, data.source.paths=code/*.jsonl]
        law: [data=jsonl, data.name=law, data.source.paths=law/*.jsonl]

    \b
    Examples:
      skytrain branch --experts domains.yaml
      skytrain branch --experts domains.yaml budget.usd=40 trainer.micro_batch=8
      skytrain branch --experts domains.yaml cloud=ec2 budget.usd=40 --launch --dry-run
    """
    from ..config import trust as trust_words
    from ..merging import read_domains

    trust_words(trust or [])
    read = read_domains(experts, overrides or [], config_dir or [])
    domains = dataclasses.replace(read, settings=(*read.settings, *(overrides or [])))
    if launch:
        return launch_experts(domains, list(config_dir or []), yes, dry_run)
    if dry_run or yes:
        raise SkytrainError("--dry-run and --yes are for --launch\n  leave them out, or add --launch")
    raise SystemExit(_train_here(domains, config_dir, processes, as_json))


def _train_here(domains: DomainsFile, config_dir: list[Path] | None, processes: int | None, as_json: bool) -> int:
    from ..jobs import ProcessLayout, choose_processes, supervise
    from ..pipelines.branch import branch as pipeline
    from .console import print_table, reporter

    check_installed()
    console = reporter()

    def compose(overrides: list[str]) -> Composed:
        return compose_overrides(overrides, config_dir, domains.seed)

    def train_one(expert: PlannedExpert) -> int:
        arguments = [*expert.overrides, *worker_options(config_dir or [], expert.start, allow_changes=False)]
        layout = ProcessLayout(processes=choose_processes(expert.config, processes))
        return supervise(expert.config, arguments, layout, console.note)

    code, experts = pipeline(domains, compose, train_one, console)
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in experts]))
    else:
        rows = [("DOMAIN", "RUN", "STEP", "DOLLARS", "STATE")]
        for each in experts:
            state = "done" if each.done else "not done"
            rows.append((each.domain, each.run, f"{each.step}/{each.total_steps}", f"{each.usd:.2f}", state))
        print_table(rows)
        if all(each.done for each in experts):
            print(f"  merge them: skytrain merge {shlex.join(each.run for each in experts)}")
    return code
