"""The newcomer's first command, with fewer steps, and the same story on S3."""

import os
import signal

import pytest
import torch

from skytrain.config import compose
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.quickstart import _activation, quickstart
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from tests.support.tiny import tiny_config


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


SMALL = [
    "model.layers=2",
    "model.width=64",
    "trainer.sequence_length=64",
    "trainer.micro_batch=8",
    "trainer.batch_tokens=512",
    "trainer.steps=30",
    "trainer.sample_every=10",
    "trainer.validate_every=15",
    "trainer.log_every=5",
]


def test_quickstart_goes_from_text_to_an_exported_model_that_transformers_loads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from skytrain.checkpoints import load_model

    config = compose(["recipe=quickstart", *SMALL, f"store.root='{tmp_path}'"]).config
    told = Notes()
    screen = quickstart(config, told).summary
    assert any("validation (o)" in note and "│" in note for note in told.notes)
    for word in ("validation", "sample", "export", "Try next", "skytrain report", "skytrain generate"):
        assert word in screen
    store = open_store(str(tmp_path))
    (run,) = store.folders("runs/")
    curve = [record["train/loss"] for record in read_metrics(store, run) if "train/loss" in record]
    assert curve[-1] < curve[0] - 0.5
    (folder,) = (tmp_path / "exports").iterdir()
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ours = load_model(store, run)
    ids = tokenizer("def return_the(value): ...", return_tensors="pt").input_ids
    assert ids[0].tolist() == ours.tokenizer.encode_batch(["def return_the(value): ..."])[0].tolist()
    exported = ours.model.bfloat16().float()  # an export is in bf16
    with torch.no_grad():
        found = theirs.float()(ids).logits
        torch.testing.assert_close(exported(ids)[..., : len(tokenizer)], found, atol=1e-5, rtol=0)
    assert list((tmp_path / "runs" / run / "tensorboard").glob("events.out.*"))
    assert quickstart(config, Silent()).summary == screen  # nothing is made twice


def test_what_to_try_next_begins_with_the_environment_where_the_shell_does_not_know_it(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert _activation() == "", "not in an environment"
    (tmp_path / "bin" / "activate").touch()
    assert _activation() == f"\n  source {tmp_path}/bin/activate"
    (command := tmp_path / "bin" / "skytrain").touch()
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert _activation() == "", "the command is found"


def test_ctrl_c_ends_the_quickstart_and_the_same_command_finishes_it(tmp_path):
    class PressesCtrlC(Silent):
        def progress(self, stage, done, total, detail="", seconds_left=None):
            if stage == "train" and done == 5:
                os.kill(os.getpid(), signal.SIGINT)

    config = compose(["recipe=quickstart", *SMALL, f"store.root='{tmp_path}'"]).config
    stopped = quickstart(config, PressesCtrlC())
    assert stopped.exit_code == 7 and "the same command resumes" in stopped.summary
    assert not (tmp_path / "exports").exists()
    finished = quickstart(config, Silent())
    assert finished.exit_code == 0 and ": 30 steps" in finished.summary


def test_the_same_story_works_on_s3_and_gives_the_same_losses(s3_store, root):
    local = train(tiny_config(root), Silent())
    remote = tiny_config(s3_store.root, "trainer.loggers=[tensorboard]")
    prepare(remote, Silent())
    stopped = train(tiny_config(s3_store.root, "trainer.loggers=[tensorboard]", "trainer.stop_at_step=9"), Silent())
    finished = train(remote, Silent())
    assert stopped.run == finished.run == local.run

    def curve(store):
        return [record["train/loss"] for record in read_metrics(store, local.run) if "train/loss" in record]

    assert curve(s3_store) == curve(open_store(str(root)))
    assert any("events.out" in stat.key for stat in s3_store.list(f"runs/{local.run}/tensorboard/"))
    _, there = evaluate(remote, LossRequest(), Silent())
    _, here = evaluate(tiny_config(root), LossRequest(), Silent())
    assert there.loss == pytest.approx(here.loss, abs=1e-12)
