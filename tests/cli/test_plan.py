"""`plan` and `catalog` as a user types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skytrain.cli.main import app
from skytrain.config import SkytrainError

RUN = ["model=gpt2-124m", "trainer.steps=4725", "trainer.precision=bf16-mixed"]


def skytrain(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    script = "import sys\nfrom skytrain.cli.main import main\ntry: main()\nfinally: print(sorted(set(sys.modules) & {'torch', 'lightning', 'boto3'}), file=sys.stderr)"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_plan_prints_offers_marks_one_and_writes_it_without_torch_or_network(tmp_path):
    done = skytrain("plan", *RUN, "budget.usd=150", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    chosen = [line for line in done.stdout.splitlines() if line.startswith(">")]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert len(chosen) == 1 and plan["offers"][0]["instance_type"] in chosen[0]
    assert plan["why"] in done.stdout and "days old" in done.stdout
    assert plan["offers"][0]["cost"]["usd_p90"] <= 150


def test_plan_says_how_often_a_short_text_is_read(tmp_path):
    done = skytrain(
        "plan", "recipe=llama-3.1-8b-p4d", "--instance", "p4d.24xlarge", "--region", "us-east-2", cwd=tmp_path
    )
    assert "data=python-docs has some 500K tokens: each is read about 1,999 times" in done.stdout


def test_plan_gives_programs_every_offer_and_the_choice(tmp_path):
    done = skytrain("plan", *RUN, "--instance", "g5.12xlarge", "--nodes", "2", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert {row["instance_type"] for row in told["offers"]} == {"g5.12xlarge"}
    assert told["plan"] == json.loads((tmp_path / "plan.json").read_text())


def test_plan_answers_how_many_tokens_a_budget_buys(tmp_path):
    done = skytrain(
        "plan", *RUN, "budget.usd=40", "--how-many-tokens", "--instance", "g5.xlarge", "--json", cwd=tmp_path
    )
    bought = json.loads(done.stdout)
    assert all(1e9 < row["tokens"] < 1e11 for row in bought)


def test_machines_that_a_cluster_cannot_start_are_neither_the_best_nor_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cluster = ["cloud=eks", "cloud.eks.instance_families=[g6]", "budget.usd=10", "--market", "spot"]
    app(args=["plan", "--best", "recipe=modern-124m", "data=c4", *cluster], standalone_mode=False)
    said = capsys.readouterr().out
    [chosen] = {line for line in said.splitlines() if line.startswith(">")}
    assert " x g6." in chosen and "skytrain launch train --plan plan.json cloud=eks" in said
    app(args=["plan", *RUN, "--how-many-tokens", "--json", *cluster], standalone_mode=False)
    assert {row["instance_type"].partition(".")[0] for row in json.loads(capsys.readouterr().out)} == {"g6"}
    with pytest.raises(SkytrainError, match="starts g6 only, and not p5"):
        app(args=["plan", "--best", *cluster, "--instance", "p5.4xlarge"], standalone_mode=False)


def test_plan_prints_the_cost_sheet_of_trials_with_the_run_reserved_first(tmp_path):
    done = skytrain(
        "plan",
        *RUN,
        "budget.usd=40",
        "--instance",
        "g5.xlarge",
        "--nodes",
        "1",
        "--trials",
        "3",
        "--trial-steps",
        "295",
        cwd=tmp_path,
    )
    assert done.stdout.index("the run") < done.stdout.index("trial 1") < done.stdout.index("trial 3")
    assert "of $40.00" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["budget.usd=1"], ["budget.usd=1 is too small", "the least that works is $"]),
        (["--instance", "g5.12xlrge"], ["g5.12xlrge", "g5.12xlarge"]),
        (["--instance", "g5"], ["did you mean g5.xlarge or g5.2xlarge"]),
        (["--instance", "H100"], ["did you mean p5.4xlarge or p5.48xlarge?"]),
        (["--instance", "ml.p4d.24xlarge"], ["did you mean p4d.24xlarge?"]),
        (["--region", "mars-north-1"], ["mars-north-1", "us-east-2"]),
        (["--region", "ohio"], ["us-west-2\n  regions have names such as us-east-2 (Ohio)"]),
        (["--region", "us_east_1"], ["did you mean us-east-1?"]),
        (["--region", "eu-west-1"], ["those of eu-west-1 come with: skytrain catalog refresh --region eu-west-1"]),
        (["--instance", "p4de.24xlarge", "--region", "us-east-2"], ["not sold", "us-east-2"]),
        (["--target", "sagemakr"], ["--target sagemakr", "did you mean sagemaker?"]),
        (["--deadline", "soon"], ["--deadline soon", "12h"]),
        (["--deadline", "1e400d"], ["--deadline 1e400d", "finite"]),
        (["--deadline", "1s"], ["no offer finishes", "quickest"]),
        (["--mesh", "tpfsdp", "--instance", "g5.12xlarge", "--nodes", "2"], ["tpfsdp", "tp-fsdp"]),
        (["--how-many-tokens"], ["budget.usd"]),
        (
            ["budget.usd=14", "--instance", "g5.xlarge", "--nodes", "1", "--trials", "99"],
            ["trial", "pass the budget of $14.00"],
        ),
        (
            ["model=llama-3.1-70b", "tokenizer.vocab_size=257", "--instance", "g5.xlarge", "--nodes", "1"],
            ["does not fit any offer", "per GPU"],
        ),
    ],
)
def test_what_cannot_be_planned_says_why(tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkytrainError) as raised:
        app(args=["plan", *RUN, *arguments], standalone_mode=False)
    assert raised.value.exit_code == 2
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    "arguments", [["--instance", "trn1.32xlarge"], ["--region", "eu-west-1"], ["--region", "ohio"]]
)
def test_what_is_no_typing_mistake_gets_no_guess(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkytrainError) as raised:
        app(args=["plan", *RUN, *arguments], standalone_mode=False)
    assert "did you mean" not in str(raised.value)


def test_catalog_ranks_by_dollars_per_effective_flop_and_invents_no_price(tmp_path):
    rows = json.loads(skytrain("catalog", "--market", "on-demand", "--json", cwd=tmp_path).stdout)
    known = [row["usd_per_effective_exaflop"] for row in rows if row["usd_per_effective_exaflop"] is not None]
    assert known == sorted(known) and len(known) > 30
    by_type = {row["type"]: row for row in rows}
    assert by_type["p5e.48xlarge"]["usd_per_hour"] is None and by_type["g7e.2xlarge"]["mfu"] is None


def test_catalog_refresh_without_credentials_says_that_old_prices_stay(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    done = skytrain("catalog", "refresh", cwd=tmp_path)
    assert done.returncode == 2 and "stay as they are" in done.stderr


def test_the_command_after_a_plan_to_prepare_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", "prepare", "--bytes", "1GB", "data=text", "data.source.paths=my texts/*", "cloud=emr"]
    app(words, standalone_mode=False)
    [told] = [line for line in capsys.readouterr().out.splitlines() if "skytrain launch prepare" in line]
    assert told.strip() == "skytrain launch prepare data=text 'data.source.paths=my texts/*' cloud=ec2"
