"""`skytrain branch --launch` as it is typed, against a local control plane: experts side by side, one budget."""

from __future__ import annotations

import base64
import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from skytrain.cli import branch_launch
from skytrain.config import compose
from skytrain.runs import launches_of
from skytrain.targets import limits as launch_limits, plans as planning
from tests.support.token_manifests import store_manifests

from .conftest import StubbedSession
from .ground import Ground
from .test_checks import G_SPOT, quotas
from .test_launch_command import Typed, groups
from .test_serve_ec2 import run

DOMAINS = """
seed: base@200
settings: [recipe=gpt2-124m-openwebtext, trainer.steps=600]
experts:
  code: [data.name=code]
  law: [data.name=law, trainer.steps=1000]
"""


@pytest.fixture
def typed(tmp_path: Path, ground: Ground, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch) -> Typed:
    quotas(stubbed, *([(G_SPOT, 960.0)] * 8))
    monkeypatch.setattr(launch_limits, "enabled_regions", lambda session: (["us-east-2"], []))
    monkeypatch.setattr(planning, "fallbacks", lambda choice, offers: [])
    typed = Typed(tmp_path, ground, monkeypatch)
    (tmp_path / "domains.yaml").write_text(DOMAINS)
    for name in ("code", "law"):
        store_manifests(typed.store, compose(["recipe=gpt2-124m-openwebtext", f"data.name={name}"]).config)
    monkeypatch.setattr(branch_launch, "compose_overrides", lambda words, folders, seed: compose(words, folders))
    return typed


def test_experts_are_launched_side_by_side_with_shares_of_one_budget_and_none_twice(
    typed: Typed, ground: Ground, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["branch", "--experts", "domains.yaml", "cloud=ec2", "budget.usd=40", "--launch"]
    assert run(monkeypatch, *words, "--yes") == 2
    assert "which has no run base" in capsys.readouterr().err
    typed.store.write("runs/base/run.json", b"{}")
    assert run(monkeypatch, *words[:4], "budget.usd=0.5", "--launch", "--dry-run") == 2
    assert "raise budget.usd" in capsys.readouterr().err

    assert run(monkeypatch, *words, "--dry-run") == 0
    calls = json.loads(capsys.readouterr().out)
    templates = [one["parameters"]["LaunchTemplateData"] for one in calls if one["operation"] == "CreateLaunchTemplate"]
    commands = {}
    for template in templates:
        script = base64.b64decode(template["UserData"]).decode()
        [line] = [line for line in script.splitlines() if line.startswith("ExecStart=")]
        given = shlex.split(line)
        assert given[given.index("--from") + 1] == "base@200"
        [name] = [word for word in given if word.startswith("run=")][-1:]
        commands.setdefault(name, given)
    shares = {
        name: float([word for word in given if word.startswith("budget.usd=")][-1].partition("=")[2])
        for name, given in commands.items()
    }
    # The expert of 800 steps costs more than that of 400, but not twice as much: the boot costs the same.
    assert set(shares) == {"run=base-code", "run=base-law"} and sum(shares.values()) == pytest.approx(40, abs=0.02)
    assert 1.05 < shares["run=base-law"] / shares["run=base-code"] < 2
    assert groups(ground) == [] and not typed.store.exists("runs/base-code/launches/00001.json")

    assert run(monkeypatch, *words, "--yes") == 0
    said = capsys.readouterr().out
    assert "base-code" in said and "skytrain status base-law cloud=ec2" in said
    grown = [one["AutoScalingGroupName"] for one in groups(ground) if one["DesiredCapacity"]]
    assert sorted(grown) == ["skytrain-demo-base-code-00001-0", "skytrain-demo-base-law-00001-0"]
    assert run(monkeypatch, *words, "--yes") == 0
    again = capsys.readouterr()
    assert "every expert is done or running" in again.out and "base-law: launched at" in again.err
    [launch] = launches_of(typed.store, "base-law")

    # A machine says that its launch may spend nothing, in its record and in one that it adds before it.
    for id in ("00001", "00000"):
        lie = json.dumps(asdict(replace(launch, id=id, words=["budget.usd=0"]))).encode()
        typed.store.write(f"runs/base-law/launches/{id}.json", lie)
    (Path("domains.yaml")).write_text(f"{DOMAINS}  more: [data.name=law]\n")
    assert run(monkeypatch, *words, "--yes") == 2
    assert re.search(
        r"base-more are planned at \$[\d.]+, and \$0\.0\d of budget.usd=40 is left", capsys.readouterr().err
    )
