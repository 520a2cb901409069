"""The documentation site: it is built without a warning, every link works, and a browser shows it without an error."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from tests.support.chromium import CHROMIUM, browser

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "scripts" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page(site: ModuleType) -> None:
    named = set(re.findall(r'= "([\w/.-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    pages = {str(page.relative_to(site.DOCS)) for page in site.DOCS.rglob("*.md")}
    lessons = {f"lessons/{path.stem}.md" for path in (ROOT / "lessons").glob("*.ipynb")}
    generated = {"results.md", *(name for name in named if name.startswith("reference/"))}
    expected = pages | lessons | set(site.PAGES.values()) | generated
    assert named == expected, "name each page of docs/ once in the nav of zensical.toml"


def test_the_page_of_commands_has_those_that_have_others_below_them(site: ModuleType) -> None:
    shown = site.commands_page()
    assert "\n## skytrain catalog\n" in shown and "\n## skytrain catalog refresh\n" in shown
    of_catalog = shown.partition("\n## skytrain catalog\n")[2].partition("\n## ")[0]
    assert "<code>--market &lt;spot&#124;on-demand&gt;</code> | The market to rank by. [default: spot]" in of_catalog
    assert not re.findall(r"<code>--[\w-]+ &lt;(?:str|int|float)\b[^<]*", shown), "name what a user gives, not its type"
    assert "\n## skytrain data\n" not in shown, "it only groups others"


SOURCE = ROOT / "src" / "skytrain"


def test_every_file_that_the_architecture_page_names_exists(site: ModuleType) -> None:
    text = re.sub(r"^```.*?^```", "", (site.DOCS / "architecture.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = set(re.findall(r"`([\w./<>*-]+)`", text)) - {"recipe/mine.yaml"}  # a user's
    named = {each for each in spans if re.search(r"\.(py|pyi|csv|tf|toml)$|\w/\w", each)}
    missing = [each for each in named if not any(found(re.sub(r"<\w+>", "*", each)))]
    assert missing == [] and len(named) > 80
    steps = re.findall(r"^\| `(tokens|training|models)` \| (`(?:datamodule|step|loss)`.*)$", text, flags=re.MULTILINE)
    files = [SOURCE / package / f"{name}.py" for package, row in steps for name in re.findall(r"`(\w+)`", row)]
    assert len(files) > 15 and [str(each) for each in files if not each.is_file()] == []


def test_every_function_that_the_architecture_page_names_is_in_that_file(site: ModuleType) -> None:
    text = (site.DOCS / "architecture.md").read_text()
    pairs = [(file, name) for name, file in re.findall(r"`([\w.]+)(?:\(\))?` in `([\w/.]+\.py)`", text)]
    pairs += re.findall(r"`([\w/.]+\.py)` \(`([\w.]+)`", text)
    pairs += [(f"training/{file}", name) for name, file in re.findall(r"`(\w+)`, `(\w+\.py)`", text)]
    assert len(pairs) > 12
    for file, name in pairs:
        pattern = rf"^\s*(def|class) {name.rpartition('.')[2]}\b"
        assert re.search(pattern, (SOURCE / file).read_text(), flags=re.MULTILINE), f"{name} is not in {file}"


def test_the_walks_of_the_architecture_page_are_as_long_as_it_says(site: ModuleType) -> None:
    text = (site.DOCS / "architecture.md").read_text()
    dollar = text.partition("## A dollar\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[2] for row in re.findall(r"^\| \w+ \| `.*$", dollar, flags=re.MULTILINE)]
    files = [file for row in rows for file in re.findall(r"`([\w/]+\.py)`", row)]
    assert f"in {len(files)} files:" in dollar and len(files) == len(set(files)) <= 25
    token = text.partition("## A training step\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[2] for row in re.findall(r"^\| (?:`\w+`|others) \| .*$", token, flags=re.MULTILINE)]
    files = [file for row in rows for file in re.findall(r"`([\w/]+)`", re.sub(r"\([^)]*\)", "", row))]
    assert f"code of these {len(files)} files" in token and len(files) == len(set(files)) <= 35


def found(pattern: str) -> Iterator[Path]:
    """Yield what a name on the architecture page may mean: of the package, of one of its folders, or of the repository."""
    for folder in (SOURCE, ROOT):
        for suffix in ("", ".py"):
            yield from folder.glob(pattern.rstrip("/") + suffix)
    if "/" not in pattern:
        yield from SOURCE.rglob(pattern)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("no such setting", ["trainer.step=5"]),
        ("holds no tokens of", []),
        ("is not a multiple of", ["trainer.micro_batch=3"]),
        ("do not divide over", ["data=synthetic", "parallel=ddp", "parallel.replicate=2", "--processes", "2"]),
    ],
)
def test_troubleshooting_begins_with_messages_that_commands_print(
    site: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str], message: str, words: list[str]
) -> None:
    done = CliRunner().invoke(app, ["train", "recipe=quickstart", f"store.root={tmp_path}", *words])
    assert done.exit_code and message in f"{done.exception} {capfd.readouterr().err}"
    assert f"`{message}" in (site.DOCS / "troubleshooting.md").read_text()


def test_a_link_that_leaves_the_pages_leads_to_a_copy(site: ModuleType, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(site, "STAGE", tmp_path)
    text = "[log](../benchmarks/merging/btm.log) [c](../CONTRIBUTING.md#code) [l](../lessons/10_durability.ipynb)\n"
    text += "```\n[not](a-link.md)\n```\n"
    linked = site.relinked(text, site.DOCS / "merging.md", "merging.md")
    assert "(files/benchmarks/merging/btm.log.txt) [c](contributing.md#code) [l](lessons/10_durability.md)" in linked
    assert "[not](a-link.md)" in linked
    assert (tmp_path / "files/benchmarks/merging/btm.log.txt").is_file()
    with pytest.raises(SystemExit, match="leads nowhere"):
        site.relinked("[x](../no-such-file.txt)", site.DOCS / "merging.md", "merging.md")


def test_every_log_is_on_the_page_of_results_with_a_page_that_quotes_it(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "STAGE", tmp_path)
    text = site.results_page()
    logs = [str(log.relative_to(ROOT)) for log in (ROOT / "benchmarks").glob("*/*.log")]
    assert len(logs) > 50 and not [log for log in logs if f"(files/{log}.txt)" not in text]
    assert "[batch.log](files/benchmarks/tokens/batch.log.txt)" in text.partition("[throughput.py]")[2].split("\n")[0]
    rows = [line for line in text.splitlines() if "](files/benchmarks/checkpoints/" in line]
    assert rows and all("(checkpoints.md)" in row for row in rows)


def test_a_broken_link_of_a_built_page_is_found(site: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#here">b</a><a href="c.html">c</a>')
    (tmp_path / "b.html").write_text('<h1 id="there">B</h1><a href="a.html#top">a</a>')
    assert site.broken_links(tmp_path) == ["a.html: b.html#here: there is no such heading", "a.html: c.html"]


@pytest.mark.slow
@pytest.mark.limit(1800)
def test_the_site_is_built_and_a_browser_shows_it_from_a_folder_without_errors(site: ModuleType) -> None:
    done = subprocess.run([sys.executable, "scripts/site.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    pages = sorted(site.SITE.rglob("*.html"))
    with browser() as tab:
        for page in pages:
            if page.name == "404.html":  # only a server shows it, and its links begin at the server's root
                continue
            for width in (1400, 390):
                tab.open(page.as_uri(), width=width, dark=width == 390)
                name = f"{page.relative_to(site.SITE)} at {width}"
                assert not tab.errors, f"{name}: {tab.errors}"
                assert tab.value("document.querySelector('article').innerText.length") > 100, name
                assert tab.value("document.documentElement.scrollWidth") <= width, f"{name}: reaches beyond the screen"
                assert not tab.value("[...document.images].filter(each => !each.naturalWidth).length"), name
                drawn = (
                    "[...document.querySelectorAll('article p > img, article p > svg')].map(each => each.clientWidth)"
                )
                assert all(wide >= 600 for wide in tab.value(drawn)), f"{name}: a drawing too small to read"
        tab.open((site.SITE / "index.html").as_uri())
        tab.value("document.querySelector('.md-search__button').click()")
        tab.until("document.activeElement.shadowRoot !== null")
        tab.ask("Input.insertText", text="micro-batch")
        tab.until("document.activeElement.shadowRoot.querySelectorAll('a').length > 5")
        assert not tab.errors
