"""`skytrain stop` and `skytrain logs` on real runs."""

import threading

import pytest

from skytrain.checkpoints import committed_steps
from skytrain.pipelines.logs import log_text, logs
from skytrain.pipelines.train import train
from skytrain.runs import LogSelection, Silent, Sync, attempt_numbers, read_outcome
from skytrain.storage import open_store
from skytrain.targets.stopping import describe_stop, stop
from skytrain.training import services
from tests.support.tiny import tiny_config


class Steps(Silent):
    """Lets the test know that training has begun."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def progress(self, stage, done, total, detail="", seconds_left=None):
        if stage == "train":
            self.begun.set()


def test_a_run_that_is_asked_to_stop_saves_and_ends_and_the_same_command_resumes_it(root, monkeypatch):
    monkeypatch.setattr(services, "Sync", lambda tell: Sync(tell, every_seconds=0.02))
    config = tiny_config(root, "run=r", "trainer.steps=100000", "trainer.validate_every=null")
    store, steps, results = open_store(str(root)), Steps(), []
    thread = threading.Thread(target=lambda: results.append(stop_when_begun(config, steps)))
    thread.start()
    trained = train(config, steps)
    thread.join()
    assert trained.outcome == "stopped" and trained.exit_code == 0
    assert trained.step == committed_steps(store, "r")[-1] < 100_000
    outcome = read_outcome(store, "r", 0)
    assert outcome is not None and outcome["cause"].startswith("`skytrain stop` by ")
    (stopped,) = results
    assert stopped.asked and stopped.state == "stopped" and stopped.checkpoint_step == trained.step
    assert "the same `skytrain train` resumes it" in describe_stop(stopped)
    # The old request does not stop the resumed run, and there is nothing more to stop.
    again = train(
        tiny_config(root, "run=r", "trainer.steps=100000", f"trainer.stop_at_step={trained.step + 3}"), Silent()
    )
    assert again.step == trained.step + 3 and attempt_numbers(store, "r") == [0, 1]
    nothing = stop(config, "r", 0.0, Silent())
    assert not nothing.asked and describe_stop(nothing).startswith("r: nothing to stop, it is stopped")
    # Its log can be followed to the end.
    lines = list(logs(config, "r", LogSelection(attempt=0), None, follow=True, wait=pytest.fail))
    text = "\n".join(log_text(line, with_rank=False) for line in lines)
    assert f"`skytrain stop` by {outcome['cause'].split()[-1]}: saving at step {trained.step}, then stopping" in text


def stop_when_begun(config, steps):
    assert steps.begun.wait(120)
    return stop(config, "r", 120.0, Silent())
