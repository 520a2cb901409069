import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import skytrain
from skytrain.config import skytrain_cache_folder, temporarily, torchrun_place, visible_gpus
from skytrain.config.environment import TorchrunPlace

PACKAGE = Path(skytrain.__file__).parent
# The environment module itself; and what runs in a worker before anything is imported.
MAY_READ = {PACKAGE / "config" / "environment.py", PACKAGE / "jobs" / "lifeline.py"}


def reads_environment(source: str) -> list[int]:
    """The lines that reach for environment variables by way of the os module."""
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    nodes = ast.walk(ast.parse(source))
    return [
        node.lineno
        for node in nodes
        if (isinstance(node, ast.Attribute) and node.attr in names and getattr(node.value, "id", "") == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names})
    ]


def test_one_module_alone_reads_and_sets_environment_variables():
    others = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        if path not in MAY_READ
        for line in reads_environment(path.read_text())
    }
    assert others == set(), "use skytrain.config.environment"


@pytest.mark.parametrize("line", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_each_way_to_an_environment_variable_is_seen(line):
    assert reads_environment(line)


def test_a_process_without_a_rank_has_no_place(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert torchrun_place() is None
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert torchrun_place() == TorchrunPlace(3, 4, 1, 2)


@pytest.mark.parametrize(("value", "gpus"), [("", []), ("-1", []), ("0,2", ["0", "2"]), (None, None)])
def test_visible_gpus_are_those_that_cuda_would_show(value, gpus, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == gpus


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("SKYTRAIN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert skytrain_cache_folder() == tmp_path / "skytrain"
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path / "own"))
    assert skytrain_cache_folder() == tmp_path / "own"


def test_variables_that_were_set_for_a_while_are_put_back(monkeypatch):
    monkeypatch.setenv("SKYTRAIN_A", "before")
    monkeypatch.delenv("SKYTRAIN_B", raising=False)
    with pytest.raises(RuntimeError), temporarily({"SKYTRAIN_A": "1", "SKYTRAIN_B": "2"}):
        assert (os.environ["SKYTRAIN_A"], os.environ["SKYTRAIN_B"]) == ("1", "2")
        raise RuntimeError
    assert os.environ["SKYTRAIN_A"] == "before"
    assert "SKYTRAIN_B" not in os.environ


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_of_a_command_sleep_while_they_wait_unless_the_user_says_otherwise(given):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": given} if given else {}
    script = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules))\n"
        "sys.argv = ['skytrain', '--version']\n"
        "from skytrain.cli.main import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{given or 'PASSIVE'} False", "before OpenMP, which reads it, is loaded"
