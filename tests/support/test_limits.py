import os
import re
import subprocess
import sys
from pathlib import Path

from skytrain.jobs.lifeline import lives

HANGS = """
import signal, subprocess, sys, threading
import pytest

@pytest.mark.limit(0.5)
def test_waits_for_a_process_that_does_not_end():
    child = subprocess.Popen(["sleep", "600"])
    print("child", child.pid, file=sys.__stdout__, flush=True)
    child.wait()

@pytest.fixture
def endless():
    threading.Event().wait()

@pytest.mark.limit(0.5)
def test_waits_in_a_fixture(endless):
    pass

def test_goes_on():
    pass

@pytest.mark.limit(0.5, grace=0.5)
def test_waits_where_python_does_not_see_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    child = subprocess.Popen(["sleep", "600"])
    print("child", child.pid, file=sys.__stdout__, flush=True)
    threading.Event().wait()
"""


def run(folder: Path, which: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_hangs.py").write_text(HANGS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.limits",
        "-p",
        "no:cacheprovider",
        "-s",
        "-k",
        which,
    ]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run(
        [*command, f"--rootdir={folder}", str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )


def children(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"child (\d+)", said)]


def test_a_test_that_hangs_fails_with_the_place_and_without_its_processes_and_the_others_run(tmp_path):
    done = run(tmp_path, "process or fixture or goes_on")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "1 failed" in done.stdout and "1 error" in done.stdout
    assert done.stdout.count("longer than its limit of 0.5 s") >= 2
    assert "child.wait()" in done.stdout and "threading.Event().wait()" in done.stdout
    (child,) = children(done.stdout)
    assert not lives(child)


def test_a_test_that_cannot_be_ended_ends_the_process_with_the_place_and_without_its_processes(tmp_path):
    done = run(tmp_path, "where_python")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cannot be ended" in done.stderr and "test_waits_where_python_does_not_see_signals" in done.stderr
    (child,) = children(done.stdout)
    assert not lives(child)
