import json
from datetime import UTC, datetime, timedelta

import pytest

from skytrain.checkpoints.errors import TakenOver
from skytrain.config import compose
from skytrain.report import describe_status, failure_lines
from skytrain.runs import (
    Lines,
    MetricsWriter,
    Superseded,
    claim_attempt,
    failures_recorded,
    new_record,
    read_outcome,
    record_resume,
    run_status,
    save_run,
    write_outcome,
)
from skytrain.storage import open_store


@pytest.fixture
def store(tmp_path):
    store = open_store(str(tmp_path / "store"))
    config = compose(["budget.usd=40"]).config
    save_run(store, new_record(config, name="r", data={}, tokenizer_id="gpt2", parameters=1, hardware={}))
    return store


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def attempt(store, resumed: int, steps: dict[int, dict[str, float]], *, usd: float | None, heard: float) -> int:
    """An attempt as a run leaves it in the store: its metrics, and the last line of its spend."""
    number = claim_attempt(store, "r")
    record_resume(store, "r", number, resumed)
    writer = MetricsWriter(store, "r", number)
    for step, metrics in steps.items():
        writer.write(step, metrics)
    writer.lines.flush()
    lines = Lines(store, f"runs/r/attempts/{number}/spend/")
    count = {"usd": usd or 0.0, "seconds": 60.0, "boot": "b", "boot_seconds": 1.0}
    lines.write({"at": ago(heard), "step": max(steps), "usd": usd, "machines": {f"machine-{number}": count}})
    lines.flush()
    return number


def test_a_running_run_tells_where_it_is_what_it_costs_and_how_long_it_takes(store):
    step = {"train/loss": 3.5, "perf/tokens_per_s": 5e4, "perf/mfu": 0.4, "perf/step_ms": 500.0, "cost/usd": 1.5}
    slow = {"perf/slowest_rank": 3.0, "perf/straggler_ratio": 1.4}
    attempt(store, 0, {10: {"val/loss": 3.6}, 20: {**step, "cost/projected_usd": 30.0, **slow}}, usd=1.5, heard=2)
    found = run_status(store, "r", 100, (10, ago(90)))
    assert (found.state, found.step, found.total_steps) == ("running", 20, 100)
    assert (found.loss, found.val_loss, found.tokens_per_s, found.mfu) == (3.5, 3.6, 5e4, 0.4)
    assert (found.usd, found.projected_usd, found.budget_usd) == (1.5, 30.0, 40.0)
    assert found.eta_seconds == pytest.approx(80 * 0.5)
    assert found.checkpoint_step == 10 and 89 <= (found.checkpoint_age_seconds or 0) < 100
    assert (found.slowest_rank, found.straggler_ratio) == (3, 1.4)


def test_a_run_that_fell_silent_is_stale_since_it_was_last_heard(store):
    attempt(store, 0, {5: {"train/loss": 3.0}}, usd=None, heard=3600)
    found = run_status(store, "r", 100)
    assert found.state == "stale"
    assert found.since is not None and datetime.fromisoformat(found.since) < datetime.now(UTC) - timedelta(minutes=59)
    assert (found.eta_seconds, found.usd, found.checkpoint_step) == (None, None, None)
    assert found.interruptions == 1


def test_attempts_and_machines_add_up_and_work_that_was_lost_does_not_count(store):
    first = attempt(store, 0, {8: {"train/loss": 9.0}}, usd=2.0, heard=500)
    write_outcome(store, "r", first, "interrupted", 8)
    attempt(store, 4, {5: {"train/loss": 3.0}}, usd=0.5, heard=1)  # the second goes on from step 4
    found = run_status(store, "r", 100)
    assert (found.step, found.loss) == (5, 3.0)
    assert (found.usd, found.machine_seconds) == (2.5, 120.0)
    assert (found.attempts, found.interruptions) == (2, 1)


@pytest.mark.parametrize("outcome", ["done", "stopped", "budget", "interrupted"])
def test_a_run_that_ended_says_how(store, outcome):
    number = attempt(store, 0, {5: {"train/loss": 3.0}}, usd=1.0, heard=1)
    write_outcome(store, "r", number, outcome, 5)
    assert run_status(store, "r", 100).state == outcome


def test_an_attempt_that_ends_with_an_error_has_failed_at_once_and_says_why(store):
    number = attempt(store, 0, {5: {"train/loss": 3.0}}, usd=1.0, heard=1)
    with pytest.raises(RuntimeError), failures_recorded(store, "r", number):
        raise RuntimeError("the loss is nan\n  try another learning rate")
    with pytest.raises(RuntimeError), failures_recorded(store, "r", number):
        raise RuntimeError("another rank has gone")  # it comes second, and is a consequence
    found = run_status(store, "r", 100)
    assert (found.state, found.reason, found.interruptions) == (
        "failed",
        "the loss is nan\n  try another learning rate",
        1,
    )
    assert ("reason", found.reason) in describe_status(found)
    assert failure_lines([found]) == ["r failed: the loss is nan"]
    claim_attempt(store, "r")
    assert run_status(store, "r", 100).reason is None


@pytest.mark.parametrize("by_commit", [False, True])
def test_a_superseded_attempt_has_an_outcome_and_no_failure(store, by_commit):
    number = attempt(store, 0, {5: {"train/loss": 3.0}}, usd=1.0, heard=1)
    noticed = Superseded("r", number, 1, "other-host")
    error = TakenOver(str(noticed)) if by_commit else noticed
    with pytest.raises(type(error)), failures_recorded(store, "r", number):
        raise error
    outcome = read_outcome(store, "r", number)
    assert outcome is not None and outcome["outcome"] == "superseded"
    assert "attempt 1 on other-host has taken over" in outcome["cause"]
    assert run_status(store, "r", 100).state == "superseded"


def test_a_killed_attempt_has_no_failure(store):
    number = attempt(store, 0, {5: {"train/loss": 3.0}}, usd=1.0, heard=1)
    with pytest.raises(KeyboardInterrupt), failures_recorded(store, "r", number):
        raise KeyboardInterrupt
    assert run_status(store, "r", 100).state == "running"


def test_a_run_that_has_only_been_claimed_is_starting_but_not_for_ever(store):
    assert run_status(store, "r", 100).state == "not started"
    claim_attempt(store, "r")
    assert run_status(store, "r", 100).state == "starting"
    store.write("runs/r/attempts/0/attempt.json", json.dumps({"started_at": ago(3600), "host": "gone"}).encode())
    found = run_status(store, "r", 100)  # killed before its first word
    assert (found.state, found.interruptions) == ("stale", 1)


def test_the_command_shows_one_run_or_all_as_text_and_as_json(store, tmp_path, capsys, monkeypatch):
    from skytrain.cli.main import main

    attempt(store, 0, {5: {"train/loss": 3.0}}, usd=1.0, heard=1)

    def shown(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["skytrain", "status", *words, f"store.root='{tmp_path / 'store'}'"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert shown().splitlines()[1].split()[:3] == ["r", "running", "5/1000"]
    assert "cost      $1.00, budget $40" in shown("r").splitlines()
    assert json.loads(shown("r", "--json"))["loss"] == 3.0
    assert [each["run"] for each in json.loads(shown("--json"))] == ["r"]
