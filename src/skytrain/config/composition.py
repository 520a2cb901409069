"""Hydra composition: YAML groups, then the user's overrides, then the typed schema, with the origin of each value."""

from __future__ import annotations

import copy
import functools
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from hydra import initialize_config_module
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from .checks import COMMAND_LINE, check
from .errors import ConfigError, SkytrainError, nearest
from .group_files import GROUPS_MODULE, choices_with, file_settings, with_left_out
from .other_tools import OF_ANOTHER_GROUP, meant_file, meant_value, translated
from .schema import Config, flatten
from .secrets import check_settings
from .trusted_code import check_brought
from .typed import build, is_list, is_number, is_text, may_be_null, meant_number, names_other_variant
from .upgrades import RENAMED

log = logging.getLogger(__name__)

GROUPS = (
    "recipe",
    "model",
    "data",
    "data/cleaning",
    "tokenizer",
    "optimizer",
    "lr_schedule",
    "parallel",
    "trainer",
    "evaluation",
    "loader",
    "store",
    "budget",
    "cloud",
    "tune",
    "serve",
)
# Arguments of a plugged-in class, which checks them itself, and names of tasks and of secrets.
FREE_KEYS = ("model.args", "data.source", "evaluation.data", "cloud.secrets")
OWN_SOURCES = "skytrain."  # built-in sources list all their keys in their files, so an unknown key is a typo
# Of any data set, whose files they are; not in YAML, so that data prepared without them keeps its version.
OPTIONAL_SOURCE_KEYS = ("data.source.validation_paths", "data.source.validation_files")
RECIPE = "recipe/"
VARIANTS = ("optimizer", "lr_schedule")  # groups whose choices have different settings
MOST_SHOWN = 6
UNREAD = "unread"  # the id of a tokenizer whose files were not read
ALTERNATIVES = {
    "trainer.steps": "trainer.tokens",
    "trainer.tokens": "trainer.steps",
}  # setting one makes the other null


@dataclass(frozen=True)
class AdoptedSettings:
    """The settings that initial weights bring with them."""

    file: str  # that the settings come from
    model: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None = None  # None if the weights come without one
    has_tokenizer_files: bool = True  # False for a folder with config.json, but without a tokenizer


# Maps `model.weights`, and the settings of the store, to the settings that they bring; None if no file describes them.
Adopt = Callable[[str | None, Mapping[str, Any]], AdoptedSettings | None]
# Maps the name of a model on the hub, and the settings of the store, to where the store has it; else the name itself.
Locate = Callable[[str, Mapping[str, Any]], str]
RecipeWeights = Literal["read", "if-stored", "skip"]
# Maps the settings of a Hugging Face tokenizer and of the store to those that come from the tokenizer's files.
ReadTokenizer = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Composed:
    """A checked configuration, the plain mapping behind it, the origin of every leaf, and the overrides."""

    config: Config
    values: dict[str, Any]
    origins: dict[str, str]
    overrides: tuple[str, ...] = ()  # that the configuration was composed of
    config_dirs: tuple[Path, ...] = ()  # folders of the user's own groups that were given
    unread_weights: str | None = None  # of a recipe, and not read: only the shape is known

    @property
    def words(self) -> tuple[str, ...]:
        """Return `overrides` under its former name, which launch targets of users may read."""
        return self.overrides

    @property
    def given(self) -> frozenset[str]:
        """Return the settings made by the user, on the command line or in their own files; all others are defaults."""
        return _given(self.origins)

    @property
    def of_recipe(self) -> frozenset[str]:
        """Return the settings that a recipe made."""
        return frozenset(key for key, origin in self.origins.items() if origin.startswith(RECIPE))


def compose(
    overrides: Sequence[str] = (),
    config_dirs: Sequence[str | Path] = (),
    adopt: Adopt | None = None,
    read_tokenizer: ReadTokenizer | None = None,
    locate: Locate | None = None,
    recipe_weights: RecipeWeights = "read",
) -> Composed:
    """Compose the configuration that `key=value` overrides select and check it against the schema.

    `config_dirs` are folders of the user's own groups (`recipe/mine.yaml`), searched after the built-in ones and before
    the current folder (`cloud/aws.yaml`).
    `adopt` reads the settings of the initial weights; they replace the default model, but no user setting.
    `read_tokenizer` reads what `tokenizer=hf` takes from the tokenizer's files.
    `locate` finds models of the hub in the store.
    `recipe_weights` says whether the weights that a recipe names are read: always, if the store has them, or never. A
    recipe has the model's shape, which suffices to plan; the id of its tokenizer is then not known. Unless they are
    always read, a model's folder needs no tokenizer either.
    """
    parsed = parse_overrides(overrides)
    choices = [override for override in parsed if override.key_or_group in GROUPS]
    settings = [override for override in parsed if override.key_or_group not in GROUPS]
    tree, origins = _compose_files(choices, config_dirs)
    for override in settings:
        _apply(tree, origins, override)
    _rename(tree, origins)
    for key in _replaced({override.key_or_group: override.value() for override in settings}):
        OmegaConf.update(tree, key, None)
        origins[key] = COMMAND_LINE
    _split_by_files(tree, origins)
    _name_callbacks(tree)
    unread = _unread_weights(tree, origins, locate, recipe_weights if adopt is not None else "skip")
    if unread is not None:
        adopt = locate = None
        if OmegaConf.is_missing(tree.tokenizer, "id"):
            _leave_tokenizer_unread(tree)
            read_tokenizer = None
    if locate is not None:
        _locate(tree, locate)
    if adopt is not None:
        adopted = _adopt(tree, origins, adopt, {choice.key_or_group for choice in choices})
        if recipe_weights != "read" and adopted is not None and not adopted.has_tokenizer_files:
            assert adopted.tokenizer is not None
            if tree.tokenizer.get("name") == adopted.tokenizer["name"]:
                _leave_tokenizer_unread(tree)
                read_tokenizer = None
    if read_tokenizer is not None and tree.tokenizer.kind == "hf":
        _read_tokenizer(tree, origins, read_tokenizer)
    try:
        values = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        raise ConfigError(str(key), str(error).splitlines()[0], origin=origins.get(str(key))) from None
    assert isinstance(values, dict)
    settings_by_name = {str(key): value for key, value in values.items()}
    check_settings(settings_by_name, origins)
    config = build(Config, with_left_out(settings_by_name), origins=origins)
    check(config, origins)
    return Composed(
        config=config,
        values=settings_by_name,
        origins=origins,
        overrides=tuple(overrides),
        config_dirs=tuple(Path(folder) for folder in config_dirs),
        unread_weights=unread,
    )


def unchecked_settings(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> dict[str, Any]:
    """Return the settings that overrides select, without checks: nothing that they name is read."""
    parsed = parse_overrides(overrides)
    tree, origins = _compose_files([one for one in parsed if one.key_or_group in GROUPS], config_dirs)
    for override in parsed:
        if override.key_or_group not in GROUPS:
            _apply(tree, origins, override)
    _rename(tree, origins)
    _name_callbacks(tree)
    values = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def settings_in(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that overrides make, by key, without the choices of groups."""
    return {one.key_or_group: one.value() for one in parse_overrides(overrides) if one.key_or_group not in GROUPS}


def check_words_of_file(
    words: Sequence[str], typed: Sequence[str], config_dirs: Sequence[str | Path], where: str, writer: str
) -> None:
    """Raise Untrusted if the settings of a file name code that the person, who has `typed` other settings, has not named.

    Whoever made the file `where`, its `writer`, decides them: a plan, or the domains of experts.
    """
    values = unchecked_settings([*words, *typed], config_dirs)
    own = [key for key, value in flatten(settings_in(typed)).items() if not isinstance(value, Mapping)]
    check_brought(values, settings_in(words), own, where, writer)


def _given(origins: Mapping[str, str]) -> frozenset[str]:
    ours = files(GROUPS_MODULE)
    return frozenset(
        key for key, origin in origins.items() if origin == COMMAND_LINE or not ours.joinpath(origin).is_file()
    )


def _compose_files(choices: list[Override], config_dirs: Sequence[str | Path]) -> tuple[DictConfig, dict[str, str]]:
    """Compose the YAML files, before the user's settings, and return the file that set each value."""
    for choice in choices:
        _check_choice(choice)
    folders = [Path(folder).resolve() for folder in config_dirs]
    for folder in folders:
        if not folder.is_dir():
            raise SkytrainError(f"--config-dir {folder}: no such folder")
    folders += [here for here in (Path.cwd(),) if here not in folders]
    lines = tuple(choice.input_line or "" for choice in choices)
    own = tuple(folder for folder in folders if any((folder / group).is_dir() for group in GROUPS))
    tree, origins = _read_files(lines, own) if own else _read_built_in_files(lines)
    return copy.deepcopy(tree), dict(origins)


@functools.cache
def _read_built_in_files(lines: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """Compose files that cannot change while the process lives: a sweep or a plan composes the same ones many times."""
    return _read_files(lines, ())


def _read_files(lines: tuple[str, ...], folders: tuple[Path, ...]) -> tuple[DictConfig, dict[str, str]]:
    GlobalHydra.instance().clear()
    with initialize_config_module(GROUPS_MODULE, version_base="1.3"):
        loader: Any = GlobalHydra.instance().config_loader()
        quoted = (str(folder).replace("'", "\\'") for folder in folders)
        searchpath = "hydra.searchpath=[" + ",".join(f"'file://{folder}'" for folder in quoted) + "]"
        try:
            # As hydra.compose does, but each file is read once, and Hydra's own settings are left out.
            parsed, repository = loader._parse_overrides_and_create_caching_repo("config", [*lines, searchpath])
            _make_recipes_global(repository)
            listed = create_defaults_list(repository, "config", parsed, prepend_hydra=False, skip_missing=False)
            tree = loader._compose_config_from_defaults_list(defaults=listed.defaults, repo=repository)
        except HydraException as error:
            raise _bad_choice(loader, parse_overrides(lines), error, folders) from None
        except ValueError as error:  # Hydra rejects a group choice that is not a name
            raise _no_name(parse_overrides(lines)) or SkytrainError(f"{' '.join(lines)}: {error}") from None
        except (OmegaConfBaseException, YAMLError) as error:
            raise SkytrainError(f"a configuration file cannot be read: {' '.join(str(error).split())}") from None
        # Hydra does not record which file set a value, so load the files one by one, in order.
        origins: dict[str, str] = {}
        replaced: list[str] = []
        of_choices: set[str] = set()
        for default in listed.defaults:
            part = loader._load_single_config(default, repository)
            origin = _name(repository, str(default.config_path))
            leaves = flatten(OmegaConf.to_container(part.config, resolve=False))
            if str(default.config_path).partition("/")[0] in VARIANTS:
                of_choices.update(leaves)
            replaced = [key for key in replaced if key not in leaves] + _replaced(leaves)
            origins.update(dict.fromkeys([*leaves, *replaced], origin))
    for key in replaced:
        OmegaConf.update(tree, key, None)
    OmegaConf.set_struct(tree, False)
    assert isinstance(tree, DictConfig)
    _check_groups(tree, origins)
    _leave_out(tree, origins, lines, of_choices)
    return tree, origins


def _check_groups(tree: DictConfig, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for a file that chooses a recipe or a group as a command line does: `model: gpt2-124m`."""
    for group in GROUPS:
        key = group.replace("/", ".")
        value = OmegaConf.select(tree, key)
        if value is None or isinstance(value, DictConfig):
            continue
        line = f"- {value}" if group == "recipe" else f"- override /{group}: {value}"
        hint = f"a file begins with `defaults:`, and below it `{line}`"
        if group == "budget":
            hint = f"write `budget:`, and below it `usd: {value}`"
        raise ConfigError(key, f"{value!r} is not a group of settings", origin=origins.get(key), hint=hint)


def _leave_out(tree: DictConfig, origins: dict[str, str], lines: tuple[str, ...], of_choices: set[str]) -> None:
    """Leave out what a recipe sets for its own optimizer or schedule where the user has chosen another that lacks it."""
    for line in lines:
        group = line.partition("=")[0]
        unknown = [key for key in origins if key.startswith(f"{group}.") and key not in of_choices]
        for key in unknown if group in VARIANTS else []:
            if origins[key].startswith(RECIPE):
                tree[group].pop(key.removeprefix(f"{group}."))
                log.warning("%s of %s is left out: %s does not have it", key, origins.pop(key), line)


def _make_recipes_global(repository: Any) -> None:
    """Let a recipe set anything, also without Hydra's header `# @package _global_`."""
    load = repository.load_config

    def load_global(config_path: str) -> Any:
        result = load(config_path)
        if result is not None and config_path.startswith(RECIPE) and not result.header.get("package"):
            result.header["package"] = "_global_"
        return result

    repository.load_config = load_global


def _replaced(leaves: Mapping[str, Any]) -> list[str]:
    """Return the keys that are null because only their alternative is set."""
    return [other for key, other in ALTERNATIVES.items() if leaves.get(key) is not None and other not in leaves]


def _name(repository: Any, config_path: str) -> str:
    """Return the displayed name of a file: short for a built-in file, a path for a user's file."""
    source = next((one for one in repository.get_sources() if one.available() and one.is_config(config_path)), None)
    if source is not None and source.scheme() == "file":
        return os.path.relpath(Path(source.path) / f"{config_path}.yaml")
    return f"{config_path}.yaml"


def _check_choice(choice: Override) -> None:
    """Raise ConfigError for a mapping, which Hydra would leave out without a word, and for a file outside the groups' folders."""
    value = choice.value()
    names = value if isinstance(value, list) else [value]
    if any(isinstance(name, dict) or ".." in str(name).split("/") for name in names):
        hint = (
            f"{choice.key_or_group}=NAME chooses a file of a group; --config-dir names a folder with groups of your own"
        )
        raise ConfigError(choice.key_or_group, f"{value!r} is not a choice", origin=COMMAND_LINE, hint=hint)


def _no_name(choices: list[Override]) -> SkytrainError | None:
    """Return the error for a group whose choice is a number or another value."""
    for choice in choices:
        group = choice.key_or_group
        value = choice.value()
        if not isinstance(value, (str, list)):
            meant = f"did you mean budget.usd={value}?  " if group == "budget" else ""
            hint = f"{meant}{group}={value}: a group takes the name of a choice"
            return ConfigError(group, f"{value!r} is not a choice", origin=COMMAND_LINE, hint=hint)
    return None


def _bad_choice(loader: Any, choices: list[Override], error: Exception, folders: Sequence[Path]) -> SkytrainError:
    for choice in choices:
        group = choice.key_or_group
        word = str(choice.value())
        options = {name for name in loader.get_group_options(group) if not name.startswith("_")}
        for folder in folders:
            options |= {path.stem for path in (folder / group).glob("*.yaml")}
        if word not in options:
            guess = meant_value(group, word) or nearest(word, options)
            hint = f"did you mean {group}={guess}?  " if guess else ""
            known = next((one for one in sorted(options) if _repository(group, one) == word), None)
            if given := f"{group}={known}" if known else meant_file(group, word):
                hint = f"did you mean {given}?  "
            if group == "budget" and (usd := meant_number(word)):
                hint = f"did you mean budget.usd={usd}?  "
            files = (path for folder in folders for path in (folder / group).glob("*.*"))
            other = next((path for path in files if path.name.startswith(f"{word}.")), None)
            if other is not None:
                hint = f"the file {group}/{other.name} must be named {word}.yaml  "
            if group == "store" and ("/" in word or "." in word):
                hint = f"did you mean store.root={word}?  "
            if (group, word) == ("cloud", "aws"):
                hint = "`skytrain cloud init` writes cloud/aws.yaml into this folder (docs/aws.md)  "
            return ConfigError(
                group,
                f"{word!r} is not a choice",
                origin=COMMAND_LINE,
                hint=f"{hint}one of {', '.join(sorted(options))}",
            )
    missing = error.missing_cfg_file if isinstance(error, MissingConfigException) else None
    if missing == "cloud/aws":
        return SkytrainError(
            f"{' '.join(str(choice.input_line) for choice in choices if choice.key_or_group == 'cloud')} needs an AWS account: "
            "there is no cloud/aws.yaml in this folder\n  `skytrain cloud init` writes it (docs/aws.md); "
            "`launch --dry-run`, `serve --dry-run` and `plan` work without one"
        )
    problem = str(error).splitlines()[0]
    if "ConfigTypeError" in problem:
        named = problem.partition("'")[2].partition("'")[0]
        return SkytrainError(
            f"{named}.yaml is not a mapping of settings\n  its lines are `group:`, and below it `  setting: value`"
        )
    return SkytrainError(
        f"the configuration cannot be composed: {problem}\n  a file chooses by lines below `defaults:`, such as "
        "`- override /model: llama-tiny`; a recipe begins with another one by `- gpt2-124m-pile`"
    )


def _repository(group: str, choice: str) -> str | None:
    """Return the data set of the hub that a built-in choice reads."""
    file = f"{group}/{choice}.yaml"
    built_in = group == "data" and files(GROUPS_MODULE).joinpath(file).is_file()
    return file_settings(file).get("data.source.repo") if built_in else None


def _apply(tree: DictConfig, origins: dict[str, str], override: Override) -> None:
    key = override.key_or_group
    value = _value(override)
    if not _known(tree, key) and key not in RENAMED:
        leaves = list(flatten(OmegaConf.to_container(tree, resolve=False)))
        groups = [name for name in tree if isinstance(name, str)]
        guess = _similar(key, leaves, groups)
        hint = translated(key) or (
            f"{' and '.join(having)} {'has it: add it' if len(having) == 1 else 'have it: choose one'}"
            if (having := choices_with(key)[:MOST_SHOWN])
            else f"did you mean {guess}={value}?"
            if guess
            else _choices(key, leaves)
        )
        raise ConfigError(key, f"no such setting (value {value!r})", origin=COMMAND_LINE, hint=hint)
    # What it refers to may be missing as long as it is not read.
    present = OmegaConf.select(tree, key, throw_on_resolution_failure=False)
    is_group = isinstance(present, DictConfig)
    removed = value is None and may_be_null(Config, key)
    if is_group and not isinstance(value, dict) and not removed and not key.startswith(FREE_KEYS):
        inside = ", ".join(f"{key}.{name}" for name in list(present)[:6])
        raise ConfigError(
            key, f"{value!r} is not a group of settings", origin=COMMAND_LINE, hint=f"set one of {inside}"
        )
    if isinstance(present, ListConfig) and isinstance(value, dict):
        value = [value]
    merge = isinstance(value, dict) and not (is_group and names_other_variant(Config, key, present, value))
    OmegaConf.update(tree, key, value, merge=merge)
    _set_origin(origins, key, value, COMMAND_LINE)


def _split_by_files(tree: DictConfig, origins: dict[str, str]) -> None:
    """Hold no share of the documents out where the user has named files for validation, and no share."""
    given = _given(origins)
    for key in OPTIONAL_SOURCE_KEYS:
        named = any(leaf == key or leaf.startswith(f"{key}.") for leaf in given)
        if named and OmegaConf.select(tree, key) is not None and "data.validation_fraction" not in given:
            tree.data.validation_fraction = 0
            origins["data.validation_fraction"] = COMMAND_LINE


def _name_callbacks(tree: DictConfig) -> None:
    """Let a callback without arguments be the path of its class."""
    callbacks = tree.trainer.callbacks
    if isinstance(callbacks, str):
        callbacks = [callbacks]
    if callbacks and any(isinstance(each, str) for each in callbacks):
        tree.trainer.callbacks = [{"target": each} if isinstance(each, str) else each for each in callbacks]


def _choices(key: str, leaves: Sequence[str]) -> str:
    group = key.rpartition(".")[0]
    inside = [leaf.rpartition(".")[2] for leaf in leaves if group and leaf.rpartition(".")[0] == group]
    if inside:
        return f"{group} has {', '.join(inside)}"
    return f"groups: {', '.join(GROUPS)}; `skytrain config show` lists every setting"


def _similar(key: str, leaves: Sequence[str], groups: Sequence[str]) -> str | None:
    """Return the setting that was probably meant: of the same name, of a similar name in its group, or similar in all."""
    group, _, name = key.rpartition(".")
    same = [leaf for leaf in leaves if leaf.rpartition(".")[2] == name]
    if direct := [leaf for leaf in same if leaf.count(".") < 2]:
        return direct[0]
    inside = {leaf.rpartition(".")[2]: leaf for leaf in leaves if group and leaf.rpartition(".")[0] == group}
    if inside:  # the group's own name makes all of its settings look similar
        found = nearest(name, inside, cutoff=0.6)
        return inside[found] if found else None
    return nearest(key, [*leaves, *groups], cutoff=0.7)


def setting_named(name: str) -> str | None:
    """Return the setting with this name in full, or the only one with it in some group; of a dotted name, a similar one."""
    leaves = list(flatten(compose([]).values))
    same = [leaf for leaf in leaves if leaf.rpartition(".")[2] == name and leaf.count(".") < 2]
    known = name if name in leaves else OF_ANOTHER_GROUP.get(name)
    if known is None and "." in name:
        return _similar(name, leaves, GROUPS)
    return known or (same[0] if len(same) == 1 else None)


def _rename(tree: DictConfig, origins: dict[str, str]) -> None:
    """Move settings that a file or the command line has under a former name, and say so."""
    for old, new in RENAMED.items():
        group, _, name = old.rpartition(".")
        holder = OmegaConf.select(tree, group)
        if holder is not None and name in holder:
            OmegaConf.update(tree, new, holder.pop(name), force_add=True)
            origins[new] = origins.pop(old)
            _tell_renamed(old, new, origins[new])


@functools.cache
def _tell_renamed(old: str, new: str, origin: str) -> None:
    """Say it once: a launch composes its settings several times."""
    log.warning("%s (from %s) is now called %s; the old name is still read", old, origin, new)


def _value(override: Override) -> Any:
    """Return the value, as it was typed where the setting is text: run=1e5 is a name, not a number."""
    value = override.value()
    if isinstance(value, (bool, int, float)) and is_text(Config, override.key_or_group):
        return str(override.input_line).partition("=")[2].strip()
    return value


def _set_origin(origins: dict[str, str], key: str, value: Any, origin: str) -> None:
    for stale in [leaf for leaf in origins if leaf == key or leaf.startswith(key + ".")]:
        del origins[stale]
    for leaf in flatten(value, key):
        origins[leaf] = origin


def _unread_weights(
    tree: DictConfig, origins: Mapping[str, str], locate: Locate | None, recipe_weights: RecipeWeights
) -> str | None:
    """Return the weights of a built-in recipe, which has their shape, if they shall not be read."""
    family, weights = (OmegaConf.select(tree.model, key) for key in ("family", "weights"))
    if recipe_weights == "read" or family is None or weights is None or "model.weights" in _given(origins):
        return None
    if recipe_weights == "if-stored" and locate is not None and locate(weights, _plain(tree.store)) != weights:
        return None
    return str(weights)


def _leave_tokenizer_unread(tree: DictConfig) -> None:
    """Give the tokenizer the vocabulary of the model, and an id that no tokenizer has."""
    tree.tokenizer.update({"vocab_size": tree.model.vocab_size, "id": UNREAD})


def _locate(tree: DictConfig, locate: Locate) -> None:
    """Replace names of the hub by the places where the store has these models."""
    for group, name in (("model", "weights"), ("model", "name"), ("tokenizer", "name")):
        node = tree[group]
        missing = name not in node or OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name)
        of_the_hub = name == "weights" or OmegaConf.select(node, "family" if group == "model" else "kind") == "hf"
        if missing or not of_the_hub or node[name] in (None, "random", "pretrained"):
            continue
        node[name] = locate(str(node[name]), _plain(tree.store))


def _plain(node: DictConfig) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(node, resolve=True)
    return dict(values)


def _adopt(tree: DictConfig, origins: dict[str, str], adopt: Adopt, chosen: Collection[str]) -> AdoptedSettings | None:
    """Take the model's settings from its weights, unless the user has chosen another model; return what was read.

    With model=hf-weights the weights decide everything, the tokenizer too.
    """
    everything = OmegaConf.is_missing(tree.model, "family")
    if not everything and ("model" in chosen or "layers" not in tree.model):
        return None  # a recipe's model=hf or model=custom defines the model itself
    weights = None if OmegaConf.is_missing(tree.model, "weights") else tree.model.weights
    adopted = adopt(weights, _plain(tree.store))
    if adopted is None:
        if everything:
            hint = "a Hugging Face folder, OWNER/NAME on the hub or in the store, or s3://bucket/folder"
            raise ConfigError("model.weights", "must be given with model=hf-weights", hint=hint)
        return None
    given = _given(origins)
    if adopted.model["family"] == "hf":
        _keep_given(tree, origins, given, leave_out="weights")
    elif everything:
        tree.model.pop("trust_remote_code")  # the built-in decoder runs no code of the folder
        origins.pop("model.trust_remote_code")
    _take(tree, origins, "model", adopted.model, adopted.file, given)
    if OmegaConf.is_missing(tree.model, "weights"):
        tree.model.weights = None  # they are those of --from
    if everything and adopted.tokenizer is not None and "tokenizer" not in chosen:
        _set_origin(origins, "tokenizer", {}, adopted.file)
        tree.tokenizer = {}
        _take(tree, origins, "tokenizer", adopted.tokenizer, adopted.file, given)
    return adopted


def _keep_given(tree: DictConfig, origins: dict[str, str], given: Collection[str], leave_out: str) -> None:
    """Remove everything from `model` except the user's settings: another kind of model replaces the default."""
    values: Any = OmegaConf.to_container(tree.model, resolve=False)
    kept = {name: value for name, value in values.items() if name != leave_out and _is_given(f"model.{name}", given)}
    tree.model = kept
    for leaf in [leaf for leaf in origins if leaf.startswith("model.") and leaf.split(".")[1] not in kept]:
        del origins[leaf]


def _take(
    tree: DictConfig,
    origins: dict[str, str],
    group: str,
    values: Mapping[str, Any],
    file: str,
    given: Collection[str],
) -> None:
    """Set what the user has not."""
    for name, value in values.items():
        key = f"{group}.{name}"
        if _is_given(key, given) and name in tree[group]:
            continue
        OmegaConf.update(tree, key, value, merge=False)
        _set_origin(origins, key, value, file)


def _is_given(key: str, given: Collection[str]) -> bool:
    return any(leaf == key or leaf.startswith(key + ".") for leaf in given)


def _read_tokenizer(tree: DictConfig, origins: dict[str, str], read_tokenizer: ReadTokenizer) -> None:
    if OmegaConf.is_missing(tree.tokenizer, "name") or tree.tokenizer.name is None:
        hint = "a folder, or OWNER/NAME on the Hugging Face hub"
        raise ConfigError("tokenizer.name", "must be given with tokenizer=hf", hint=hint)
    chosen = _plain(tree.tokenizer)
    for name, value in read_tokenizer(chosen, _plain(tree.store)).items():
        key = f"tokenizer.{name}"
        if chosen.get(name) == value:
            continue
        if chosen.get(name, "???") != "???":
            problem = f"is {value} in the tokenizer's files, not {chosen[name]}"
            raise ConfigError(key, problem, origin=origins.get(key), hint="leave it out")
        OmegaConf.update(tree, key, value)
        origins[key] = f"tokenizer.name={chosen['name']}"


def _known(tree: DictConfig, key: str) -> bool:
    if _belongs_to_plugin(tree, key):
        return True
    node: Any = tree
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node._content:  # type: ignore[operator]
            return False
        node = node._get_node(name)
    return True


def _belongs_to_plugin(tree: DictConfig, key: str) -> bool:
    """Return whether the key is an argument of a plugged-in class, which checks it itself."""
    if key.startswith("optimizer."):
        return "target" in tree.optimizer
    own_source = key.startswith("data.source.") and str(tree.data.source.get("target", "")).startswith(OWN_SOURCES)
    if own_source and key in OPTIONAL_SOURCE_KEYS:
        return True
    return key.startswith(tuple(f"{free}." for free in FREE_KEYS)) and not own_source


def choice_named(word: str) -> str | None:
    """Return what somebody meant who typed the name of a choice alone."""
    groups = ("recipe", "model", "data", "cloud") if re.fullmatch(r"[\w.-]+", word) else ()
    named = [f"{group}={word}" for group in groups if files(GROUPS_MODULE).joinpath(group, f"{word}.yaml").is_file()]
    return f"did you mean {' or '.join(named)}?" if named else None


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse the `key=value` words of a command line. Raises SkytrainError for one that is something else."""
    for text in overrides:
        if not text.partition("=")[0].strip() or "=" not in text:
            raise SkytrainError(
                f"{text!r} is not key=value\n  {choice_named(text) or 'for example: trainer.batch_tokens=64K'}"
            )
    parser = OverridesParser.create()
    parsed = [_parse_one(parser, text) for text in overrides]
    for override in parsed:
        if override.type is not OverrideType.CHANGE or override.is_sweep_override():
            several = f"\n  {_several(override)}" if override.is_sweep_override() else ""
            raise SkytrainError(f"{override.input_line!r}: only key=value is understood here{several}")
    return parsed


def _several(override: Override) -> str:
    """Return what somebody meant who typed several values: rates are compared, a text or a number may have commas."""
    key, _, typed = str(override.input_line).partition("=")
    values = override.value()
    words = values.list if isinstance(values, ChoiceSweep) else []
    if key in GROUPS:
        compared = "" if key in ("cloud", "store", "budget", "serve") else "; skytrain bench loss compares several"
        return f"choose one of them: {key}={words[0] if words else 'NAME'}{compared}"
    if is_number(Config, key) and (number := meant_number(typed)):
        return f"did you mean {key}={number}?"
    if not any(isinstance(word, str) for word in words) and not (is_text(Config, key) or is_list(Config, key)):
        return "to compare values: skytrain tune"
    return f"a text with a comma is quoted: \"{key}='{typed}'\"; a list is in brackets: '{key}=[{typed}]'"


def _parse_one(parser: OverridesParser, text: str) -> Override:
    """Parse one override in Hydra's grammar.

    A value that the grammar rejects is plain text, unless it starts like a list, a mapping or a quoted string.
    """
    key, _, value = text.partition("=")
    quote = "'" if "'" not in value else '"'
    quoted = f"{key}={quote}{value}{quote}"
    plain = value[:1] not in ("[", "{", "'", '"') and quote not in value and not value.endswith("\\")
    for candidate in (text, quoted) if plain else (text,):
        try:
            return parser.parse_overrides([candidate])[0]
        except OverrideParseException:
            continue
    raise SkytrainError(
        f"{text!r} cannot be read as key=value\n"
        "  lists are [a, b], mappings {a: 1}; quote text that begins like one of them, or with a quote: 'key=\"[a value\"'"
    )
