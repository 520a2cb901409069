"""Spark prepares what the local engine prepares, byte for byte, whatever happens to executors and to the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from skytrain.storage import Store
from tests.support.spark import prepare_command, spark_cluster, spark_environment, write_documents

DOCUMENTS = 30_000
SMALL_CHUNKS = "from skytrain.corpus import chunks; chunks.CHUNK_CHARS = 200_000; "
SMALL_EXECUTORS = "spark.conf={spark.executor.memory: 1g, spark.driver.host: 127.0.0.1}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents") / "data"
    write_documents(folder, DOCUMENTS, files=6)
    return folder


def settings(documents: Path, store: Path, *overrides: str) -> list[str]:
    return [
        "data=jsonl",
        f"data.source.paths={documents}/*.jsonl",
        "data.source.id_key=id",
        "data.bad_records=skip",
        "data.near_dedup.enabled=true",
        "data.part_bytes=1MB",
        "data.shard_tokens=300K",
        "data.validation_fraction=0.1",
        "data/cleaning=normalize",
        "tokenizer=gpt2",
        f"store.root={store}",
        *overrides,
    ]


def prepare(documents: Path, store: Path, *overrides: str, main: str = "") -> dict[str, bytes]:
    command = prepare_command(*settings(documents, store, *overrides), first=main)
    subprocess.run(command, env=spark_environment(), check=True)
    return contents(store)


def contents(store: Path) -> dict[str, bytes]:
    """Every file but spark.json, which tells what the work took."""
    files = (path for path in sorted(store.rglob("*")) if path.is_file() and path.name != "spark.json")
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


def same(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    assert one.keys() == other.keys()
    return all(one[name] == other[name] for name in one)


@pytest.fixture(scope="module")
def locally(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    made = prepare(documents, tmp_path_factory.mktemp("local") / "store", "data.workers=1")
    manifest = json.loads(
        next(body for name, body in made.items() if name.startswith("corpora") and "manifest" in name)
    )
    assert manifest["removed"]["near_dedup"] > 3000
    assert manifest["removed"]["exact_dedup"] > 2000
    assert manifest["removed"]["duplicate_ids"] > 20
    assert manifest["removed"]["bad_records.json"] > 5
    assert len(manifest["parts"]) > 5
    return made


def test_two_workers_and_spark_give_the_bytes_of_one_process(
    documents: Path, locally: dict[str, bytes], tmp_path: Path
) -> None:
    assert same(prepare(documents, tmp_path / "two", "data.workers=2"), locally)
    assert same(prepare(documents, tmp_path / "spark", "engine=spark", "spark.master=local[2]"), locally)
    facts = json.loads(next((tmp_path / "spark").rglob("spark.json")).read_text())
    assert facts["near_duplicates"]["rounds"] >= 1
    assert 100 < facts["shuffle_bytes_per_document"] < 2000


def test_an_executor_killed_on_a_cluster_changes_nothing(
    documents: Path, locally: dict[str, bytes], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with spark_cluster(tmp_path) as cluster:
        command = prepare_command(
            *settings(documents, store, "engine=spark", f"spark.master={cluster.url}", SMALL_EXECUTORS)
        )
        job = subprocess.Popen(command, env=spark_environment(), stderr=subprocess.PIPE, text=True)
        assert job.stderr is not None
        killed = 0
        for line in job.stderr:
            print(line, end="")
            if line.startswith("pairs ") and not killed:
                killed = cluster.executors()[0]
                os.kill(killed, signal.SIGKILL)
        assert job.wait() == 0
        assert killed
    assert same(contents(store), locally)


def test_a_killed_driver_continues_after_the_last_finished_stage(
    documents: Path, locally: dict[str, bytes], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    command = prepare_command(*settings(documents, store, "engine=spark", "spark.master=local[2]"))
    job = subprocess.Popen(command, env=spark_environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert job.stderr is not None
    for line in job.stderr:
        if line.startswith("verify "):
            os.killpg(job.pid, signal.SIGKILL)
            break
    job.wait()
    again = subprocess.run(command, env=spark_environment(), check=True, stderr=subprocess.PIPE, text=True)
    stages = [line.partition(" ")[0] for line in again.stderr.splitlines()]
    assert "verify" in stages
    assert not {"equal", "pairs", "needed"} & set(stages)
    assert same(contents(store), locally)


def test_tasks_that_share_large_files_give_the_bytes_of_one_process(documents: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    lines = b"".join(path.read_bytes() for path in sorted(documents.iterdir())[:2])
    (folder / "large.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.replace(b"{broken\n", b"{broken\r\n\n"))
    (folder / "small.jsonl").write_bytes(sorted(documents.iterdir())[2].read_bytes()[:20_000])
    one = prepare(folder, tmp_path / "one", "data.workers=1", main=SMALL_CHUNKS)
    for size in ("100KB", "1MB", "null"):
        split = ("engine=spark", "spark.master=local[2]", f"spark.split_bytes={size}")
        assert same(prepare(folder, tmp_path / size, *split, main=SMALL_CHUNKS), one)
        stages = json.loads(next((tmp_path / size).rglob("spark.json")).read_text())["stages"]
        assert ("count" in stages) == (size != "null")
    target = ("data.target_tokens=400K", "data.bytes_per_token=3.0")
    few = prepare(folder, tmp_path / "few", "data.workers=1", *target, main=SMALL_CHUNKS)
    split = ("engine=spark", "spark.master=local[2]", "spark.split_bytes=50KB")
    assert same(prepare(folder, tmp_path / "few-on-spark", *split, *target, main=SMALL_CHUNKS), few)


def test_a_target_stops_at_the_same_document(documents: Path, tmp_path: Path) -> None:
    small = ("data.target_tokens=600K", "data.bytes_per_token=3.0")
    one = prepare(documents, tmp_path / "one", "data.workers=1", *small)
    assert same(prepare(documents, tmp_path / "spark", "engine=spark", "spark.master=local[2]", *small), one)


def test_executors_read_and_write_a_bucket_with_the_stores_own_client(s3_store: Store, tmp_path: Path) -> None:
    write_documents(tmp_path / "data", 600, files=3)
    for path in (tmp_path / "data").iterdir():
        s3_store.write(f"in/{path.name}", path.read_bytes())
    here = prepare(tmp_path / "data", tmp_path / "store", "data.workers=1")
    bucket = settings(tmp_path, tmp_path, f"data.source.paths={s3_store.url('in/*.jsonl')}", "engine=spark")
    command = prepare_command(*bucket, f"store.root={s3_store.root}", "spark.master=local[2]")
    subprocess.run(command, env=spark_environment(), check=True)
    made = [stat.key for stat in s3_store.list("tokens")]
    # Another path of the sources is another version, so only the content is compared.
    shards = [body for name, body in sorted(here.items()) if name.startswith("tokens") and "manifest" not in name]
    assert [s3_store.read(key) for key in made if "manifest" not in key] == shards
    assert not any("/spark/" in stat.key or "/clean/" in stat.key for stat in s3_store.list(""))
