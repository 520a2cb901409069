"""docs/plug-a-dataset.md works as it is written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.corpora import read_corpus

from skytrain import config
from skytrain.config import compose, make
from skytrain.corpus import open_corpus
from skytrain.storage import open_store

PAGE = (Path(__file__).parents[2] / "docs/plug-a-dataset.md").read_text()


def block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)[0]


def notes(folder: Path) -> None:
    (folder / "my_notes.py").write_text(block("python"))
    (folder / "notes").mkdir()
    for i in range(20):
        (folder / f"notes/n{i}.json").write_text(
            json.dumps({"title": f"Note {i}", "body": f"What was said on day {i}."})
        )
    (folder / "notes/broken.json").write_text("{}")


def test_the_example_runs(tmp_path: Path) -> None:
    notes(tmp_path)
    command = shlex.split(block("bash"))
    command[0] = str(Path(sys.executable).parent / "skytrain")
    command += ["data.validation_fraction=0.3", f"store.root={tmp_path}/store"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    store = open_store(str(tmp_path / "store"))
    [version] = store.folders("corpora/notes")
    manifest = open_corpus(store, "notes", version)
    assert manifest.removed["bad_records.text"] == 1
    assert [document.id for document in read_corpus(store, manifest)][:3] == ["n0", "n1", "n10"]


def test_the_examples_file_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes(tmp_path)
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "conf/data/notes.yaml").write_text(block("yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    data = compose(["data=notes"], config_dirs=["conf"]).config.data
    source = make(data.source.target, data.source.args, key="data.source")
    assert (data.name, data.bad_records, len(list(source.documents()))) == ("notes", "skip", 21)


def test_every_data_set_in_the_table_exists() -> None:
    table = PAGE.split("## Data sets that are there")[1]
    names = [
        name
        for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
        for name in re.findall(r"`([a-z0-9-]+)`", row)
    ]
    there = {path.stem for path in (Path(config.__file__).parent / "groups/data").glob("[a-z]*.yaml")}
    assert there == {*names, "synthetic", "custom"}
