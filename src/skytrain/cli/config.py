"""`skytrain config`: the settings of a run, and what each setting means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import SkytrainError
from .options import ConfigDirs, Json, Overrides, compose_overrides

if TYPE_CHECKING:
    from ..config import Explained, Section

SHOWN_FILES = 8

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Show and explain settings.

    \b
    Examples:
      skytrain config show recipe=quickstart
      skytrain config explain trainer.precision
    """


@app.command()
def show(overrides: Overrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Print every setting of a run, and what set it.

    Example: skytrain config show recipe=quickstart trainer.steps=500
    """
    from ..config import flatten, shown

    composed = compose_overrides(overrides, config_dir, recipe_weights="if-stored")
    if as_json:
        print(json.dumps(composed.values, indent=2))
        return
    leaves = flatten(composed.values)
    width = max(len(key) for key in leaves)
    texts = {key: shown(value) for key, value in leaves.items()}
    value_width = min(48, max(len(text) for text in texts.values()))
    for key, text in texts.items():
        print(f"{key:<{width}}  {text:<{value_width}}  {composed.origins.get(key, '')}".rstrip())


@app.command()
def explain(
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="A setting (trainer.batch_tokens) or a group (trainer).")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page of all settings, docs/settings.md.")
    ] = False,
) -> None:
    """Explain a setting: its meaning, default, what it decides.

    Example: skytrain config explain trainer.precision
    """
    from ..config import Explained, explain as find, settings_page

    if markdown:
        print(settings_page(), end="")
        return
    if key is None:
        raise SkytrainError("which setting or group?\n  for example: skytrain config explain trainer.batch_tokens")
    print("\n\n".join(_setting_lines(one) if isinstance(one, Explained) else _section_lines(one) for one in find(key)))


def _setting_lines(setting: Explained) -> str:
    from ..config import default_of, set_by, shown

    value, origin = default_of(setting) or (None, None)
    others = [f"{file} ({shown(of)})" for file, of in set_by(setting.key).items() if file != origin]
    more = f" and {len(others) - SHOWN_FILES} more" if len(others) > SHOWN_FILES else ""
    rows = {
        "takes": setting.type.replace("`", ""),
        "with": str(setting.variant or ""),
        "default": f"{shown(value)}  ({origin})" if origin else "",
        "decides": setting.declared.decides.value,
        "also set by": ", ".join(others[:SHOWN_FILES]) + more,
    }
    lines = [f"  {name:<12}{text}" for name, text in rows.items() if text]
    return "\n".join([setting.key, f"  {setting.declared.meaning}", *lines])


def _section_lines(section: Section) -> str:
    from ..config import group_choices

    choices = group_choices(section)
    width = max(len(setting.key) for setting in section.settings)
    rows = [f"  {setting.key:<{width}}  {setting.declared.meaning}" for setting in section.settings]
    head = [f"{section.variant or section.key}: {section.meaning}", *([f"  {', '.join(choices)}"] if choices else [])]
    return "\n".join([*head, *rows])
