"""`skytrain merge-report`: a merged model compared with its seed, its experts, their ensemble and a dense run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigDirs, Json, RunName, Trusted, compose_overrides

if TYPE_CHECKING:
    from ..config import Composed

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings of all domains; evaluation.tasks=[hellaswag] adds tasks, evaluation.data.hellaswag=FILE their data.",
        show_default=False,
    ),
]
Domains = Annotated[
    Path, typer.Option("--domains", metavar="FILE", help="The YAML file of `skytrain branch`: each domain's data.")
]
Dense = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="A run of equal compute on all domains, for comparison.", show_default=False),
]
Points = Annotated[
    int, typer.Option(min=0, metavar="N", help="Points of the path between the first two experts; 0: no path.")
]
FirstTokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="COUNT", help="Use only the first COUNT tokens of a domain.", show_default=False),
]
Page = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Also write an HTML page.", show_default=False)
]


def merge_report(
    run: RunName,
    domains: Domains,
    overrides: Settings = None,
    config_dir: ConfigDirs = None,
    trust: Trusted = None,
    dense: Dense = None,
    points: Points = 5,
    tokens: FirstTokens = None,
    out: Page = None,
    as_json: Json = False,
) -> None:
    """Compare a merged model with what it was made of.

    Prints a table of held-out losses on every domain: seed, experts, merged model, ensemble of the experts and a dense
    run; how the loss changes on the straight line between two experts; tasks with 95% intervals; dollars. The report
    is kept in the run's folder, as merge-report.json.

    \b
    Examples:
      skytrain merge-report both --domains domains.yaml --dense dense --out merge.html
      skytrain merge-report both --domains domains.yaml evaluation.tasks=[hellaswag]
    """
    from ..config import trust as trust_words
    from ..merging import read_domains
    from ..pipelines.merge_report import MergeReportRequest, report_merge
    from ..report import merge_html, merge_table, merge_tasks_table
    from .console import print_table, reporter

    if out is not None:
        _check_page(out)
    given = overrides or []
    trust_words(trust or [])
    read = read_domains(domains, given, config_dir or [])

    def compose(overrides: list[str]) -> Composed:
        return compose_overrides([*overrides, *given], config_dir, trusted=trust)

    request = MergeReportRequest(run=run, domains=read, dense=dense, points=points, max_tokens=tokens)
    with reporter() as console:
        comparison = report_merge(compose([*request.domains.settings]).config, request, compose, console)
    if out is not None:
        out.write_text(merge_html(comparison), encoding="utf-8")
    if as_json:
        print(json.dumps(comparison.to_json()))
        return
    print_table(merge_table(comparison))
    if tasks := merge_tasks_table(comparison):
        print()
        print_table(tasks)
    print("\n".join(["", *comparison.verdicts]))
    if out is not None:
        print(f"page: {out}")


def _check_page(path: Path) -> None:
    """Refuse a path that cannot be written, before the measurements, which may take hours."""
    from ..config import SkytrainError

    if path.is_dir() or not path.parent.is_dir():
        problem = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise SkytrainError(f"--out {path}: {problem}\n  give a file, such as merge.html")
