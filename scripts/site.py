"""Builds the documentation site: `python scripts/site.py`, or `make docs`. Works offline.

Stages docs/ in build/docs, adds the pages that are generated from code and notebooks, runs Zensical in strict mode, and
checks every link and anchor of the result.
"""

from __future__ import annotations

import ast
import html
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STAGE = ROOT / "build" / "docs"
SITE = ROOT / "site"
# Pages of the repository that the site has, too.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "lessons/README.md": "lessons/index.md",
}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def main() -> None:
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(DOCS, STAGE)
    stage_pages()
    for name, text in generated().items():
        write(name, text)
    # Strict mode: a warning ends the build.
    built = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--clean", "--strict"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    said = built.stdout + built.stderr
    if built.returncode or re.search("warning", said, re.IGNORECASE):
        sys.exit("the site was not built:\n" + said.partition("Traceback")[0])
    problems = broken_links(SITE)
    if problems:
        sys.exit("\n".join(["broken links:", *problems]))
    count = len(list(SITE.rglob("*.html")))
    print(f"{count} pages in {SITE.relative_to(ROOT)}/, every link works; open {SITE.relative_to(ROOT)}/index.html")


# Staging.


def stage_pages() -> None:
    """Put pages of the repository beside those of docs/, and make links that leave docs/ lead somewhere."""
    for source, target in PAGES.items():
        write(target, relinked((ROOT / source).read_text(), ROOT / source, target))
    for page in sorted(DOCS.rglob("*.md")):
        name = str(page.relative_to(DOCS))
        write(name, relinked(page.read_text(), page, name))
    for notebook in sorted((ROOT / "lessons").glob("*.ipynb")):
        target = f"lessons/{notebook.stem}.md"
        write(target, relinked(lesson_page(notebook), notebook, target))


def relinked(text: str, source: Path, target: str) -> str:
    """Return the page with its links as they are in the site. Code blocks are left alone."""
    fences: list[str] = []

    def keep(match: re.Match[str]) -> str:
        fences.append(match[0])
        return f"\0{len(fences) - 1}\0"

    text = FENCE.sub(keep, text)
    text = LINK.sub(lambda match: match[1] + site_link(match[2], source, target) + match[3], text)
    return re.sub(r"\0(\d+)\0", lambda match: fences[int(match[1])], text)


def site_link(link: str, source: Path, target: str) -> str:
    parts = urlsplit(link)
    if parts.scheme or not parts.path:
        return link
    path = (source.parent / unquote(parts.path)).resolve()
    anchor = f"#{parts.fragment}" if parts.fragment else ""
    inside = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
    if inside in PAGES:
        found = PAGES[inside]
    elif path.suffix == ".ipynb" and inside.startswith("lessons/"):
        found = f"lessons/{path.stem}.md"
    elif path.is_relative_to(DOCS):
        found = str(path.relative_to(DOCS))
    elif path.is_file():
        found = copy_file(path)
    else:
        sys.exit(f"{source.relative_to(ROOT)}: {link} leads nowhere")
    return os.path.relpath(found, Path(target).parent) + anchor


def copy_file(path: Path) -> str:
    """Copy a file of the repository, such as a log, so that a browser shows it; return where it is."""
    suffix = "" if path.suffix in (".svg", ".png", ".json", ".ipynb") else ".txt"
    name = f"files/{path.relative_to(ROOT)}{suffix}"
    target = STAGE / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    return name


def write(name: str, text: str) -> None:
    path = STAGE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# Lessons.


def lesson_page(notebook: Path) -> str:
    """Return a notebook as a page: text, code and what it printed."""
    parts = []
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            if number == 0:
                parts.append(
                    f"Script: [`{notebook.stem}.py`]({notebook.stem}.py) · notebook: `lessons/{notebook.name}`"
                )
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [block for output in cell["outputs"] if (block := _output(output))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return "".join(data["image/svg+xml"])
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


# Pages from code.


def generated() -> dict[str, str]:
    return {
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "reference/capabilities.md": capabilities_page(),
        "reference/metrics.md": extracted(
            "Metrics", "architecture.md", "**Metrics** have one name everywhere:", "**Which"
        ),
        "reference/store-layout.md": extracted("Store layout", "architecture.md", "## Store layout\n", "## Contracts"),
        "reference/equivalence.md": extracted(
            "Equal to one process", "parallelism.md", "## Equal to one process\n", "## On a GPU"
        ),
        "results.md": results_page(),
    }


def extracted(title: str, page: str, start: str, end: str) -> str:
    """Return a part of a page as a page of its own."""
    text = (DOCS / page).read_text()
    begin = text.index(start)
    part = text[begin : text.index(end, begin)]
    part = part.removeprefix(start) if start.startswith("#") else part
    return relinked(
        f"# {title}\n\n{part.strip()}\n\nFrom [{page.removesuffix('.md')}]({page}).\n", DOCS / page, "reference/x.md"
    )


def commands_page() -> str:
    import typer

    from skytrain.cli.main import app

    lines = [
        "# Commands",
        "",
        "Every command with its options, from the program itself. `skytrain COMMAND --help` prints the same.",
        "",
    ]
    for path, command in _commands(typer.main.get_command(app), "skytrain"):
        lines += [f"## {path}", "", _help_text(command.help or ""), ""]
        options = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
        if options:
            lines += ["| argument | |", "| --- | --- |"]
            lines += [_option(command, each) for each in options]
            lines.append("")
    return "\n".join(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None or command.invoke_without_command:
        yield path, command
    for name in sorted(below or {}):
        yield from _commands(below[name], f"{path} {name}")


def _option(command: Any, option: Any) -> str:
    """Return the row of an option or argument, as `--help` shows it: with its choices and its default."""
    import typer

    if option.param_type_name == "argument":
        words, about = option.metavar or str(option.name).upper(), getattr(option, "help", "")
    else:
        words, about = option.get_help_record(typer.Context(command))
    shown = html.escape(words, quote=False).replace("|", "&#124;")  # in backquotes a backslash before | would be shown
    return f"| <code>{shown}</code> | {_cell(about or '')} |"


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _help_text(text: str) -> str:
    """Return a help text as Markdown: its verbatim paragraphs as code."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        verbatim = "\b" in block
        block = block.replace("\b\n", "").replace("\b", "")
        head, _, rest = block.partition("\n")
        if verbatim and rest:
            blocks.append(f"{html.escape(head, quote=False)}\n\n```text\n{inspect.cleandoc(rest)}\n```")
        else:
            blocks.append(html.escape(block, quote=False).replace("*", "\\*"))
    return "\n\n".join(blocks)


def python_page() -> str:
    import skytrain

    lines = ["# Python", "", "What `import skytrain` offers. [From Python](../python.md) shows it at work.", ""]
    for name in skytrain.__all__:
        value = getattr(skytrain, name)
        if inspect.isclass(value) and not value.__module__.startswith("skytrain.api"):
            lines += [f"## {name}", "", _first_paragraph(value), "", f"`{value.__module__}.{name}`", ""]
        elif inspect.isclass(value):
            lines += [f"## {name}", "", inspect.getdoc(value) or "", ""]
            for member, method in vars(value).items():
                if not member.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                    lines += _member(f"{name}.{member}", method, "###")
        else:
            lines += _member(name, value, "##")
    return "\n".join(lines)


def _member(name: str, value: Any, heading: str) -> list[str]:
    function = value.fget if isinstance(value, property) else value
    lines = [f"{heading} {name}", ""]
    if not isinstance(value, property):
        lines += ["```python", f"{name.rpartition('.')[2]}{_signature(function)}", "```", ""]
    return [*lines, inspect.getdoc(function) or "", ""]


def _signature(function: Any) -> str:
    signature = str(inspect.signature(function)).replace("'", "")
    if len(signature) < 90:
        return signature
    inside, _, result = signature.rpartition(") -> ")
    return "(\n    " + re.sub(r", (?![^\[]*\])", ",\n    ", inside[1:]) + f",\n) -> {result}"


def _first_paragraph(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0]


def exit_codes_page() -> str:
    from skytrain.config.exits import EXITS

    rows = [f"| {each.code} | {each.cause} | {each.meaning} | {each.remedy} |" for each in EXITS]
    return "\n".join(
        [
            "# Exit codes",
            "",
            "Why a command ended, for scripts and schedulers.",
            "",
            "| code | cause | meaning | what to do |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "More in [durable runs](../durable-runs.md#exit-codes).",
            "",
        ]
    )


def capabilities_page() -> str:
    from skytrain.config.capabilities import RULES

    rows = [f"| `{each.key}` | {_cell_kept(each.excludes)} | {_cell_kept(each.fix)} |" for each in RULES]
    return "\n".join(
        [
            "# What can be combined",
            "",
            "What is refused, from the table that `config`, `train`, `parallel=auto` and `plan` read. All else works.",
            "",
            "| setting | cannot be combined with | the message suggests |",
            "| --- | --- | --- |",
            *rows,
            "",
            "More in [parallelism](../parallelism.md#what-can-be-combined).",
            "",
        ]
    )


def _cell_kept(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def results_page() -> str:
    """Return every measurement: its script, what it measures, its logs, and the pages that quote it."""
    pages = {str(page.relative_to(DOCS)): page.read_text() for page in sorted(DOCS.rglob("*.md"))}
    pages["index.md"] = (ROOT / "README.md").read_text()
    lines = [
        "# All figures and logs",
        "",
        "A figure of this site comes from a script in `benchmarks/`, and its log is kept beside it. "
        "`make bench` measures again.",
        "",
    ]
    for folder in sorted(path for path in (ROOT / "benchmarks").iterdir() if path.is_dir()):
        rows = []
        for (script, summary), logs in _measurements(folder).items():
            shown = ", ".join(f"[{each.name}]({copy_file(each)})" for each in logs)
            linked = f"[{script.name}]({copy_file(script)})" if script else ""
            names = [each.name for each in (script, *logs) if each]
            where = ", ".join(f"[{name[:-3]}]({name})" for name in _quoting(pages, folder.name, names))
            rows.append(f"| {linked} | {_cell(summary)} | {shown} | {where} |")
        if rows:
            lines += [
                f"## {folder.name}",
                "",
                "| script | measures | log | quoted in |",
                "| --- | --- | --- | --- |",
                *rows,
                "",
            ]
    for title, pictures in _pictures():
        lines += [f"## {title}", "", *pictures, ""]
    return "\n".join(lines)


def _measurements(folder: Path) -> dict[tuple[Path | None, str], list[Path]]:
    """Return the logs of a folder by the script that wrote them and what it measures."""
    found: dict[tuple[Path | None, str], list[Path]] = {}
    scripts = sorted(folder.glob("*.py"), key=lambda script: len(script.stem), reverse=True)
    for log in sorted(path for path in folder.iterdir() if path.suffix in (".log", ".svg", ".json", ".jsonl")):
        text = log.with_suffix(".log")
        head = text.read_text()[:500] if text.exists() else ""
        wrote = [each for each in scripts if log.stem.startswith(each.stem)]
        wrote += [ROOT / name for name in re.findall(r"benchmarks/\w+/\w+\.py", head)]
        script = wrote[0] if wrote else None
        about = ast.get_docstring(ast.parse(script.read_text())) if script else head.lstrip("# ")
        summary = (about or "").partition("\n")[0]
        found.setdefault((script, summary), []).append(log)
    return dict(sorted(found.items(), key=lambda item: (item[0][0] is None, str(item[0][0] or item[1][0]))))


def _quoting(pages: dict[str, str], folder: str, names: list[str]) -> list[str]:
    """Return the pages that name one of these files of a folder, or else those that name the folder."""
    folder = f"benchmarks/{folder}/"
    found = [name for name, text in pages.items() if any(f"{folder}{each}" in text for each in names)]
    found = found or [name for name, text in pages.items() if folder in text and any(each in text for each in names)]
    return found or [name for name, text in pages.items() if f"{folder}`" in text]


def _pictures() -> Iterator[tuple[str, list[str]]]:
    found = sorted((ROOT / "benchmarks").rglob("*.svg"))
    if found:
        yield "Pictures", [f"![{each.stem}]({copy_file(each)})\n" for each in found]


# Links of the built site.


def broken_links(site: Path) -> list[str]:
    """Return each link of a page to a file or an anchor that does not exist."""
    texts = {page: page.read_text() for page in sorted(site.rglob("*.html"))}
    anchors = {page: set(re.findall(r'\b(?:id|name)="?([^"\s>]+)', text)) for page, text in texts.items()}
    problems = []
    for page, text in texts.items():
        if page.name == "404.html":
            continue
        for link in sorted(set(re.findall(r'\b(?:href|src)="?([^"\s>]+)', text))):
            parts = urlsplit(html.unescape(link))
            if parts.scheme or parts.netloc or link.startswith("//"):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                problems.append(f"{page.relative_to(site)}: {link}")
            elif parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
                problems.append(f"{page.relative_to(site)}: {link}: there is no such heading")
    return problems


if __name__ == "__main__":
    main()
