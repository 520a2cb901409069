import json
import os
import signal
from pathlib import Path

import pytest
import torch

from skytrain.checkpoints import committed_steps, load_model
from skytrain.config import SkytrainError, compose
from skytrain.pipelines.train import train
from skytrain.runs import Silent, load_run, read_metrics
from skytrain.storage import open_store
from skytrain.targets import status
from skytrain.training import with_size
from tests.support.tiny import TINY, tiny_config

pytestmark = pytest.mark.usefixtures("default_signals")

GOLDEN = Path(__file__).parent / "golden_losses.json"


def losses(root: Path, run: str) -> dict[int, float]:
    return {
        record["step"]: record["train/loss"]
        for record in read_metrics(open_store(str(root)), run)
        if "train/loss" in record
    }


def weights(root: Path, run: str, step: int) -> dict[str, torch.Tensor]:
    return load_model(open_store(str(root)), f"{run}@{step}").model.state_dict()


def test_the_loss_falls_and_the_run_leaves_its_record(root):
    trained = train(tiny_config(root), Silent())
    curve = losses(root, trained.run)
    assert list(curve) == list(range(1, 21))
    assert curve[20] < curve[1] - 0.3
    record = load_run(open_store(str(root)), trained.run)
    assert (record.step, record.seed, record.config["model"]["width"]) == (20, 1337, 32)
    assert record.finished_at is not None
    assert {prefix.rpartition("/")[2] for prefix in record.data} == {"train", "validation"}
    validations = [r["step"] for r in read_metrics(open_store(str(root)), trained.run) if "val/loss" in r]
    assert validations == [10, 20]


def test_the_same_configuration_and_seed_give_the_same_bits(root):
    first = train(tiny_config(root, "run=first", "model.dropout=0.1"), Silent())
    second = train(tiny_config(root, "run=second", "model.dropout=0.1"), Silent())
    assert losses(root, first.run) == losses(root, second.run)
    a, b = weights(root, "first", 20), weights(root, "second", 20)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_first_twenty_steps_are_those_of_the_golden_file(root):
    """Guards the numbers against a change that nobody meant; another CPU may round differently in the last digits."""
    trained = train(tiny_config(root), Silent())
    golden = json.loads(GOLDEN.read_text())
    assert list(losses(root, trained.run).values()) == pytest.approx(golden, abs=2e-4)


class Tables(Silent):
    """Keeps the rows of what is printed."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def table(self, title, rows):
        self.rows.update(rows)


def test_a_run_shorter_than_the_warmup_of_its_recipe_trains_and_says_what_became_of_it(root):
    tables = Tables()
    words = [word for word in TINY if not word.startswith("lr_schedule.")]
    options = ("run=short", "trainer.steps=2", "trainer.validate_every=null", f"store.root='{root}'")
    assert train(compose([*words, *options]).config, tables).outcome == "done"
    assert tables.rows["warm-up"] == "1 step: lr_schedule.warmup_steps=100 is more than the run's 2"


def test_the_precision_that_auto_became_is_kept_where_the_run_is_resumed_on_other_hardware(root, monkeypatch):
    """A run started on a GPU with bf16 and resumed on a CPU, under the name that its settings gave it."""
    auto = ("trainer.precision=auto", "trainer.steps=4", "trainer.validate_every=null")
    on_a_gpu, tables = lambda device, precision: "bf16-mixed", Tables()
    with monkeypatch.context() as patched:
        patched.setattr("skytrain.training.factory.resolve_precision", on_a_gpu)
        started = train(tiny_config(root, *auto, "trainer.stop_at_step=2"), Silent())
    resumed = train(tiny_config(root, *auto), tables)
    assert (resumed.run, resumed.step) == (started.run, 4)
    assert load_run(open_store(str(root)), resumed.run).config["trainer"]["precision"] == "bf16-mixed"
    assert tables.rows["device"] == "cpu, bf16-mixed"


def test_a_stopped_run_resumes_bit_for_bit(root):
    """With dropout and accumulation on, so that random state and position are truly restored."""
    options = ("model.dropout=0.1", "trainer.batch_tokens=512")
    train(tiny_config(root, "run=whole", *options), Silent())
    stopped = train(tiny_config(root, "run=parts", "trainer.stop_at_step=7", *options), Silent())
    assert (stopped.step, stopped.outcome) == (7, "stopped")
    resumed = train(tiny_config(root, "run=parts", *options), Silent())
    assert (resumed.step, resumed.outcome) == (20, "done")
    assert losses(root, "whole") == losses(root, "parts")
    a, b = weights(root, "whole", 20), weights(root, "parts", 20)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_micro_batch_that_was_found_is_kept_until_the_run_resumes_elsewhere(root, monkeypatch):
    found, places = iter([2, 4]), ["here"]
    monkeypatch.setattr(
        "skytrain.training.resolution.with_micro_batch", lambda config, device, tell: with_size(config, next(found))
    )
    for module in ("resolution", "opening"):
        monkeypatch.setattr(f"skytrain.training.{module}.device_name", lambda device: places[-1])

    def train_to(step: int) -> int:
        config = tiny_config(root, "run=auto", "trainer.micro_batch=auto", f"trainer.stop_at_step={step}")
        train(config, Silent())
        return load_run(open_store(str(root)), "auto").config["trainer"]["micro_batch"]

    assert [train_to(2), train_to(3)] == [2, 2]
    places.append("elsewhere")
    assert [train_to(4), train_to(5)] == [4, 4]


def test_stopping_early_keeps_the_schedules_horizon(root):
    train(tiny_config(root, "run=whole"), Silent())
    train(tiny_config(root, "run=early", "trainer.stop_at_step=5"), Silent())
    store = open_store(str(root))
    rates = {run: [r["train/lr"] for r in read_metrics(store, run) if "train/lr" in r] for run in ("whole", "early")}
    assert rates["early"] == rates["whole"][:5]


def test_accumulation_gives_the_losses_of_one_large_batch(root):
    train(tiny_config(root, "run=one", "trainer.micro_batch=8"), Silent())
    train(tiny_config(root, "run=four", "trainer.micro_batch=2"), Silent())
    one, four = losses(root, "one"), losses(root, "four")
    assert [four[step] for step in one] == pytest.approx(list(one.values()), abs=2e-5)


def test_a_finished_run_is_left_alone(root):
    train(tiny_config(root), Silent())
    again = train(tiny_config(root), Silent())
    assert (again.step, again.outcome, again.metrics) == (20, "done", {})


def test_another_learning_rate_is_another_run(root):
    assert train(tiny_config(root), Silent()).run != train(tiny_config(root, "optimizer.lr=1e-3"), Silent()).run


def test_a_named_run_with_other_settings_is_refused_line_by_line(root):
    train(tiny_config(root, "run=mine", "trainer.stop_at_step=2"), Silent())
    with pytest.raises(SkytrainError, match=r"optimizer\.lr: 0\.003 -> 0\.001"):
        train(tiny_config(root, "run=mine", "optimizer.lr=1e-3"), Silent())
    assert committed_steps(open_store(str(root)), "mine") == [2]


@pytest.mark.parametrize(("every", "steps"), [("8", [8, 16, 20]), ("null", [20])])
def test_a_run_ends_with_a_validation_loss(root, every, steps):
    trained = train(tiny_config(root, f"trainer.validate_every={every}"), Silent())
    validated = [r["step"] for r in read_metrics(open_store(str(root)), trained.run) if "val/loss" in r]
    assert validated == steps and f"val/loss {trained.metrics['val/loss']:.4f}" in trained.summary()


def test_what_is_measured_between_steps_changes_no_step(root):
    """With dropout, which draws from the generators that evaluators must leave alone."""
    options = ("model.dropout=0.1", "trainer.steps=12")
    train(tiny_config(root, "run=plain", "trainer.validate_every=null", *options), Silent())
    train(tiny_config(root, "run=busy", "trainer.validate_every=2", "trainer.sample_every=3", *options), Silent())
    assert losses(root, "plain") == losses(root, "busy")


def test_a_run_that_was_refused_is_failed_and_passed_over(root):
    store = open_store(str(root))
    with pytest.raises(SkytrainError, match="the loss is nan"):
        train(tiny_config(root, "run=refused", "optimizer.lr=1e30"), Silent())
    with pytest.raises(SkytrainError, match=r"no run in .* has a committed checkpoint yet: refused"):
        load_model(store, None)
    train(tiny_config(root, "run=good", "trainer.stop_at_step=2"), Silent())
    with pytest.raises(SkytrainError, match="the loss is nan"):
        train(tiny_config(root, "run=newer", "optimizer.lr=1e30"), Silent())
    assert load_model(store, None).label == "good@2"
    states = {each.run: (each.state, each.reason is not None) for each in status(tiny_config(root), None)}
    assert states == {"good": ("stopped", False), "newer": ("failed", True), "refused": ("failed", True)}


def test_old_checkpoints_are_pruned_and_the_newest_kept_and_the_best(root):
    saves = ("trainer.checkpoint_every=5", "trainer.keep_checkpoints=2")
    newest = train(tiny_config(root, "run=newest", "trainer.keep_best=0", *saves), Silent())
    assert committed_steps(open_store(str(root)), newest.run) == [15, 20]
    best = train(tiny_config(root, "run=best", "trainer.keep_best=1", *saves), Silent())
    assert committed_steps(open_store(str(root)), best.run) == [10, 15, 20]  # of those, 10 alone was validated in time


class Interrupter(Silent):
    """Sends this process a signal at a given step, as a user's Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, stage, done, total, detail="", seconds_left=None):
        if stage == "train" and done == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_saves_stops_and_the_same_command_resumes(root):
    train(tiny_config(root, "run=whole"), Silent())
    interrupted = train(tiny_config(root, "run=cut"), Interrupter(6))
    assert interrupted.outcome == "interrupted"
    assert 6 <= interrupted.step < 20
    assert train(tiny_config(root, "run=cut"), Silent()).outcome == "done"
    assert losses(root, "cut") == losses(root, "whole")


@pytest.mark.parametrize(
    "options",
    [
        ("optimizer=lion", "optimizer.lr=1e-3"),
        ("lr_schedule=wsd", "lr_schedule.warmup_steps=2"),
        ("trainer.precision=bf16-mixed",),
    ],
)
def test_other_optimizers_schedules_and_precisions_learn(root, options):
    trained = train(tiny_config(root, *options), Silent())
    curve = losses(root, trained.run)
    assert curve[20] < curve[1] - 0.1


def test_a_profile_leaves_a_trace_that_names_what_ran(root):
    import gzip

    trained = train(tiny_config(root, "trainer.profile=true", "trainer.stop_at_step=8"), Silent())
    trace = json.loads(gzip.decompress((root / "runs" / trained.run / "profile" / "trace.json.gz").read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::linear" in names


def test_a_custom_model_trains_through_its_contract(root, tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(
        "from torch import nn\n"
        "class Bigram(nn.Module):\n"
        "    def __init__(self, vocab_size, max_length, width):\n"
        "        super().__init__()\n"
        "        self.table, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)\n"
        "    def forward(self, tokens):\n"
        "        return self.head(self.table(tokens))\n"
    )
    monkeypatch.chdir(tmp_path)
    config = tiny_config(root).data  # the data set stays; only the model changes
    assert config.name == "synthetic"
    mine = [option for option in TINY if not option.startswith("model")]
    custom = [
        "model=custom",
        "model.target=my_model.Bigram",
        "model.args.width=16",
        "optimizer.lr=0.05",
        f"store.root='{root}'",
    ]
    trained = train(compose([*mine, *custom]).config, Silent())
    curve = losses(root, trained.run)
    assert curve[20] < curve[1] - 0.3
