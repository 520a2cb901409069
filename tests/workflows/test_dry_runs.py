"""The documented commands with their real names and sizes, without an account: what they would ask AWS for."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

import pytest

from .shell import Shell

GOLDEN = Path(__file__).parent / "golden"
CRAWL = ("data=parquet", "data.source.paths=s3://bucket/crawl/*.parquet", "data.near_dedup.enabled=true")
COMMANDS = {
    "continue-sagemaker": (
        *("launch", "train", "recipe=llama-3.1-8b-p4d", "run=mine", "cloud=sagemaker", "budget.usd=400"),
        *("--instance", "p4d.24xlarge", "--nodes", "1", "--market", "on-demand", "--dry-run"),
    ),
    "homework-tune": (
        *(
            "launch",
            "tune",
            "recipe=tune-hw5",
            "tune.final=true",
            "tune.name=hw",
            "cloud=ec2",
            "budget.usd=40",
            "--dry-run",
        ),
    ),
    "corpus-emr-serverless": ("launch", "prepare", *CRAWL, "cloud=emr-serverless", "--dry-run"),
    "corpus-emr-notebooks": (
        *("launch", "prepare", *CRAWL, "cloud=emr", "cloud.emr.applications=[Spark,JupyterHub]"),
        *("cloud.emr.keep_alive=true", "cloud.emr.root_disk_gb=60", "--dry-run"),
    ),
    "two-spot-machines": (
        *("launch", "train", "recipe=gpt2-124m-pile", "run=pile", "cloud=ec2", "budget.usd=150"),
        *("--instance", "g5.12xlarge", "--nodes", "2", "--market", "spot", "--dry-run"),
    ),
    "eks-train": ("launch", "train", "recipe=gpt2-124m-pile", "run=pile", "cloud=eks", "--dry-run"),
}
# What changes with every version of the code, and with the day.
VOLATILE = (
    (r"[0-9a-f]{64}", "<sha256>"),
    (r"\b[0-9a-f]{10,40}\b", "<hash>"),
    (r"20\d\d-\d\d-\d\d[T ][0-9:.]+(\+00:00|Z)?", "<time>"),
    (r"H4sI[A-Za-z0-9+/=]+", "<packed>"),
    (r"budget\.(planned_\w+|usd_per_hour)=[0-9.]+", r"budget.\1=<planned>"),
    (r"-lt \d+ \] \|\| left=\d+", "-lt <seconds> ] || left=<seconds>"),
    (r"skytrain-\d+\.\d+\S*?\.whl", "<wheel>"),
)


def stable(text: str) -> str:
    text = re.sub(r'"UserData": "([^"]+)"', lambda found: f'"UserData": {_decoded(found[1])}', text)
    for pattern, name in VOLATILE:
        text = re.sub(pattern, name, text)
    return text


def _decoded(user_data: str) -> str:
    """Return a machine's start script as text, since its kill time is a part of it."""
    return json.dumps(base64.b64decode(user_data).decode())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_documented_launch_asks_for_what_it_did_when_it_was_reviewed(name: str, tmp_path: Path) -> None:
    """After a change that is meant: SKYTRAIN_WRITE_GOLDEN=1 writes the files; review what changed in them."""
    printed = stable(Shell(tmp_path).run(*COMMANDS[name]).stdout)
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("SKYTRAIN_WRITE_GOLDEN"):
        golden.write_text(printed)
    write = f"SKYTRAIN_WRITE_GOLDEN=1 .venv/bin/pytest -m slow {Path(__file__).relative_to(Path.cwd())} -k {name}"
    assert golden.exists(), f"{golden} is missing; write it, and review it: {write}"
    assert printed == golden.read_text(), f"if the change is meant: {write}"


@pytest.mark.slow
def test_a_recipe_that_continues_a_model_names_its_weights_and_takes_their_tokenizer(tmp_path: Path) -> None:
    shown = Shell(tmp_path).run("config", "show", "recipe=llama-3.1-8b-p4d").stdout
    assert re.search(r"model\.weights +meta-llama/Llama-3\.1-8B", shown)
    assert re.search(r"tokenizer\.kind +hf", shown)
