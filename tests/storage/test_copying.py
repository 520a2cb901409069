"""Copies between folders and a real S3 server, with faults, kills and differences."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skytrain.config import SkytrainError
from skytrain.storage import CopyJournal, StoreError, open_store, plan_copy, refuse_replacing, run_copy
from skytrain.storage.copying import completes
from tests.support.s3 import BRIEFLY, FAST_RETRY

CONTENT = {
    "tokens/pile/v1/train/shard-00000.bin": b"\x01" * 3000,
    "tokens/pile/v1/train/manifest.json": b"{}",
    "runs/r/run.json": b'{"name": "r"}',
    "runs/r/checkpoints/step-1/3.7/rank-00000.bin": bytes(range(256)) * 16,
    "runs/r/checkpoints/step-1/3.7/manifest.json": b'{"format": 1}',
    "runs/r/checkpoints/step-1/COMMITTED.3": b"{}",
    "empty": b"",
}


def fill(store, content=CONTENT):
    for key, data in content.items():
        store.write(key, data)
    return store


def content(store) -> dict[str, bytes]:
    return {stat.key: store.read(stat.key) for stat in store.list()}


def copy(source, target, journal):
    plan = plan_copy(source, target, journal)
    run_copy(plan, journal)
    return plan


@pytest.fixture
def journal(tmp_path):
    return CopyJournal(tmp_path / "journal.jsonl")


@pytest.fixture
def stores(request, tmp_path, s3_server):
    """A source and a target of the kinds that the test names."""

    def make(kind: str, name: str):
        if kind == "file":
            return open_store(str(tmp_path / name))
        request.getfixturevalue("s3_environment")
        return open_store(s3_server.new_root(), retry=FAST_RETRY)

    return lambda source, target: (fill(make(source, "source")), make(target, "target"))


@pytest.mark.parametrize("kinds", [("file", "file"), ("file", "s3"), ("s3", "file"), ("s3", "s3")], ids="-".join)
def test_a_copy_is_equal_and_a_second_one_moves_nothing(stores, journal, kinds):
    source, target = stores(*kinds)
    target.write("other", b"stays")
    assert len(copy(source, target, journal).to_copy) == len(CONTENT)
    assert content(target) == {**CONTENT, "other": b"stays"}
    read = []
    again = plan_copy(source, target, journal, lambda key, amount: read.append(key))
    assert not again.to_copy and not read  # known from the journal
    # Another machine has no journal: it compares the bytes.
    fresh = CopyJournal(Path(str(journal._path) + ".other"))
    assert not plan_copy(source, target, fresh, lambda key, amount: read.append(key)).to_copy
    assert set(read) == {key for key, data in CONTENT.items() if data}


@pytest.mark.parametrize("kinds", [("file", "s3"), ("s3", "file")], ids="-".join)
def test_different_objects_are_found_by_content_and_replaced_only_on_request(stores, journal, kinds):
    source, target = stores(*kinds)
    copy(source, target, journal)
    target.write("tokens/pile/v1/train/shard-00000.bin", b"\x02" * 3000)  # the same size
    source.write("runs/r/checkpoints/step-1/COMMITTED.3", b'{"new": 1}')
    plan = plan_copy(source, target, journal)
    with pytest.raises(SkytrainError, match=r"2 objects at .* differ(?s:.*)shard-00000.bin(?s:.*)--overwrite"):
        refuse_replacing(plan)
    run_copy(plan, journal)
    assert content(target) == content(source)


def test_what_declares_content_complete_comes_last_and_is_withdrawn_before_its_content_is_replaced(tmp_path, journal):
    source, target = fill(open_store(str(tmp_path / "source"))), open_store(str(tmp_path / "target"))
    fill(target, {**CONTENT, "runs/r/checkpoints/step-1/COMMITTED.3": b"old"})
    source.write("runs/r/checkpoints/step-1/3.7/rank-00000.bin", b"new")
    operations = []
    upload, delete = target.upload, target.delete
    target.upload = lambda path, key, *rest, **more: operations.append(("put", key)) or upload(path, key, *rest, **more)
    target.delete = lambda key: operations.append(("delete", key)) or delete(key)
    copy(source, target, journal)
    marker = "runs/r/checkpoints/step-1/COMMITTED.3"
    put = ("put", "runs/r/checkpoints/step-1/3.7/rank-00000.bin")
    assert operations == [("delete", marker), put, ("put", marker)]
    keys = sorted(CONTENT, key=completes)
    assert [completes(key) for key in keys] == [0, 0, 0, 1, 1, 2, 3] and keys[-1] == "runs/r/run.json"


@pytest.mark.parametrize(
    ("way", "kind", "times"),
    [
        ("up", "reset", 3),
        ("up", "lost_answer", 3),
        ("up", "damaged_request", 3),
        ("down", "cut", 3),
        ("down", "slow_down", 3),
        ("down", "wrong_bytes", 1),  # the proxy changes the same bit each time, as a damaged object would look
    ],
)
def test_a_copy_survives_what_networks_do(fault_proxy, s3_server, tmp_path, journal, way, kind, times):
    folder, bucket = open_store(str(tmp_path / "folder")), open_store(s3_server.new_root(), retry=FAST_RETRY)
    source, target = (folder, bucket) if way == "up" else (bucket, folder)
    fill(source)
    method = "PUT" if way == "up" else "GET"
    is_object = [key for key, data in CONTENT.items() if len(data) > 100]
    fault_proxy.inject(kind, times=times, when=lambda r: r.method == method and any(key in r.path for key in is_object))
    copy(source, target, journal)
    fault_proxy.clear()
    assert fault_proxy.happened[kind] == times
    assert content(target) == CONTENT


def test_a_copy_that_arrives_wrong_every_time_is_refused_and_leaves_nothing(fault_proxy, s3_server, tmp_path, journal):
    bucket, folder = open_store(s3_server.new_root(), retry=FAST_RETRY), open_store(str(tmp_path / "folder"))
    local = tmp_path / "shard"
    local.write_bytes(b"\x05" * 5000)
    bucket.upload(local, "shard", sha256=open_store(str(tmp_path)).upload(local, "copy"))
    fault_proxy.inject("wrong_bytes", when=lambda request: request.method == "GET" and "shard" in request.path)
    plan = plan_copy(bucket.patient(BRIEFLY), folder, journal)
    with pytest.raises(StoreError, match="was expected"):
        run_copy(plan, journal)
    assert folder.list() == []


def test_a_file_that_changes_while_it_is_uploaded_is_refused_and_nothing_is_stored(store, small_parts, large_file):
    for path in (large_file, Path(__file__)):  # in parts, and in one piece
        with pytest.raises(StoreError, match="changed while it was read"):
            store.upload(path, "x", sha256="0" * 64)
        assert store.list() == []


def test_a_source_inside_the_target_or_with_nothing_in_it_is_refused(tmp_path, journal):
    outer, inner = open_store(str(tmp_path)), open_store(str(tmp_path / "inner"))
    fill(inner)
    for pair in ((outer, inner), (inner, outer), (inner, inner)):
        with pytest.raises(SkytrainError, match="one is inside the other"):
            plan_copy(*pair, journal)
    with pytest.raises(SkytrainError, match="nothing to copy at"):
        plan_copy(open_store(str(tmp_path / "none")), open_store(str(tmp_path / "innermost")), journal)


COPY = """
import sys
from pathlib import Path
from skytrain.storage import CopyJournal, open_store, plan_copy, run_copy
source, target, journal = open_store(sys.argv[1]), open_store(sys.argv[2]), CopyJournal(Path(sys.argv[3]))
run_copy(plan_copy(source, target, journal), journal)
"""


def test_a_copy_that_is_killed_never_looks_complete_and_goes_on_where_it_was(fault_proxy, s3_server, tmp_path):
    source, root, path = open_store(str(tmp_path / "source")), s3_server.new_root(), tmp_path / "journal.jsonl"
    many = {f"runs/r/checkpoints/step-1/3.7/rank-{rank:05d}.bin": bytes([rank]) * 2000 for rank in range(60)}
    everything = {**CONTENT, **many}
    fill(source, everything)
    target = open_store(root, retry=FAST_RETRY)
    fault_proxy.inject("latency")
    words = [sys.executable, "-c", COPY, source.root, root, str(path)]
    process = subprocess.Popen(words, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while len(target.list()) < 10:
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    fault_proxy.clear()
    before = target.list()
    assert 10 <= len(before) < len(everything)
    assert not [stat.key for stat in before if completes(stat.key)]
    journal = CopyJournal(path)
    plan = plan_copy(source, target, journal)
    assert len(plan.having("keep")) == len(before) and len(plan.to_copy) == len(everything) - len(before)
    run_copy(plan, journal)
    assert content(target) == everything
