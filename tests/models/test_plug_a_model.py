"""docs/plug-a-model.md, run."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "plug-a-model.md"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(console|python \S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_everything_the_page_shows_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)  # another page's
    ran = []
    for kind, text in blocks():
        if kind == "console":
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "skytrain"
                result = CliRunner().invoke(app, words[1:])
                assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
                ran.append(words[1])
        else:
            path = tmp_path / kind.split()[1]
            path.write_text(text, encoding="utf-8")
            if path.name.startswith("make_"):
                runpy.run_path(str(path))
    assert ran == ["prepare", "train", "train", "export", "train", "evaluate", "generate"]

    from transformers import AutoModelForCausalLM

    assert type(AutoModelForCausalLM.from_pretrained("neox-trained")).__name__ == "GPTNeoXForCausalLM"


@pytest.mark.parametrize("word", ["forward(tokens_bt)", "cache", "loss(", "flops_per_token", "config"])
def test_the_contract_names_what_the_code_looks_for(word):
    assert word in PAGE.read_text(encoding="utf-8").partition("### The contract")[2]
