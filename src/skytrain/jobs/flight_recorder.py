"""What this process is doing: the collective it waits in, from torch's flight recorder, and its line of code."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parents[1])


def counts() -> str:
    """Return the number of collectives started and ended, by group; the text changes whenever a number does."""
    return json.dumps([dump.get("pg_status") for dump in _dumps(entries=False)], sort_keys=True)


def waits_in() -> str | None:
    """Return the oldest collective that has not ended, such as `all_reduce among shard`; None if there is none."""
    waiting = [entry for dump in _dumps(entries=True) for entry in dump.get("entries", []) if not entry["retired"]]
    if not waiting:
        return None
    oldest = min(waiting, key=lambda entry: int(entry["time_created_ns"]))
    operation = oldest["profiling_name"].rpartition(":")[2].split(" ")[0]
    group = oldest["process_group"][1].removeprefix("mesh_")
    return f"{operation} among {'all ranks' if group in ('default_pg', 'undefined', '') else f'the {group} group'}"


def place() -> str:
    """Return the innermost line of Skytrain's code that the main thread is in."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
        frame = frame.f_back
    return "code outside Skytrain"


def doing() -> str:
    collective = waits_in()
    return f"{collective}, called from {place()}" if collective else place()


def observe(before: str) -> tuple[str, str]:
    """Return the counts now and what this process is doing, in more detail if nothing has changed since `before`."""
    try:
        moved = counts()
        return moved, doing() if moved == before else place()
    except Exception as error:  # the recorder differs between versions of torch; a beat without it is better than none
        return before, f"{place()} (no flight recorder: {type(error).__name__})"


def _dumps(*, entries: bool) -> Iterator[dict[str, Any]]:
    """Yield the dumps of gloo's recorder and, if this torch has NCCL, of NCCL's."""
    import torch._C._distributed_c10d as c10d

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            text = dump(entries, False)
            yield json.loads(text) if text else {}
