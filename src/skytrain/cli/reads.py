"""The settings and options that each command reads. A person who types another one is told, instead of being ignored.

Only typed words are judged: a recipe sets values of all groups, and each command takes from it what it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

ALL: tuple[str, ...] = ("",)  # every setting: what trains, prepares or plans, here or on rented machines
# A recipe may name the store, and an account's bucket is one.
STORE = ("recipe", "store", "cloud")
# The lengths and sizes come with a model: the configuration is checked against them.
SIZES = ("trainer.sequence_length", "trainer.micro_batch", "trainer.batch_tokens")
DATA = (*STORE, "data", "tokenizer", "model", "seed", "engine", "spark", *SIZES)
MODEL = (*STORE, "model", "tokenizer", "trainer.device", "trainer.precision", "trainer.compile", *SIZES)
TASKS = ("evaluation.tasks", "evaluation.limit", "evaluation.folder", "evaluation.data")
SCORED = (*MODEL, "data", "loader.files", "loader.separate_documents", *TASKS)
READS: dict[str, tuple[str, ...]] = {
    "quickstart": ALL,
    "prepare": ALL,  # the settings of the run that it prepares for
    "plan": ALL,
    "tune": ALL,
    "train": ALL,
    "launch": ALL,
    "node": ALL,
    "finish": ALL,
    "doctor": ALL,
    "branch": ALL,
    "bench": ALL,
    "config": ALL,
    "cloud": ALL,
    "image": ALL,
    "catalog": ALL,
    "evaluate": SCORED,
    "generate": MODEL,
    "export": MODEL,
    "chat": MODEL,
    "merge": (*SCORED, "run"),
    "merge-report": SCORED,
    "serve": (*MODEL, "serve", "budget", "run"),
    "models": STORE,
    "status": STORE,
    "logs": STORE,
    "stop": STORE,
    "tensorboard": STORE,
    "report": STORE,
    "plot": STORE,
    "dashboard": STORE,
    "runs": STORE,
    "checkpoints": STORE,
    "shell": STORE,
    "costs": STORE,
    "gc": STORE,
    "store": STORE,
    "data inspect": DATA,
    "data list": STORE,
    "data show": DATA,
    "data convert": DATA,
    "data export": DATA,
    "data duplicates": DATA,
    "data task": (*STORE, "tokenizer", "model", "evaluation.data", "evaluation.folder", *SIZES),
}


UsageError: Any = typer.BadParameter.__base__  # typer itself exports only the special case


class ReadingCommand(TyperCommand):
    """A command that refuses settings which it does not read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)  # the parser takes words away
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            option = getattr(error, "option_name", "")
            known = any(option in (*each.opts, *each.secondary_opts) for each in self.params)  # and lacks its value
            if not known and (hint := meant_setting(option, typed)):
                from ..config import SkytrainError

                raise SkytrainError(f"{ctx.command_path} has no {option}\n  {hint}") from None
            raise

    def invoke(self, ctx: Any) -> Any:
        refuse_unread_settings(ctx)
        return super().invoke(ctx)


def meant_setting(option: str, typed: Sequence[str]) -> str | None:
    """Return what an option that no command has is called here, if another tool has it or it is a setting or a group."""
    from ..config import GROUPS, setting_named, translated

    key = option.lstrip("-").replace("-", "_")
    if (hint := translated(key)) is not None:
        return hint
    named = key if key in GROUPS else setting_named(key)
    if named is None:  # nanoGPT and Hugging Face write settings so
        return (
            "settings are KEY=VALUE, without dashes; options have no _ and no dots" if set("_.") & set(option) else None
        )
    return f"settings are KEY=VALUE, without dashes: {named}={_value_of(option, typed) or 'VALUE'}"


def _value_of(option: str, typed: Sequence[str]) -> str | None:
    """Return the value that somebody gave an option, as `--option VALUE` or `--option=VALUE`."""
    for word, following in itertools.zip_longest(typed, typed[1:]):
        if word == option:
            return None if following is None or following.startswith("--") or "=" in following else following
        if word.startswith(f"{option}="):
            return word.partition("=")[2] or None
    return None


def refuse_in(app: typer.Typer) -> None:
    """Let all commands of an application, and of those below it, refuse settings that they do not read."""
    for command in app.registered_commands:
        command.cls = ReadingCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            refuse_in(group.typer_instance)


def refuse_unread_settings(context: Any) -> None:
    """Raise ConfigError if somebody typed a setting that the command does not read."""
    command = context.command_path.partition(" ")[2]
    for word in _typed(context):
        if not is_read(command, word):
            from ..config import ConfigError

            reads = f"it reads {_listed(settings_read(command))}"
            raise ConfigError(word.partition("=")[0], f"skytrain {command} does not read it", hint=reads)


def refuse_options(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Raise SkytrainError if somebody typed one of these options, by its Python name: it would have no effect."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            from ..config import SkytrainError

            raise SkytrainError(f"{parameter.opts[0]} has no effect here: {why}\n  leave it out")


def settings_read(command: str) -> tuple[str, ...]:
    """Return the settings and groups that a command such as `data task` reads; a command stands for its subcommands.

    A group of commands that runs as a program of its own is not judged.
    """
    return READS.get(command, READS.get(command.partition(" ")[0], ALL))


def split_words(words: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Separate names, such as those of runs, from settings. A name may contain `=`: lr=3e-4 is not a setting."""
    settings = [word for word in words or () if setting_key(word) is not None]
    return [word for word in words or () if setting_key(word) is None], settings


def setting_key(word: str) -> str | None:
    """Return the key of a word KEY=VALUE; None if it is none: nothing that is similar is the name of a setting."""
    from dataclasses import fields

    from ..config import Config, nearest

    key, equals, _ = word.partition("=")
    if not equals:
        return None
    first = key.replace("/", ".").partition(".")[0]
    known = ["recipe", *(field.name for field in fields(Config))]
    return key if first in known or nearest(first, known, cutoff=0.7) else None


def _typed(context: Any) -> Iterator[str]:
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        if parameter.param_type_name == "argument" and isinstance(value, list | tuple):
            yield from value


def is_read(command: str, word: str) -> bool:
    """Return whether a command reads a setting KEY=VALUE, or chooses a group of which it reads some; true of names."""
    key = setting_key(word)
    if key is None:
        return True
    path = key.replace("/", ".")
    return any(
        not each or path == each or path.startswith(f"{each}.") or ("." not in path and each.startswith(f"{path}."))
        for each in settings_read(command)
    )


def _listed(reads: tuple[str, ...]) -> str:
    return f"{', '.join(sorted(each for each in reads if each != 'recipe'))}; and what a recipe sets of them"
