"""Settings that a command does not read are refused, and names may contain an equals sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from skytrain.cli.main import app, main
from skytrain.cli.reads import READS, split_words
from skytrain.config import compose


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Return the paths of all commands, such as `data task`."""
    if hasattr(command, "commands"):
        return [leaf for name, each in command.commands.items() for leaf in leaves(each, (*path, name))]
    return [" ".join(path)]


def test_every_command_says_what_it_reads_and_only_settings_that_exist() -> None:
    known = leaves(typer.main.get_command(app))
    assert [command for command in known if not {command, command.partition(" ")[0]} & READS.keys()] == []
    assert [
        name for name in READS if not any(command == name or command.startswith(f"{name} ") for command in known)
    ] == []
    keys = {"recipe", *compose([]).origins, *compose([]).values}
    groups = {".".join(key.split(".")[:depth]) for key in keys for depth in (1, 2, 3)}
    assert {each for reads in READS.values() for each in reads if each} - groups == set()


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["merge-report", "both", "--domains", "d.yaml", "trainer.validate_tokens=1M"], "trainer.validate_tokens"),
        (["data", "task", "hellaswag", "--out", "x", "evaluation.limit=5"], "evaluation.limit"),
        (["evaluate", "evaluation.every=5"], "evaluation.every"),
        (["generate", "optimizer.lr=1"], "optimizer.lr"),
        (["report", "my-run", "seed=3"], "seed"),
        (["data", "list", "data=text"], "data"),
        (["data", "show", "data/cleaning=web", "lr_schedule=wsd"], "lr_schedule"),
    ],
)
def test_a_typed_setting_that_the_command_does_not_read_is_refused(
    words: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    command = " ".join(words[:2] if words[0] == "data" else words[:1])
    assert str(done.exception).startswith(f"{key}: skytrain {command} does not read it")
    assert "it reads cloud" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["merge", "a", "b", "--t", "0.3"], "--t"),
        (["merge", "a", "b", "--method", "slerp", "--density", "0.3"], "--density"),
        (["merge", "a", "b", "--method", "ties", "--prior", "uniform"], "--prior"),
        (["merge", "a", "b", "--tokens", "1M"], "--tokens"),
        (["merge", "a", "b", "--dtype", "fp32"], "--dtype"),
        (["evaluate", "tasks=[hellaswag]", "--tokens", "1M"], "--tokens"),
        (["evaluate", "--harness", "hellaswag", "--split", "train"], "--split"),
        (["export", "--out", "x", "--public"], "--public"),
        (["plan", "prepare", "--instance", "p4d.24xlarge"], "--instance"),
        (["plan", "--documents", "5M"], "--documents"),
        (["plan", "--steps", "30"], "--steps"),
        (["plan", "--trial-steps", "30"], "--trial-steps"),
        (["plan", "--best", "--mesh", "fsdp"], "--mesh"),
        (["data", "show", "--sample", "--html", "x.html"], "--html"),
    ],
)
def test_a_typed_option_that_would_have_no_effect_is_refused(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert str(done.exception).startswith(f"{option} has no effect here: ")
    assert not list(tmp_path.iterdir())


def test_a_limit_of_tasks_is_refused_where_the_loss_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["evaluate", "limit=5"])
    assert str(done.exception).startswith("evaluation.limit=5 is about tasks, and none is named")


@pytest.mark.parametrize("verb", [["duplicates"], ["export", "--out", "kept"]])
def test_settings_of_a_data_set_are_refused_beside_the_name_of_a_prepared_one(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["data", *verb, "jsonl", "data.near_dedup.bands=99"])
    assert str(done.exception).startswith("data.near_dedup.bands=99 has no effect beside jsonl")


def test_what_a_recipe_sets_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["data", "list", "recipe=quickstart", "--json"])
    assert done.exit_code == 0, done.exception


def test_a_run_may_be_named_like_a_value() -> None:
    words = ["lr=3e-4", "store.root=here", "seed-3", "a=b", "data/cleaning=web", "recipe=quickstart"]
    assert split_words(words) == (
        ["lr=3e-4", "seed-3", "a=b"],
        ["store.root=here", "data/cleaning=web", "recipe=quickstart"],
    )
    assert split_words(["sotre.root=here"]) == ([], ["sotre.root=here"])  # a mistake, which the configuration explains


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "--training.steps=100"], "without dashes: trainer.steps=100"),
        (["train", "--config_file", "mine.yaml"], "recipe=mine, for a file recipe/mine.yaml"),
        (["plan", "--gpus", "8"], "--instance TYPE and --nodes N of plan and launch"),
        (["launch", "--detach-run"], "--no-follow"),
        (["launch", "--partition", "gpu"], "cloud.slurm.partition=NAME"),
        (["launch", "evaluate"], "skytrain evaluate is a command of its own"),
        (["config", "explain", "batch_size"], "here it is trainer.batch_tokens=N"),
    ],
)
def test_options_and_commands_of_other_tools_are_answered_with_ours(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2 and says in capsys.readouterr().err
