from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import Composed, SkytrainError, compose, forget_trust, trust
from skytrain.merging import DomainsFile, MergeReport, ModelRow, judge, read_domains
from skytrain.pipelines.branch import PlannedExpert, branch
from skytrain.pipelines.merge import MergeRequest, merge
from skytrain.pipelines.merge_report import MergeReportRequest, report_merge
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.report import merge_html, merge_table, merge_tasks_table
from skytrain.runs import Silent, load_run
from skytrain.storage import open_store
from tests.support.tiny import TINY, tiny_config

from .conftest import SHORT

OTHER = ("data.name=other", "data.source.seed=5")
DOMAINS = DomainsFile("seed@2", {"synthetic": (), "other": OTHER}, SHORT)


class Unmeasured(Silent):
    def progress(self, stage, done, total, detail="", seconds_left=None):
        raise AssertionError("measured")


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def root(forest, tmp_path) -> Path:
    root = Path(shutil.copytree(forest, tmp_path / "store"))
    prepare(tiny_config(root, *OTHER), Silent())
    return root


def hellaswag(folder: Path) -> Path:
    """Six questions in HellaSwag's form."""
    path = folder / "questions.jsonl"
    rows = [{"ctx": f"A {n}", "endings": ["sits.", "runs.", "eats.", "flies."], "label": n % 4} for n in range(6)]
    path.write_text(
        "".join(json.dumps({"activity_label": "Cats", "ind": n, **row}) + "\n" for n, row in enumerate(rows))
    )
    return path


def test_experts_branch_off_resume_and_are_compared_with_what_is_merged_of_them(root):
    """The whole path: a seed, two experts of which one is interrupted, their merge, and its report."""

    def composed(words: list[str]) -> Composed:
        return compose([*TINY, f"store.root='{root}'", *words])

    def train_one(expert: PlannedExpert) -> int:
        return train(expert.config, Silent(), expert.start).exit_code

    def train_first_only(expert: PlannedExpert) -> int:
        return train_one(expert) if expert.domain == "synthetic" else 7

    notes = Notes()
    code, found = branch(DOMAINS, composed, train_first_only, notes)
    assert code == 7 and [each.done for each in found] == [True, False]
    code, found = branch(DOMAINS, composed, train_one, notes)
    assert code == 0 and [(each.run, each.step) for each in found] == [("seed-synthetic", 4), ("seed-other", 4)]
    assert notes.said[-2:] == ["1/2 seed-synthetic: done before", "2/2 seed-other: from seed@2"]
    with pytest.raises(SkytrainError, match="seed-synthetic is done, but it began from seed@2, not from seed@4"):
        branch(dataclasses.replace(DOMAINS, seed="seed@4"), composed, train_one, notes)
    longer = dataclasses.replace(DOMAINS, settings=(*SHORT, "trainer.steps=6"))
    with pytest.raises(SkytrainError, match=r"seed-synthetic is done, with other settings:\n  trainer.steps: 4 -> 6"):
        branch(longer, composed, train_one, notes)
    store = open_store(str(root))
    assert load_run(store, "seed-other").parent == "seed@2"
    assert any("tokens/other/" in prefix for prefix in load_run(store, "seed-other").data)

    merge(tiny_config(root, "run=both"), MergeRequest(("seed-synthetic", "seed-other")), Silent())
    assert next(iter(load_run(store, "both").data)).startswith("tokens/synthetic/"), "evaluate takes the first text"
    request = MergeReportRequest("both", DOMAINS, "seed@4", points=3, max_tokens="512")
    tasks = ["evaluation.tasks=[hellaswag]", f"evaluation.data.hellaswag='{hellaswag(root.parent)}'"]
    report = report_merge(composed(tasks).config, request, composed, Silent())
    assert [row.role for row in report.rows] == ["seed", "expert", "expert", "merged", "ensemble", "dense"]
    merged, experts = report.row("merged"), [row for row in report.rows if row.role == "expert"]
    # The middle of the path is the average, and its ends are the experts.
    assert report.path[1].losses == pytest.approx(merged.losses, abs=1e-5)
    assert report.path[0].losses == pytest.approx(experts[0].losses, abs=1e-6)
    assert report.barrier == max(
        0.0, report.path[1].mean_loss - (report.path[0].mean_loss + report.path[2].mean_loss) / 2
    )
    assert len(report.verdicts) == 6 and report.verdicts[0].startswith("merged beats the seed on ")
    assert store.exists("runs/both/merge-report.json")
    assert len(merge_table(report)) == 7
    assert [len(line) for line in merge_tasks_table(report)] == [7] * (1 + len(merged.tasks))
    for request_, message in (
        (dataclasses.replace(request, run="nobody"), "no run 'nobody'"),
        (dataclasses.replace(request, run="seed"), "seed was trained, not merged"),
        (dataclasses.replace(request, dense="nobody"), "no run 'nobody'"),
    ):
        with pytest.raises(SkytrainError, match=message):
            report_merge(composed([]).config, request_, composed, Unmeasured())
    for row in report.rows:
        score = next(score for name, score in row.tasks.items() if name.startswith("hellaswag/"))
        assert score.items == 6 and score.stderr is not None and 0 <= score.value <= 1
    assert "hellaswag/" in (page := merge_html(report)) and " ± " in page
    page = merge_html(dataclasses.replace(report, run="<both>"))
    assert "<h1>Merge &lt;both&gt;</h1>" in page and page.count("<polyline") == 3
    assert "href=" not in page and "src=" not in page


def test_one_budget_is_divided_among_the_experts(root):
    """Nothing is spent here, so that each of two may spend half."""
    asked = []

    def composed(words: list[str]) -> Composed:
        return compose([*TINY, f"store.root='{root}'", *words])

    def train_one(expert: PlannedExpert) -> int:
        asked.append((expert.run, expert.config.budget.usd))
        return 6

    code, _ = branch(dataclasses.replace(DOMAINS, settings=("budget.usd=10",)), composed, train_one, Silent())
    assert code == 6 and asked == [("seed-synthetic", 5.0), ("seed-other", 5.0)]


def test_a_mistake_in_the_last_domain_is_found_before_the_first_is_trained(forest):
    def composed(words: list[str]) -> Composed:
        return compose([*TINY, f"store.root='{forest}'", *words])

    def train_one(expert: PlannedExpert) -> int:
        raise AssertionError("trained")

    experts = {"synthetic": (), "new": ("data.name=never-prepared",)}
    with pytest.raises(SkytrainError, match="holds no tokens of data=never-prepared"):
        branch(dataclasses.replace(DOMAINS, experts=experts), composed, train_one, Silent())
    with pytest.raises(SkytrainError, match="'seed-a/b' cannot be a folder's name"):
        branch(dataclasses.replace(DOMAINS, experts={"synthetic": (), "a/b": ()}), composed, train_one, Silent())


def test_a_file_of_domains_is_read_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "domains.yaml"
    path.write_text("seed: a/base.bin\nat_step: 5\nexperts:\n  x: [data=python-docs]\n  y: ['data=text']\n")
    found = read_domains(path)
    assert found.overrides("x") == ["data=python-docs"] and found.run_name("y") == "base-y" and found.at_step == 5
    for text, message in (
        ("- x", "is not a mapping"),
        ("seed: a\nexpert: {}", "unknown key 'expert'\n  did you mean experts"),
        ("seed: a\nexperts: {x: [data=a]}", "must name two domains or more"),
        ("experts: {x: [data=a], y: [data=b]}", "`seed` must be RUN@STEP"),
        ("seed: a\nexperts: {x: [data], y: [data=b]}", r"`experts.x` must be a list of KEY=VALUE"),
        ("seed: a\nweights_only: 'no'\nexperts: {x: [data=a], y: [data=b]}", "`weights_only` must be true or false"),
        ("seed: a\nat_step: '5'\nexperts: {x: [data=a], y: [data=b]}", "`at_step` must be a step of the schedule"),
    ):
        path.write_text(text)
        with pytest.raises(SkytrainError, match=message):
            read_domains(path)
    with pytest.raises(SkytrainError, match="cannot be read"):
        read_domains(tmp_path / "none.yaml")


def test_an_ensemble_is_judged_as_a_merged_model_is():
    rows = [
        ModelRow("seed", "seed", {"a": 3.0, "b": 3.0}),
        ModelRow("expert", "one", {"a": 1.0, "b": 3.5}),
        ModelRow("ensemble", "forest", {"a": 1.5, "b": 2.0}),
        ModelRow("dense", "dense", {"a": 1.0, "b": 1.0}),
    ]
    lines = judge(MergeReport("forest", "ensemble", {"a": 10, "b": 10}, rows))
    assert [line.partition(" (")[0] for line in lines] == [
        "the ensemble beats the seed on 2 of 2 domains",
        "the ensemble beats one on 1 of 1 other domain; on its own",
        "the dense run is no worse than the ensemble",
    ]


HOSTILE = {
    "trainer.callbacks.target=attack.Logger": "trainer.callbacks=[{target: attack.Logger}]",
    "trainer.loggers=attack.Logger": "trainer.loggers=[attack.Logger]",
    "model.target=attack.Model": "model.target=attack.Model",
    "data.source.target=attack.Source": "data.source.target=attack.Source",
    "cloud.packages=attack": "cloud.packages=[attack]",
    "cloud.packages=7attack": "cloud.packages=[7attack]",
    "cloud.packages=12": "cloud.packages=[12]",
    "serve.python=7py": "serve.python=7py",
    "cloud.secrets.owner=theirs": "cloud.secrets={owner: theirs}",
    "store.root=s3://theirs/x": "store.root=s3://theirs/x",
    "loader.cache_dir=/home/you": "loader.cache_dir=/home/you",
    "store.kms_key=theirs": "store.kms_key=theirs",
    "wandb.entity=theirs": "wandb.entity=theirs",
    "metrics.prometheus_address=0.0.0.0": "metrics.prometheus_address=0.0.0.0",
    "'data.name=${oc.env:HOME}'": "data.name=${oc.env:HOME}",
}


@pytest.mark.parametrize(("named", "word"), HOSTILE.items(), ids=HOSTILE)
@pytest.mark.parametrize("where", ["settings", "experts"])
def test_a_file_of_somebody_else_names_no_code_that_the_person_has_not_typed(named, word, where, tmp_path):
    file = tmp_path / "domains.yaml"
    words = {"settings": [], "experts": []} | {where: [word]}
    custom = ["model=custom"] if word.startswith("model.") else []
    content = {"seed": "base@2", "settings": custom + words["settings"], "experts": {"a": [], "b": words["experts"]}}
    file.write_text(json.dumps(content))  # which is YAML, too
    forget_trust()
    with pytest.raises(SkytrainError, match="names code or files that you have not named") as error:
        read_domains(file)
    assert f"--trust {named}" in str(error.value)
    assert read_domains(file, [word]).seed == "base@2"
    trust([shlex.split(named)[0]])
    assert read_domains(file).seed == "base@2"
    forget_trust()


def test_a_mapping_that_is_typed_does_not_vouch_for_what_a_file_has_put_beside_it(tmp_path):
    file = tmp_path / "domains.yaml"
    forget_trust()
    for theirs, mine in {
        "data.source.target=attack.Source": "data.source={note: mine}",
        "cloud.secrets.PATH=theirs": "cloud.secrets={HF_TOKEN: mine}",
        "cloud.secrets={PATH: theirs}": "cloud.secrets={}",
    }.items():
        file.write_text(json.dumps({"seed": "base@2", "settings": [theirs], "experts": {"a": [], "b": []}}))
        with pytest.raises(SkytrainError, match="names code or files that you have not named"):
            read_domains(file, [mine])


def test_branch_itself_refuses_it_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "domains.yaml").write_text("seed: a@1\nexperts: {a: ['trainer.loggers=[attack.Logger]'], b: []}\n")
    for words in (["branch", "--experts"], ["merge-report", "a", "--domains"]):
        result = CliRunner().invoke(app, [*words, "domains.yaml"])
        assert "--trust trainer.loggers=attack.Logger" in str(result.exception)


# Ten lists of ten times the one before: written out, they are longer than any memory.
ALIASES = "".join(f"\n- &x{n} [{', '.join([f'*x{n - 1}' if n else 'y'] * 10)}]" for n in range(12))


@pytest.mark.parametrize(
    "body",
    [
        f"seed: s\nexperts: {{a: [], b: []}}\nsettings:{ALIASES}",
        "[" * 100_000,
        "a: &a [1]\nb: *c",
        "!!python/object/apply:os.system [touch attacked]",
        "\x00",
        "- 1",
    ],
)
def test_a_file_that_is_no_list_of_domains_is_one_message(body, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "domains.yaml").write_text(body)
    with pytest.raises(SkytrainError):
        read_domains(tmp_path / "domains.yaml")
    assert not (tmp_path / "attacked").exists()
