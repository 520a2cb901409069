import os
import signal
import threading
from types import SimpleNamespace

import pytest

from skytrain.aws import Metadata, Notice
from skytrain.jobs import Ranks
from skytrain.planning import Budget
from skytrain.runs import Cause, Meter, Silent, StopRequest, Superseded, meter
from skytrain.runs.meter import MeteredMachine
from skytrain.storage import Patience, Retry
from skytrain.training.interruptions import Interruptions, NoticeWatch, Signals, StepAction, StopSources
from skytrain.training.spending import BudgetWatch
from tests.support.imds import fake_metadata

pytestmark = pytest.mark.usefixtures("default_signals")


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class OtherRankSays(Ranks):
    """A rank of two, of which the other one has a reason to act."""

    action = StepAction.NOTHING

    def largest(self, here: int) -> int:
        return max(here, self.action)

    def everyone(self, here):
        return [here, Cause("SIGTERM received", host="the other")]


ALONE = Ranks()


def interruptions(
    ranks: Ranks = ALONE, signals=None, notices=None, budget=None, taken_over=None, saves=None, stop=None
):
    reporter = Notes()
    callback = Interruptions(
        reporter,
        ranks,
        StopSources(
            signals=signals or Signals(),
            notices=notices,
            budget=budget,
            taken_over=lambda: taken_over,
            stop_asked=lambda: stop,
        ),
        save_soon=lambda: saves.append(1),
    )
    return callback, reporter, SimpleNamespace(should_stop=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_stops_after_the_step_and_says_which(number):
    with Signals() as signals:
        callback, reporter, trainer = interruptions(signals=signals)
        callback.at_step(trainer, None, 4)
        assert not trainer.should_stop
        os.kill(os.getpid(), number)
        callback.at_step(trainer, None, 5)
    assert trainer.should_stop and callback.outcome == "interrupted"
    assert reporter.said == [f"{number.name} received: saving at step 5, then stopping"]


def test_a_second_interrupt_does_not_wait_for_the_step():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signals.received == signal.SIGTERM


def test_handlers_are_those_of_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with Signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_another_rank_was_told_is_everybodys():
    ranks = OtherRankSays(rank=0, world_size=2)
    callback, reporter, trainer = interruptions(ranks)
    object.__setattr__(ranks, "action", StepAction.INTERRUPT)
    callback.at_step(trainer, None, 7)
    assert trainer.should_stop and callback.outcome == "interrupted"
    assert reporter.said == ["SIGTERM received: saving at step 7, then stopping"]
    assert callback.cause is not None and callback.cause.host == "the other"


def test_a_request_to_stop_wins_over_a_signal_which_a_scheduler_would_answer_with_a_restart():
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        callback, reporter, trainer = interruptions(signals=signals, stop=StopRequest(0, "ann@laptop", "now"))
        callback.at_step(trainer, None, 5)
    assert trainer.should_stop and callback.outcome == "stopped"
    assert reporter.said == ["`skytrain stop` by ann@laptop: saving at step 5, then stopping"]


def test_an_attempt_that_was_taken_over_stops_with_the_reason_and_saves_nothing():
    error = Superseded("r", 0, 1, "other-host")
    saves: list[int] = []
    callback, _, trainer = interruptions(taken_over=error, saves=saves)
    with pytest.raises(Superseded, match="attempt 1 on other-host has taken over"):
        callback.at_step(trainer, None, 3)
    assert not saves and not trainer.should_stop


@pytest.fixture
def watch():
    """A watch on a fake instance, and a way to wait until it has seen the newest state."""
    said: list[str] = []
    with fake_metadata() as fake, NoticeWatch(Metadata(fake.url), said.append, poll_seconds=0.01) as notices:

        def seen(kind: str) -> None:
            ended = threading.Event()
            for _ in range(3000):
                if notices.notice is not None and notices.notice.kind == kind:
                    return
                ended.wait(0.01)
            raise AssertionError(f"no {kind} notice was seen")

        yield SimpleNamespace(fake=fake, notices=notices, seen=seen, said=said)


@pytest.mark.parametrize("fault", ["busy", "empty", "garbage"])
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_notice_is_seen_after_the_metadata_service_was_in_trouble(watch, fault, method):
    watch.fake.fail(fault, times=5, method=method)
    watch.fake.tokens.clear()  # after that, so that no new token is given out before the trouble begins
    watch.fake.give_notice()
    watch.seen("spot")
    assert watch.fake.happened[fault] == 5


def test_no_error_ends_the_watch_and_a_long_silence_is_told_once(watch, monkeypatch):
    monkeypatch.setattr(watch.notices, "_patience", Patience(Retry(seconds=0.0)))
    answers = iter([MemoryError("first"), RuntimeError("second"), None, Notice("spot", "the end")])

    def notice():
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(watch.notices._metadata, "notice", notice)
    watch.seen("spot")
    assert len(watch.said) == 2
    assert "a spot notice would be missed: first" in watch.said[0] and "answers again" in watch.said[1]


def test_a_spot_notice_stops_the_run(watch):
    callback, reporter, trainer = interruptions(notices=watch.notices)
    callback.at_step(trainer, None, 1)
    assert not trainer.should_stop
    watch.fake.give_notice()
    watch.seen("spot")
    callback.at_step(trainer, None, 2)
    assert trainer.should_stop and callback.outcome == "interrupted"
    assert reporter.said == [
        "EC2 will terminate this instance at 2026-01-01T00:02:00Z: saving at step 2, then stopping"
    ]


def test_a_rebalance_recommendation_saves_once_and_goes_on(watch):
    saves: list[int] = []
    callback, _, trainer = interruptions(notices=watch.notices, saves=saves)
    watch.fake.recommend_rebalance()
    watch.seen("rebalance")
    for step in (1, 2, 3):
        callback.at_step(trainer, None, step)
    assert len(saves) == 1 and not trainer.should_stop
    watch.fake.give_notice()
    watch.seen("spot")
    callback.at_step(trainer, None, 4)
    assert trainer.should_stop


def test_a_metadata_service_that_fails_for_a_while_is_asked_again(watch, monkeypatch):
    failed = threading.Event()
    real = Metadata.notice

    def fails(self):
        failed.set()
        raise OSError("timed out")

    monkeypatch.setattr(Metadata, "notice", fails)
    assert failed.wait(10)
    monkeypatch.setattr(Metadata, "notice", real)
    watch.fake.give_notice()
    watch.seen("spot")


def test_the_budget_stops_while_a_step_and_a_checkpoint_can_still_be_paid(monkeypatch):
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(meter, "boot_clock", lambda: clock.seconds)
    monkeypatch.setattr("skytrain.training.spending.time", SimpleNamespace(monotonic=lambda: clock.seconds))
    running = Meter([MeteredMachine("a", "boot", 0.0, 0.0)], 3600.0)  # a dollar a second
    running.note_save(10.0)
    budget = BudgetWatch(running, Budget(100.0, margin_seconds=20.0))
    callback, reporter, trainer = interruptions(budget=budget)
    step = 0
    while not trainer.should_stop:
        clock.seconds += 5.0  # a step
        step += 1
        callback.at_step(trainer, None, step)
    left = 100.0 - clock.seconds
    assert callback.outcome == "budget"
    assert left >= 5.0 + 10.0 + 20.0 - 5.0  # what the last step took had been kept back
    assert left < 2 * (5.0 + 10.0) + 20.0 + 5.0  # and not much more
    assert reporter.said == [
        f"budget: ${clock.seconds:.2f} of $100 spent: saving at step {step}, then stopping within the budget"
    ]
