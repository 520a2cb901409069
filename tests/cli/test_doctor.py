"""`skytrain doctor` as people and programs see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.pipelines.doctor import doctor_exit_code
from skytrain.targets import Finding

CLOUD = "# @package _global_\ndefaults:\n  - none@cloud\n  - _self_\ncloud:\n  project: demo\n  region: us-east-2\n"


def doctor(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["doctor", *words])
    return done.exit_code, done.output


def test_without_an_account_it_checks_this_machine_and_says_what_aws_needs(
    tmp_path: Path, no_aws: pytest.MonkeyPatch
) -> None:
    code, said = doctor(tmp_path, no_aws)
    assert code == 0
    assert "✔ python" in said and "✔ store" in said and "– account" in said and "skytrain cloud init" in said
    assert "credentials" not in said


def test_a_model_to_be_continued_needs_only_its_shape(tmp_path: Path, no_aws: pytest.MonkeyPatch) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": 300, "max_position_embeddings": 2048, **shape}
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text(json.dumps(config))
    code, said = doctor(tmp_path, no_aws, "model=hf-weights", "model.weights=llama")
    assert (code, "✔ store" in said) == (0, True), said


def test_an_account_without_credentials_ends_with_exit_11_and_a_line_that_helps(
    tmp_path: Path, no_aws: pytest.MonkeyPatch
) -> None:
    no_aws.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "aws.yaml").write_text(CLOUD)
    code, said = doctor(tmp_path, no_aws, "--json")
    checks = {one["name"]: one for one in json.loads(said)["checks"]}
    assert code == json.loads(said)["exit_code"] == 11
    assert checks["credentials"]["verdict"] == "failed" and "AWS_PROFILE" in checks["credentials"]["fix"]
    assert checks["quota"]["verdict"] == "not checked"


def failed(cause: str) -> Finding:
    return Finding("x", "AWS", "failed", "text", cause=cause)


@pytest.mark.parametrize(
    ("causes", "code"),
    [([], 0), (["capacity"], 5), (["capacity", "quota"], 4), (["quota", "preflight"], 3), (["preflight", "credentials"], 11)],
)  # fmt: skip
def test_the_exit_code_is_that_of_the_failure_to_solve_first(causes: list[str], code: int) -> None:
    well = Finding("y", "AWS", "ok", "text")
    assert doctor_exit_code([well, *map(failed, causes)]) == code


def test_a_plan_that_is_none_is_refused_before_any_check(tmp_path: Path, no_aws: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.json").write_text("{}")
    code, said = doctor(tmp_path, no_aws, "--plan", "plan.json")
    assert code != 0 and "✔" not in said
