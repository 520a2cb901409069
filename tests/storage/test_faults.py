"""A bad network between us and S3: nothing is lost, nothing is half-written, and what cannot succeed says why."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from skytrain.storage import AccessDenied, Patience, Retry, Store, StoreError, StoreUnreachable, aws, open_store
from tests.support.faults import FaultProxy, Kind, Request
from tests.support.s3 import BRIEFLY, FAST_RETRY, S3Server

CONTENT = bytes(range(256)) * (3 << 12)  # 3 MiB

PASSING: list[Kind] = ["slow_down", "internal_error", "reset", "lost_answer", "latency"]
LASTING: list[tuple[Kind, str]] = [
    ("slow_down", "SlowDown: Please reduce your request rate.|the server answered 503 Service Unavailable"),
    (
        "internal_error",
        "InternalError: We encountered an internal error.|the server answered 500 Internal Server Error",
    ),
    ("reset", "HTTP error: error sending request"),
]


@pytest.fixture
def faulty_store(fault_proxy: FaultProxy, s3_server: S3Server) -> Store:
    """A store that is reached through the proxy."""
    return open_store(s3_server.new_root(), retry=FAST_RETRY)


@pytest.fixture
def direct_store(faulty_store: Store, s3_environment: pytest.MonkeyPatch, s3_server: S3Server) -> Store:
    """The same objects, past the proxy."""
    s3_environment.setenv("AWS_ENDPOINT_URL", s3_server.url)
    return open_store(faulty_store.root, retry=FAST_RETRY)


def unfinished_uploads(server: S3Server, store: Store) -> list[str]:
    prefix = store.root.removeprefix(f"s3://{server.bucket}/")
    found = server.client().list_multipart_uploads(Bucket=server.bucket).get("Uploads", [])
    return [upload["Key"] for upload in found if upload["Key"].startswith(prefix)]


@pytest.mark.parametrize("kind", PASSING)
def test_every_operation_outlives_a_fault_that_passes(
    faulty_store: Store, fault_proxy: FaultProxy, small_parts: int, large_file: Path, tmp_path: Path, kind: Kind
) -> None:
    def then(times: int = 2) -> None:
        fault_proxy.inject(kind, times)

    then()
    faulty_store.write("a/key", CONTENT)
    then()
    assert faulty_store.create("a/created", CONTENT)
    then()
    assert faulty_store.read("a/key") == faulty_store.read("a/created") == CONTENT
    then()
    assert faulty_store.read_range("a/key", 1000, 50) == CONTENT[1000:1050]
    then()
    assert [stat.key for stat in faulty_store.list("a")] == ["a/created", "a/key"]
    then()
    assert faulty_store.folders() == ["a"]
    then()
    assert faulty_store.exists("a/key")
    then(3)
    sha256 = faulty_store.upload(large_file, "large")
    then(3)
    faulty_store.download("large", tmp_path / "copy", sha256)
    assert (tmp_path / "copy").read_bytes() == large_file.read_bytes()
    then()
    faulty_store.delete("a/key")
    assert [stat.key for stat in faulty_store.list()] == ["a/created", "large"]
    assert fault_proxy.happened[kind] >= 20


@pytest.mark.parametrize(("kind", "cause"), LASTING)
def test_a_fault_that_lasts_ends_with_the_url_the_time_and_the_cause(
    faulty_store: Store, direct_store: Store, fault_proxy: FaultProxy, tmp_path: Path, kind: Kind, cause: str
) -> None:
    direct_store.write("key", CONTENT)
    fault_proxy.inject(kind)
    faulty_store = faulty_store.patient(BRIEFLY)
    (tmp_path / "file").write_bytes(CONTENT)
    for operation, use in {
        "read": lambda: faulty_store.read("key"),
        "write": lambda: faulty_store.write("key", b"new"),
        "create": lambda: faulty_store.create("key", b"new"),
        "stat": lambda: faulty_store.stat("key"),
        "delete": lambda: faulty_store.delete("key"),
        "upload": lambda: faulty_store.upload(tmp_path / "file", "key"),
        "download": lambda: faulty_store.download("key", tmp_path / "copy"),
    }.items():
        with pytest.raises(StoreUnreachable) as caught:
            use()
        assert re.match(f"cannot {operation} {faulty_store.root}/key: ({cause})", str(caught.value))
        assert re.search(r"\(tried for .* s\)\n  the service or the network is in trouble", str(caught.value))
    assert direct_store.read("key") == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_cut_body_continues_where_it_was_cut(faulty_store: Store, fault_proxy: FaultProxy) -> None:
    faulty_store.write("key", CONTENT)
    fault_proxy.requests.clear()
    fault_proxy.inject("cut", times=3)
    assert faulty_store.read("key") == CONTENT
    ranges = [request.headers.get("range") for request in fault_proxy.requests]
    starts = [int(each.removeprefix("bytes=").split("-")[0]) for each in ranges if each]
    assert ranges[0] is None and len(starts) == 3
    assert 0 < starts[0] < starts[1] < starts[2]


def test_a_transfer_that_advances_may_be_cut_for_longer_than_we_wait(
    fault_proxy: FaultProxy, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_retries: Any = {"max_retries": 0}
    monkeypatch.setattr(Retry, "for_requests", lambda self: no_retries)  # obstore's own: each cut is ours to mend
    store = open_store(s3_server.new_root(), retry=Retry(seconds=1500.0, first_wait_seconds=0.002))
    store.write("key", CONTENT * 4)
    later = itertools.count(step=1000)  # with each look at the clock
    monkeypatch.setattr("skytrain.storage.retry.time.monotonic", lambda: float(next(later)))
    fault_proxy.inject("cut", times=3)
    assert store.read("key") == CONTENT * 4
    assert fault_proxy.happened["cut"] == 3


def test_a_body_that_is_always_cut_ends_with_an_error(
    faulty_store: Store, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    faulty_store.write("key", CONTENT)
    fault_proxy.inject("cut", when=lambda request: request.method == "GET")
    with pytest.raises(StoreError, match=r"cannot download s3://.*/key: .*body.*\(tried for .* s\)"):
        faulty_store.patient(BRIEFLY).download("key", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_an_object_replaced_during_a_cut_is_read_whole_never_mixed(
    faulty_store: Store, direct_store: Store, fault_proxy: FaultProxy
) -> None:
    old, new = b"a" * len(CONTENT), b"b" * len(CONTENT)
    direct_store.write("key", old)
    fault_proxy.inject("cut", when=replacing(direct_store, "key", new, on_request=1))
    assert faulty_store.read("key") == new
    assert fault_proxy.happened["cut"] == 1


def test_an_object_replaced_during_a_download_is_noticed(
    faulty_store: Store,
    direct_store: Store,
    fault_proxy: FaultProxy,
    small_parts: int,
    large_file: Path,
    tmp_path: Path,
) -> None:
    direct_store.upload(large_file, "key")
    fault_proxy.inject("latency", when=replacing(direct_store, "key", b"b" * (12 << 20), on_request=2))
    with pytest.raises(StoreError, match="another writer replaced it in the meantime"):
        faulty_store.download("key", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def replacing(store: Store, key: str, data: bytes, on_request: int):  # type: ignore[no-untyped-def]
    """Replaces the object just before the given request is answered."""
    seen = 0

    def when(request: Request) -> bool:
        nonlocal seen
        seen += 1
        if seen == on_request + 1:
            store.write(key, data)
        return seen == on_request

    return when


def test_wrong_bytes_in_an_answer_are_fetched_again(
    faulty_store: Store, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    faulty_store.write("key", CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    fault_proxy.inject("wrong_bytes", times=1, when=lambda request: request.method == "GET")
    assert faulty_store.read("key") == CONTENT
    fault_proxy.inject("wrong_bytes", times=1, when=lambda request: request.method == "GET")
    faulty_store.download("key", tmp_path / "copy", sha256)
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert fault_proxy.happened["wrong_bytes"] == 2


def test_wrong_bytes_that_stay_wrong_are_an_error(faulty_store: Store, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    faulty_store.write("key", CONTENT)
    fault_proxy.inject("wrong_bytes", when=lambda request: request.method == "GET")
    with pytest.raises(StoreError, match=r"cannot read .*/key: the bytes were damaged in transit .*\(tried for .* s\)"):
        faulty_store.patient(BRIEFLY).read("key")
    with pytest.raises(StoreError, match=r"cannot download .*/key: its sha256 is"):
        faulty_store.download("key", tmp_path / "copy", hashlib.sha256(CONTENT).hexdigest())
    assert list(tmp_path.iterdir()) == []


def test_bytes_damaged_on_their_way_up_are_refused_by_the_server_and_sent_again(
    faulty_store: Store, fault_proxy: FaultProxy, small_parts: int, large_file: Path
) -> None:
    fault_proxy.inject("damaged_request", times=1)
    faulty_store.write("key", CONTENT)
    fault_proxy.inject("damaged_request", times=1)
    assert faulty_store.create("created", CONTENT)
    progress: list[float] = []
    fault_proxy.inject("damaged_request", times=1, when=lambda request: "partNumber=2" in request.path)
    faulty_store.upload(large_file, "large", lambda key, amount: progress.append(amount))
    assert fault_proxy.happened["damaged_request"] == 3
    assert faulty_store.read("key") == faulty_store.read("created") == CONTENT
    assert faulty_store.read("large") == large_file.read_bytes()
    assert sum(progress) == large_file.stat().st_size


def test_an_upload_that_fails_leaves_no_object_and_no_parts(
    faulty_store: Store,
    direct_store: Store,
    fault_proxy: FaultProxy,
    s3_server: S3Server,
    small_parts: int,
    large_file: Path,
) -> None:
    fault_proxy.inject("damaged_request", when=lambda request: "partNumber=2" in request.path)
    with pytest.raises(
        StoreError, match=r"cannot upload .*/large: the bytes were damaged in transit \(\w+\) \(tried for .* s\)"
    ):
        faulty_store.patient(BRIEFLY).upload(large_file, "large")
    assert direct_store.list() == [] and unfinished_uploads(s3_server, direct_store) == []


def test_a_lost_answer_to_the_last_step_of_an_upload_loses_nothing(
    faulty_store: Store, fault_proxy: FaultProxy, small_parts: int, large_file: Path
) -> None:
    fault_proxy.inject(
        "lost_answer", times=1, when=lambda request: request.method == "POST" and "uploadId" in request.path
    )
    faulty_store.upload(large_file, "large")
    assert fault_proxy.happened["lost_answer"] == 1
    assert faulty_store.read("large") == large_file.read_bytes()


def test_an_upload_that_was_cleaned_away_under_us_begins_again(
    faulty_store: Store, fault_proxy: FaultProxy, small_parts: int, large_file: Path
) -> None:
    fault_proxy.inject("no_such_upload", times=1, when=lambda request: "partNumber=2" in request.path)
    faulty_store.upload(large_file, "large")
    assert faulty_store.read("large") == large_file.read_bytes()


def test_a_stored_size_that_is_not_the_sent_one_is_an_error(
    s3_store: Store, large_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = type(s3_store).stat
    monkeypatch.setattr(type(s3_store), "stat", lambda self, key: dataclasses.replace(stat(self, key), size=3))
    with pytest.raises(StoreError, match="12582912 bytes were sent, but 3 arrived"):
        s3_store.upload(large_file, "key")


def test_who_creates_an_object_and_loses_the_answer_still_wins(faulty_store: Store, fault_proxy: FaultProxy) -> None:
    fault_proxy.inject("lost_answer", times=1)
    assert faulty_store.create("COMMITTED", b"1")
    assert not faulty_store.create("COMMITTED", b"1")


def test_a_conflict_of_creators_is_tried_again(faulty_store: Store, fault_proxy: FaultProxy) -> None:
    fault_proxy.inject("conflict", times=2, when=lambda request: request.method == "PUT")
    assert faulty_store.create("COMMITTED", b"1")
    fault_proxy.inject("conflict", when=lambda request: request.method == "PUT")
    with pytest.raises(StoreError, match=r"cannot create .*/other: .*tried for"):
        faulty_store.patient(BRIEFLY).create("other", b"1")


def test_words_in_a_key_do_not_change_what_an_error_means(faulty_store: Store, fault_proxy: FaultProxy) -> None:
    fault_proxy.inject("reset")
    with pytest.raises(StoreError, match="the network is in trouble"):
        faulty_store.patient(BRIEFLY).read("latest/meta-data/credentials.json")


def test_an_endpoint_that_is_not_there_is_named(s3_environment: pytest.MonkeyPatch) -> None:
    s3_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"cannot read s3://bucket/x/key: .*http://127.0.0.1:1\) \(tried for .* s\)"):
        open_store("s3://bucket/x", retry=FAST_RETRY).patient(BRIEFLY).read("key")


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [("http://127.0.0.1:1", "Connection refused"), ("http://no-such-host.invalid", "Name or service not known|.*")],
)
def test_a_store_that_has_never_responded_is_given_up_early_with_the_endpoint_and_what_to_check(
    s3_environment: pytest.MonkeyPatch, endpoint: str, reason: str
) -> None:
    s3_environment.setenv("AWS_ENDPOINT_URL", endpoint)
    s3_environment.setattr("skytrain.storage.retry.FIRST_RESPONSE_SECONDS", BRIEFLY)
    with pytest.raises(
        StoreUnreachable, match=rf"({reason}) \({endpoint}\) \(tried for .*\n  nothing has ever .*AWS_ENDPOINT_URL_S3"
    ):
        open_store("s3://bucket/x", retry=FAST_RETRY).patient(1800).read("key")


def test_a_store_that_responded_before_is_waited_for_with_all_patience(
    faulty_store: Store, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.storage.retry.FIRST_RESPONSE_SECONDS", 0.0)
    assert faulty_store.stat("key") is None
    worker = pickle.loads(pickle.dumps(faulty_store))
    for store in (faulty_store, faulty_store.patient(1800), worker):
        fault_proxy.inject("reset", times=20)
        store.write("key", CONTENT)


def test_a_store_that_never_accepted_a_write_is_given_up_early_with_its_answer(
    faulty_store: Store, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.storage.retry.FIRST_WRITE_SECONDS", BRIEFLY)
    assert faulty_store.stat("key") is None  # reads are answered
    fault_proxy.inject("internal_error", when=lambda request: request.method == "PUT")
    with pytest.raises(StoreError, match=r"InternalError.*\n  nothing has ever been written here .* store\.sse"):
        faulty_store.patient(1800).create("key", CONTENT)
    fault_proxy.clear()
    faulty_store.write("key", CONTENT)
    fault_proxy.inject("internal_error", times=20, when=lambda request: request.method == "PUT")
    faulty_store.patient(1800).write("key", CONTENT)  # from now on it is an outage


def test_a_server_that_reports_its_own_trouble_has_responded(
    faulty_store: Store, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.storage.retry.FIRST_RESPONSE_SECONDS", 0.0)
    fault_proxy.inject("slow_down", times=20)
    faulty_store.write("key", CONTENT)
    assert faulty_store.read("key") == CONTENT


def test_a_request_that_is_never_answered_is_given_up_and_repeated(
    fault_proxy: FaultProxy, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "REQUEST_TIMEOUT", "500ms")
    store = open_store(s3_server.new_root(), retry=FAST_RETRY)
    fault_proxy.inject("stall", times=1, when=lambda request: request.method == "PUT")
    store.write("key", CONTENT)
    fault_proxy.inject("stall", times=1, when=lambda request: request.method == "GET")
    assert store.read("key") == CONTENT
    assert fault_proxy.happened["stall"] == 2


@pytest.mark.parametrize(
    ("kind", "error", "advice"),
    [
        ("expired", AccessDenied, "the credentials have expired: sign in again"),
        ("skewed", AccessDenied, "this machine's clock is wrong: set it"),
        ("other_region", StoreError, "set AWS_REGION to the bucket's region"),
    ],
)
def test_what_a_user_must_mend_is_said_at_once(
    faulty_store: Store, fault_proxy: FaultProxy, kind: Kind, error: type[StoreError], advice: str
) -> None:
    fault_proxy.inject(kind)
    with pytest.raises(error, match=advice):
        faulty_store.read("key")
    assert len(fault_proxy.requests) == 1


def test_waits_grow_until_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("skytrain.storage.retry.time.monotonic", lambda: now)
    monkeypatch.setattr("skytrain.storage.retry._jitter.uniform", lambda low, high: high)
    patience, waits = Patience(Retry(seconds=60.0)), list[float]()
    while (wait := patience.failed()) is not None:
        waits.append(wait)
        now += wait
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 4.6])
    patience.recovered()
    assert not patience.failing and patience.failed() == pytest.approx(0.2)


def test_a_denial_is_an_outage_where_the_same_was_allowed_before(faulty_store: Store, fault_proxy: FaultProxy) -> None:
    """As while credentials are renewed, or a bucket's policy is replaced."""
    faulty_store.write("key", CONTENT)
    fault_proxy.inject("denied", times=8)
    faulty_store.write("key", b"new")
    assert not faulty_store.failing
    fault_proxy.inject("denied", times=1)
    with pytest.raises(AccessDenied):
        faulty_store.read("key")  # nothing was read before: the credentials may never have allowed it
    assert faulty_store.read("key") == b"new"
    fault_proxy.inject("denied", times=8)
    assert pickle.loads(pickle.dumps(faulty_store)).read("key") == b"new"  # a worker knows it too
    assert fault_proxy.happened["denied"] == 17
    fault_proxy.inject("denied")
    with pytest.raises(AccessDenied, match="tried for"):
        faulty_store.patient(BRIEFLY).write("key", b"newer")
    assert faulty_store.failing


def test_an_outage_is_outlived_however_many_requests_fail(faulty_store: Store, fault_proxy: FaultProxy) -> None:
    faulty_store.write("key", CONTENT)
    fault_proxy.inject("slow_down", times=60)  # obstore alone gives up after five
    assert faulty_store.read("key") == CONTENT
    fault_proxy.inject("reset", times=60)
    faulty_store.write("key", b"new")
    assert fault_proxy.happened == {"slow_down": 60, "reset": 60}
