from __future__ import annotations

import errno
import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skytrain.config import SkytrainError
from skytrain.storage import Retry, Store, StoreUnreachable, open_store
from skytrain.tokens.cache import Pin, ShardCache, Waiting
from tests.support.faults import FaultProxy

SIZE = 1000


def put(store: Store, number: int) -> tuple[str, str]:
    """The key and the hash of a small object."""
    data = bytes([number]) * SIZE
    store.write(f"shards/{number}", data)
    return f"shards/{number}", hashlib.sha256(data).hexdigest()


def fetch(cache: ShardCache, store: Store, number: int) -> Pin:
    key, sha256 = put(store, number)
    pin = cache.fetch(store, key, sha256, SIZE)
    assert pin is not None
    return pin


def cached(cache: ShardCache) -> set[int]:
    return {path.read_bytes()[0] for path in cache.folder.glob("*/tokens.bin")}


@pytest.mark.parametrize("name", ["../../home", "/{victim}", "..", "", "a" * 63, 7])
def test_a_hash_of_a_manifest_names_no_other_folder(name: Any, store: Store, tmp_path: Path) -> None:
    """What the cache takes for a damaged shard is deleted: a manifest must not have it delete a folder of yours."""
    victim = tmp_path / "home"
    victim.mkdir()
    (victim / "tokens.bin").write_text("mine")
    (victim / "other").write_text("mine")
    key, _ = put(store, 1)
    name = name.format(victim=victim) if isinstance(name, str) else name
    with pytest.raises(SkytrainError, match="in place of a sha256"):
        ShardCache(tmp_path / "cache/tokens").fetch(store, key, name, SIZE)
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"tokens.bin": "mine", "other": "mine"}


def test_the_least_recently_used_shards_make_room(store: Store, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit_bytes=3 * SIZE)
    for number in (1, 2, 3):
        fetch(cache, store, number).release()
    fetch(cache, store, 1).release()
    fetch(cache, store, 4).release()
    assert cached(cache) == {1, 3, 4} and cache.used_bytes() == 3 * SIZE


def test_a_folder_that_is_no_shard_makes_no_room(store: Store, tmp_path: Path) -> None:
    """loader.cache_dir may be a folder with other things in it, such as a browser's profile, which has a lock, too."""
    cache = ShardCache(tmp_path / "cache", limit_bytes=2 * SIZE)
    profile = cache.folder / "profile"
    profile.mkdir(parents=True)
    for name in ("lock", "bookmarks", "tokens.bin"):
        (profile / name).write_text("1")
    for number in (1, 2, 3, 4):
        fetch(cache, store, number).release()
    assert {path.name for path in profile.iterdir()} == {"lock", "bookmarks", "tokens.bin"}


def test_a_shard_in_use_is_never_evicted(store: Store, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit_bytes=2 * SIZE)
    pin = fetch(cache, store, 1)
    fetch(cache, store, 2).release()
    fetch(cache, store, 3).release()
    assert cached(cache) == {1, 3}
    pin.release()
    fetch(cache, store, 4).release()
    assert cached(cache) == {3, 4}, "once it is let go of, it is the oldest"


def test_a_cache_full_of_what_others_read_is_named_after_a_wait(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ShardCache(tmp_path / "cache", limit_bytes=2 * SIZE, wait_seconds=0.05)
    pins = [fetch(cache, store, number) for number in (1, 2)]
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(SkytrainError, match=r"has no room for .*shards/3.*\n.*own loader\.cache_dir"),
    ):
        fetch(cache, store, 3)
    assert "waiting up to" in caplog.text and all(pin.path.exists() for pin in pins)


def test_a_cache_smaller_than_a_shard_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match=r"shards/1 has 1.00 KB, more than the cache"):
        fetch(ShardCache(tmp_path / "cache", limit_bytes=SIZE - 1), store, 1)


def test_an_altered_file_in_the_cache_is_fetched_again(store: Store, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache")
    path = fetch(cache, store, 1).path
    path.write_bytes(b"x" * SIZE)
    assert fetch(cache, store, 1).path.read_bytes() == bytes([1]) * SIZE


def test_what_a_killed_download_left_is_removed(store: Store, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit_bytes=2 * SIZE)
    sha256 = put(store, 1)[1]
    folder = cache.path(sha256).parent
    folder.mkdir(parents=True)
    (folder / "lock").write_text(str(SIZE))  # a reservation whose holder is dead
    (folder / ".skytrain-half").write_bytes(b"x" * 500)
    pins = [fetch(cache, store, number) for number in (2, 3)]
    assert all(pin.path.exists() for pin in pins)
    assert not (folder / ".skytrain-half").exists() and cached(cache) == {2, 3}


def test_an_object_that_is_not_what_the_manifest_says_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytrain.tokens.cache.POLL_SECONDS", 0)
    put(store, 1)
    cache = ShardCache(tmp_path / "cache")
    with pytest.raises(SkytrainError, match=r"shards/1 cannot be had as its manifest describes it"):
        cache.fetch(store, "shards/1", hashlib.sha256(b"other").hexdigest(), SIZE)
    assert cached(cache) == set()


def test_a_missing_object_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match=r"shards/9 is missing, though the manifest names it"):
        ShardCache(tmp_path / "cache").fetch(store, "shards/9", "ab" * 32, SIZE)


def test_a_folder_that_cannot_be_used_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        SkytrainError, match=r"the cache folder .*file/cache cannot be used: Not a directory\n.*loader\.cache_dir"
    ):
        fetch(ShardCache(tmp_path / "file" / "cache"), store, 1)


def test_a_full_disk_evicts_first_and_then_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path / "cache", wait_seconds=0)
    fetch(cache, store, 1).release()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    pin = fetch(cache, store, 2)
    assert cached(cache) == {2}
    with pytest.raises(SkytrainError, match="its disk is full"):
        fetch(cache, store, 3)
    assert pin.path.exists()


def test_a_disk_that_fills_while_downloading_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    key, sha256 = put(store, 1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SkytrainError, match=r"the cache folder .* cannot be used: No space left on device"):
        ShardCache(tmp_path / "cache").fetch(store, key, sha256, SIZE)


def fetch_in_a_process(root: str, folder: Path, numbers: list[int], results: Any) -> None:
    """In a process of its own: goes through the shards, each pinned while it is looked at."""
    store, cache = open_store(root), ShardCache(folder, limit_bytes=4 * SIZE)
    for number in numbers:
        pin = cache.fetch(store, f"shards/{number}", hashlib.sha256(bytes([number]) * SIZE).hexdigest(), SIZE)
        assert pin is not None and pin.path.read_bytes() == bytes([number]) * SIZE
        pin.release()
    results.put(len(numbers))


def test_runs_in_several_processes_share_one_small_cache(store: Store, tmp_path: Path) -> None:
    for number in range(12):
        put(store, number)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    orders = [list(range(12)), list(reversed(range(12))), [*range(6, 12), *range(6)]]
    runs = [
        context.Process(target=fetch_in_a_process, args=(store.root, tmp_path / "cache", order, results))
        for order in orders
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0, 0]
    assert ShardCache(tmp_path / "cache").used_bytes() <= 4 * SIZE


def download_for_ever(root: str, folder: Path, sha256: str, begun: Any) -> None:
    def make(path: Path) -> None:
        path.with_name(".skytrain-half").write_bytes(b"x" * 500)
        begun.set()
        signal.pause()

    ShardCache(folder).fetch(open_store(root), "shards/1", sha256, SIZE, make=make)


def test_when_the_process_that_downloads_is_killed_another_takes_over(store: Store, tmp_path: Path) -> None:
    key, sha256 = put(store, 1)
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    killed = context.Process(target=download_for_ever, args=(store.root, tmp_path / "cache", sha256, begun))
    killed.start()
    begun.wait()
    cache = ShardCache(tmp_path / "cache")
    assert cache.fetch(store, key, sha256, SIZE, Waiting(allowed=False)) is None, "it is busy"
    killed.kill()
    killed.join()
    pin = cache.fetch(store, key, sha256, SIZE)
    assert pin is not None and [path.name for path in sorted(pin.path.parent.iterdir())] == [
        "lock",
        "tokens.bin",
        "verified",
    ]


def test_ranks_of_a_node_download_a_shard_once(s3_store: Store, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    key, sha256 = put(s3_store, 1)
    script = f"""
from pathlib import Path
from skytrain.storage import open_store
from skytrain.tokens.cache import ShardCache
pin = ShardCache(Path({str(tmp_path / "cache")!r})).fetch(open_store({s3_store.root!r}), {key!r}, {sha256!r}, {SIZE})
print(pin.path.stat().st_size)
"""
    ranks = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)]
    assert [rank.communicate()[0].strip() for rank in ranks] == [b"1000"] * 3
    assert sum(request.method == "GET" and request.path.endswith("/shards/1") for request in fault_proxy.requests) == 1


def test_a_store_that_stays_away_is_waited_for_then_the_run_stops_resumably(
    s3_store: Store, fault_proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, sha256 = put(s3_store, 1)
    away = open_store(s3_store.root, retry=Retry(first_wait_seconds=0.001, longest_wait_seconds=0.001))
    fault_proxy.inject("reset")
    cache = ShardCache(tmp_path / "cache", wait_seconds=0.3)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreUnreachable, match="the same command resumes") as caught:
        cache.fetch(away, key, sha256, SIZE)
    assert "does not answer; trying again for up to" in caplog.text
    assert caught.value.exit_code == 10


def test_a_store_that_comes_back_is_read(s3_store: Store, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    key, sha256 = put(s3_store, 1)
    away = open_store(s3_store.root, retry=Retry(first_wait_seconds=0.001, longest_wait_seconds=0.001))
    fault_proxy.inject("reset", times=9)
    pin = ShardCache(tmp_path / "cache").fetch(away, key, sha256, SIZE)
    assert pin is not None and pin.path.stat().st_size == SIZE and fault_proxy.happened["reset"] == 9
