"""The table of exit codes, and all that repeats it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.checkpoints.errors import DamagedCheckpoint, TakenOver
from skytrain.cli.main import app
from skytrain.config import ConfigError, SkytrainError
from skytrain.config.exits import EXITS, exit_codes_table
from skytrain.runs import Superseded
from skytrain.storage import AccessDenied, NotFound, StoreError, StoreUnreachable

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SkytrainError("wrong"), 2),
        (ConfigError("trainer.steps", "is wrong"), 2),
        (StoreError("open", "gs://b", "is no kind of store"), 2),
        (NotFound("read", "s3://b/k", "there is no such object"), 2),
        (Superseded("r", 0, 1, "elsewhere"), 8),
        (TakenOver("by attempt 1"), 8),
        (DamagedCheckpoint("cut short"), 9),
        (StoreUnreachable("read", "s3://b/k", "503"), 10),
        (AccessDenied("read", "s3://b/k", "ExpiredToken"), 11),
    ],
)
def test_an_error_has_the_exit_code_of_its_cause(error, code):
    assert error.exit_code == code


def test_a_cause_has_one_code_and_a_code_one_cause_but_for_success():
    assert len({each.cause for each in EXITS}) == len(EXITS)
    codes = [each.code for each in EXITS if each.code]
    assert codes == sorted(set(codes))


def test_the_docs_hold_the_table():
    assert exit_codes_table() in (DOCS / "durable-runs.md").read_text()


def test_the_help_of_train_names_every_code():
    words = " ".join(CliRunner().invoke(app, ["train", "--help"]).output.split())
    for each in EXITS:
        assert each.cause == "stopped" or f"{each.code} {each.meaning.replace('`', '')}" in words
