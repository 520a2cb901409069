from __future__ import annotations

from pathlib import Path

import pytest

from skytrain.config import SkytrainError
from skytrain.pipelines.data import inspect
from skytrain.runs import Silent
from tests.support.tiny import tiny_config


def test_the_manifest_statistics_and_samples_are_shown(root: Path) -> None:
    found = inspect(tiny_config(root), None, "train", samples=4, check=True, reporter=Silent())
    assert found.problems == [] and len(found.samples) == 4
    assert found.lengths is not None
    assert found.lengths.mean == pytest.approx(found.manifest.tokens / found.manifest.documents)
    assert found.lengths.shortest <= found.lengths.median <= found.lengths.p95 <= found.lengths.longest
    assert all(sample.text for sample in found.samples)
    assert found == inspect(tiny_config(root), None, "train", samples=4, check=True, reporter=Silent())


@pytest.mark.parametrize(("suffix", "message"), [(".bin", "was altered"), (".idx", "has 7 bytes")])
def test_every_damaged_file_is_named(root: Path, suffix: str, message: str) -> None:
    path = next(root.glob(f"tokens/*/*/*/train/*{suffix}"))
    path.write_bytes(b"damaged" if suffix == ".idx" else path.read_bytes()[:-1] + b"\xff")
    found = inspect(tiny_config(root), None, "train", samples=0, check=True, reporter=Silent())
    assert found.problems is not None and len(found.problems) == 1
    assert path.name in found.problems[0] and message in found.problems[0]


def test_a_folder_may_be_named(root: Path) -> None:
    folder = next(root.glob("tokens/*/*/*")).relative_to(root).as_posix()
    assert inspect(tiny_config(root), folder, "validation", 0, False, Silent()).manifest.split == "validation"


def test_a_folder_without_tokens_is_named(root: Path) -> None:
    with pytest.raises(SkytrainError, match=r"tokens/nothing has no prepared tokens"):
        inspect(tiny_config(root), "tokens/nothing", "train", 0, False, Silent())
