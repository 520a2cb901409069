"""`skytrain cloud init`: Terraform's outputs become `cloud=aws`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.aws import read_outputs, terraform_outputs
from skytrain.aws.outputs import SETTINGS
from skytrain.cli.main import app
from skytrain.config import Config, SkytrainError, compose, upgrade

VALUES = {
    "project": "demo",
    "account_id": "123456789012",
    "region": "us-east-2",
    "bucket": "demo-store",
    "kms_key_arn": "arn:aws:kms:us-east-2:123456789012:key/1",
    "private_subnets": {"us-east-2a": "subnet-1", "us-east-2b": "subnet-2"},
    "node_subnets": "private",
    "operator_role_arn": "arn:aws:iam::123456789012:role/demo-operator",
    "instance_families": ["g5", "p5"],
    "log_groups": {"nodes": "/skytrain/demo/nodes"},
    "budget_name": None,
}
BASE = Path(__file__).parents[2] / "infra" / "terraform" / "base" / "outputs.tf"


def printed(**changed: object) -> str:
    """What `terraform output -json` prints."""
    values = {**VALUES, **changed}
    return json.dumps({name: {"sensitive": False, "type": "string", "value": value} for name, value in values.items()})


def init(folder: Path, *words: str, text: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(
        app, ["cloud", "init", "--folder", str(folder), "--from", "-", *words], input=text or printed()
    )
    return done.exit_code, done.output if done.exception is None else str(done.exception)


def test_cloud_aws_selects_the_account_and_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = init(tmp_path, "--owner", "ada")
    assert code == 0 and "skytrain doctor" in said
    monkeypatch.chdir(tmp_path)
    config = compose(["cloud=aws"]).config
    assert (config.cloud.account, config.cloud.owner, config.cloud.region) == ("123456789012", "ada", "us-east-2")
    assert config.cloud.subnets.private == VALUES["private_subnets"] and config.cloud.subnets.public == {}
    assert config.cloud.roles.operator == VALUES["operator_role_arn"] and config.cloud.roles.node is None
    assert (config.store.root, config.store.sse, config.store.kms_key) == (
        "s3://demo-store/demo",
        "kms",
        VALUES["kms_key_arn"],
    )
    assert compose(["cloud=aws", "store=local"]).config.store.root == "skytrain-store"
    assert compose().config.store.root == "skytrain-store"


def test_a_second_init_changes_nothing_unless_it_is_forced(tmp_path: Path) -> None:
    assert init(tmp_path)[0] == init(tmp_path)[0] == 0
    code, said = init(tmp_path, text=printed(bucket="other"))
    assert code != 0 and "--force" in said
    assert "demo-store" in (tmp_path / "cloud" / "aws.yaml").read_text()
    assert init(tmp_path, "--force", text=printed(bucket="other"))[0] == 0
    assert "other" in (tmp_path / "cloud" / "aws.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not json", "not what `terraform output -json` prints"),
        ("[]", "not what `terraform output -json` prints"),
        ("{}", "nothing is applied"),
        (json.dumps({"region": {"value": "us-east-2"}}), "lack project, account_id, bucket"),
    ],
)
def test_what_is_not_the_bases_output_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SkytrainError, match=problem):
        read_outputs(text, "outputs.json")


def test_a_value_of_the_wrong_kind_leaves_no_file(tmp_path: Path) -> None:
    code, said = init(tmp_path, text=printed(closed_network="perhaps"))
    assert code != 0 and "cloud.closed_network" in said
    assert not list(tmp_path.iterdir())


def test_every_output_that_is_read_is_one_that_the_base_declares() -> None:
    declared = set(re.findall(r'^output "(\w+)"', BASE.read_text(), re.MULTILINE))
    assert SETTINGS.keys() <= declared


def test_a_configuration_written_before_there_was_a_cloud_is_still_read() -> None:
    values = {name: value for name, value in compose().values.items() if name != "cloud"}
    assert upgrade(Config, values) == values


def test_groups_of_a_folder_with_an_odd_name_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "o'brien, of [us]"
    (folder / "budget").mkdir(parents=True)
    (folder / "budget" / "mine.yaml").write_text("usd: 12\nusd_per_hour: null\nmargin: 30s\n")
    monkeypatch.chdir(folder)
    composed = compose(["budget=mine"])
    assert composed.config.budget.usd == 12 and composed.origins["budget.usd"] == "budget/mine.yaml"
    assert "budget.usd" in composed.given


def fake_terraform(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "terraform").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "terraform").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_terraform_itself_is_asked_in_the_folder_that_was_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outputs.json").write_text(printed())
    fake_terraform(
        tmp_path, monkeypatch, f'[ "$*" = "-chdir={tmp_path} output -json -no-color" ] && cat {tmp_path}/outputs.json'
    )
    assert terraform_outputs(tmp_path)["bucket"] == "demo-store"
    fake_terraform(tmp_path, monkeypatch, 'echo "Error: Backend initialization required" >&2; exit 1')
    with pytest.raises(SkytrainError, match="Backend initialization required"):
        terraform_outputs(tmp_path)
    with pytest.raises(SkytrainError, match="no such folder"):
        terraform_outputs(tmp_path / "nowhere")


def test_without_terraform_the_message_names_the_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SkytrainError, match="--from"):
        terraform_outputs(tmp_path)


def test_choosing_an_account_that_is_not_set_up_names_the_command_that_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkytrainError, match="`skytrain cloud init` writes"):
        compose(["cloud=aws"])
