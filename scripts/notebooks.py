"""Writes the notebooks from the scripts in lessons/ and notebooks/, whose cells begin with `# %%`.

The scripts are the source: edit them, then run this. What a notebook printed is kept up to the first changed cell of
code, so that new prose costs no run.

    python scripts/notebooks.py            # write what has changed
    python scripts/notebooks.py --run 07   # also run those whose name contains 07, and keep what they print
    python scripts/notebooks.py --check    # write nothing; fail where a notebook disagrees with its script, or was not run
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARKDOWN = "# %% [markdown]"
CODE = "# %%"
ADDRESS = re.compile(r"<.* at 0x\w+>$")  # an object without a text of its own, which differs from run to run
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def scripts() -> list[Path]:
    """Return the scripts that have notebooks."""
    found = [*(ROOT / "lessons").glob("*.py"), *(ROOT / "notebooks").glob("*.py")]
    return sorted(path for path in found if path.read_text().startswith(CODE))


def cells_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the source of each cell of a script."""
    kind = ""
    lines: list[str] = []
    for line in [*text.splitlines(), CODE]:
        if line in (CODE, MARKDOWN):
            source = "\n".join(lines).strip("\n")
            if source:
                yield kind, source
            kind = "markdown" if line == MARKDOWN else "code"
            lines = []
        else:
            lines.append(line.removeprefix("#").removeprefix(" ") if kind == "markdown" else line)


def notebook_of(script: Path) -> dict[str, Any]:
    """Return the notebook of a script, without outputs."""
    cells: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells_of(script.read_text())):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number:02}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def keep_outputs(notebook: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with what its earlier version printed, up to the first cell of code that differs."""
    cells, printed = ([cell for cell in each["cells"] if cell["cell_type"] == "code"] for each in (notebook, earlier))
    for cell, before in zip(cells, printed, strict=False):
        if "".join(cell["source"]) != "".join(before["source"]):
            break
        cell |= {"execution_count": before["execution_count"], "outputs": before["outputs"]}
    return notebook


def sources(notebook: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what must agree: the kind and the source of every cell."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]


def is_current(script: Path) -> bool:
    """Return whether the notebook beside a script has the script's cells."""
    path = script.with_suffix(".ipynb")
    return path.exists() and sources(json.loads(path.read_text())) == sources(notebook_of(script))


def was_run(script: Path) -> bool:
    """Return whether every cell of code in the notebook beside a script shows what it printed."""
    cells = json.loads(script.with_suffix(".ipynb").read_text())["cells"]
    return all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")


def save(notebook: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def execute(script: Path, folder: Path, limit_seconds: int = 600) -> dict[str, Any]:
    """Run a script's notebook in a folder that has the lessons' tools; return it with what it printed."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(json.dumps(notebook_of(script)), as_version=4)
    client = NotebookClient(notebook, timeout=limit_seconds, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return tidy(json.loads(nbformat.writes(notebook)), folder)


def tidy(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the notebook without what differs from run to run: times, warnings, progress, addresses, its folder."""
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            shown: list[dict[str, Any]] = []
            for each in cell["outputs"]:
                if shown and each.get("name") == shown[-1].get("name") == "stdout":
                    shown[-1]["text"] = "".join([*shown[-1]["text"], *each["text"]])
                elif each.get("name") != "stderr" and not _is_address(each):
                    shown.append(dict(each))
            cell["outputs"] = json.loads(json.dumps(shown).replace(f"{folder}/", ""))
    return notebook


def _is_address(output: dict[str, Any]) -> bool:
    return bool(ADDRESS.match("".join(output.get("data", {}).get("text/plain", ""))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", metavar="NAME", help="run the notebooks whose name contains NAME")
    arguments = parser.parse_args()
    if arguments.check:
        stale = [script.name for script in scripts() if not is_current(script)]
        silent = [script.stem for script in scripts() if script.name not in stale and not was_run(script)]
        if stale:
            print(f"run python scripts/notebooks.py: {', '.join(stale)}")
        for name in silent:
            print(f"without what it prints: python scripts/notebooks.py --run {name}")
        if not stale and not silent:
            print("notebooks and scripts agree, and every notebook has what it prints")
        sys.exit(bool(stale or silent))
    for script in scripts():
        path = script.with_suffix(".ipynb")
        if arguments.run is not None and arguments.run in script.name:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                copied = Path(
                    shutil.copytree(script.parent, Path(folder, "copy"), ignore=shutil.ignore_patterns("*-store"))
                )
                save(execute(script, copied), path)
            print(f"{path.name}: {time.monotonic() - began:.0f} s")
        elif not is_current(script):
            earlier = json.loads(path.read_text()) if path.exists() else {"cells": []}
            save(keep_outputs(notebook_of(script), earlier), path)
            print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
