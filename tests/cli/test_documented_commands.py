"""Every `skytrain` command that README, the documentation and the help show is parsed as a user would type it."""

import functools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer

from skytrain.aws import cloud_files
from skytrain.cli.main import app
from skytrain.cli.reads import refuse_unread_settings
from skytrain.config import AdoptedSettings, ConfigError, compose
from skytrain.models.agreement import NOT_ADOPTED
from skytrain.models.sizes import size_config

ROOT = Path(__file__).parents[2]
# The commands of extending.md need what the page adds: test_extending.py runs them.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.name != "extending.md"),
    *sorted((ROOT / "lessons").glob("*.py")),
    *sorted((ROOT / "notebooks").glob("*.py")),
]
# In a code block a command is a line; in a sentence it is in backticks.
LINE = re.compile(r"^\s*(?:\$ |Example: )?(?:torchrun .*-m )?skytrain +(?P<words>[a-z].*)$")
INLINE = re.compile(r"`skytrain (?P<words>[a-z][^`]*)`")
# A setting with its values: `parallel.schedule=gpipe`, `1f1b` or `zbv`.
VALUES = re.compile(r"`(?P<key>[a-z_]+\.[a-z_]+)=(?P<first>[\w-]+)`(?P<others>(?:,? (?:or )?`[\w-]+`)+)")
PICTURE = "──"


def commands(text: str) -> dict[str, bool]:
    """Each command, and whether it is a line of its own; a command in a sentence may omit arguments."""
    text = text.replace("\\\n", " ")
    lines = [match["words"] for line in text.splitlines() if PICTURE not in line and (match := LINE.match(line))]
    return dict.fromkeys((match["words"] for match in INLINE.finditer(text)), False) | dict.fromkeys(lines, True)


def typed(command: str) -> list[str]:
    """The arguments as a shell passes them: variables replaced, without comments, redirections and ellipses."""
    words = shlex.split(re.sub(r"\$[A-Z_]+", "0", command), comments=True)
    return [word for word in takewhile(lambda word: word not in (">", "|"), words) if not word.endswith("...")]


def parse(words: list[str]) -> dict[str, Any]:
    """Parses the arguments as the command line does, without running the command; returns its parameters."""
    command: Any = typer.main.get_command(app)
    context, name = None, "skytrain"
    while words and not words[0].startswith("-") and hasattr(command, "resolve_command"):
        context = command.context_class(command, parent=context, info_name=name)
        name, command, words = command.resolve_command(context, words)
    if not words and hasattr(command, "resolve_command"):  # a sentence about a group of commands
        return {}
    made = command.make_context(name, list(words), parent=context)
    refuse_unread_settings(made)
    return made.params


def stand_in(weights: str | None, store: Mapping[str, Any]) -> AdoptedSettings | None:
    """Settings for pretrained weights that are not on this machine."""
    model = {name: value for name, value in asdict(size_config("llama-3.1-8b")).items() if name not in NOT_ADOPTED}
    return AdoptedSettings("config.json", model) if weights else None


@functools.cache
def compose_once(overrides: tuple[str, ...]) -> None:
    # A tokenizer of the hub is not on this machine either.
    compose(list(overrides), adopt=stand_in, read_tokenizer=lambda chosen, store: {"id": "mine-0", "vocab_size": 4096})


def problems_of(text: str) -> list[str]:
    problems = []
    for command, whole in commands(text).items():
        try:
            if overrides := parse(typed(command)).get("overrides"):
                compose_once(tuple(overrides[1:] if overrides[0] in ("train", "prepare") else overrides))
        except Exception as error:  # reported with its command
            if whole or not re.search("Missing|requires an argument", str(error)):
                problems.append(f"skytrain {command}\n  {type(error).__name__}: {error}")
    return problems


def values_of(text: str) -> list[str]:
    """Each setting that a sentence lists with several values, as words of the command line."""
    return [
        f"{match['key']}={value}"
        for match in VALUES.finditer(text)
        for value in (match["first"], *re.findall(r"`([\w-]+)`", match["others"]))
    ]


def help_texts(command: Any) -> Iterator[str]:
    yield command.help or ""
    for below in getattr(command, "commands", {}).values():
        yield from help_texts(below)


@pytest.fixture(autouse=True)
def connected_folder(tmp_path, monkeypatch):
    """The working folder after `skytrain cloud init`, so that cloud=aws is a choice."""
    outputs = {"project": "demo", "account_id": "123456789012", "region": "us-east-2", "bucket": "demo-store"}
    for name, text in cloud_files(outputs).items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_accepted(page):
    assert problems_of(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_values_that_a_page_lists_for_a_setting_are_choices(page):
    text = re.sub(r"\n#? *", " ", page.read_text())
    refused = []
    for word in values_of(text):
        try:
            compose([word])
        except ConfigError as error:
            if "is not a choice" in str(error):
                refused.append(str(error))
    assert refused == []


def test_the_examples_in_the_help_are_accepted():
    text = "\n".join(help_texts(typer.main.get_command(app)))
    assert len(commands(text)) > 30
    assert problems_of(text) == []


def test_the_commands_of_the_readme_are_found():
    words = [typed(command)[0] for command in commands((ROOT / "README.md").read_text())]
    assert {"prepare", "train", "plan", "config", "export"} <= set(words)


def test_a_command_with_a_wrong_option_is_found():
    with pytest.raises(Exception, match="No such option"):
        parse(typed("train --procesess 4"))
