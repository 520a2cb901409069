"""Every `skytrain` command that README and the documentation show is read as a user would type it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from skytrain.cli.main import app
from skytrain.config.composition import compose

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# In a code block a command is a line; in a sentence it stands in backticks and has a verb or more.
LINE = re.compile(r"^\s*(?:\$ )?(?:torchrun .*-m )?skytrain +(?P<words>[a-z].*)$")
INLINE = re.compile(r"`skytrain (?P<words>[a-z][^`]*)`")
PICTURE = "──"


def commands(text: str) -> dict[str, bool]:
    """Each command, and whether it stands whole on a line of its own; a sentence may leave arguments out."""
    text = text.replace("\\\n", " ")
    lines = [match["words"] for line in text.splitlines() if PICTURE not in line and (match := LINE.match(line))]
    return dict.fromkeys((match["words"] for match in INLINE.finditer(text)), False) | dict.fromkeys(lines, True)


def typed(command: str) -> list[str]:
    """The words as a shell passes them on: without comments, variables set, and without what an ellipsis stands for."""
    words = shlex.split(re.sub(r"\$[A-Z_]+", "0", command), comments=True)
    return [word for word in words if not word.endswith("...")]


def parse(words: list[str]) -> dict[str, Any]:
    """Reads verb, options and arguments as the command line does, and runs nothing; the values that a verb would get."""
    command: Any = typer.main.get_command(app)
    context, name = None, "skytrain"
    while words and hasattr(command, "resolve_command"):
        context = command.context_class(command, parent=context, info_name=name)
        name, command, words = command.resolve_command(context, words)
    if hasattr(command, "resolve_command"):  # a sentence about a group of verbs
        return {}
    return command.make_context(name, list(words), parent=context).params


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_accepted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problems = []
    for command, whole in commands(page.read_text()).items():
        try:
            if overrides := parse(typed(command)).get("overrides"):
                compose(overrides)
        except Exception as error:  # each is told with its line
            if whole or not re.search("Missing|requires an argument", str(error)):
                problems.append(f"skytrain {command}\n  {type(error).__name__}: {error}")
    assert problems == []


def test_the_commands_of_the_readme_are_found():
    words = [typed(command)[0] for command in commands((ROOT / "README.md").read_text())]
    assert {"prepare", "train", "plan", "config", "export"} <= set(words)


def test_a_line_that_is_no_command_is_told():
    with pytest.raises(Exception, match="No such option"):
        parse(typed("train --procesess 4"))
