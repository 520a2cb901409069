import json
import struct
import threading

import pytest

from skytrain.runs import EventFiles, Lines, Sync, sync as sync_module
from skytrain.runs.sync import whole_records
from skytrain.storage import StoreError, open_store
from skytrain.storage.folder import FolderStore


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def numbers(store, prefix: str) -> list[int]:
    return [json.loads(line)["n"] for stat in store.list(prefix) for line in store.read(stat.key).splitlines()]


def test_lines_reach_the_store_in_numbered_parts_of_bounded_size(store, monkeypatch):
    monkeypatch.setattr(sync_module, "PART_BYTES", 100)
    lines = Lines(store, "logs/0-")
    for n in range(30):
        lines.write({"n": n})
        if n % 7 == 0:
            lines.flush()
    lines.flush()
    assert numbers(store, "logs/") == list(range(30))
    parts = store.list("logs/")
    assert [part.key for part in parts][:2] == ["logs/0-00000.jsonl", "logs/0-00001.jsonl"]
    assert all(part.size <= 100 for part in parts)


class Unreliable(FolderStore):
    down = False

    def write(self, key, data):
        if self.down:
            raise StoreError("write", self.url(key), "connection refused")
        super().write(key, data)


def test_a_store_that_is_down_is_said_once_retried_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sync_module, "PART_BYTES", 100)
    store = Unreliable(tmp_path)
    said: list[str] = []
    sync, lines = Sync(said.append), Lines(store, "a/")
    sync.add(lines)
    store.down = True
    for n in range(30):  # several parts' worth
        lines.write({"n": n})
        assert not sync.flush()
    assert len(said) == 1 and "connection refused" in said[0] and "training continues" in said[0]
    store.down = False
    assert sync.flush()
    assert numbers(store, "a/") == list(range(30))
    assert said[1:] == ["the store answers again: nothing was lost"]


def test_no_commit_before_essential_lines_are_in_the_store(tmp_path):
    store = Unreliable(tmp_path)
    sync, metrics = Sync([].append), Lines(store, "metrics/")
    sync.add(metrics, essential=True)
    metrics.write({"n": 0})
    store.down = True
    with pytest.raises(StoreError, match="connection refused"):
        sync.flush_for_commit()
    store.down = False
    sync.flush_for_commit()
    assert numbers(store, "metrics/") == [0]


def test_a_stream_that_is_not_essential_never_holds_up_a_commit_nor_another_stream(store):
    class Broken:
        def flush(self):
            raise RuntimeError("a defect of its own")

    said: list[str] = []
    sync, metrics = Sync(said.append), Lines(store, "metrics/")
    sync.add(Broken())
    sync.add(metrics, essential=True)
    metrics.write({"n": 0})
    sync.flush_for_commit()
    assert numbers(store, "metrics/") == [0]
    assert len(said) == 1 and "a defect of its own" in said[0]


def test_lines_written_while_the_store_is_busy_are_not_lost_and_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(sync_module, "PART_BYTES", 100)
    entered, go_on = threading.Event(), threading.Event()

    class Slow(FolderStore):
        def write(self, key, data):
            entered.set()
            assert go_on.wait(10)
            super().write(key, data)

    store = Slow(tmp_path)
    lines = Lines(store, "a/")
    lines.write({"n": 0})
    thread = threading.Thread(target=lines.flush)
    thread.start()
    assert entered.wait(10)
    for n in range(1, 40):  # returns at once, though the store does not answer
        lines.write({"n": n})
    go_on.set()
    thread.join()
    lines.flush()
    assert numbers(store, "a/") == list(range(40))


def test_the_thread_flushes_by_itself_and_once_more_at_the_end(store):
    flushed = threading.Event()

    class Watched(Lines):
        def flush(self):
            super().flush()
            flushed.set()

    sync, lines = Sync(print, every_seconds=0.01), Watched(store, "a/")
    sync.add(lines)
    lines.write({"n": 0})
    sync.start()
    assert flushed.wait(10)
    lines.write({"n": 1})
    sync.close()
    assert numbers(store, "a/") == [0, 1]


def test_a_store_that_never_answers_holds_up_the_end_only_so_long(tmp_path):
    store = Unreliable(tmp_path)
    store.down = True
    said: list[str] = []
    sync, lines = Sync(said.append, every_seconds=0.01), Lines(store, "a/")
    sync.add(lines)
    lines.write({"n": 0})
    sync.start()
    sync.close(timeout_seconds=0.05)
    assert "did not reach the store" in said[-1]


def record(payload: bytes) -> bytes:
    return struct.pack("<QI", len(payload), 0) + payload + struct.pack("<I", 0)


def test_an_event_file_is_sent_in_parts_of_whole_records(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sync_module, "PART_BYTES", 60)
    folder = tmp_path / "events"
    folder.mkdir()
    path, records = folder / "events.out.tfevents.1.host", [record(bytes([n]) * 10) for n in range(9)]
    stream = EventFiles(store, folder, "runs/r/tensorboard")
    written = b"".join(records)
    for end in range(0, len(written) + 1, 17):  # the writer may be anywhere in a record
        path.write_bytes(written[:end])
        stream.flush()
    path.write_bytes(written)
    stream.flush()
    parts = [store.read(stat.key) for stat in store.list("runs/r/tensorboard/")]
    assert len(parts) > 1
    assert b"".join(parts) == written
    assert all(whole_records(part) == len(part) for part in parts)


def test_tensorboard_reads_the_parts_as_one(store, tmp_path, monkeypatch):
    monkeypatch.setattr(sync_module, "PART_BYTES", 300)
    from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.backend.event_processing.io_wrapper import IsTensorFlowEventsFile
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "events"
    stream = EventFiles(store, folder, "tensorboard")
    with SummaryWriter(str(folder)) as writer:
        for step in range(20):
            writer.add_scalar("train/loss", step * 0.5, step)
            writer.flush()
            stream.flush()
    assert len(store.list("tensorboard/")) > 1
    watcher = DirectoryWatcher(str(tmp_path / "store/tensorboard"), EventFileLoader, IsTensorFlowEventsFile)
    steps = [event.step for event in watcher.Load() if event.HasField("summary")]
    assert steps == list(range(20))
