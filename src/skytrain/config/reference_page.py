"""Generate docs/settings.md, the list of all settings, from the schema."""

from __future__ import annotations

from typing import Any

from .explanation import Explained, Section, all_sections, default_of, group_choices
from .schema import Decides
from .typed import MISSING

SHORT = {
    Decides.NUMBERS: "numbers",
    Decides.WEIGHTS: "weights",
    Decides.DATA: "data",
    Decides.EXECUTION: "execution",
}


def settings_page() -> str:
    """Return the whole page as Markdown."""
    kinds = "".join(f"- **{SHORT[decides]}**: {decides.value}.\n" for decides in Decides)
    return (
        "# Settings\n\n"
        "Made from the schema by `skytrain config explain --markdown`; `skytrain config explain KEY` explains one setting,\n"
        "`skytrain config show` prints what a run would use and where each value comes from.\n\n"
        "The last column says what a setting decides:\n\n"
        f"{kinds}\n"
        "Run names, versions of prepared data and the compatibility of checkpoints follow from it.\n"
        + "".join(_section(section) for section in all_sections())
    )


def shown(value: Any) -> str:
    """Format a value as a user would type it."""
    if value is None or value == MISSING:
        return "null" if value is None else "must be given"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _section(section: Section) -> str:
    title = f"`{section.variant or section.key}`" if section.key else "The run"
    choices = ", ".join(f"`{choice}`" for choice in group_choices(section))
    about = f"{section.meaning}\nChoices: {choices}." if choices else section.meaning
    rows = "".join(_row(setting) for setting in section.settings)
    head = "| setting | meaning | takes | default | decides |\n| --- | --- | --- | --- | --- |\n"
    return f"\n## {title}\n{about}\n\n{head}{rows}"


def _row(setting: Explained) -> str:
    default = default_of(setting)
    cells = (
        f"`{setting.key}`",
        setting.declared.meaning,
        setting.type,
        f"`{shown(default[0])}`" if default else "",
        SHORT[setting.declared.decides],
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"
