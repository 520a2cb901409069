"""Tasks from files through the command line and in the training loop."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest
import typer
from typer.core import TyperCommand

from skytrain.cli.data import task_ as write_task
from skytrain.cli.evaluate import evaluate as evaluate_command
from skytrain.config import MissingExtra, SkytrainError, compose
from skytrain.evaluation.tasks.llmc import read_llmc
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.planning import work_of
from skytrain.runs import Silent, read_metrics, read_spend
from skytrain.storage import open_store
from skytrain.training import CausalLM
from skytrain.training.evaluation_limits import StopCheck
from tests.support.questions import write_records
from tests.support.tiny import TINY, tiny_config

pytestmark = pytest.mark.usefixtures("default_signals")

OPTIONS = ("trainer.steps=6", "trainer.validate_every=null", "trainer.device=cpu", "model.dropout=0.1",
           "model.max_length=256", "trainer.sequence_length=256", "trainer.batch_tokens=1024")  # fmt: skip
TASKS = ("evaluation.tasks=[hellaswag,winogrande]", "evaluation.every=3", "evaluation.limit=20")


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    paths = {task: write_records(root, task, 30) for task in ("hellaswag", "winogrande")}
    data = tuple(f"evaluation.data.{task}={path}" for task, path in paths.items())
    prepare(tiny_config(root, *OPTIONS), Silent())
    kept = ("trainer.checkpoint_every=2", "trainer.keep_checkpoints=9")
    train(tiny_config(root, "run=plain", *OPTIONS, *kept), Silent())
    train(tiny_config(root, "run=scored", *OPTIONS, *kept, *TASKS, *data), Silent())
    return root, data


def metrics_of(root, run, prefix):
    found = {}
    for record in read_metrics(open_store(str(root)), run):
        found.update({(record["step"], name): value for name, value in record.items() if name.startswith(prefix)})
    return found


def command(overrides, **options):
    evaluate_command(typer.Context(TyperCommand("evaluate")), overrides, **options)


def evaluate(root, capsys, *overrides, **options):
    command([*TINY, f"store.root='{root}'", *OPTIONS, *overrides], as_json=True, **options)
    return json.loads(capsys.readouterr().out)


def test_tasks_in_the_loop_change_no_step_and_are_recorded(trained):
    root, _ = trained
    assert metrics_of(root, "plain", "train/loss") == metrics_of(root, "scored", "train/loss")
    scored = metrics_of(root, "scored", "eval/")
    assert {step for step, _ in scored} == {3, 6}
    names = {name for _, name in scored}
    assert {f"eval/hellaswag/{name}" for name in ("completion_acc_norm", "harness_acc_norm_stderr")} <= names
    assert scored[6, "eval/winogrande/items"] == 20


def test_the_command_line_finds_what_the_loop_found(trained, capsys):
    root, data = trained
    after = evaluate(root, capsys, *data, "tasks=[hellaswag,winogrande]", "limit=20", source=["scored@6"])
    scored = metrics_of(root, "scored", "eval/")
    for task, found in after["tasks"].items():
        assert (found["items"], found["available"]) == (20, 30)
        for scoring, value in found["metrics"].items():
            assert scored[6, f"eval/{task}/{scoring}"] == value["value"]
            assert scored[6, f"eval/{task}/{scoring}_stderr"] == pytest.approx(value["stderr"])


def test_all_checkpoints_are_a_table_and_a_curve(trained, capsys):
    root, data = trained
    command([*TINY, f"store.root='{root}'", *OPTIONS, *data, "tasks=[winogrande]"], source=["scored@all"])
    shown = capsys.readouterr().out
    assert "scored@2" in shown and "scored@6" in shown and "winogrande: harness_acc_norm" in shown
    header, row = shown.splitlines()[:2]
    assert header.split() == ["TASK", "SCORING", "scored@2", "scored@4", "scored@6", "ITEMS"]
    assert row.split()[:2] == ["winogrande", "completion_acc"] and row.split()[-1] == "30"


def test_two_models_are_compared_item_by_item(trained, capsys, tmp_path):
    root, data = trained
    answers = tmp_path / "answers.jsonl"
    both = {"source": ["scored@2", "scored@6"], "compare": True, "items": answers}
    found = evaluate(root, capsys, *data, "tasks=[hellaswag]", **both)
    (difference,) = (each for each in found["comparison"] if each["scoring"] == "harness_acc")
    items = [json.loads(line) for line in answers.read_text().splitlines()]
    right = {
        model: [item["chosen"]["harness_acc"] == item["label"] for item in items if item["model"] == model]
        for model in both["source"]
    }
    assert difference["difference"] == pytest.approx((sum(right["scored@6"]) - sum(right["scored@2"])) / 30)
    assert difference["low"] <= difference["difference"] <= difference["high"] and difference["verdict"]
    with pytest.raises(SkytrainError, match="--compare takes two models, and 1 were given"):
        evaluate(root, capsys, *data, "tasks=[hellaswag]", source=["scored"], compare=True)
    with pytest.raises(SkytrainError, match="need tasks"):
        evaluate(root, capsys, source=["plain", "scored"])
    with pytest.raises(SkytrainError, match="--compare takes two models, and 4 were given"):
        evaluate(root, capsys, *data, "tasks=[hellaswag]", source=["scored@all", "plain"], compare=True)
    with pytest.raises(SkytrainError, match="there is no folder"):
        evaluate(root, capsys, *data, "tasks=[hellaswag]", source=["scored"], items=tmp_path / "absent" / "x.jsonl")


def test_json_has_null_where_one_item_has_no_error(trained, capsys):
    root, data = trained
    overrides = [*TINY, f"store.root='{root}'", *OPTIONS, *data, "tasks=[hellaswag]", "limit=1"]
    command(overrides, source=["scored"], as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["tasks"]["hellaswag"]["metrics"]["harness_acc"]["stderr"] is None


def test_an_evaluation_that_a_killed_run_did_not_get_to_is_made_up_for(trained, capsys):
    """The run has its last checkpoint and no result of it, as if it was killed in between."""
    root, data = trained
    before = metrics_of(root, "scored", "eval/")
    for part in (root / "runs" / "scored" / "attempts").glob("*/metrics/*"):
        lines = [json.loads(line) for line in part.read_text().splitlines()]
        kept = [line for line in lines if line["step"] < 6 or "eval/hellaswag/items" not in line]
        part.write_text("".join(json.dumps(line) + "\n" for line in kept))
    (root / "runs" / "scored" / "attempts" / "0" / "outcome.json").unlink()
    assert (6, "eval/hellaswag/items") not in metrics_of(root, "scored", "eval/")
    kept = ("trainer.checkpoint_every=2", "trainer.keep_checkpoints=9")
    train(tiny_config(root, "run=scored", *OPTIONS, *kept, *TASKS, *data), Silent())
    assert metrics_of(root, "scored", "eval/") == before


def test_a_signal_stops_an_evaluation_in_its_middle_and_nothing_is_lost(trained, monkeypatch):
    """In the first task of step 3, which has no checkpoint yet, and in that of the last step."""
    root, data = trained
    config = tiny_config(root, "run=signalled", *OPTIONS, "trainer.checkpoint_every=2", *TASKS, *data)
    check, begun = StopCheck.__call__, []

    def check_after_signal(self, done, total):
        begun.extend([None] if done == 1 else [])
        if done == 1 and len(begun) in (1, 4):  # then two tasks are made up for, and the first of step 6 begins
            os.kill(os.getpid(), signal.SIGTERM)
        check(self, done, total)

    monkeypatch.setattr(StopCheck, "__call__", check_after_signal)
    attempts = [train(config, Silent()) for _ in range(3)]
    assert [(each.outcome, each.step) for each in attempts] == [("interrupted", 3), ("interrupted", 6), ("done", 6)]
    assert len(begun) == 6
    for prefix in ("train/loss", "eval/"):
        assert metrics_of(root, "signalled", prefix) == metrics_of(root, "scored", prefix)


def test_an_evaluation_does_not_pass_the_budget(trained, monkeypatch):
    """By a clock on which a step takes a second and each pass of a task a hundred: dollars, of a budget of 250."""
    root, data = trained
    seconds, check = [0.0], StopCheck.__call__

    def dear_pass(self, done, total):
        seconds[0] += 100.0
        check(self, done, total)

    def dear_step(self, *args):
        seconds[0] += 1.0
        return step(self, *args)

    step = CausalLM.training_step
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    monkeypatch.setattr(StopCheck, "__call__", dear_pass)
    monkeypatch.setattr(CausalLM, "training_step", dear_step)
    monkeypatch.setattr("skytrain.runs.meter.boot_clock", lambda: seconds[0])
    for module in ("spending", "evaluation_limits"):
        clock = SimpleNamespace(monotonic=lambda: seconds[0])
        monkeypatch.setattr(f"skytrain.training.{module}.time", clock)
    budget = ("budget.usd=250", "budget.usd_per_hour=3600", "budget.margin=0s", "trainer.checkpoint_every=2")
    said = Notes()
    found = train(tiny_config(root, "run=dear", *OPTIONS, *budget, *TASKS, *data), said)
    spent = sum(count.usd for count in read_spend(open_store(str(root)), "dear").counts.values())
    # Training goes on: a step still fits. What did not fit once is not begun again.
    assert (found.outcome, found.step) == ("done", 6) and 100 < spent <= 250
    assert metrics_of(root, "dear", "eval/") == {}
    assert [text for text in said.said if text.startswith("budget: ")] == [
        "budget: the evaluation of hellaswag was stopped, for which too little is left",
        "budget: the evaluation of winogrande was stopped, for which too little is left",
        "budget: hellaswag is not evaluated: it takes 1m40s, and less is left",
        "budget: winogrande is not evaluated: it takes 1m40s, and less is left",
    ]


def test_the_bridge_names_the_extra_that_it_needs(trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingExtra, match=r"pip install 'skytrain\[harness\]'"):
        command([*TINY, f"store.root='{trained[0]}'", *OPTIONS], source=["plain"], harness="hellaswag")


def test_a_task_is_written_as_llmc_s_file(trained, capsys, tmp_path):
    root, _ = trained
    source = f"evaluation.data.hellaswag={root / 'hellaswag.jsonl'}"
    write_task("hellaswag", tmp_path / "val.bin", ["tokenizer=gpt2", f"store.root='{root}'", source])
    assert "30 items" in capsys.readouterr().out
    assert len(read_llmc("val.bin", (tmp_path / "val.bin").read_bytes())) == 30


def test_tasks_in_the_loop_are_part_of_the_plan():
    overrides = ["model=gpt2-124m", "trainer.steps=1000", "trainer.validate_every=null"]
    tasks = ["evaluation.tasks=[hellaswag]", "evaluation.every=400", "evaluation.limit=1000"]
    assert work_of(compose(overrides).config).evaluation_tokens == 0
    # After steps 400, 800 and 1000.
    assert work_of(compose([*overrides, *tasks]).config).evaluation_tokens == 3 * 1000 * 380
