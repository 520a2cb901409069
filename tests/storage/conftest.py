from __future__ import annotations

from pathlib import Path

import pytest

from skytrain.storage import Store, bucket, open_store


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind: what a test says holds for both."""
    if request.param == "file":
        return open_store(str(tmp_path / "store"))
    found: Store = request.getfixturevalue("s3_store")
    return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """The smallest parts that S3 allows, so that a file of 12 MiB has three."""
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)
    return 5 << 20


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(range(256)) * (12 << 12))
    return path
