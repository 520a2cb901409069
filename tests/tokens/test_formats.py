from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from skytrain.config import SkytrainError
from skytrain.storage import Store
from skytrain.tokens import TokenSplit
from skytrain.tokens.cache import ShardCache
from skytrain.tokens.formats import FileLayout, Format, open_token_files

from .conftest import TOKENIZER

STREAM = np.random.default_rng(0).integers(0, 999, 1000)
CUT = np.where(np.arange(1000) % 150 == 140, 999, STREAM)  # with ends of text in it
Write = Callable[[Path, np.ndarray], None]


def llmc(path: Path, tokens: np.ndarray) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.with_suffix(".bin").write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def nanogpt(path: Path, tokens: np.ndarray) -> None:
    tokens.astype("<u2").tofile(path.with_suffix(".bin"))


def megatron(path: Path, tokens: np.ndarray, dtype: str = "<u2", code: int = 8) -> None:
    lengths = [300, len(tokens) - 300]
    tokens.astype(dtype).tofile(path.with_suffix(".bin"))
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, 2, 3) + struct.pack("<ii", *lengths)
    path.with_suffix(".idx").write_bytes(
        index + struct.pack("<qq", 0, 300 * np.dtype(dtype).itemsize) + struct.pack("<qqq", 0, 1, 2)
    )


def webdataset(path: Path, tokens: np.ndarray) -> None:
    array = io.BytesIO()
    np.save(array, tokens[:400].astype(np.int32))
    members = {
        "a/000.npy": array.getvalue(),
        "a/000.meta": b"anything",
        "a/001.json": json.dumps(tokens[400:700].tolist()).encode(),
        "a/002.json.gz": gzip.compress(json.dumps(tokens[700:].tolist()).encode()),
    }
    with tarfile.open(path.with_suffix(".tar"), "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


FORMATS: dict[Format, Write] = {"llmc": llmc, "nanogpt": nanogpt, "megatron": megatron, "webdataset": webdataset}


def open_files(folder: Path | str, format: Format, cache: Path, vocab_size: int = 1000) -> TokenSplit:
    split = open_token_files(
        f"{folder}/*", FileLayout(format), "train", TOKENIZER, ShardCache(cache), vocab_size=vocab_size
    )
    split.supply_all(range(len(split.files)))
    return split


def test_samples_of_a_tar_that_are_whole_documents_are_begun_by_the_end_of_text(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    webdataset(tmp_path / "files" / "part", STREAM)
    split = open_files(tmp_path / "files", "webdataset", tmp_path / "cache")
    assert split.manifest.tokens == 1003
    assert split.batch(np.array([0]), 1002).windows[0].tolist() == [
        999,
        *STREAM[:400],
        999,
        *STREAM[400:700],
        999,
        *STREAM[700:],
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_read_as_they_are(tmp_path: Path, format: Format) -> None:
    (tmp_path / "files").mkdir()
    for i, tokens in enumerate((CUT, CUT[::-1])):
        FORMATS[format](tmp_path / "files" / f"part-{i}", tokens)
    split = open_files(tmp_path / "files", format, tmp_path / "cache")
    assert split.manifest.tokens == 2000 and split.windows(100) == 18
    batch = split.batch(np.array([0, 1, 9]), 100).windows
    assert np.array_equal(batch, [CUT[:101], CUT[100:201], CUT[::-1][:101]])


@pytest.mark.parametrize("format", FORMATS)
def test_files_in_s3_are_read_through_the_cache(s3_store: Store, tmp_path: Path, format: Format) -> None:
    FORMATS[format](tmp_path / "part", CUT)
    for path in tmp_path.glob("part.*"):
        s3_store.upload(path, f"files/{path.name}")
    split = open_files(s3_store.url("files"), format, tmp_path / "cache")
    assert np.array_equal(split.batch(np.array([2]), 100).windows[0], CUT[200:301])


def test_megatron_types_other_than_uint16_are_read(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    megatron(tmp_path / "files" / "part", CUT * 100, "<i4", 4)
    split = open_files(tmp_path / "files", "megatron", tmp_path / "cache", vocab_size=100_000)
    assert np.array_equal(split.batch(np.array([0]), 100).windows[0], CUT[:101] * 100) and split.manifest.documents == 2


@pytest.mark.parametrize("format", FORMATS)
def test_a_token_beyond_the_vocabulary_is_found_in_the_batch_that_holds_it(tmp_path: Path, format: Format) -> None:
    (tmp_path / "files").mkdir()
    FORMATS[format](tmp_path / "files" / "part", np.where(np.arange(1000) == 555, 1000, CUT))
    split = open_files(tmp_path / "files", format, tmp_path / "cache")
    split.batch(np.arange(5), 100)
    with pytest.raises(SkytrainError, match=r"part\.(bin|tar) holds token id 1000, outside the vocabulary of 1000"):
        split.batch(np.arange(6), 100)


@pytest.mark.parametrize("format", ["llmc", "nanogpt", "megatron"])
def test_a_truncated_file_is_named(tmp_path: Path, format: Format) -> None:
    (tmp_path / "files").mkdir()
    FORMATS[format](tmp_path / "files" / "part", STREAM)
    path = tmp_path / "files" / "part.bin"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(SkytrainError, match=r"part\.bin has .* bytes, which are not .* tokens"):
        open_files(tmp_path / "files", format, tmp_path / "cache")


def test_a_truncated_tar_is_named(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    webdataset(tmp_path / "files" / "part", STREAM)
    path = tmp_path / "files" / "part.tar"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SkytrainError, match=r"part\.tar cannot be read as a tar"):
        open_files(tmp_path / "files", "webdataset", tmp_path / "cache")


def test_a_damaged_megatron_index_is_named(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    megatron(tmp_path / "files" / "part", STREAM)
    path = tmp_path / "files" / "part.idx"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(
        SkytrainError, match=r"part\.idx has 40 bytes, its 2 sequences and 3 documents need 82: it is truncated"
    ):
        open_files(tmp_path / "files", "megatron", tmp_path / "cache")


def test_a_file_without_a_header_is_not_taken_for_llmc(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    nanogpt(tmp_path / "files" / "part", STREAM)
    with pytest.raises(SkytrainError, match=r"part\.bin has no llm\.c header\n.*nanogpt"):
        open_files(tmp_path / "files", "llmc", tmp_path / "cache")


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SkytrainError, match=r"nothing matches .*nothing-\*\.bin"):
        open_token_files(
            f"{tmp_path}/nothing-*.bin", FileLayout("llmc"), "train", TOKENIZER, ShardCache(tmp_path), vocab_size=1000
        )
