import pytest

from skytrain.config import SkytrainError
from skytrain.runs import Lines, LogSelection, RunLogs, attempt_key, claim_attempt, sync as sync_module
from skytrain.storage import open_store

ALL = LogSelection(ranks=None)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def stream(store, rank: int, attempt: int = 0) -> Lines:
    return Lines(store, f"{attempt_key('r', attempt)}/logs/{rank}-")


def write(lines: Lines, *texts: str, at: str = "2026-01-01T00:00:00+00:00") -> None:
    for text in texts:
        lines.write({"at": at, "text": text})
    lines.flush()


def texts(lines) -> list[str]:
    return [line.text for line in lines]


def test_the_last_entries_span_parts_and_what_is_added_comes_once(store, monkeypatch):
    monkeypatch.setattr(sync_module, "PART_BYTES", 150)
    claim_attempt(store, "r")
    lines = stream(store, 0)
    write(lines, *"abcdefg")
    assert len(store.list("runs/r/attempts/0/logs")) > 2
    logs = RunLogs(store, "r", LogSelection())
    assert texts(logs.last(3)) == ["e", "f", "g"]
    assert logs.new() == []
    write(lines, "h")
    write(lines, *"ijkl")
    assert texts(logs.new()) == list("hijkl")
    assert logs.new() == []
    assert texts(RunLogs(store, "r", LogSelection()).last(None)) == list("abcdefghijkl")


def test_ranks_are_merged_by_time_and_chosen_by_number_or_node(store):
    claim_attempt(store, "r", ranks_per_node=2)
    for rank in range(4):
        write(stream(store, rank), f"rank {rank}", at=f"2026-01-01T00:00:0{9 - rank}+00:00")
    assert texts(RunLogs(store, "r", ALL).last(None)) == ["rank 3", "rank 2", "rank 1", "rank 0"]
    assert texts(RunLogs(store, "r", LogSelection()).last(None)) == ["rank 0"]
    assert texts(RunLogs(store, "r", LogSelection(ranks=frozenset({1, 3}))).last(None)) == ["rank 3", "rank 1"]
    assert texts(RunLogs(store, "r", LogSelection(node=1)).last(None)) == ["rank 3", "rank 2"]
    with pytest.raises(SkytrainError, match="no log of the selected ranks\n  ranks with a log: 0, 1, 2, 3"):
        RunLogs(store, "r", LogSelection(node=7)).last(None)


def test_following_goes_on_with_the_attempt_that_took_over(store):
    claim_attempt(store, "r")
    first = stream(store, 0)
    write(first, "one")
    logs = RunLogs(store, "r", LogSelection())
    assert texts(logs.last(None)) == ["one"]
    write(first, "crash")
    claim_attempt(store, "r")
    write(stream(store, 0, attempt=1), "two")
    assert [(line.attempt, line.text) for line in logs.new()] == [(0, "crash"), (1, "two")]
    assert texts(RunLogs(store, "r", LogSelection(attempt=0)).last(None)) == ["one", "crash"]


def test_an_attempt_or_log_that_is_not_there_is_said_to_be_missing(store):
    with pytest.raises(SkytrainError, match="'r' has not started"):
        RunLogs(store, "r", ALL).last(1)
    claim_attempt(store, "r")
    with pytest.raises(SkytrainError, match="attempt 0 of run 'r' has written no log yet"):
        RunLogs(store, "r", ALL).last(1)
    with pytest.raises(SkytrainError, match="--attempt 5: run 'r' has attempts 0 to 0"):
        RunLogs(store, "r", LogSelection(attempt=5)).last(1)
