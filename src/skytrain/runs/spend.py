"""What records say of dollars: the fields of a spend stream and of a heartbeat."""

from __future__ import annotations

from typing import Any

from ..storage import Shape, is_amount, is_clock, is_mapping, is_text, is_whole, maybe


def is_counts(value: Any) -> bool:
    """Return whether the value is what machines have cost so far, as `meter.Count` has it, by their keys."""
    kinds = {"usd": is_amount, "seconds": is_amount, "boot": is_text, "boot_seconds": is_clock}
    return is_mapping(value) and all(
        is_mapping(count) and count.keys() == kinds.keys() and all(kind(count[name]) for name, kind in kinds.items())
        for count in value.values()
    )


SPEND: Shape = {
    "machines": maybe(is_counts),
    "usd": maybe(is_amount),
    "usd_per_hour": maybe(is_amount),
    "save_seconds": maybe(is_amount),
    "saved_step": maybe(is_whole),
    "at": maybe(is_text),
}
