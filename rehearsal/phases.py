"""How long a replacement takes from its launch to the first step of its generation, by phase."""

from __future__ import annotations

import re

from .hypervisor import Life
from .world import RehearsedRun

PHASES = ("boot", "install", "agent", "meet", "start", "restore", "first step")


def replacement_phases(run: RehearsedRun, life: Life) -> dict[str, float] | None:
    """Return the seconds of each phase; None for a machine that never took part in a generation that trained.

    boot: until the user data begins; install: until the agent is started; agent: until it is ready; meet: until its
    generation; start: until the job's processes claim the attempt; restore: until the checkpoint is loaded and training
    begins; first step: until that step is done.
    """
    marks = {one["event"]: one["at"] for one in life.host.events}
    joined = re.search(r"^([\d.]+) generation (\d+): node \d of \d", life.host.console, re.MULTILINE)
    ready = life.host.printed(r"of \d+ nodes are ready") or (float(joined[1]) if joined else None)
    if "service" not in marks or joined is None or ready is None:
        return None
    number = int(joined[2])
    attempt = run.claimed().get(number)
    if attempt is None:
        return None
    claimed = run.store.stat(f"runs/{run.run}/attempts/{attempt}/attempt.json")
    assert claimed is not None
    began = float(joined[1])
    peers = [each for each in run.lives if re.search(rf"generation {number}: node", each.host.console)]
    steps = [at for each in peers if (at := each.host.printed(r"^step \d+/\d+ ", began))]
    loaded = [at for each in peers if (at := each.host.printed(r"^ *resumes? ", began))]
    if not steps:
        return None
    first = min(steps)
    restored = min([at for at in loaded if at <= first], default=claimed.modified)
    ends = [marks["user data"], marks["service"], ready, began, claimed.modified, restored, first]
    starts = [life.began, *ends[:-1]]
    return {name: max(0.0, end - start) for name, start, end in zip(PHASES, starts, ends, strict=True)}


def table(title: str, rows: list[dict[str, float]]) -> list[str]:
    """Return lines: each phase with its median and its range."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"{title} ({len(rows)} times), seconds: median, least and most"]
    for name in names:
        values = sorted(row[name] for row in rows if name in row)
        lines.append(f"  {name:<12} {values[len(values) // 2]:7.1f} {values[0]:7.1f} {values[-1]:7.1f}")
    totals = sorted(sum(row.values()) for row in rows)
    if title.startswith("replacement"):
        lines.append(f"  {'in all':<12} {totals[len(totals) // 2]:7.1f} {totals[0]:7.1f} {totals[-1]:7.1f}")
    return lines
