"""Spark for the slow tests: its packages, a cluster of this machine's processes, and documents with duplicates."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("pyspark==4.3.0", "pandas==2.3.3")
WORDS = [f"w{i}" for i in range(3000)]


def spark_path() -> list[str]:
    """Folders for PYTHONPATH with pyspark, installed at the first call on this machine unless it already is."""
    assert shutil.which("java") or os.environ.get("JAVA_HOME"), "Spark needs Java 17: install openjdk-17-jre-headless"
    if importlib.util.find_spec("pyspark") is not None:
        return []
    folder = Path.home() / ".cache/skytrain-tests/pyspark-4.3.0"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *PACKAGES], check=True)
        (folder / "ready").touch()
    return [str(folder)]


def spark_environment() -> dict[str, str]:
    path = [*spark_path(), *sys.path, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # several JVMs on few cores start sooner
    }


def prepare_command(*overrides: str, first: str = "") -> list[str]:
    """`first` is Python that runs before the command."""
    return [sys.executable, "-c", f"{first}from skytrain.cli.main import main; main()", "prepare", *overrides]


def spark_home() -> Path:
    code = "import pyspark; print(pyspark.__path__[0])"
    return Path(
        subprocess.run(
            [sys.executable, "-c", code], env=spark_environment(), check=True, capture_output=True, text=True
        ).stdout.strip()
    )


class SparkCluster:
    """A standalone master with workers of one core and 2 GB."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.url = f"spark://127.0.0.1:{_free_port()}"
        home, port = spark_home(), self.url.rpartition(":")[2]
        environment = {**spark_environment(), "SPARK_HOME": str(home)}
        command = [str(home / "bin/spark-class")]
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
        worker += ["--cores", "1", "--memory", "2g", "--work-dir", str(folder / "work"), self.url]
        self.log = folder / "cluster.log"
        with self.log.open("w") as log:
            start = [master, *(worker for _ in range(workers))]
            self.processes = [
                subprocess.Popen([*command, *each], env=environment, stdout=log, stderr=log) for each in start
            ]
        deadline = time.monotonic() + 180
        while self.log.read_text(errors="replace").count("Successfully registered with master") < workers:
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")[-3000:]
            time.sleep(0.5)

    def executors(self) -> list[int]:
        """The executors of all workers."""
        ours = {process.pid for process in self.processes}
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    words = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                if parent in ours and b"CoarseGrainedExecutorBackend" in words:
                    found.append(int(folder.name))
        return found

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(60)


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    cluster = SparkCluster(folder, workers)
    try:
        yield cluster
    finally:
        cluster.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_documents(folder: Path, count: int, files: int) -> None:
    """Documents of 40 to 160 words: one in ten is a copy, one in five a near-copy of any other, 5% of the first one.

    A few have the id of another document, and a few lines are no JSON.
    """
    generator = random.Random(5)
    folder.mkdir(parents=True)
    texts: list[str] = []
    per_file = -(-count // files)
    for i in range(count):
        kind = generator.random()
        if texts and kind < 0.1:
            text = generator.choice(texts)
        elif texts and kind < 0.35:
            words = (texts[0] if kind > 0.3 else generator.choice(texts)).split(" ")
            for _ in range(generator.randrange(1, 3)):
                words[generator.randrange(len(words))] = f"x{generator.randrange(10**6)}"
            text = " ".join(words)
        else:
            text = " ".join(generator.choices(WORDS, k=generator.randrange(40, 160)))
        texts.append(text)
        id_ = f"d{i if generator.random() > 0.003 else generator.randrange(i + 1)}"
        line = json.dumps({"id": id_, "text": text}) if generator.random() > 0.001 else "{broken"
        with (folder / f"f{i // per_file:03d}.jsonl").open("a") as file:
            file.write(line + "\n")
