"""How a cleaning rule is found and called: one module for each group of settings under `data.cleaning`.

Rules run in the order in which `CleaningConfig` declares their settings. The module `rules/NAME.py` defines
`RULE = CleaningRule(apply)`. It is imported only when the rule is enabled, with the libraries that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

Reasons = list[str | None]
"""For each text, the check that it failed ("" if the rule has only one), or None."""


class RuleBatch(NamedTuple):
    """The input of a rule: the remaining documents and the settings."""

    texts: list[str]
    places: list[int]  # positions of the texts in the batch as it was read
    urls: Reasons
    data: Any
    decontaminator: Any
    memory: dict[str, Any]  # what one rule computed and the next can use

    def scanned(self) -> tuple[Any, list[int]]:
        """Return a Scan and its rows for this batch's texts. A scan serves every rule until one changes the texts."""
        from .scan import scan  # loads numba, which takes half a second

        if "scan" not in self.memory:
            cleaning = self.data.cleaning
            self.remember_scan(scan(self.texts, cleaning.gopher_repetition.enabled, cleaning.fineweb.short_line_chars))
        remembered, row_of = self.memory["scan"]
        return remembered, [row_of[place] for place in self.places]

    def counts(self) -> Any:
        """Return the Counts of this batch's texts."""
        scanned, rows = self.scanned()
        return scanned.counts.rows(rows)

    def remember_scan(self, scanned: Any) -> None:
        """Keep a scan, with one row for each of this batch's texts, for later rules."""
        self.memory["scan"] = (scanned, {place: row for row, place in enumerate(self.places)})


class CleaningRule(NamedTuple):
    """A rule. `apply` returns the texts, changed or not, and for each one why it is removed, or None."""

    apply: Callable[[RuleBatch], tuple[list[str], Reasons]]
    changes_texts: bool = False
    revision: int = 1  # raised when the same settings give other results: prepared data then has another version
    library: str = ""  # a package whose version can change results too


def find_rule(name: str) -> CleaningRule:
    """Return the rule whose settings are `data.cleaning.NAME`."""
    rule: CleaningRule = import_module(f"{__package__}.{name}").RULE
    return rule


def enabled_rules(cleaning: Any, until: str) -> tuple[list[str], list[str]]:
    """Return the names of the enabled rules in order: those up to the rule `until`, and those after it."""
    names = list(vars(cleaning))
    middle = names.index(until) + 1
    early, late = (
        [name for name in part if _is_enabled(vars(getattr(cleaning, name)))]
        for part in (names[:middle], names[middle:])
    )
    return early, late


def _is_enabled(settings: dict[str, Any]) -> bool:
    """Return whether `enabled` is set, or any switch of a rule that has several."""
    return bool(settings["enabled"]) if "enabled" in settings else any(settings.values())
