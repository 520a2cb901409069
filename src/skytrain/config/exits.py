"""The table of outcomes and exit codes, shared by the command line, the help and the docs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exit:
    """One outcome of a command. `remedy` tells the user what to do next."""

    code: int
    cause: str
    meaning: str
    remedy: str = ""


DONE = "done"
STOPPED = "stopped"
BUDGET = "budget"
INTERRUPTED = "interrupted"
UNCOMMITTED = "uncommitted"
SUPERSEDED = "superseded"
RESUME = "run the same command again: it resumes from the last commit"

EXITS = (
    Exit(0, DONE, "all steps are trained"),
    Exit(
        0,
        STOPPED,
        "`trainer.stop_at_step` was reached, or `skytrain stop` asked for it; a checkpoint was committed",
        "run the same command again, with a higher stop_at_step if that was the reason",
    ),
    Exit(2, "usage", "a setting, an option or the data is wrong", "follow the message"),
    Exit(3, "preflight", "a check before the start failed", "follow the message"),
    Exit(4, "quota", "the account's quota is too small", "follow the message"),
    Exit(
        5,
        "capacity",
        "the cloud has no such machine now, or takes no more requests",
        "try again later, or another machine",
    ),
    Exit(
        6,
        BUDGET,
        "`budget.usd` is nearly spent, or will not be enough; a checkpoint was committed",
        "raise it and run the same command again",
    ),
    Exit(7, INTERRUPTED, "interrupted after a commit", RESUME),
    Exit(8, SUPERSEDED, "a newer attempt at the run has taken over", "leave it to that attempt, or choose run=NAME"),
    Exit(9, "damaged", "a checkpoint or a record of the run is damaged", "follow the message; see `--fall-back`"),
    Exit(10, "store", "the store was unreachable for longer than `store.patience`", RESUME),
    Exit(
        11,
        "credentials",
        "the credentials are missing, expired or not sufficient",
        "fix them, then run the same command",
    ),
    Exit(
        12,
        UNCOMMITTED,
        "interrupted without a commit",
        "run the same command again: it resumes from the previous commit",
    ),
)
EXIT_CODES = {each.cause: each.code for each in EXITS}
OUTCOMES = frozenset({DONE, STOPPED, BUDGET, INTERRUPTED, SUPERSEDED})  # outcomes of an attempt that has not failed


def exit_codes_text() -> str:
    """Return the table for a command's help, one line per code. `\\b` keeps the lines from being joined."""
    rows = [f"  {each.code:>2}  {each.meaning.replace('`', '')}" for each in EXITS if each.cause != STOPPED]
    return "\n".join(["\b", "Exit codes:", *rows])


def exit_codes_table() -> str:
    """Return the table in Markdown, for the docs."""
    rows = [f"| {each.code} | {each.cause} | {each.meaning} | {each.remedy} |" for each in EXITS]
    return "\n".join(["| code | cause | meaning | what to do |", "| --- | --- | --- | --- |", *rows])
