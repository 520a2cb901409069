"""How a run resumes: after a crash or an interruption, from another source, with other settings, and within its budget."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from skytrain.checkpoints import (
    AnotherModel,
    committed,
    committed_steps,
    load_model,
    open_weights,
    step_key,
    verify,
)
from skytrain.checkpoints.errors import DamagedCheckpoint
from skytrain.config import SkytrainError
from skytrain.export import export_llmc
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import (
    Silent,
    Start,
    attempt_numbers,
    claim_attempt,
    load_run,
    read_metrics,
    read_outcome,
    read_spend,
    save_run,
    write_outcome,
)
from skytrain.storage import DamagedRecord, Retry, Store, open_store
from skytrain.training import CausalLM
from skytrain.training.spending import spent_before, start_meter
from skytrain.training.upcycling import build_upcycled, check_upcycling
from tests.support.imds import fake_metadata
from tests.support.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("default_signals")

SHORT = ("trainer.steps=8", "trainer.validate_every=null", "trainer.checkpoint_every=2", "trainer.keep_checkpoints=9")


class Notes(Silent):
    """Keeps the notes, and calls `at` with each step."""

    def __init__(self, at=lambda step: None) -> None:
        self.said: list[str] = []
        self.at = at

    def note(self, text):
        self.said.append(text)

    def progress(self, stage, done, total, detail="", seconds_left=None):
        if stage == "train":
            self.at(done)


def losses(root: Path, run: str) -> dict[int, float]:
    records = read_metrics(open_store(str(root)), run)
    return {record["step"]: record["train/loss"] for record in records if "train/loss" in record}


def rates(root: Path, run: str) -> dict[int, float]:
    records = read_metrics(open_store(str(root)), run)
    return {record["step"]: record["train/lr"] for record in records if "train/lr" in record}


def weights(root: Path, run: str, step: int) -> dict[str, torch.Tensor]:
    return load_model(open_store(str(root)), f"{run}@{step}").model.state_dict()


@pytest.fixture(scope="module")
def trained_root(prepared_root, tmp_path_factory) -> Path:
    """A store with a run of eight steps, its checkpoints at 2, 4, 6 and 8, and its weights at 4 in other formats."""
    root = Path(shutil.copytree(prepared_root, tmp_path_factory.mktemp("trained") / "store"))
    train(tiny_config(root, "run=whole", *SHORT), Silent())
    export(tiny_config(root), ExportRequest("whole@4", root / "hf", dtype="fp32"))
    export_llmc(load_model(open_store(str(root)), "whole@4").model, root / "seed.bin")
    return root


@pytest.fixture
def root(trained_root, tmp_path) -> Path:
    return Path(shutil.copytree(trained_root, tmp_path / "store"))


def test_the_card_of_an_export_tells_the_run_its_data_and_its_losses(trained_root):
    card = (trained_root / "hf/README.md").read_text()
    metrics = [record for record in read_metrics(open_store(str(trained_root)), "whole") if record["step"] == 4]
    [loss] = [record["train/loss"] for record in metrics if "train/loss" in record]
    assert "(run whole, step 4 of 8)" in card and f"| training loss | {loss:.4f} |" in card
    assert "| data | tokens/synthetic/" in card and "| cost | " in card


class Crash(RuntimeError):
    pass


def crash_at(step: int):
    def at(done: float) -> None:
        if done == step:
            raise Crash

    return Notes(at)


def test_a_crash_leaves_its_trace_in_the_log_and_the_next_attempt_continues_bit_for_bit(root):
    with pytest.raises(Crash):
        train(tiny_config(root, "run=cut", *SHORT), crash_at(5))
    store = open_store(str(root))
    assert read_outcome(store, "cut", 0) is None
    log = b"".join(store.read(stat.key) for stat in store.list("runs/cut/attempts/0/logs/")).decode()
    assert "train 4/8 | loss" in log and "Crash" in log
    assert train(tiny_config(root, "run=cut", *SHORT), Silent()).outcome == "done"
    assert losses(root, "cut") == losses(root, "whole")
    a, b = weights(root, "cut", 8), weights(root, "whole", 8)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert json.loads(store.read("runs/cut/attempts/1/resumed.json"))["step"] in (2, 4)


def test_an_interrupted_run_stops_without_a_validation_and_makes_up_for_it(root):
    """The signal comes in step 3, so that the run stops after step 4, where a validation is due."""
    options = [*SHORT, "trainer.validate_every=2"]
    train(tiny_config(root, "run=whole-validated", *options), Silent())
    interrupt = Notes(lambda done: os.kill(os.getpid(), signal.SIGUSR1) if done == 3 else None)
    stopped = train(tiny_config(root, "run=cut", *options), interrupt)
    assert (stopped.outcome, stopped.step, stopped.exit_code) == ("interrupted", 4, 7)
    assert list(validations(root, "cut")) == [2]
    train(tiny_config(root, "run=cut", *options), Silent())
    assert validations(root, "cut") == validations(root, "whole-validated")
    assert losses(root, "cut") == losses(root, "whole-validated")


def test_a_run_that_was_killed_after_its_last_commit_is_closed_by_the_same_command(root):
    config, store = tiny_config(root, "run=cut", *SHORT, "trainer.stop_at_step=2"), open_store(str(root))
    train(config, Silent())
    write_outcome(store, "cut", 0, "interrupted", 2)  # as the supervisor does
    assert train(config, Silent()).outcome == "stopped"
    closed = read_outcome(store, "cut", 1)
    assert closed is not None and closed["outcome"] == "stopped"


def validations(root: Path, run: str) -> dict[int, float]:
    records = read_metrics(open_store(str(root)), run)
    return {record["step"]: record["val/loss"] for record in records if "val/loss" in record}


def test_a_run_cut_off_after_its_last_checkpoint_is_brought_to_its_end(root):
    """What remains is the last validation, and to say that it is done."""
    options = [*SHORT, "trainer.validate_every=2"]
    done = train(tiny_config(root, "run=whole-validated", *options), Silent())
    train(tiny_config(root, "run=cut", *options), Silent())
    for path in (root / "runs/cut/attempts/0/metrics").glob("*.jsonl"):  # as a kill would have left it
        lines = path.read_text().splitlines()
        path.write_text("".join(line + "\n" for line in lines if not ('"step": 8' in line and "val/loss" in line)))
    (root / "runs/cut/attempts/0/outcome.json").unlink()
    again = train(tiny_config(root, "run=cut", *options), Silent())
    assert (again.outcome, again.step) == ("done", 8)
    assert again.metrics["val/loss"] == done.metrics["val/loss"]
    assert validations(root, "cut") == validations(root, "whole-validated")


def test_a_run_that_another_attempt_takes_over_stops_and_overwrites_nothing(root):
    store = open_store(str(root))
    claimed: list[int] = []

    def take_over(done: float) -> None:
        if done == 3:
            claimed.append(claim_attempt(store, "both"))

    with pytest.raises(SkytrainError, match=r"attempt 1 on .* has taken over from this one, attempt 0"):
        train(tiny_config(root, "run=both", *SHORT), Notes(take_over))
    assert claimed == [1]
    superseded = read_outcome(store, "both", 0)
    assert superseded is not None and superseded["outcome"] == "superseded"
    assert max(committed_steps(store, "both"), default=0) <= 2
    assert train(tiny_config(root, "run=both", *SHORT), Silent()).outcome == "done"
    assert losses(root, "both") == losses(root, "whole")


def test_of_two_that_begin_one_name_at_the_same_moment_the_later_neither_overwrites_nor_stops_the_other(
    root, monkeypatch
):
    store = open_store(str(root))
    other = replace(load_run(store, "whole"), name="new", step=0)

    def another_begins(*args):
        save_run(store, other)
        claim_attempt(store, "new")
        return start_meter(*args)

    monkeypatch.setattr("skytrain.training.attempts.start_meter", another_begins)
    with pytest.raises(SkytrainError, match=r"was started with other settings:\n  optimizer\.lr: 0\.003 -> 0\.001"):
        train(tiny_config(root, "run=new", "optimizer.lr=1e-3", *SHORT), Silent())
    assert load_run(store, "new") == other
    assert attempt_numbers(store, "new") == [0]


def test_a_run_starts_from_another_runs_checkpoint_with_its_whole_state(root):
    trained = train(tiny_config(root, "run=fork", *SHORT), Silent(), Start("whole@4"))
    assert trained.outcome == "done"
    assert losses(root, "fork") == {step: loss for step, loss in losses(root, "whole").items() if step > 4}
    assert load_run(open_store(str(root)), "fork").started_from == "whole@4"


def test_settings_other_than_the_sources_are_reported_and_count(root):
    notes = Notes()
    train(tiny_config(root, "run=slower", "optimizer.lr=1e-3", *SHORT), notes, Start("whole@4"))
    assert "other than in whole@4: optimizer.lr: 0.003 -> 0.001" in notes.said
    slower, whole = rates(root, "slower"), rates(root, "whole")
    assert [slower[step] for step in (5, 8)] == pytest.approx([whole[step] / 3 for step in (5, 8)])
    assert (
        losses(root, "slower")[5] == losses(root, "whole")[5] and losses(root, "slower")[8] != losses(root, "whole")[8]
    )


def test_a_run_starts_from_a_checkpoint_in_another_store(root, prepared_root, tmp_path):
    other = Path(shutil.copytree(prepared_root, tmp_path / "other"))
    train(tiny_config(other, "run=fork", *SHORT), Silent(), Start(f"{root}/runs/whole@6"))
    assert losses(other, "fork") == {step: loss for step, loss in losses(root, "whole").items() if step > 6}


@pytest.mark.parametrize(
    "source",
    [Start("whole@4", weights_only=True, at_step=4), Start("hf", at_step=4), Start("seed.bin", at_step=4)],
    ids=lambda start: start.label,
)
def test_weights_alone_begin_at_a_chosen_step_of_schedule_and_data(root, monkeypatch, source):
    """The first loss is computed before the fresh optimizer has any say, so it is that of the run it came from."""
    monkeypatch.chdir(root)
    train(tiny_config(root, "run=seeded", *SHORT), Silent(), source)
    whole, seeded = losses(root, "whole"), losses(root, "seeded")
    assert list(seeded) == [5, 6, 7, 8]
    assert seeded[5] == pytest.approx(whole[5], abs=1e-6)
    assert seeded[8] != whole[8]
    assert rates(root, "seeded") == {step: rate for step, rate in rates(root, "whole").items() if step > 4}


def test_a_seeded_run_that_was_cut_resumes_from_its_own_checkpoint(root):
    start = Start("whole@4", weights_only=True, at_step=4)
    train(tiny_config(root, "run=uncut", *SHORT), Silent(), start)
    with pytest.raises(Crash):
        train(tiny_config(root, "run=cut", *SHORT), crash_at(7), start)
    train(tiny_config(root, "run=cut", *SHORT), Silent(), start)
    assert losses(root, "cut") == losses(root, "uncut")


def test_weights_without_a_step_begin_a_new_schedule(root):
    train(tiny_config(root, "run=tuned", *SHORT), Silent(), Start("whole@8", weights_only=True))
    assert rates(root, "tuned") == rates(root, "whole")
    assert losses(root, "tuned")[1] < losses(root, "whole")[1] - 0.1


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (Start("whol"), "did you mean whole"),
        (Start("whole@5"), "it has 2, 4, 6, 8"),
        (Start("whole@4", at_step=3), "knows its own step, 4"),
        (Start("no/such/folder"), "neither a run here"),
        (Start("whole"), "training ends at step 8: nothing would be left"),
        (Start("whole@4", weights_only=True, at_step=8), "training ends at step 8: nothing would be left"),
    ],
    ids=lambda value: value.label if isinstance(value, Start) else "",
)
def test_a_source_that_cannot_serve_is_answered_with_what_can(root, start, words):
    with pytest.raises(SkytrainError, match=words):
        train(tiny_config(root, "run=new", *SHORT), Silent(), start)


@pytest.mark.parametrize(
    "start", [Start("whole@4"), Start("whole@4", weights_only=True)], ids=lambda start: start.label
)
def test_another_model_is_refused_before_anything_is_written(root, start):
    wider = ("model.width=64", *SHORT)
    with pytest.raises(AnotherModel, match="another model: width is 32 there, 64 here"):
        train(tiny_config(root, "run=new", *wider), Silent(), start)
    assert not (root / "runs" / "new").exists()


DENSE = (
    "model=llama-tiny",
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "model.kv_heads=2",
    "model.mlp_width=48",
)
SPARSE = (
    "model=mixtral-tiny",
    *DENSE[1:],
    "model.rope_theta=10000",
    "model.experts.count=4",
    "model.experts.width=48",
    "model.experts.balance_loss=0",
)


def test_a_mixture_starts_from_a_dense_run_and_computes_what_it_computed(root):
    train(tiny_config(root, *SHORT, *DENSE, "run=dense"), Silent())
    notes = Notes()
    moe = tiny_config(root, *SHORT, *SPARSE, "run=mixture", "trainer.stop_at_step=4")
    train(moe, notes, Start("dense@8"))
    assert any("each of 4 experts starts as a copy of the MLP of dense@8" in line for line in notes.said)
    store = open_store(str(root))
    dense = load_model(store, "dense@8").model
    saved = open_weights(store, step_key("dense", 8)).weights
    tokens = torch.randint(0, 257, (2, 32), generator=torch.Generator().manual_seed(0))
    for scale in (1.0, 2.0):  # by which the experts' outputs are multiplied
        config = replace(moe.model, experts=replace(moe.model.experts, scale=scale))
        upcycled = build_upcycled(config, 0, saved).eval()
        with torch.no_grad():
            torch.testing.assert_close(upcycled(tokens)[..., :257], dense(tokens)[..., :257], atol=2e-5, rtol=0)
    first = losses(root, "mixture")[1]
    assert first < losses(root, "dense")[1] - 0.1  # it starts where the dense run ended
    train(tiny_config(root, *SHORT, *SPARSE, "run=mixture"), Silent(), Start("dense@8"))  # goes on from its own
    assert committed_steps(store, "mixture")[-1] == 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.experts.width=24", r"model.experts.width: 24: each expert starts as a copy.*48 wide.*\n.*=48"),
        ("model.experts.shared_width=48", r"model.experts.shared_width: 48: .*no shared expert.*\n.*null"),
        ("model.heads=1", r"model.\w+: .* only the MLPs of a dense model become experts"),
        ("model.rope_theta=500", r"model.rope_theta: 500.* here, 10000.* in dense@8.*\n.*model.rope_theta=10000"),
        (
            "model.rope_scaling={kind: linear, factor: 2}",
            r"model.rope_scaling: {kind: linear, .* here, null in dense@8.*"
            r"\n.*set model.rope_scaling=null$",
        ),
    ],
)
def test_a_mixture_that_differs_by_more_than_its_experts_does_not_start_from_a_dense_run(change, words):
    dense = tiny_config("store", *DENSE).model
    check_upcycling(dense, tiny_config("store", *SPARSE).model, "dense@8")
    with pytest.raises(SkytrainError, match=words):
        check_upcycling(
            dense, tiny_config("store", *SPARSE, *("model.kv_heads=1",) * ("heads" in change), change).model, "dense@8"
        )


def test_leave_to_change_settings_is_no_leave_to_change_what_the_weights_mean(root):
    before = (root / "runs/whole/run.json").read_bytes()
    with pytest.raises(AnotherModel, match="another model: width is 32 there, 64 here"):
        train(tiny_config(root, "run=whole", "model.width=64", *SHORT), Silent(), allow_changes=True)
    with pytest.raises(SkytrainError, match="with another model or tokenizer") as refused:
        train(tiny_config(root, "run=whole", "model.width=64", *SHORT), Silent())
    assert "--allow-changes" not in str(refused.value)
    assert (root / "runs/whole/run.json").read_bytes() == before


def test_a_change_that_decides_numbers_needs_leave_and_then_counts(root):
    options = [option for option in SHORT if option != "trainer.steps=8"]
    train(tiny_config(root, "run=mine", "trainer.steps=8", "trainer.stop_at_step=4", *options), Silent())
    changed = tiny_config(root, "run=mine", "trainer.steps=8", "optimizer.lr=1e-3", "trainer.log_every=2", *options)
    with pytest.raises(SkytrainError, match=r"optimizer\.lr: 0\.003 -> 0\.001(.|\n)*--allow-changes"):
        train(changed, Silent())
    notes = Notes()
    train(changed, notes, allow_changes=True)
    assert "changed since the run started: optimizer.lr: 0.003 -> 0.001" in notes.said
    assert "changed since the run started: trainer.log_every: 1 -> 2" in notes.said
    before = rates(root, "whole")
    assert rates(root, "mine")[8] == pytest.approx(before[8] / 3)
    assert load_run(open_store(str(root)), "mine").config["optimizer"]["lr"] == 1e-3


def test_a_run_does_not_resume_with_other_tokens_under_the_same_settings(root):
    train(tiny_config(root, "run=mine", "trainer.stop_at_step=4", *SHORT), Silent())
    store = open_store(str(root))
    record = load_run(store, "mine")
    split = next(name for name in record.data if name.endswith("/train"))
    save_run(store, replace(record, data={**record.data, split: "0123456789abcdef"}))  # as if they had been then
    with pytest.raises(SkytrainError, match=rf"started with other settings:\n  data: {split}: 0123456789ab -> "):
        train(tiny_config(root, "run=mine", *SHORT), Silent())


def test_naming_the_version_of_the_data_is_no_change(root):
    train(tiny_config(root, "run=mine", "trainer.stop_at_step=4", *SHORT), Silent())
    (version,) = open_store(str(root)).folders("tokens/synthetic/")
    trained = train(tiny_config(root, "run=mine", f"data.version='{version}'", *SHORT), Silent())
    assert trained.outcome == "done"


def test_another_micro_batch_may_resume_and_is_reported(root):
    train(tiny_config(root, "run=mine", "trainer.stop_at_step=4", *SHORT), Silent())
    notes = Notes()
    train(tiny_config(root, "run=mine", "trainer.micro_batch=2", *SHORT), notes)
    assert "changed since the run started: trainer.micro_batch: 4 -> 2" in notes.said
    assert list(losses(root, "mine").values()) == pytest.approx(list(losses(root, "whole").values()), abs=2e-5)


def test_a_budget_stops_the_run_with_a_checkpoint_and_a_larger_one_resumes_it(root, monkeypatch):
    """By a clock on which each micro-batch takes a second: ten dollars, of a budget of twenty."""
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    seconds = [0.0]
    step = CausalLM.training_step

    def dear_step(self, *args):
        seconds[0] += 1.0
        return step(self, *args)

    monkeypatch.setattr(CausalLM, "training_step", dear_step)
    monkeypatch.setattr("skytrain.runs.meter.boot_clock", lambda: seconds[0])
    dear = ("budget.usd_per_hour=36000", "budget.margin=0s")
    stopped = train(tiny_config(root, "run=dear", "budget.usd=20", *dear, *SHORT), Silent())
    assert stopped.outcome == "budget" and stopped.exit_code == 6
    assert stopped.step in committed_steps(open_store(str(root)), "dear")
    spent = sum(count.usd for count in read_spend(open_store(str(root)), "dear").counts.values())
    assert spent > 0 and stopped.metrics["cost/usd"] <= spent
    notes = Notes()
    again = train(tiny_config(root, "run=dear", "budget.usd=1e-6", *dear, *SHORT), notes)
    assert (again.outcome, again.step) == ("budget", stopped.step)
    assert "spent already: nothing is trained" in notes.said[-1]
    done = train(tiny_config(root, "run=dear", "budget.usd=1e9", *dear, *SHORT), Silent())
    assert done.outcome == "done"
    assert losses(root, "dear") == losses(root, "whole")
    assert sum(count.usd for count in read_spend(open_store(str(root)), "dear").counts.values()) > spent


def test_a_run_that_its_budget_cannot_pay_for_stops_after_20_steps_with_the_sum(root, monkeypatch):
    monkeypatch.setattr("skytrain.runs.meter.boot_clock", lambda: 0.0)  # nothing is spent yet
    price = ("budget.usd=50", "budget.usd_per_hour=3600", "budget.margin=0s", "budget.planned_step_seconds=0.001")
    words = ("run=over", "trainer.steps=50000", "trainer.validate_every=null", "trainer.checkpoint_every=null")
    notes = Notes()
    stopped = train(tiny_config(root, *words, *price), notes)
    assert (stopped.outcome, stopped.exit_code, stopped.step) == ("budget", 6, 20)
    assert committed_steps(open_store(str(root)), "over") == [20]
    [said] = [text for text in notes.said if text.startswith("budget: a step takes up to")]
    assert "(planned 1 ms): the run will cost $" in said and "and the budget is $50: saving at step 20" in said
    outcome = read_outcome(open_store(str(root)), "over", 0)
    assert outcome is not None and "the run will cost $" in outcome["cause"]


def test_a_budget_without_a_price_is_said_not_to_be_watched(root):
    notes = Notes()
    train(tiny_config(root, "run=free", "budget.usd=1", "trainer.stop_at_step=1", *SHORT), notes)
    assert any("budget.usd=1 is not watched" in text for text in notes.said)


def test_on_an_instance_the_price_is_the_catalogues_from_its_launch(root, monkeypatch):
    with fake_metadata() as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
        trained = train(tiny_config(root, "run=cloud", "trainer.stop_at_step=2", *SHORT), Silent())
    (count,) = read_spend(open_store(str(root)), "cloud").counts.values()
    assert count.seconds > 3600  # the fake one was launched long ago
    assert trained.metrics["cost/usd"] == pytest.approx(count.usd, rel=1e-3)
    assert trained.metrics["cost/projected_usd"] >= trained.metrics["cost/usd"]
    store = open_store(str(root))
    store.delete_all("runs/cloud/attempts/0/spend")  # the checkpoint's own record is still there
    (saved,) = spent_before(store, "cloud", step_key("cloud", 2)).counts.values()
    assert 3600 < saved.seconds <= count.seconds


def test_a_budget_is_watched_though_the_metadata_service_failed_at_first(root, monkeypatch):
    with fake_metadata() as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
        fake.fail("busy", times=3, method="PUT")
        notes = Notes()
        config = tiny_config(root, "run=throttled", "budget.usd=1", "trainer.stop_at_step=1", *SHORT)
        assert train(config, notes).outcome == "budget"  # it was launched long ago
        assert fake.happened["busy"] == 3
    assert "spent already: nothing is trained" in notes.said[-1]


def test_a_budget_on_an_instance_that_cannot_say_what_it_is_is_refused(root, monkeypatch):
    monkeypatch.setattr("skytrain.aws.metadata.START_RETRY", Retry(0.05, 0.001, 0.01))
    with fake_metadata() as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
        fake.fail("busy")
        with pytest.raises(SkytrainError, match=r"budget\.usd: 1 cannot be kept(.|\n)*set budget\.usd_per_hour"):
            train(tiny_config(root, "run=mute", "budget.usd=1", *SHORT), Silent())
        assert attempt_numbers(open_store(str(root)), "mute") == []
        priced = ("budget.usd=1", "budget.usd_per_hour=0.01", "trainer.stop_at_step=1")
        assert train(tiny_config(root, "run=mute", *priced, *SHORT), Silent()).outcome == "stopped"


def test_a_rented_machine_sends_its_log_and_metrics_to_cloudwatch_and_a_local_one_does_not(root, no_aws):
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        no_aws.setenv(name, "testing")
    rented = ("cloud.target=ec2", "cloud.cloudwatch=true", "cloud.region=us-east-1", "budget.usd_per_hour=1")
    words = (*SHORT, "trainer.stop_at_step=1", "cloud.log_groups={nodes: /skytrain/demo/nodes}", *rented)
    with mock_aws():
        logs = boto3.client("logs", region_name="us-east-1")
        logs.create_log_group(logGroupName="/skytrain/demo/nodes")
        train(tiny_config(root, "run=local", *words), Silent())
        assert logs.describe_log_streams(logGroupName="/skytrain/demo/nodes")["logStreams"] == []
        with fake_metadata() as fake:
            no_aws.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
            train(tiny_config(root, "run=rented", *words), Silent())
        stream = {"logGroupName": "/skytrain/demo/nodes", "logStreamName": "rented/attempt-0/rank-0"}
        messages = [event["message"] for event in logs.get_log_events(**stream, startFromHead=True)["events"]]
    metrics = {
        metric["Name"]
        for line in map(json.loads, [text for text in messages if text.startswith("{")])
        for directive in line["_aws"]["CloudWatchMetrics"]
        for metric in directive["Metrics"]
    }
    assert metrics == {"train/loss", "val/loss", "perf/tokens_per_s", "cost/usd"}
    assert any(text.startswith("train 1/1 | loss") for text in messages)


def test_a_store_without_permission_is_said_and_nothing_is_trained(s3_server, s3_environment, root):
    from tests.support.s3 import READER_KEY, READER_SECRET

    target = s3_server.new_root()
    there = open_store(target)
    for stat in open_store(str(root)).list("tokens/") + open_store(str(root)).list("tokenizers/"):
        there.write(stat.key, open_store(str(root)).read(stat.key))
    s3_environment.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    s3_environment.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    with pytest.raises(SkytrainError, match=r"cannot create .*run\.json"):
        train(tiny_config(target, "run=mine", *SHORT), Silent())


def test_on_s3_metrics_logs_and_events_are_there_afterwards(s3_root, root):
    there = open_store(s3_root)
    here = open_store(str(root))
    for stat in here.list("tokens/") + here.list("tokenizers/"):
        there.write(stat.key, here.read(stat.key))
    train(tiny_config(s3_root, "run=far", "trainer.loggers=[tensorboard]", *SHORT), Silent())
    keys = [stat.key for stat in there.list("runs/far/")]
    for part in ("attempts/0/metrics/", "attempts/0/spend/", "attempts/0/logs/0-", "tensorboard/events.out.tfevents"):
        assert [key for key in keys if part in key], part
    assert losses_of(there, "far") == losses(root, "whole")


def losses_of(store, run: str) -> dict[int, float]:
    return {record["step"]: record["train/loss"] for record in read_metrics(store, run) if "train/loss" in record}


def stopped_at_six(root: Path) -> Store:
    """The run `cut`, with checkpoints at 2, 4 and 6 of 8 steps."""
    train(tiny_config(root, "run=cut", *SHORT, "trainer.stop_at_step=6"), Silent())
    return open_store(str(root))


def flip_a_byte(store: Store, run: str, step: int) -> None:
    file = next(stat.key for stat in store.list(step_key(run, step)) if stat.key.endswith(".bin"))
    data = bytearray(store.read(file))
    data[10] ^= 1
    store.write(file, bytes(data))


def test_a_damaged_newest_checkpoint_stops_the_run_and_fall_back_resumes_from_the_newest_intact_one(root):
    store = stopped_at_six(root)
    flip_a_byte(store, "cut", 6)
    with pytest.raises(DamagedCheckpoint, match=r"was altered.*\n.*--fall-back") as caught:
        train(tiny_config(root, "run=cut", *SHORT), Silent())
    assert caught.value.exit_code == 9
    notes = Notes()
    assert train(tiny_config(root, "run=cut", *SHORT), notes, Start(fall_back=True)).outcome == "done"
    told = "\n".join(notes.said)
    assert "step 6 is damaged: " in told
    assert "resuming from step 4, the newest intact checkpoint; steps 5 to 6 are lost and will be trained again" in told
    assert losses(root, "cut") == losses(root, "whole")
    a, b = weights(root, "cut", 8), weights(root, "whole", 8)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(not verify(store, commit) for commit in committed(store, "cut"))


def test_fall_back_without_a_whole_checkpoint_names_what_is_wrong_with_each(root):
    store = stopped_at_six(root)
    for step in (2, 4, 6):
        flip_a_byte(store, "cut", step)
    with pytest.raises(
        DamagedCheckpoint, match=r"no checkpoint of the run is intact:\n  step 6 is damaged(.|\n)*step 2 is damaged"
    ):
        train(tiny_config(root, "run=cut", *SHORT), Silent(), Start(fall_back=True))


def test_metrics_that_were_lost_before_the_checkpoint_are_told(root):
    store = stopped_at_six(root)
    store.delete_all("runs/cut/attempts/0/metrics")
    notes = Notes()
    train(tiny_config(root, "run=cut", *SHORT), notes)
    assert "warning: the metrics of steps 1 to 6 are not in the store: plots have a gap there" in notes.said


def test_damaged_spend_is_one_message_that_a_restart_would_only_repeat(root):
    store = stopped_at_six(root)
    spend = store.list("runs/cut/attempts/0/spend")[-1].key
    store.write(spend, store.read(spend)[:-9])
    with pytest.raises(DamagedRecord, match=r"line \d+ of .*/spend/.* is damaged: .*\n  restore it") as caught:
        train(tiny_config(root, "run=cut", *SHORT), Silent())
    assert caught.value.exit_code == 9


def lose_checkpoints(root: Path, run: str, *, newest_marker: bool) -> None:
    """Delete a run's checkpoints, or only the marker of the newest one."""
    store = open_store(str(root))
    if not newest_marker:
        store.delete_all(f"runs/{run}/checkpoints")
        return
    newest = committed(store, run)[-1]
    for stat in store.list(newest.key):
        if "COMMITTED" in stat.key:
            store.delete(stat.key)


@pytest.mark.parametrize("newest_marker", [False, True])
@pytest.mark.parametrize("stop", [[], ["trainer.stop_at_step=6"]])
def test_a_run_that_lost_its_newest_checkpoint_does_not_pay_for_it_again_unless_told_to(root, newest_marker, stop):
    first = train(tiny_config(root, "run=lost", *SHORT, *stop), Silent())
    whole = losses(root, "lost")
    lose_checkpoints(root, "lost", newest_marker=newest_marker)
    before = attempt_numbers(open_store(str(root)), "lost")
    with pytest.raises(SkytrainError, match=rf"steps \d to {first.step} were trained and saved \(attempt 0") as error:
        train(tiny_config(root, "run=lost", *SHORT), Silent())
    assert error.value.exit_code == 9 and "trainer.lost_steps=retrain" in str(error.value)
    assert attempt_numbers(open_store(str(root)), "lost") == before
    notes = Notes()
    again = train(tiny_config(root, "run=lost", *SHORT, "trainer.lost_steps=retrain"), notes)
    assert any("they are trained again" in text for text in notes.said)
    assert again.outcome == "done" and whole.items() <= losses(root, "lost").items()
    assert train(tiny_config(root, "run=lost", *SHORT), Silent()).outcome == "done"  # and that is settled


def test_steps_after_the_last_checkpoint_of_a_run_that_crashed_are_trained_again_without_a_word(root):
    class Crash(RuntimeError):
        pass

    def crash(step: float) -> None:
        if step == 5:
            raise Crash

    with pytest.raises(Crash):
        train(tiny_config(root, "run=cut", *SHORT), Notes(crash))
    notes = Notes()
    assert train(tiny_config(root, "run=cut", *SHORT), notes).outcome == "done"
    assert not any("trained again" in text for text in notes.said)


NOISY = """
import random
import numpy as np
from torch import nn
class Noisy(nn.Module):
    def __init__(self, vocab_size, max_length, width):
        super().__init__()
        self.table, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
    def forward(self, tokens):
        noise = random.random() + np.random.random() if self.training else 1.0
        return self.head(self.table(tokens)) * noise
"""


def test_a_plug_in_that_uses_pythons_and_numpys_generators_repeats_and_resumes_bit_for_bit(root, tmp_path, monkeypatch):
    from skytrain.config import compose
    from tests.support.tiny import TINY

    (tmp_path / "noisy_model.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    mine = [option for option in TINY if not option.startswith("model")]
    words = [*mine, "model=custom", "model.target=noisy_model.Noisy", "model.args.width=16", f"store.root='{root}'"]

    def run(name: str, *more: str) -> None:
        train(compose([*words, *SHORT, f"run={name}", *more]).config, Silent())

    run("noisy-whole")
    run("noisy-cut", "trainer.stop_at_step=4")
    run("noisy-cut")
    assert losses(root, "noisy-cut") == losses(root, "noisy-whole")


def test_a_run_that_failed_before_its_first_step_can_be_started_with_other_settings(tmp_path, monkeypatch):
    prepare(tiny_config(tmp_path), Silent())
    with monkeypatch.context() as patch:
        patch.setattr("skytrain.pipelines.train.fit", _fails)
        with pytest.raises(RuntimeError, match="no memory"):
            train(tiny_config(tmp_path, "run=named"), Silent())
    done = train(tiny_config(tmp_path, "run=named", "seed=5", "optimizer.lr=1e-3", "trainer.steps=3"), Silent())
    record = load_run(open_store(str(tmp_path)), "named")
    assert done.run == "named" and record.seed == 5 and record.config["optimizer"]["lr"] == 1e-3
    with pytest.raises(SkytrainError, match="was started with other settings"):
        train(tiny_config(tmp_path, "run=named", "seed=6", "trainer.steps=3"), Silent())


def _fails(*_: object, **__: object) -> None:
    raise RuntimeError("no memory")
