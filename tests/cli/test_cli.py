"""The command as a user types it, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from skytrain.cli.main import SECTIONS, app
from skytrain.cli.reads import is_read
from tests.support.tiny import TINY

SMALL_TEXT = [option for option in TINY if not option.startswith("data")]


def skytrain(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from skytrain.cli.main import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_help_lists_every_command_without_loading_torch(tmp_path):
    script = "import sys; sys.argv = ['skytrain', '--help']\nfrom skytrain.cli.main import main\ntry: main()\nexcept SystemExit: pass\nprint(sorted(set(sys.modules) & {'torch', 'lightning', 'pyarrow', 'hydra', 'transformers'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
    verbs = typer.main.get_command(app).commands
    assert sorted(verbs) == sorted(verb for section in SECTIONS.values() for verb in section)
    for verb in verbs:
        assert f"\n  {verb} " in done.stdout


def helps(command: Any, words: str = "skytrain") -> Iterator[tuple[str, str]]:
    yield words, command.help or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{words} {name}")


def test_every_help_has_an_example_and_a_summary_that_is_never_cut():
    for words, text in helps(typer.main.get_command(app)):
        summary, *rest = text.split("\n\n")
        assert f"{words} " in " ".join(rest), words
        assert len(summary) <= 60 or words == "skytrain", f"{words}: {summary}"


def test_config_show_prints_each_value_with_its_origin_without_loading_torch(tmp_path):
    done = skytrain("config", "show", "recipe=quickstart", "trainer.steps=77", cwd=tmp_path)
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["trainer.steps"][1:] == ["77", "command", "line"]
    assert rows["model.width"][-1] == "model/llama-tiny.yaml"


def test_config_show_gives_json_to_programs(tmp_path):
    done = skytrain("config", "show", "seed=3", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["seed"] == 3


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "trainer.stepz=3"], ["trainer.stepz", "did you mean trainer.steps"]),
        (["train", "trainer.steps=-3"], ["trainer.steps", "-3"]),
        (["train", "trainer.steps=2.5"], ["trainer.steps", "2.5"]),
        (["train", "trainer.sequence_length=2048"], ["2048", "1024"]),
        (["train"], ["skytrain prepare"]),
        (["prepare", "data=text", "data.source.paths=missing.txt"], ["missing.txt"]),
        (["prepare", "data=text", "data.source.paths=empty.txt"], ["empty.txt"]),
        (["prepare", "data=jsonl", "data.source.paths=broken.jsonl"], ["broken.jsonl", "2"]),
        (["prepare", "store.root=a-file/store"], ["a-file"]),
        (["evaluate"], ["no run", "skytrain quickstart"]),
        (["evaluate", "--tokens", "many"], ["--tokens", "many"]),
        (["generate", "--from", "nothing-here"], ["nothing-here"]),
        (["export", "--out", "x"], ["no run"]),
    ],
)
def test_bad_input_ends_with_one_message_exit_2_and_nothing_made(tmp_path, arguments, parts):
    (tmp_path / "a-file").write_text("in the way")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    before = sorted(tmp_path.rglob("*"))
    done = skytrain(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert [part for part in parts if part not in done.stderr] == []
    assert done.stdout == ""
    assert not list(tmp_path.rglob("manifest.json"))
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [
        path for path in before if path.is_file()
    ]


def test_debug_shows_the_traceback_at_any_position(tmp_path):
    done = skytrain("train", "trainer.steps=-3", "--debug", cwd=tmp_path)
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_a_wrong_flag_is_a_usage_error(tmp_path):
    assert skytrain("train", "--fast", cwd=tmp_path).returncode == 2


def test_the_commands_work_one_after_the_other_on_the_users_own_text(tmp_path):
    lines = [f"Line {n}: the quick brown fox jumps over the lazy dog, {n * n} times." for n in range(1500)]
    documents = ["\n".join(lines[start : start + 15]) for start in range(0, len(lines), 15)]
    (tmp_path / "corpus.txt").write_text("\n<|endoftext|>\n".join(documents))
    settings = [
        *SMALL_TEXT,
        "data=text",
        "data.source.paths=corpus.txt",
        "data.source.separator='<|endoftext|>'",
        "data.validation_fraction=0.2",
    ]
    prepared = skytrain("prepare", *settings, cwd=tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    trained = skytrain("train", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "step 20/20 | loss" in trained.stderr
    assert "trained at step 20/20" in trained.stdout
    evaluated = json.loads(skytrain("evaluate", "--json", cwd=tmp_path).stdout)
    assert 0 < evaluated["bits_per_byte"] < 8
    assert evaluated["loss"] == pytest.approx(
        evaluated["bits_per_byte"] * 0.6931, rel=0.05
    )  # one byte a token, but for the ends of texts
    written = skytrain("generate", "--prompt", "Line", "--max-tokens", "12", "--temperature", "0", cwd=tmp_path)
    assert written.stdout.startswith("Line")
    assert (
        skytrain("generate", "--prompt", "Line", "--max-tokens", "12", "--temperature", "0", cwd=tmp_path).stdout
        == written.stdout
    )
    exported = skytrain("export", "--out", "exported", "--dtype", "fp32", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    its_data = [word for word in settings if is_read("evaluate", word)]
    again = json.loads(skytrain("evaluate", *its_data, "--from", "exported", "--json", cwd=tmp_path).stdout)
    assert again["loss"] == pytest.approx(evaluated["loss"], abs=1e-5)
    refused = skytrain("export", "--out", "exported", cwd=tmp_path)
    assert refused.returncode == 2
    assert "exported" in refused.stderr
