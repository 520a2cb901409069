import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from skytrain.runs import (
    Cause,
    Fence,
    Superseded,
    check_newest,
    claim_attempt,
    read_fence,
    read_outcome,
    record_resume,
    write_outcome,
)
from skytrain.storage import DamagedRecord, open_store
from skytrain.storage.folder import FolderStore


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def test_racing_starters_get_attempts_of_their_own(store):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: claim_attempt(store, "r"), range(16)))
    assert sorted(numbers) == list(range(16))


def test_an_attempt_learns_that_a_newer_one_took_over_and_where(store):
    first = claim_attempt(store, "r")
    check_newest(store, "r", first)
    second = claim_attempt(store, "r")
    with pytest.raises(Superseded, match=r"attempt 1 on \S+ has taken over from this one, attempt 0"):
        check_newest(store, "r", first)
    check_newest(store, "r", second)


def test_what_an_older_attempt_commits_beyond_a_newer_ones_start_does_not_count(store):
    first = claim_attempt(store, "r")
    record_resume(store, "r", first, 0)
    assert read_fence(store, "r").admits(first, 20)
    second = claim_attempt(store, "r")
    record_resume(store, "r", second, 10)
    fence = read_fence(store, "r")
    assert fence == Fence({0: 0, 1: 10})
    assert fence.admits(first, 10)
    assert not fence.admits(first, 20)
    assert fence.admits(second, 20)


def test_the_newest_word_is_enough_however_many_attempts_there_were(store, monkeypatch):
    for start in (0, 10, 20, 15, 30):
        record_resume(store, "r", claim_attempt(store, "r"), start)
    read, keys = FolderStore.read, []
    monkeypatch.setattr(FolderStore, "read", lambda self, key, *most: keys.append(key) or read(self, key, *most))
    fence = read_fence(store, "r")
    assert fence == Fence({0: 0, 1: 10, 2: 20, 3: 15, 4: 30})
    assert keys == ["runs/r/attempts/4/resumed.json"]


def test_an_attempt_that_says_where_it_goes_on_after_a_newer_one_did_takes_nothing_from_that_one(store):
    first = claim_attempt(store, "r")
    record_resume(store, "r", first, 0)
    late, newest = claim_attempt(store, "r"), claim_attempt(store, "r")
    record_resume(store, "r", newest, 20)  # from what the first committed
    record_resume(store, "r", late, 10)
    assert read_fence(store, "r").admits(first, 20)


def test_an_attempt_that_never_began_to_train_bars_nothing(store):
    first = claim_attempt(store, "r")
    record_resume(store, "r", first, 0)
    claim_attempt(store, "r")
    assert read_fence(store, "r").admits(first, 99)


def test_the_outcome_and_the_facts_of_an_attempt_are_kept_with_it(store):
    number = claim_attempt(store, "r", world_size=4)
    assert read_outcome(store, "r", number) is None
    write_outcome(store, "r", number, "interrupted", 7, Cause("SIGTERM received", "node-3"))
    found = read_outcome(store, "r", number)
    assert found is not None
    assert (found["outcome"], found["step"]) == ("interrupted", 7)
    assert (found["cause"], found["host"]) == ("SIGTERM received", "node-3")
    assert json.loads(store.read("runs/r/attempts/0/attempt.json"))["world_size"] == 4


@pytest.mark.parametrize(
    "body", [b"", b'{"step": 3, "bef', b"[]", b'{"step": 3}', b'{"step": "x", "before": {}}', b"\xff"]
)
def test_a_damaged_record_is_named_with_what_to_do(store, body):
    number = claim_attempt(store, "r")
    store.write(f"runs/r/attempts/{number}/resumed.json", body)
    with pytest.raises(DamagedRecord, match=r"resumed.json is damaged: .*\n  restore it .* or delete it"):
        read_fence(store, "r")
    store.delete(f"runs/r/attempts/{number}/resumed.json")
    assert read_fence(store, "r") == Fence({})
