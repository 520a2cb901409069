"""The lessons: their notebooks have the scripts' cells, their questions can be answered, and they run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
# Computed from what each lesson explains.
ANSWERS = {
    1: math.log(4096),
    2: 32 / 2 / 4,
    3: 2 * (4 - 1) / 4 * 100 * 4,
    4: 1.5 * (2 + 2 + 12),
    5: 7.5 * 16 / 64,
    6: 12 * (2 + 2),
    7: 100 * (4 - 1) / (12 + 4 - 1),
    8: 100 * 3 / 4,
    9: 64 / (8 * 4),
    10: 130 % 50,
}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    return load(ROOT / "scripts" / "notebooks.py")


@pytest.fixture(scope="module")
def tools() -> ModuleType:
    return load(ROOT / "lessons" / "tools.py")


def test_there_are_ten_lessons_and_each_has_a_question() -> None:
    assert len(LESSONS) == 10
    for number, lesson in enumerate(LESSONS, 1):
        text = lesson.read_text()
        assert f"check({number}, answer)" in text, lesson.name
        assert "# ## Question" in text and "# ## Read next" in text, lesson.name


def aborts_at_exit(rank: int, world: int) -> int:
    """Stand for a library whose threads abort the process when Python ends."""
    import atexit

    atexit.register(os.abort)
    print(f"rank {rank} speaks")
    return rank


@pytest.mark.slow
def test_a_library_that_aborts_at_exit_loses_no_result(tools: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.run_ranks(aborts_at_exit, 2) == [0, 1]
    assert capsys.readouterr().out.splitlines() == ["rank 0 speaks", "rank 1 speaks"]


def test_the_notebooks_have_the_cells_of_the_scripts(notebooks: ModuleType) -> None:
    assert len(notebooks.scripts()) >= 10
    stale = [script.name for script in notebooks.scripts() if not notebooks.is_current(script)]
    assert not stale, "run python scripts/notebooks.py"


def test_the_notebooks_have_what_they_print(notebooks: ModuleType) -> None:
    silent = [script.stem for script in notebooks.scripts() if not notebooks.was_run(script)]
    assert not silent, "run python scripts/notebooks.py --run NAME"


def test_a_notebook_whose_code_was_changed_but_not_run_is_found(notebooks: ModuleType, tmp_path: Path) -> None:
    script = Path(shutil.copy(LESSONS[0], tmp_path))
    shutil.copy(LESSONS[0].with_suffix(".ipynb"), tmp_path)
    assert notebooks.was_run(script)
    script.write_text(script.read_text().replace("answer = None", "answer = 1"))
    path = script.with_suffix(".ipynb")
    notebooks.save(notebooks.keep_outputs(notebooks.notebook_of(script), json.loads(path.read_text())), path)
    assert notebooks.is_current(script) and not notebooks.was_run(script)


def test_a_cell_that_was_changed_in_one_of_them_is_found(notebooks: ModuleType, tmp_path: Path) -> None:
    script = Path(shutil.copy(LESSONS[0], tmp_path))
    assert not notebooks.is_current(script), "there is no notebook yet"
    notebooks.save(notebooks.notebook_of(script), script.with_suffix(".ipynb"))
    assert notebooks.is_current(script)
    script.write_text(script.read_text().replace("length=64", "length=65"))
    assert not notebooks.is_current(script)


@pytest.mark.usefixtures("default_signals")  # nbclient leaves SIGINT's usual handler
def test_a_notebook_that_is_run_keeps_what_it_printed_and_nothing_of_the_machine(
    notebooks: ModuleType, tmp_path: Path
) -> None:
    script = tmp_path / "a.py"
    noise = "import sys\nprint('hurry', file=sys.stderr)\nobject()"
    place = "import os\nprint(f'{os.getcwd()}/x')"
    script.write_text(f"# %%\nprint(1)\nprint(2)\n\n# %%\n{noise}\n\n# %% [markdown]\n# Words\n\n# %%\n{place}\n")
    first, second, _, last = notebooks.execute(script, tmp_path)["cells"]
    assert "".join(first["outputs"][0]["text"]) == "1\n2\n"
    assert second["outputs"] == []
    assert "".join(last["outputs"][0]["text"]) == "x\n"


def test_what_a_cell_printed_in_several_messages_is_one_text(notebooks: ModuleType, tmp_path: Path) -> None:
    parts = [{"name": "stdout", "output_type": "stream", "text": text} for text in ("35 MB whole, ", "3 MB\n")]
    drawing = {"data": {"image/svg+xml": "<svg/>"}, "output_type": "display_data"}
    cell = {"cell_type": "code", "outputs": [*parts, drawing, *parts]}
    outputs = notebooks.tidy({"cells": [cell]}, tmp_path)["cells"][0]["outputs"]
    assert [each.get("text") for each in outputs] == ["35 MB whole, 3 MB\n", None, "35 MB whole, 3 MB\n"]


def test_new_prose_keeps_what_a_notebook_printed_and_new_code_does_not(notebooks: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("# %% [markdown]\n# Old words\n\n# %%\nprint(1)\n\n# %%\nprint(2)\n")
    earlier = notebooks.notebook_of(script)
    for number, cell in enumerate(cell for cell in earlier["cells"] if cell["cell_type"] == "code"):
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": f"{number + 1}"}]

    def printed(text: str) -> list[int]:
        script.write_text(text)
        kept = notebooks.keep_outputs(notebooks.notebook_of(script), earlier)
        return [len(cell["outputs"]) for cell in kept["cells"] if cell["cell_type"] == "code"]

    assert printed(script.read_text().replace("Old", "New")) == [1, 1]
    assert printed(script.read_text().replace("print(1)", "print(3)")) == [0, 0]


def test_the_right_answers_are_accepted_and_others_are_not(tools: ModuleType, capsys: pytest.CaptureFixture) -> None:
    for lesson, answer in ANSWERS.items():
        for given, said in ((answer, "Right."), (answer * 1.1, "Not yet."), (None, "Write your number")):
            tools.check(lesson, given)
            assert capsys.readouterr().out.startswith(said), lesson


@pytest.mark.usefixtures("default_signals")  # nbclient leaves SIGINT's usual handler
def test_a_class_in_a_cell_of_a_notebook_has_a_source(notebooks: ModuleType, tmp_path: Path) -> None:
    shutil.copy(ROOT / "lessons" / "tools.py", tmp_path)
    script = tmp_path / "a.py"
    cell = "class Twice:\n    @staticmethod\n    def of(x):\n        return 2 * x"
    script.write_text(f"# %%\nfrom tools import source_of\n\n# %%\n{cell}\n\nprint(source_of(Twice))\n")
    printed = notebooks.execute(script, tmp_path)["cells"][1]["outputs"][0]["text"]
    assert "".join(printed).strip().replace("\n\n", "\n") == cell


def test_the_files_that_lessons_name_exist() -> None:
    for lesson in LESSONS:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", lesson.read_text()):
            assert link.startswith("http") or (lesson.parent / link).exists(), f"{lesson.name}: {link}"


@pytest.mark.slow
@pytest.mark.limit(1800)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs(lesson: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lessons"
    shutil.copytree(lesson.parent, folder, ignore=shutil.ignore_patterns("*.ipynb", "lessons-store"))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, lesson.name], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    for line in done.stdout.splitlines():
        if found := re.match(r"largest difference in 12 steps: (\S+)", line):
            assert float(found[1]) < 1e-4, "our parallel run has the losses of one process"
        if "right sum:" in line:
            assert "right sum: True" in line
        if line.startswith("steps whose loss differs"):
            assert ": 0 of" in line


@pytest.mark.slow
@pytest.mark.limit(1800)
@pytest.mark.usefixtures("default_signals")  # nbclient leaves SIGINT's usual handler
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs_in_the_kernel_of_a_notebook(lesson: Path, notebooks: ModuleType, tmp_path: Path) -> None:
    """Functions and classes of a cell reach its ranks, and drawings are shown."""
    folder = tmp_path / "lessons"
    shutil.copytree(lesson.parent, folder, ignore=shutil.ignore_patterns("*.ipynb", "lessons-store"))
    done = notebooks.execute(folder / lesson.name, folder, limit_seconds=900)
    kinds = [kind for cell in done["cells"] for out in cell.get("outputs", []) for kind in out.get("data", {})]
    assert kinds.count("image/svg+xml") == (2 if lesson.name.startswith("07") else 0)
