"""The packed environment runs `prepare engine=spark` on a cluster that has nothing but Spark and Python 3.11."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.runs import Silent
from skytrain.storage import Store, open_store
from skytrain.targets.bundle import BundleContents
from skytrain.targets.emr.environment import (
    ENTRY,
    SPARK_PYTHON,
    _install,
    environment_of,
    pack_environment,
    write_archive,
)
from skytrain.targets.wheels import PLATFORMS, ImagePython, write_wheel
from tests.pipelines.test_spark import contents, prepare, same, settings
from tests.support.spark import spark_cluster, spark_home, write_documents

CONTENTS = BundleContents(("aws", "data"), (), (), ImagePython(SPARK_PYTHON, PLATFORMS, {}))


class Notes(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def folder_store(folder: Path) -> Store:
    return open_store(compose([f"store.root={folder}"]).config.store)


def test_the_archive_has_a_python_that_finds_its_packages_wherever_it_is_unpacked(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name in ("own/__init__.py", "own/__pycache__/x.pyc", "pandas/tests/big.py", "own/tests/kept.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("FOUND = 7\n")
    for name in ("one.tar.gz", "two.tar.gz"):
        write_archive(site, tmp_path / name)
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.gz") as archive:
        assert set(archive.getnames()) == {"bin/python", "site/own/__init__.py", "site/own/tests/kept.py"}
        archive.extractall(tmp_path / "else where", filter="data")
    python = tmp_path / "else where/bin/python"
    code = "import os, own; print(own.FOUND, own.__file__, os.environ['NUMBA_CACHE_DIR'])"
    clean = {"PATH": "/usr/bin:/bin", "PYTHONHOME": "/nowhere", "TMPDIR": str(tmp_path)}
    said = subprocess.run([python, "-c", code], env=clean, cwd="/", capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[0] == (
        f"7 {tmp_path}/else where/site/own/__init__.py {tmp_path}/skytrain-numba-{os.getuid()}"
    )


@pytest.mark.slow
def test_the_same_wheels_give_the_same_archive_wherever_they_are_unpacked(tmp_path: Path) -> None:
    for name in ("one", "two"):
        wheels, site = tmp_path / name / "wheels", tmp_path / name / "site"
        wheels.mkdir(parents=True)
        write_wheel(
            wheels, "own", "1.0+ab", {"own.py": b"FOUND = 7"}, "Metadata-Version: 2.1\nName: own\nVersion: 1.0+ab\n"
        )
        _install(wheels, site, CONTENTS)
        write_archive(site, tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    (tmp_path / "one/wheels/own-1.0+ab-py3-none-any.whl").write_bytes(b"cut")
    with pytest.raises(SkytrainError, match="could not be resolved"):
        _install(tmp_path / "one/wheels", tmp_path / "again", CONTENTS)


def test_a_machine_without_the_python_says_so(tmp_path: Path) -> None:
    write_archive(tmp_path / "none", tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    nothing = {"PATH": "/usr/bin:/bin", "SKYTRAIN_PYTHON": "python9.9"}
    done = subprocess.run([tmp_path / "bin/python", "-V"], env=nothing, capture_output=True, text=True, check=False)
    assert done.returncode == 127 and "there is no python9.9 on" in done.stderr


def test_the_name_of_an_environment_follows_from_its_contents() -> None:
    other = BundleContents(("aws", "data", "html"), (), (), CONTENTS.image)
    older = BundleContents(("aws", "data"), (), (), ImagePython("3.12", PLATFORMS, {}))
    assert environment_of(CONTENTS) == environment_of(CONTENTS)
    assert len({environment_of(each).key for each in (CONTENTS, other, older)}) == 3


@pytest.mark.slow
def test_the_packed_environment_prepares_on_a_cluster_from_an_empty_folder(tmp_path: Path) -> None:
    documents, notes = tmp_path / "documents", Notes()
    write_documents(documents, 1500, files=4)
    store = folder_store(tmp_path / "packages")
    packed = pack_environment(store, CONTENTS, notes)
    assert pack_environment(store, CONTENTS, notes) == packed
    assert len(notes.texts) == 2  # the second call found it in the store
    archive = tmp_path / "packages" / packed.key
    sums = (archive.parent / "SHA256SUMS").read_text()
    subprocess.run(["sha256sum", "-c"], cwd=archive.parent, input=sums, text=True, check=True)

    empty = tmp_path / "empty"
    empty.mkdir()
    # The driver's own copy, as YARN and EMR Serverless unpack it beside the driver.
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as members:
        members.extractall(empty / "environment", filter="data")
    (empty / "prepare.py").write_text(ENTRY)
    clean = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(empty),
        "TMPDIR": str(empty),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": "./environment/bin/python",
        "JAVA_HOME": str(Path(shutil.which("java") or "").resolve().parents[1]),
    }
    where = "import skytrain, numba, pyarrow; print(skytrain.__file__, numba.__file__, pyarrow.__file__)"
    said = subprocess.run(
        ["environment/bin/python", "-c", where], cwd=empty, env=clean, capture_output=True, text=True, check=True
    ).stdout
    assert all(path.startswith(f"{empty}/environment/site/") for path in said.split())

    with spark_cluster(tmp_path) as cluster:
        submit = [
            spark_home() / "bin/spark-submit", "--master", cluster.url, "--archives", f"{archive}#environment",
            "--conf", "spark.executor.memory=1g", "--conf", "spark.driver.host=127.0.0.1", "prepare.py",
        ]  # fmt: skip
        words = settings(documents, tmp_path / "store", "engine=spark")
        subprocess.run([*submit, "prepare", *words], cwd=empty, env=clean, check=True)
        # Executors unpacked the archive into their own folders, and both worked.
        assert len(list((tmp_path / "work").glob("*/*/environment"))) >= 2
    assert same(contents(tmp_path / "store"), prepare(documents, tmp_path / "local", "data.workers=1"))
