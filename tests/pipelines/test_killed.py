"""SIGKILL at any moment: the next run resumes, with any number of workers, and ends with the bytes of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import killing


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    killing.write_documents(folder)
    return folder


@pytest.fixture(scope="module")
def expected(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    store = tmp_path_factory.mktemp("whole") / "store"
    killing.finish(killing.start(documents, store, 1))
    return killing.files(store)


def test_a_killed_preparation_goes_on_with_other_workers_and_ends_with_the_same_bytes(
    documents: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    clean = tmp_path / "corpora/mine"
    moments = [
        (2, lambda: killing.stored(clean) >= 4),  # some chunks of several files are clean
        (1, lambda: any(clean.glob("*/part-00001.parquet"))),  # parts are being written
        (2, lambda: any(tmp_path.glob("tokens/mine/*/gpt2/train/shard-00001.bin"))),  # shards are
    ]
    for workers, moment in moments:
        assert killing.kill_when(killing.start(documents, tmp_path, workers), moment)
        assert not any(tmp_path.glob("tokens/**/train/manifest.json"))
    killing.finish(killing.start(documents, tmp_path, 2))
    assert killing.files(tmp_path) == expected
    assert killing.left_over(tmp_path) == []


@pytest.mark.slow
def test_twenty_kills_at_random_moments_leave_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    killing.main(20, seed=0)
    assert "byte for byte" in capsys.readouterr().out
