"""`skytrain serve --target ec2` as it is typed, against a local control plane, and what follows, stops and removes it."""

from __future__ import annotations

import base64
import json
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import KINDS
from skytrain.cli.main import main
from skytrain.config import SkytrainError, compose
from skytrain.export import SUMS
from skytrain.planning import PlanMaterial, PlanRequest, ServedShape, ServeWork, load_catalog, serve_plan
from skytrain.runs import launches_of
from skytrain.serving import open_served
from skytrain.targets import find_serve_target, run_status as status
from skytrain.targets.ec2 import serve as target
from skytrain.targets.ec2.serve import key_parameter

from .conftest import StubbedSession
from .ground import Ground
from .test_checks import quotas
from .test_launch_command import G_ON_DEMAND, Typed, groups

WORDS = ["cloud=ec2", "--target", "ec2", "--hours", "4"]
RUN = "serve-tiny"
PARAMETER = f"/skytrain/demo/serve/skytrain-demo-{RUN}-00001-0/api_key"


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that another program wrote: a tiny GPT-2."""
    import numpy as np
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    shape = {"n_embd": 128, "n_head": 2, "n_layer": 2, "n_positions": 128, "vocab_size": 300}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **shape}))
    (folder / "tokenizer.json").write_text("{}")
    save_file({"wte.weight": np.zeros((300, 128), np.float32)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def typed(tmp_path: Path, ground: Ground, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch) -> Typed:
    quotas(stubbed, *((G_ON_DEMAND, 96.0) for _ in range(12)))
    typed = Typed(tmp_path, ground, monkeypatch)
    for name in ("skytrain.aws.scan", "skytrain.targets.limits"):
        monkeypatch.setattr(f"{name}.enabled_regions", lambda session: (["us-east-2"], []))
    return typed


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def parameters(ground: Ground) -> dict[str, dict[str, Any]]:
    found = ground.session.client("ssm").describe_parameters()["Parameters"]
    return {one["Name"]: one for one in found if one["Name"].startswith("/skytrain")}


def test_an_endpoint_is_shown_launched_followed_and_stopped(
    typed: Typed, ground: Ground, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKYTRAIN_API_KEY", "correct-horse")
    assert run(monkeypatch, "serve", str(model), *WORDS, "--dry-run") == 0
    shown = capsys.readouterr()
    calls = json.loads(shown.out)
    assert calls[0]["operation"] == "PutParameter" and "an hour" in shown.err
    assert calls[0]["parameters"]["Value"] == "****" and calls[0]["parameters"]["Type"] == "SecureString"
    [role] = [call["parameters"]["RoleName"] for call in calls if call["operation"] == "CreateRole"]
    attached = [call["parameters"]["PolicyArn"] for call in calls if call["operation"] == "AttachRolePolicy"]
    assert attached == ground.machine_roles["serve"]
    template = next(call for call in calls if call["operation"] == "CreateLaunchTemplate")["parameters"][
        "LaunchTemplateData"
    ]
    assert template["IamInstanceProfile"] == {"Name": role} and template["ImageId"] == ground.image
    assert "InstanceMarketOptions" not in template and template["InstanceType"].startswith("g")
    script = base64.b64decode(template["UserData"]).decode()
    assert "correct-horse" not in shown.out + script
    assert "image.pth" not in script
    [command] = [line for line in script.splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(command)
    assert words[1] == "node" and words[words.index("--job") + 1] == "serve"
    assert f"serve.key_parameter={PARAMETER}" in words and "serve.name=tiny" in words
    [source] = [word for word in words if word.startswith("serve.source=")]
    assert source.startswith("serve.source=") and "/exports/tiny-" in source
    assert groups(ground) == [] and parameters(ground) == {} and typed.store.list("runs") == []

    assert run(monkeypatch, "serve", str(model), *WORDS, "--yes") == 0
    said = capsys.readouterr().out
    assert "correct-horse" not in said and f"skytrain shell {RUN} --forward 8000 cloud=ec2" in said
    assert parameters(ground)[PARAMETER]["Type"] == "SecureString"
    [stored] = {key.key.split("/")[1] for key in typed.store.list("exports/")}
    sums = typed.store.read(f"exports/{stored}/{SUMS}").decode()
    assert "model.safetensors" in sums and f"exports/{stored}" in source
    assert any(package.startswith("skytrain[aws,serve]") for package in typed.packages)
    first, *others = groups(ground)
    assert first["DesiredCapacity"] == 1 and not any(one["DesiredCapacity"] for one in others)
    [record] = launches_of(typed.store, RUN)
    begun = datetime.fromisoformat(record.launched_at)
    assert timedelta(hours=3.9) < datetime.fromisoformat(record.groups[0].kill_at) - begun <= timedelta(hours=4)

    assert run(monkeypatch, "shell", RUN, "cloud=ec2", "--forward", "9000", "--dry-run") == 0
    assert "AWS-StartPortForwardingSession" in (said := capsys.readouterr().out) and "localPortNumber=9000" in said
    assert [one.state for one in status.status(compose(["cloud=ec2"]).config, RUN)] == ["launched"]
    assert run(monkeypatch, "stop", RUN, "cloud=ec2", "--yes") == 0
    assert parameters(ground) == {} and not any(one["DesiredCapacity"] for one in groups(ground))
    assert [one.state for one in status.status(compose(["cloud=ec2"]).config, RUN)] == ["served"]


def test_a_launch_that_fails_leaves_no_key(
    typed: Typed, ground: Ground, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SkytrainError("no")

    monkeypatch.setattr("skytrain.targets.ec2.serve.start_launch", fail)
    assert run(monkeypatch, "serve", str(model), *WORDS, "--yes") == 2
    assert parameters(ground) == {} and groups(ground) == []


REFUSED = {
    "how long is the model served?": ["cloud=ec2", "--target", "ec2"],
    "the run of an endpoint is named serve-": [*WORDS, "run=mine"],
    "--port has no effect with --target ec2\n  leave it out, or serve elsewhere: --target local": [
        *WORDS,
        "--port",
        "9000",
    ],
    "--hours has no effect with --target local\n  leave it out, or serve elsewhere: --target ec2": ["--hours", "4"],
    "--hours has no effect with --target eks": ["--target", "eks", "cloud=eks", "--hours", "4"],
    "--certificate has no effect with --target ec2": [*WORDS, "--certificate", "a.pem"],
    "cloud.machine_roles.serve names no policies": [*WORDS, "cloud.machine_roles.serve=[]"],
    "cloud.serve_profile is not set": [*WORDS, "cloud.machine_roles.boundary=null", "cloud.serve_profile=null"],
    "too much": [*WORDS, "serve.gpu_memory=0.001"],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_served_is_refused_before_anything_is_made(
    said: str, typed: Typed, ground: Ground, model: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run(monkeypatch, "serve", str(model), *REFUSED[said], "--yes") == 2
    assert said in capsys.readouterr().err
    assert groups(ground) == [] and parameters(ground) == {}


def plan_of(billions: float, **changed: Any) -> Any:
    shape = ServedShape(
        weight_bytes=billions * 2e9,
        value_bytes=2,
        layers=32,
        heads=32,
        kv_heads=8,
        head_size=128,
        width=4096,
        mlp_width=14336,
        vocab_size=128256,
        max_length=8192,
    )
    work = replace(ServeWork(shape, "exports/x", 0.9, hours=2.0), **{k: v for k, v in changed.items() if k == "hours"})
    budget = changed.get("budget")
    request = PlanRequest(budget, region="us-east-2", market=changed.get("market"))
    values = compose([]).values
    return serve_plan(
        work,
        PlanMaterial(
            values=values,
            overrides=[],
            request=request,
            catalog=load_catalog(Path("/nonexistent")),
            now=datetime.now(UTC),
        ),
    )


def test_the_cheapest_machine_with_room_is_chosen_and_ends_at_the_hours_or_the_budget() -> None:
    catalog = load_catalog(Path("/nonexistent"))
    small, large = plan_of(1), plan_of(70)
    prices = [max(one.usd_per_hour_each) for one in small.offers]
    assert prices == sorted(prices) and small.choice.market == "on-demand"
    assert all(catalog.instance(one.instance_type).gpu_memory_mib * one.gpus_per_node > 150_000 for one in large.offers)
    assert large.choice.usd_per_hour_each > small.choice.usd_per_hour_each
    assert small.choice.kill_after_seconds == 7200
    by_budget = plan_of(1, hours=None, budget=10.0).choice
    assert by_budget.kill_after_seconds == pytest.approx(10 / by_budget.max_usd_per_hour_each * 3600)
    assert plan_of(1, budget=0.5).choice.cost.usd_p90 < 0.6
    assert plan_of(1, market="spot").choice.market == "spot"
    with pytest.raises(SkytrainError, match="the model is too large"):
        plan_of(2000)


def test_names_of_runs_and_parameters_fit_what_roles_allow(model: Path) -> None:
    assert target.run_of("base@5000") == "serve-base-5000" and target.run_of("org/Model 1") == "serve-org-Model-1"
    assert key_parameter("demo", RUN, "00001") == PARAMETER
    found = find_serve_target("ec2")
    assert found.name == "ec2" and open_served(model, "tiny").parameters == 300 * 128


def test_gc_finds_keys_by_their_tags_and_deletes_those_that_expired(ground: Ground) -> None:
    from skytrain.aws import Tags
    from skytrain.targets.ec2.serve import put_key

    ours = Tags("demo", "ada", RUN, datetime(2026, 1, 1, tzinfo=UTC))
    ground.session.perform(put_key(PARAMETER, "secret", ours, None))
    ground.session.client("ssm").put_parameter(Name="/skytrain/other", Value="x", Type="String")
    [found] = KINDS["API key"].find(ground.session, "us-east-2")
    assert (found.id, found.tags.run, found.tags.expires_at) == (PARAMETER, RUN, ours.expires_at)
    for call in KINDS["API key"].delete(found):
        ground.session.perform(call)
    assert PARAMETER not in parameters(ground)
