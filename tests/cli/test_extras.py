"""Verbs on a machine where an extra is not installed."""

import subprocess
import sys

import pytest

from skytrain.config.extras import extra_with

WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
from skytrain.cli.main import main
main()
"""
TINY = ("data=synthetic", "data.source.tokens=20K", "tokenizer=bytes", "model=gpt2-tiny")


def skytrain(missing: str, *words: str, cwd) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, missing, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("missing", "extra", "words"),
    [
        ("torch", "train", ("train", *TINY)),
        ("lightning", "train", ("train", *TINY, "parallel=fsdp", "--processes", "2")),
        ("torch", "train", ("quickstart",)),
        ("torch", "train", ("evaluate",)),
        ("torch", "train", ("generate", "--prompt", "a")),
        ("torch", "train", ("export", "--out", "out")),
        ("numba", "data", ("prepare", *TINY)),
    ],
)
def test_a_verb_names_the_extra_that_it_needs(missing, extra, words, tmp_path):
    done = skytrain(missing, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        f"error: this needs the package {missing!r}, which is not installed",
        f"  pip install 'skytrain[{extra}]'",
    ]
    assert "Traceback" not in done.stderr and "crashed" not in done.stderr


def test_every_package_of_an_extra_is_known_and_others_are_not():
    known = {"torch": "train", "botocore": "aws", "huggingface_hub": "data", "transformers": "export", "wandb": "wandb"}
    assert {package: extra_with(package) for package in known} == known
    assert extra_with("typer") is None and extra_with("no_such_package") is None
