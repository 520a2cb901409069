import pytest

from skytrain.runs import ask_stop, read_stop, stop_asked
from skytrain.storage import DamagedRecord, StoreUnreachable, open_store


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def test_a_request_stops_the_attempt_that_it_names_and_no_later_one(store):
    assert stop_asked(store, "r", 0) is None
    request = ask_stop(store, "r", 1)
    assert "@" in request.asked_by and read_stop(store, "r") == request
    assert stop_asked(store, "r", 0) == stop_asked(store, "r", 1) == request
    assert stop_asked(store, "r", 2) is None  # a resumed run
    ask_stop(store, "r", 2)
    assert stop_asked(store, "r", 2) is not None


@pytest.mark.parametrize("body", [b"{}", b"nonsense", b'{"attempt": "x", "asked_by": "a", "asked_at": "b"}'])
def test_a_damaged_request_is_named(store, body):
    store.write("runs/r/stop.json", body)
    with pytest.raises(DamagedRecord, match=r"stop\.json is damaged"):
        read_stop(store, "r")


def test_a_store_that_does_not_answer_is_not_a_damaged_request(store, monkeypatch):
    def refuse(key: str, at_most: int) -> bytes:
        raise StoreUnreachable("read", key, "SlowDown")

    monkeypatch.setattr(store, "read", refuse)
    with pytest.raises(StoreUnreachable, match="SlowDown"):
        read_stop(store, "r")
