"""docs/extending.md works as it is written: its files are put into a copy of the source, and its commands are run there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skytrain.cli.main import main
from skytrain.corpus import open_corpus
from skytrain.jobs import generation_key
from skytrain.pipelines.prepare import prepare
from skytrain.runs import LaunchedGroup, LaunchRecord, Silent, create_launch, read_metrics
from skytrain.storage import open_store
from tests.support.tiny import TINY, tiny_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()
CHANGES = re.findall(r"^`([\w./-]+)`\n((?:```diff\n.*?```\n\s*)+)", PAGE, flags=re.MULTILINE | re.DOTALL)
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
SHORT = [word for word in TINY if not word.startswith(("model", "optimizer.lr"))]
TINY_TRAINING = [*SHORT, "trainer.steps=4", "trainer.validate_every=null", "trainer.sample_every=null"]
TINY_TRAINING += ["trainer.log_every=1", "trainer.max_restarts=0"]


def copy_with_page(folder: Path, section: str) -> None:
    """A copy of the source with the section's files and changes in it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in files_in(section):
        assert not (folder / path).exists(), "the page adds files, and replaces none"
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    for path, blocks in CHANGES:
        for block in re.findall(r"```diff\n(.*?)```", blocks, flags=re.DOTALL) if path in SECTIONS[section] else ():
            change(folder / path, block.splitlines())


def files_in(section: str) -> list[tuple[str, str]]:
    return re.findall(r"^`([\w./-]+)`\n```(?:python|yaml)\n(.*?)```", SECTIONS[section], flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder with a prepared data set in its store."""
    prepare(tiny_config(tmp_path / "store"), Silent())
    return tmp_path


def change(path: Path, diff: list[str]) -> None:
    """Apply added lines of a diff where its other lines are, all of them once."""
    before, after = ("".join(f"{line[1:]}\n" for line in diff if line[0] in kinds) for kinds in (" -", " +"))
    text = path.read_text()
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, after))


def run(folder: Path, section: str) -> str:
    """The section's commands as they stand, with a tiny model and data set where they train; what they print."""
    copy_with_page(folder, section)
    printed = ""
    for block in re.findall(r"```bash\n(.*?)```", SECTIONS[section], flags=re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line)
            words += TINY_TRAINING if words[1] in ("train", "launch") else []
            words += [f"store.root={folder}/store"] if words[0] == "skytrain" and words[1] not in ("config",) else []
            words[0:1] = [sys.executable, "-m", "skytrain"] if words[0] == "skytrain" else [sys.executable]
            environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            printed += done.stdout
    return printed


def metrics(folder: Path, run_name: str) -> list[dict[str, float]]:
    return read_metrics(open_store(str(folder / "store")), run_name)


@pytest.mark.slow
def test_the_optimizers_train(prepared: Path) -> None:
    assert "optimizer.name=signum" in run(prepared, "An optimizer")
    for name in ("signed", "mine"):
        assert [record["step"] for record in metrics(prepared, name) if "train/loss" in record] == [1, 2, 3, 4]


def test_an_optimizer_is_at_most_two_source_files() -> None:
    section = SECTIONS["An optimizer"].split("**Without touching Skytrain**")[0]
    assert len(re.findall(r"^`src/.*\.py`$", section, flags=re.MULTILINE)) == 2


def test_the_family_agrees_with_transformers(prepared: Path) -> None:
    assert "SeedOssForCausalLM agrees" in run(prepared, "A model family")


def test_the_evaluators_metrics_are_written(prepared: Path) -> None:
    run(prepared, "An evaluator")
    found = {
        record["step"]: record["copying/log_prob"]
        for record in metrics(prepared, "copies")
        if "copying/log_prob" in record
    }
    assert list(found) == [2, 4]
    assert all(value < 0 for value in found.values())


def test_the_rule_removes_documents_that_shout(prepared: Path) -> None:
    texts = [f"Post {number}: what a calm and quiet remark." for number in range(30)] + ["WHY DOES NOBODY LISTEN TO ME"]
    (prepared / "forum.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    run(prepared, "A quality rule")
    store = open_store(str(prepared / "store"))
    [version] = store.folders("corpora/forum")
    assert open_corpus(store, "forum", version).removed["shouting.capitals"] == 1


def test_a_rule_is_two_source_files() -> None:
    assert len(set(re.findall(r"^`(src/.*\.py)`$", SECTIONS["A quality rule"], flags=re.MULTILINE))) == 2


@pytest.mark.slow
def test_a_run_is_launched_followed_and_stopped_on_a_target_of_ones_own(prepared: Path) -> None:
    printed = run(prepared, "A place to train on")
    assert "-m skytrain node recipe=quickstart run=mine cloud=background" in printed
    assert re.search(r"launched mine: process \d+", printed)
    assert "step 4/4" in printed  # of the run's log, which follows that of the process
    assert "nothing to stop, it is done at step 4/4" in printed
    assert [record["step"] for record in metrics(prepared, "mine") if "train/loss" in record] == [1, 2, 3, 4]


def test_a_target_of_ones_own_needs_no_change_of_skytrain_and_sees_jobs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = files_in("A place to train on")
    assert not any(path.startswith("src/") for path, _ in files)
    for path, text in files:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["launch", "train", *TINY, "run=mine", "cloud=background", "store.root=store"]

    def launch(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["skytrain", *words, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert launch("--dry-run") == 0
    assert capsys.readouterr().out.startswith(f"{sys.executable} -m skytrain node ")
    assert launch("--dry-run", "cloud.target=my_target.Backgrund") == 2
    assert "my_target has no Backgrund" in capsys.readouterr().err
    assert launch("--dry-run", "cloud.target=slrum") == 2
    assert "cloud.target: 'slrum': no such target\n  did you mean slurm?" in capsys.readouterr().err
    assert launch("--dry-run", "--smoke", "20M") == 2
    group = LaunchedGroup(
        name="mine",
        zone="",
        instance_type="node",
        market="slurm",
        nodes=2,
        usd_per_hour=0.0,
        kill_at="",
        placement_group=False,
    )
    at = "2026-11-16T00:00:00+00:00"
    record = LaunchRecord(
        id="00001",
        run="mine",
        verb="train",
        launched_at=at,
        launched_by="ada",
        account="",
        region="",
        patience_seconds=9.0,
        plan_hash="",
        image="",
        bundle="",
        words=[],
        groups=[group],
        target="slurm",
    )
    store = open_store("store")
    create_launch(store, record)
    assert launch("--dry-run") == 2
    assert "by ada with cloud=slurm" in capsys.readouterr().err
    store.write(generation_key("mine", 1), b'{"members": []}')
    store.write(generation_key("mine", 1, "over"), b'{"launch": "00001", "exit_code": 0, "reason": "done"}')
    assert launch("--dry-run") == 0  # that one is over
