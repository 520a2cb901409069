"""What others may have written is read in one place, which limits its size and its depth, and has one kind of error."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import skytrain
from skytrain.config import EXIT_CODES
from skytrain.storage import (
    DamagedRecord,
    open_store,
    parse_json,
    read_data,
    read_file,
    read_file_object,
    read_lines,
    read_numbers,
    read_object,
    read_text,
    read_typed,
)

SOURCE = Path(skytrain.__file__).parent
READER = "storage/reading.py"
# Programs that unpack what they read, and may run or fill what its writer chose: where each is used, and why that is safe.
PARSERS = {
    "json.loads": {
        READER: "the reader",
        "config/secrets.py": "a secret of this process",
        "runs/record.py": "a configuration of this process",
        "targets/limits.py": "settings of this process",
        "tuning/sweeps.py": "a specification of this process",
        "corpus/spark/jobs.py": "a result of this process",
        "bench/parallel.py": "written by this process's own child",
        "bench/parallel_worker.py": "written by its parent",
        "jobs/flight_recorder.py": "written by ranks of this job, on this machine",
        "jobs/nodes.py": "said by ranks of this job",
        "jobs/supervision.py": "written by ranks of this job, on this machine",
        "jobs/watchdog.py": "written by ranks of this job, on this machine",
        "serving/engine.py": "printed by this process's own child",
        "pipelines/image.py": "answered by Docker on this computer",
        "aws/errors.py": "answered by AWS",
        "aws/metadata.py": "answered by the metadata service",
        "aws/outputs.py": "printed by Terraform",
        "aws/registry.py": "answered by an image registry",
        "aws/secrets.py": "a secret",
        "planning/refresh.py": "answered by AWS",
        "targets/eks/kube.py": "answered by the cluster",
        "targets/sagemaker/jobs.py": "answered by AWS",
        "targets/sagemaker/target.py": "written by SageMaker into its container",
    },
    "pickle.loads": {
        "bench/single.py": "written by this process's parent",
        "corpus/pool.py": "sent by this process's parent",
        "corpus/spark/jobs.py": "sent by tasks of this job, which run Skytrain",
    },
    "torch.load": {"checkpoints/deepspeed.py": "weights only, and a list of names"},
    "np.load": {"tokens/foreign.py": "without pickles"},
    "yaml.safe_load": {
        "merging/domains.py": "of a text that the reader has read",
        "config/tasks.py": "a file of the person's settings",
        "aws/image_lock.py": "a file of this package",
    },
    "tarfile.open": {
        "targets/bundle.py": "writes one",
        "targets/emr/environment.py": "writes one",
        "tokens/convert.py": "writes one",
        "tokens/foreign.py": "members are read, never unpacked",
    },
    "zipfile.ZipFile": {"targets/wheels.py": "wheels that pip has fetched, of which metadata are read"},
    "gzip.GzipFile": {
        READER: "the reader",
        "targets/bundle.py": "writes one",
        "targets/emr/environment.py": "writes one",
    },
    "gzip.open": {"targets/emr/jobs.py": "keeps the end only"},
    "ast.literal_eval": {
        "corpus/sources/python_docs.py": "of Python's own files",
        "pipelines/report.py": "of one quoted text",
    },
}
NEVER = ("eval", "exec", "pickle.load", "yaml.load", "yaml.unsafe_load", "OmegaConf.load", "gzip.decompress", "zlib.decompress",
         "marshal.loads", "shelve.open", "np.genfromtxt", "joblib.load", "dill.loads", "json.load", "pd.read_pickle",
         "ElementTree.parse", "ElementTree.fromstring", "shutil.unpack_archive")  # fmt: skip
# Slices of data, whose length the caller decides, and which are compared with hashes or end in arrays of numbers.
SLICES = {
    "checkpoints/ranges.py", "corpus/chunks.py", "corpus/export.py", "corpus/files.py", "pipelines/logs.py", "runs/sync.py",
    "storage/copying.py", "tokens/formats.py", "tokens/inspection.py", "tokens/spark_shards.py",
}  # fmt: skip
OTHERS = {
    "targets/checks/store.py": "reads back what it has just written",
    "merging/streaming.py": "a tensor by its name",
    "models/llmc.py": "a tensor by its name",
}


@dataclass(frozen=True)
class CallSite:
    file: str
    function: str
    node: ast.Call


def calls() -> Iterator[CallSite]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield CallSite(path.relative_to(SOURCE).as_posix(), ast.unparse(node.func), node)


def test_what_others_wrote_is_parsed_by_the_reader_or_where_this_list_says_why_not() -> None:
    found: dict[str, set[str]] = {name: set() for name in PARSERS}
    for each in calls():
        assert each.function not in NEVER, f"{each.file} calls {each.function}"
        if each.function in found:
            found[each.function].add(each.file)
    assert found == {name: set(files) for name, files in PARSERS.items()}


def test_objects_of_a_store_are_read_by_the_reader_only() -> None:
    raw = {}
    for each in calls():
        method = each.function.rpartition(".")[2]
        if method == "read" and isinstance(each.node.func, ast.Attribute) and is_of_a_store(each):
            raw[each.file] = ast.unparse(each.node)
        if method == "read_range":
            assert each.file in SLICES, f"{each.file} reads a slice of an object"
    assert raw.keys() == {READER, *OTHERS}, raw


def is_of_a_store(call: CallSite) -> bool:
    """Return whether a call of `.read` may be a store's: by what it is called on, or because it is given a key."""
    on = call.function.removesuffix(".read")
    given = [*call.node.args, *(word.value for word in call.node.keywords)]
    texts = [ast.unparse(argument).rpartition(".")[2].lower() for argument in given]
    is_key = any(isinstance(argument, ast.JoinedStr) for argument in given) or any(
        text.endswith(("key", "name", "path", "record", "note", "sums")) or "_key(" in text for text in texts
    )
    is_store = on.endswith(("store", ")"))
    limited = any(word.arg == "at_most" for word in call.node.keywords)
    return limited or is_key or (is_store and bool(given))


DEEP = b"[" * 100_000
HOSTILE = {
    "deep": DEEP,
    "deep objects": b'{"a":' * 100_000,
    "deep, but whole": b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
    "not UTF-8": b"\xff\xfe\x00{",
    "a long number": b'{"a": ' + b"1" * 5000 + b"}",
    "nothing": b"",
    "a list": b"[]",
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch attacked'\ntR.",
}


@dataclass(frozen=True)
class Example:
    name: str
    count: int


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_every_way_to_read_a_record_ends_in_the_same_error(body: bytes, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "a.json").write_bytes(body)
    readers = (
        lambda: read_object(store, "a.json"),
        lambda: read_typed(store, "a.json", Example),
        lambda: read_file_object(tmp_path / "a.json"),
    )
    for read in readers:
        with pytest.raises(DamagedRecord) as error:
            read()
        assert error.value.exit_code == EXIT_CODES["damaged"] and len(str(error.value)) < 3000


def test_lines_of_a_stream_name_the_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + DEEP + b"\n")
    with pytest.raises(DamagedRecord, match=r"line 2 of .*nested more than 100 levels"):
        read_lines(open_store(str(tmp_path)), "a.jsonl")


def test_fields_of_another_type_are_damage(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for fields in (
        {"name": "a", "count": "many"},
        {"name": "a"},
        {"name": [], "count": 1},
        {"name": "a", "count": 1, "more": 1},
    ):
        (tmp_path / "a.json").write_text(json.dumps(fields))
        with pytest.raises(DamagedRecord):
            read_typed(store, "a.json", Example)


def test_a_size_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").touch()
    os.truncate(tmp_path / "a.json", 1 << 42)  # without a block on the disk
    store = open_store(str(tmp_path))
    for read in (
        lambda: read_object(store, "a.json"),
        lambda: read_text(store, "a.json"),
        lambda: read_file(tmp_path / "a.json"),
    ):
        with pytest.raises(DamagedRecord, match="bytes"):
            read()


def test_data_is_compared_with_its_hash_and_numbers_must_be_whole(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    (tmp_path / "a.idx").write_bytes(b"\x01" * 12)
    with pytest.raises(DamagedRecord, match="sha256"):
        read_data(store, "a.idx", "0" * 64)
    with pytest.raises(DamagedRecord, match="multiple"):
        read_numbers(store, "a.idx", "<u8")


def test_json_of_a_hundred_levels_is_read_and_more_is_not() -> None:
    assert parse_json("[" * 99 + "]" * 99)
    with pytest.raises(ValueError, match="nested"):
        parse_json("[" * 102 + "]" * 102)
