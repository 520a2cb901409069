"""The question before anything is changed in an account."""

from __future__ import annotations

import io
from typing import Any

import pytest
import typer

from skytrain.aws.session import AwsIdentity
from skytrain.cli.confirm import confirm
from skytrain.config import SkytrainError


class Session:
    """As much of a session as a question needs."""

    region = "us-east-2"
    identity = AwsIdentity("123456789012", "arn:aws:sts::123456789012:assumed-role/operator/ada")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ask(monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO, yes: bool = False) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    session: Any = Session()
    confirm(session, "Launch 2 x g5.12xlarge?", 4.5, yes)


def test_account_region_and_dollars_come_before_the_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(monkeypatch, Terminal("y\n"))
    said = capsys.readouterr().err
    assert "account 123456789012 (ada), region us-east-2, $4.50 per hour" in said.partition("Launch 2")[0]


def test_any_answer_but_yes_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.Exit) as ended:
        ask(monkeypatch, Terminal("\n"))
    assert ended.value.exit_code == 2


def test_without_a_terminal_only_yes_in_advance_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SkytrainError, match="--yes"):
        ask(monkeypatch, io.StringIO("y\n"))
    ask(monkeypatch, io.StringIO(""), yes=True)
    assert capsys.readouterr().err.count("$4.50 per hour") == 2
