"""Store copy: everything below one folder or bucket prefix to another, verified and resumable."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ..config import Config, StoreConfig, format_bytes
from ..runs import Reporter
from ..storage import CopyJournal, CopyPlan, open_store, plan_copy, refuse_replacing, run_copy, total_progress


@dataclass(frozen=True)
class CopyReport:
    """The objects that were copied, or would be."""

    source: str
    target: str
    copied: int
    replaced: int
    kept: int  # were there already, with the same bytes
    bytes: int
    dry_run: bool
    keys: tuple[str, ...]  # copied or replaced


def copy(
    config: Config, source: str, target: str, reporter: Reporter, *, dry_run: bool = False, overwrite: bool = False
) -> CopyReport:
    """Copy `source` to `target`, both a folder or s3://bucket/prefix. A source that is a file goes into that folder.

    `store.sse` and `store.kms_key` of the configuration encrypt what is written to a bucket.
    """
    patience = config.store.patience
    file = Path(source).expanduser()
    only = file.name if "://" not in source and file.is_file() else None
    root = str(file.parent) if only is not None else source
    origin = open_store(StoreConfig(root=root, sse=None, kms_key=None, patience=patience))
    sealed = config.store if target.startswith("s3://") else dataclasses.replace(config.store, sse=None, kms_key=None)
    goal = open_store(dataclasses.replace(sealed, root=target))
    journal = CopyJournal.of(origin, goal)

    def comparing(done: float, total: float, key: str) -> None:
        reporter.progress("compare", done, None, f"bytes, {key}")

    def copying(done: float, total: float, key: str) -> None:
        reporter.progress("copy", done, total, f"{format_bytes(done)} of {format_bytes(total)}, {key}")

    plan = plan_copy(origin, goal, journal, total_progress(0, comparing), only)
    if not overwrite:
        refuse_replacing(plan)
    if not dry_run and plan.to_copy:
        run_copy(plan, journal, total_progress(plan.bytes, copying))
    return _report(plan, dry_run=dry_run)


def _report(plan: CopyPlan, *, dry_run: bool) -> CopyReport:
    return CopyReport(
        source=plan.source.root,
        target=plan.target.root,
        copied=len(plan.having("copy")),
        replaced=len(plan.having("replace")),
        kept=len(plan.having("keep")),
        bytes=plan.bytes,
        dry_run=dry_run,
        keys=tuple(stat.key for stat in plan.to_copy),
    )


def describe_copy(report: CopyReport) -> str:
    """Return the report as one line for people."""
    moved = report.copied + report.replaced
    verb = "would copy" if report.dry_run else "copied"
    parts = [f"{verb} {moved} of {moved + report.kept} objects ({format_bytes(report.bytes)}) to {report.target}"]
    if report.replaced:
        parts.append(f"{report.replaced} of them {'would replace' if report.dry_run else 'replaced'} different ones")
    if report.kept:
        parts.append(f"{report.kept} were there already")
    return "; ".join(parts)
