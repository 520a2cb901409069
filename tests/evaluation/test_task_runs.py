"""Tasks from files through the command line and in the training loop."""

from __future__ import annotations

import json

import pytest

from skytrain.cli.evaluate import evaluate as command
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from tests.support.questions import write_records
from tests.support.tiny import TINY, tiny_config

OPTIONS = ("trainer.steps=6", "trainer.validate_every=null", "trainer.device=cpu", "model.dropout=0.1",
           "model.max_length=256", "trainer.sequence_length=256", "trainer.batch_tokens=1024")  # fmt: skip
TASKS = ("evaluation.tasks=[hellaswag,winogrande]", "evaluation.every=3", "evaluation.limit=20")


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
