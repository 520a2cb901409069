"""What `skytrain train` refuses before it starts a process."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from skytrain.cli.main import main

ROOT = Path(__file__).parents[2]


def test_a_mesh_that_a_model_of_transformers_cannot_have_is_refused_before_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = {"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({**shape, "vocab_size": 50257, "max_position_embeddings": 1024, "hidden_size": 576})
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("skytrain.jobs.supervise", lambda *_: pytest.fail("processes were started"))
    words = ["train", "model=hf", "model.name=./model", "model.weights=random", "parallel=tp", "parallel.tensor=2"]
    monkeypatch.setattr(sys, "argv", ["skytrain", *words, "--processes", "2"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "the 9 attention heads of ./model do not divide among 2 ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--batch_size=32", "here it is trainer.batch_tokens"),
        ("--trainer.steps=5", "without dashes: trainer.steps=5"),
        ("--my_own_thing=5", "settings are KEY=VALUE, without dashes"),
    ],
)
def test_a_setting_with_dashes_is_told_how_settings_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, hint: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["skytrain", "train", option])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["launch", "train", "--region", "us-west-2"], "cloud.region=NAME"),
        (["launch", "--cloud", "ec2"], "without dashes: cloud=ec2"),
        (["launch", "--spot"], "--market spot"),
        (["plan", "--budget", "150"], "budget.usd=DOLLARS"),
        (["train", "--batch-size", "4"], "trainer.batch_tokens=N"),
        (["train", "--lr", "3e-4"], "without dashes: optimizer.lr=3e-4"),
        (["train", "--lr=3e-4"], "without dashes: optimizer.lr=3e-4"),
        (["train", "--weight_decay", "0.1"], "without dashes: optimizer.weight_decay=0.1"),
        (["train", "--optimizer.lr", "3e-4"], "without dashes: optimizer.lr=3e-4"),
        (["train", "--seed"], "without dashes: seed=VALUE"),
        (["train", "--form", "mine"], "Possible options: --from"),
        (["plan", "--region"], "'--region' requires an argument"),
        (["generate", "--seed"], "'--seed' requires an argument"),
        (["train", "cloud.owner=a,b"], "quoted: \"cloud.owner='a,b'\""),
        (["train", "optimizer.lr=1e-3,3e-4"], "to compare values: skytrain tune"),
        (["plan", "budget.usd=1,000"], "did you mean budget.usd=1000?"),
        (["train", "trainer.steps=10,500"], "did you mean trainer.steps=10500?"),
        (["train", "optimizer=adamw,lion"], "optimizer=adamw; skytrain bench loss compares several"),
        (["launch", "gpt2-124m-pile"], "did you mean recipe=gpt2-124m-pile?"),
    ],
)
def test_options_and_names_of_others_are_told_what_they_are_called_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and hint in capsys.readouterr().err


def test_one_version_of_vllm_is_named_everywhere() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [version] = [word.partition("==")[2] for word in extras["serve"] if word.startswith("vllm==")]
    images = yaml.safe_load((ROOT / "infra/kubernetes/components/images/kustomization.yaml").read_text())["images"]
    assert [one["newTag"] for one in images if one["name"] == "vllm"] == [f"v{version}"]
    for page in ("docs/serving.md", "docs/eks.md", "README.md"):
        named = re.findall(r"vllm(?:-cpu)?==([\d.]+)", (ROOT / page).read_text())
        assert set(named) <= {version}
