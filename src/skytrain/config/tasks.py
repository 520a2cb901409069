"""Tasks by name: the built-in ones, and the user's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from .errors import ConfigError, nearest
from .group_files import GROUPS_MODULE, file_settings
from .schema import Config, EvaluationConfig, TaskConfig
from .typed import build

TEXT_FILES = (".txt", ".md")
RECORD_FILES = (".jsonl", ".json", ".parquet")
LLMC_FILE = ".bin"
TASK_FILES = (".yaml", *TEXT_FILES, *RECORD_FILES, LLMC_FILE)
KEY = "evaluation.tasks"
FINISH_TASKS = ("hellaswag",)


@dataclass(frozen=True)
class NamedTask:
    """A task, its name in metrics, and where its data is, if the configuration says so."""

    name: str
    config: TaskConfig
    data: str | None
    file: str | None = None  # of this computer, without which another machine does not know the task


def finish_settings(config: Config, *only: str) -> Config:
    """Return the configuration with the tasks that a trained run is scored on: its own, or HellaSwag if it has none."""
    tasks = list(only) or list(config.evaluation.tasks) or list(FINISH_TASKS)
    return replace(config, evaluation=replace(config.evaluation, tasks=tasks))


def builtin_tasks() -> list[str]:
    folder = files(GROUPS_MODULE).joinpath("task")
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if _is_task(file.name))


def _is_task(file: str) -> bool:
    return file.endswith(".yaml") and not file.startswith("_")


def find_tasks(evaluation: EvaluationConfig) -> list[NamedTask]:
    """Return the tasks that a configuration names, in its order."""
    tasks = [_find(entry, evaluation) for entry in evaluation.tasks]
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(KEY, f"{name!r} is named more than once")
    for name in evaluation.data:
        if names and name not in {*names, *builtin_tasks()}:
            raise ConfigError(f"evaluation.data.{name}", "no such task among evaluation.tasks", hint=_hint(name, names))
    return tasks


def check_task_names(evaluation: EvaluationConfig) -> None:
    """Raise for a name that no task can have. Files are not looked for: another machine may be the one that has them."""
    if evaluation.folder is None:
        for entry in evaluation.tasks:
            if Path(entry).suffix not in TASK_FILES:
                _find(entry, evaluation)


def _find(entry: str, evaluation: EvaluationConfig) -> NamedTask:
    """Return the task of a file, or of a name: a file in `evaluation.folder`, a built-in task, or data that is given for it."""
    path = Path(entry).expanduser()
    if path.suffix in TASK_FILES:
        if not path.exists():
            raise ConfigError(KEY, f"{entry}: no such file")
        return replace(_from_file(path, path.stem, evaluation), file=str(path))
    if evaluation.folder is not None:
        for suffix in (".yaml", *RECORD_FILES, *TEXT_FILES):
            own = Path(evaluation.folder).expanduser() / f"{entry}{suffix}"
            if own.exists():
                return replace(_from_file(own, entry, evaluation), file=str(own) if suffix == ".yaml" else None)
    data = evaluation.data.get(entry)
    if entry in builtin_tasks():
        content = files(GROUPS_MODULE).joinpath("task").joinpath(f"{entry}.yaml").read_text(encoding="utf-8")
        return NamedTask(entry, _parse(content, entry), data)
    if data is not None:
        return NamedTask(entry, _config_of_data(data), data)
    hint = _hint(entry, builtin_tasks()) or f"built-in: {', '.join(builtin_tasks())}"
    own_data = f"for your own, give its file: evaluation.data.{entry}=FILE.jsonl, or evaluation.folder=FOLDER"
    raise ConfigError(KEY, f"{entry!r} is not a task", hint=f"{hint}\n  {own_data}")


def _from_file(path: Path, name: str, evaluation: EvaluationConfig) -> NamedTask:
    data = evaluation.data.get(name)
    if path.suffix != ".yaml":
        return NamedTask(name, _config_of_data(str(path)), data or str(path))
    config = _parse(path.read_text(encoding="utf-8"), str(path))
    if data is None and config.data is not None:
        data = config.data if "://" in config.data else str(path.parent / Path(config.data).expanduser())
    return NamedTask(name, config, data)


def _config_of_data(data: str) -> TaskConfig:
    """Return the task of data that has no task file: text, or multiple choice with the usual field names."""
    plain = not Path(data).suffix or Path(data).suffix in TEXT_FILES
    kind: Any = "language_modelling" if plain else "multiple_choice"
    return _build({"kind": kind}, data)


def _parse(content: str, name: str) -> TaskConfig:
    try:
        values = yaml.safe_load(content)
    except yaml.YAMLError as error:
        raise ConfigError(KEY, f"{name} cannot be read: {' '.join(str(error).split())}") from None
    return _build(values, name)


def _base() -> dict[str, Any]:
    """Return the settings that a task's file may leave out."""
    return {key.removeprefix("task."): value for key, value in file_settings("task/_base.yaml").items()}


def _build(values: Any, name: str) -> TaskConfig:
    given = {**_base(), **values} if isinstance(values, dict) else values
    config: TaskConfig = build(TaskConfig, given, name)
    return config


def _hint(name: str, names: list[str]) -> str | None:
    guess = nearest(name, names)
    return f"did you mean {guess}?" if guess else None
