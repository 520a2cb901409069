"""What holds for a folder and a bucket alike."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from skytrain.config import EXIT_CODES, ConfigError
from skytrain.storage import NotFound, Store, StoreError, open_store
from skytrain.storage.errors import TooLarge
from tests.support.moto_account import local_credentials, moto_account

CONTENT = bytes(range(256)) * 4


def test_what_was_written_is_read(store: Store) -> None:
    store.write("runs/a/run.json", CONTENT)
    assert store.read("runs/a/run.json") == CONTENT


def test_an_object_that_is_larger_than_its_reader_allows_is_not_read(store: Store) -> None:
    store.write("record", CONTENT)
    assert store.read("record", at_most=len(CONTENT)) == CONTENT
    with pytest.raises(TooLarge, match="it has 1,024 bytes, and at most 1,023 are read") as found:
        store.read("record", at_most=len(CONTENT) - 1)
    assert found.value.exit_code == EXIT_CODES["damaged"]


@pytest.mark.parametrize("size", [100, 9 << 20])
def test_parts_are_written_one_after_the_other(store: Store, size: int) -> None:
    parts = [memoryview(bytes([number]) * size) for number in range(3)]
    store.write_parts("parts", parts)
    assert store.read("parts") == b"".join(parts)


def test_a_second_write_replaces_the_first_and_changes_the_etag(store: Store) -> None:
    store.write("key", b"first")
    before = store.stat("key")
    store.write("key", b"other")
    after = store.stat("key")
    assert store.read("key") == b"other"
    assert before is not None and after is not None and before.etag != after.etag


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.write("empty", b"")
    assert store.read("empty") == b"" and store.read_range("empty", 0, 10) == b""


@given(start=st.integers(0, 1100), length=st.integers(0, 1100))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_range_is_a_slice(store: Store, start: int, length: int) -> None:
    if not store.exists("key"):
        store.write("key", CONTENT)
    assert store.read_range("key", start, length) == CONTENT[start : start + length]


def test_create_makes_an_object_once(store: Store) -> None:
    assert store.create("COMMITTED", b"first")
    assert not store.create("COMMITTED", b"second")
    assert store.read("COMMITTED") == b"first"


def test_of_many_who_create_one_wins_and_its_bytes_stay(store: Store) -> None:
    names = [f"writer {number}".encode() for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda name: store.create("attempts/1", name), names))
    assert won.count(True) == 1
    assert store.read("attempts/1") == names[won.index(True)]


def test_list_is_sorted_deep_and_stays_in_its_folder(store: Store) -> None:
    for key in ("tokens/b", "tokens/a/2", "tokens/a/10", "tokens-old/c", "top"):
        store.write(key, b"12345")
    assert [stat.key for stat in store.list("tokens")] == ["tokens/a/10", "tokens/a/2", "tokens/b"]
    assert [stat.key for stat in store.list("tokens/")] == ["tokens/a/10", "tokens/a/2", "tokens/b"]
    assert len(store.list()) == 5
    assert store.list("nothing") == []
    assert store.list("top") == []


def test_list_tells_what_stat_tells(store: Store) -> None:
    store.write("a/b", b"12345")
    assert store.list("a") == [store.stat("a/b")]
    assert store.list("a")[0].size == 5


def test_folders_are_the_names_right_below(store: Store) -> None:
    for key in ("runs/b/run.json", "runs/a/attempts/1/x", "runs/file"):
        store.write(key, b"1")
    assert store.folders("runs") == ["a", "b"]
    assert store.folders() == ["runs"]
    assert store.folders("nothing") == []


def test_stat_of_nothing_is_none(store: Store) -> None:
    store.write("a/b", b"1")
    assert store.stat("a/c") is None and store.stat("a") is None and store.stat("a/b/c") is None
    assert store.exists("a/b") and not store.exists("a/c")


def test_delete_may_be_repeated(store: Store) -> None:
    store.write("a/b", b"1")
    store.delete("a/b")
    store.delete("a/b")
    assert not store.exists("a/b") and store.list() == []


def test_delete_all_takes_a_folder_and_nothing_beside_it(store: Store) -> None:
    for key in ("runs/a/1", "runs/a/deep/2", "runs/ab"):
        store.write(key, b"1")
    store.delete_all("runs/a")
    store.delete_all("runs/a")
    assert [stat.key for stat in store.list()] == ["runs/ab"]


def test_delete_all_refuses_the_whole_store(store: Store) -> None:
    store.write("a", b"1")
    with pytest.raises(StoreError, match="entire store"):
        store.delete_all("")
    assert store.exists("a")


@pytest.mark.parametrize(
    "key", ["../outside", "a/../../outside", "/absolute", "a//b", "a/./b", "", "a/", "a\\b", "a\nb"]
)
def test_a_key_that_could_leave_the_root_is_refused(store: Store, key: str) -> None:
    for use in (
        store.read,
        store.stat,
        store.delete,
        lambda key: store.write(key, b"1"),
        lambda key: store.create(key, b"1"),
    ):
        with pytest.raises(StoreError, match="is not a key"):
            use(key)


def test_a_missing_object_is_named(store: Store, tmp_path: Path) -> None:
    for use in (
        store.read,
        lambda key: store.read_range(key, 0, 1),
        lambda key: store.download(key, tmp_path / "copy"),
    ):
        with pytest.raises(NotFound, match=f"{store.url('runs/none')}: there is no such object"):
            use("runs/none")
    assert not (tmp_path / "copy").exists()


def test_a_large_file_goes_up_and_comes_down_whole(
    store: Store, small_parts: int, large_file: Path, tmp_path: Path
) -> None:
    sha256 = store.upload(large_file, "tokens/large.bin")
    store.download("tokens/large.bin", tmp_path / "new" / "copy.bin", sha256)
    assert sha256 == hashlib.sha256(large_file.read_bytes()).hexdigest()
    assert (tmp_path / "new" / "copy.bin").read_bytes() == large_file.read_bytes()


def test_an_empty_file_goes_up_and_comes_down(store: Store, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    store.download("empty", tmp_path / "copy", store.upload(tmp_path / "empty", "empty"))
    assert (tmp_path / "copy").read_bytes() == b""


def test_progress_adds_up_to_the_size(store: Store, small_parts: int, large_file: Path, tmp_path: Path) -> None:
    up: list[float] = []
    down: list[float] = []
    store.upload(large_file, "key", lambda key, amount: up.append(amount))
    store.download("key", tmp_path / "copy", progress=lambda key, amount: down.append(amount))
    assert sum(up) == sum(down) == large_file.stat().st_size
    assert len(up) > 2 and len(down) > 2


def test_a_download_with_another_sha256_leaves_what_was_there(store: Store, tmp_path: Path) -> None:
    store.write("shard.bin", b"altered")
    (tmp_path / "shard.bin").write_bytes(b"mine")
    with pytest.raises(StoreError, match=r"shard.bin: its sha256 is .* was expected"):
        store.download("shard.bin", tmp_path / "shard.bin", sha256=hashlib.sha256(b"right").hexdigest())
    assert (tmp_path / "shard.bin").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["shard.bin"]


def test_an_upload_of_no_file_says_which(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none.bin: No such file"):
        store.upload(tmp_path / "none.bin", "key")
    assert not store.exists("key")


def test_a_store_goes_to_another_process(store: Store) -> None:
    store.write("key", b"1")
    assert pickle.loads(pickle.dumps(store)).read("key") == b"1"


def test_a_store_opens_again_from_its_root(store: Store) -> None:
    store.write("a b/100%.txt", b"1")
    again = open_store(store.root)
    assert again.root == store.root and again.read("a b/100%.txt") == b"1"


def test_a_root_of_another_kind_is_refused() -> None:
    for root, meant in (("s3:/bucket/x", "s3://bucket/x"), ("S3://b", "s3://b"), ("file:/x", "file:///x")):
        with pytest.raises(StoreError, match=f"did you mean {meant}"):
            open_store(root)
    with pytest.raises(StoreError, match="gs://bucket/x: 'gs' is not a kind of store"):
        open_store("gs://bucket/x")
    with pytest.raises(StoreError, match="not this machine"):
        open_store("file://folder/x")
    with pytest.raises(StoreError, match="does not name a bucket"):
        open_store("s3://")
    with pytest.raises(ConfigError, match=r"store.root"):
        open_store("")


def test_loading_the_door_does_not_load_clients() -> None:
    code = "import sys, skytrain.storage; print([name for name in ('obstore', 'boto3', 'fsspec', 'torch') if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_download_to_where_nothing_can_be_written_names_that_place(store: Store, tmp_path: Path) -> None:
    store.write("key", b"1")
    (tmp_path / "file").touch()
    with pytest.raises(
        StoreError, match=rf"cannot download {store.root}/key: .*\n.*another folder than {tmp_path}/file"
    ):
        store.download("key", tmp_path / "file" / "copy")


@pytest.mark.parametrize(
    "name", ["runs/mine//x", "runs/mine/../x", "runs/mine/./x", "runs/mine/\x1b[2J", "runs/mine/.."]
)
def test_an_object_with_a_name_that_is_no_key_hides_no_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 takes any name, and a machine may write any below its run: the runs of others are still listed and deleted."""
    import boto3

    with moto_account() as endpoint:
        for key, value in local_credentials(endpoint).items():
            monkeypatch.setenv(key, value)
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        store = open_store("s3://bucket/project").hurried(5.0)
        for key in ("runs/good/run.json", "runs/mine/run.json", "runs/mine/attempts/0/attempt.json"):
            store.write(key, b"{}")
        client.put_object(Bucket="bucket", Key=f"project/{name}", Body=b"hostile")
        kept = ["runs/good/run.json", "runs/mine/attempts/0/attempt.json", "runs/mine/run.json"]
        assert [stat.key for stat in store.list("runs/")] == kept and store.stat(kept[0]) == store.list("runs/good")[0]
        assert store.list("runs/mine")[-1].size == 2
        assert store.folders("runs/") == ["good", "mine"] and store.folders("runs/mine") == ["attempts"]
        store.delete_all("runs/mine")
        assert [found["Key"] for found in client.list_objects_v2(Bucket="bucket")["Contents"]] == [f"project/{kept[0]}"]
