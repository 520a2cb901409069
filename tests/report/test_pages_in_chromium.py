"""Pages in a real browser: no complaint in its console, every panel drawn, hover and zoom, on a phone and in the dark."""

import json
import sys
import threading
from pathlib import Path

import pytest

from skytrain.config import compose
from skytrain.pipelines.dashboard import open_dashboard
from skytrain.pipelines.data import corpus_page
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.report import compare, report
from skytrain.report import sweep_html
from skytrain.runs import Silent, create_run, new_record
from skytrain.storage import open_store
from tests.report.test_sweep_page import make_report
from tests.support.chromium import CHROMIUM, browser

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "pages"))
import store_of_runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.limit(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
HOSTILE = "<img src=x onerror=alert(1)>"
CANVAS = "(() => {{ const box = document.querySelectorAll('canvas')[{}].getBoundingClientRect();"
BOX = CANVAS + " return [box.left, box.top, box.width, box.height]; }})()"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = store_of_runs.configuration(tmp_path_factory.mktemp("store"))
    for number, name in enumerate(("base", "faster")):
        store_of_runs.write_run(config, name, steps=400 + 100 * number, attempts=2, seed=number)
    data = {HOSTILE: "x", "tokens/python-docs/63138a790a0f/bpe-4k-b8ad79181320/" * 3: "y"}
    record = new_record(config, name=HOSTILE, data=data, tokenizer_id=HOSTILE, parameters=1, hardware={})
    create_run(open_store(config.store), record)
    return config


@pytest.fixture(scope="module")
def tab():
    with browser() as tab:
        yield tab


@pytest.fixture(params=["compare", "run"])
def page(request, config, tmp_path):
    html = compare(config, ["base", "faster", HOSTILE]) if request.param == "compare" else report(config, "base").html
    (path := tmp_path / "page.html").write_text(html)
    return path.as_uri()


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_every_panel_is_drawn_without_a_complaint(tab, page, width, dark):
    tab.open(page, width=width, dark=dark)
    tab.until("document.documentElement.dataset.drawn")
    points = tab.value("[...document.querySelectorAll('figure')].map(each => Number(each.dataset.points))")
    assert len(points) > 15 and all(points) and not tab.errors
    assert tab.value("document.documentElement.scrollWidth") == width, "nothing reaches beyond the screen"
    blank = "!new Uint32Array(each.getContext('2d').getImageData(0, 0, each.width, each.height).data.buffer).some(one => one)"
    assert tab.value(f"[...document.querySelectorAll('canvas')].filter(each => {blank}).length") == 0
    assert tab.value("document.querySelectorAll('#timeline .bar i').length") >= 2
    assert tab.value("[...document.querySelectorAll('table.across tr')].every(each => each.offsetHeight < 100)")


def brightness(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("dark", "paper"), [(False, "#ffffff"), (True, "#111827")])
def test_every_word_in_a_plot_can_be_read(tab, page, dark, paper):
    tab.open(page, width=1400, dark=dark)
    tab.until("document.documentElement.dataset.drawn")
    tab.value(
        "(() => { const pen = CanvasRenderingContext2D.prototype, write = pen.fillText; window.inks = new Set();"
        "pen.fillText = function (...words) { inks.add(this.fillStyle); return write.apply(this, words); };"
        "document.getElementById('log').click(); })()"
    )
    tab.until("window.inks.size", 30)
    for ink in tab.value("[...inks]"):
        low, high = sorted((brightness(ink), brightness(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{ink} on {paper}"


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_of_a_corpus_has_its_examples_side_by_side(tab, tmp_path, width):
    words = [f"word{n}" for n in range(60)]
    texts = [f"{number} {HOSTILE} {' '.join(words)}" for number in range(8)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, "x"]))
    settings = [f"data.source.paths={tmp_path}/a.jsonl", "data.near_dedup.enabled=true", f"store.root={tmp_path}/store"]
    config = compose(
        ["data=jsonl", "data.min_chars=5", "data.validation_fraction=0", "tokenizer=bytes", *settings]
    ).config
    prepare(config, Silent())
    (path := tmp_path / "page.html").write_text(corpus_page(config))
    tab.open(path.as_uri(), width=width, dark=False)
    assert tab.value("document.querySelectorAll('.stage-bar').length") >= 3
    assert tab.value("document.querySelectorAll('.pair pre').length") >= 2 and not tab.errors
    assert tab.value("document.querySelectorAll('.pair mark').length") >= 2 and not tab.value("document.images.length")
    assert tab.value("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (390, True)])
def test_the_plots_of_a_sweep_can_be_read_on_a_phone_and_in_the_dark(tab, tmp_path, width, dark):
    (path := tmp_path / "page.html").write_text(sweep_html(make_report()))
    tab.open(path.as_uri(), width=width, dark=dark)
    shown = (
        "[...document.querySelectorAll('.plots svg')].map(each => [each.clientWidth, getComputedStyle(each).filter])"
    )
    plots = tab.value(shown)
    assert len(plots) == 7 and all(wide >= 460 and (style != "none") == dark for wide, style in plots)
    assert tab.value("document.documentElement.scrollWidth") == width and not tab.errors


def test_hover_shows_the_values_and_a_drag_zooms_all_panels(tab, config, tmp_path):
    (path := tmp_path / "page.html").write_text(compare(config, ["base", "faster"]))
    tab.open(path.as_uri())
    tab.until("document.documentElement.dataset.drawn")
    x, y, width, height = tab.value(BOX.format(1))
    tab.mouse("mouseMoved", x + width / 2, y + height / 2)
    shown = tab.value("[...document.querySelectorAll('.tip')].filter(each => !each.hidden).map(each => each.innerText)")
    assert len(shown) == 1 and "base\nstep" in shown[0] and "faster\nstep" in shown[0]
    assert tab.value("[...document.querySelectorAll('.cross')].filter(each => !each.hidden).length") > 15
    tab.drag((x + width * 0.4, y + height / 2), (x + width * 0.6, y + height / 2))
    low, high = map(float, tab.value("document.documentElement.dataset.span").split())
    assert 100 < low < high < 400
    tab.value("document.getElementById('reset').click()")
    assert float(tab.value("document.documentElement.dataset.span").split()[1]) >= 500
    for axis, end in (("tokens", 500 * store_of_runs.BATCH_TOKENS), ("hours", 0.1), ("dollars", 140)):
        chosen = f"const axis = document.getElementById('axis'); axis.value = '{axis}'"
        tab.value(f"{{ {chosen}; axis.dispatchEvent(new Event('change')); }}")
        assert float(tab.value("document.documentElement.dataset.span").split()[1]) >= end
    assert not tab.errors


@pytest.mark.parametrize("width", [1400, 390])
def test_a_long_name_leaves_room_for_what_is_beside_it(tab, tmp_path, width):
    config = store_of_runs.configuration(tmp_path)
    for name in (names := ["short", "long-" + "x" * 180]):
        store_of_runs.write_run(config, name, steps=20)
    (path := tmp_path / "page.html").write_text(compare(config, names))
    tab.open(path.as_uri(), width=width)
    states = "[...document.querySelectorAll('#runs td:nth-child(2)')].map(each => each.getBoundingClientRect().right)"
    assert len(ends := tab.value(states)) == 2 and max(ends) < width
    rows = "[...document.querySelectorAll('table.words tr')].map(each => each.getBoundingClientRect().height)"
    assert max(tab.value(rows)) < 400 and not tab.errors


@pytest.mark.parametrize("width", [1400, 390])
def test_long_names_that_differ_at_the_end_can_be_told_apart(tab, tmp_path, width):
    """The names that runs get by themselves end with a hash."""
    config = store_of_runs.configuration(tmp_path)
    for name in (names := [f"{'a-model-of-mine-' * 5}513eab0{end}" for end in "ef"]):
        store_of_runs.write_run(config, name, steps=20)
    (path := tmp_path / "page.html").write_text(compare(config, names))
    tab.open(path.as_uri(), width=width)
    tab.until("document.documentElement.dataset.drawn")
    tab.value("document.querySelectorAll('canvas')[1].scrollIntoView({block: 'center'})")
    x, y, wide, height = tab.value(BOX.format(1))
    tab.mouse("mouseMoved", x + wide / 2, y + height / 2)
    for place in ("#runs label", ".who", ".tip:not([hidden])"):
        ends = (
            f"[...document.querySelectorAll('{place} .name')].map(each => [each.lastChild.textContent,"
            " each.lastChild.getBoundingClientRect().right, each.parentElement.getBoundingClientRect().right])"
        )
        shown = tab.value(ends)
        assert sorted(text for text, _, _ in shown) == ["513eab0e", "513eab0f"], place
        assert all(right <= edge + 1 for _, right, edge in shown), place
    assert not tab.errors


def test_the_table_of_runs_fits_the_screen_and_has_no_column_of_dashes(tab, config, tmp_path):
    (path := tmp_path / "page.html").write_text(compare(config, ["base", "faster"]))
    tab.open(path.as_uri())
    heads = tab.value("[...document.querySelectorAll('#runs th')].map(each => each.innerText)")
    assert (
        heads[0] == "run"
        and {"dollars", "budget"} < set(heads)
        and not {"planned time", "planned dollars"} & set(heads)
    )
    columns = tab.value("[...document.querySelectorAll('#runs tr')].map(each => each.children.length)")
    assert set(columns) == {len(heads)}
    fits = "document.getElementById('runs').scrollWidth <= document.getElementById('runs').clientWidth"
    assert tab.value(fits)
    path.write_text(report(config, "base").html)
    tab.open(path.as_uri(), width=1200)
    assert tab.value(fits)


def test_what_is_on_the_screen_is_drawn_first_and_everything_for_a_print(tab, config, tmp_path):
    (path := tmp_path / "page.html").write_text(compare(config, ["base", "faster"]))
    tab.open(path.as_uri(), width=390)
    tab.until("document.documentElement.dataset.drawn")
    forget = "const all = [...document.querySelectorAll('figure')]; all.forEach(each => delete each.dataset.points)"
    again = f"{forget}; document.getElementById('log').click()"
    count = "all.filter(each => each.dataset.points).length / all.length"
    assert 0 < tab.value(f"{{ {again}; {count} }}") < 0.5
    assert tab.value(f"{{ {again}; dispatchEvent(new Event('beforeprint')); {count} }}") == 1
    tab.until("document.documentElement.dataset.drawn")


def test_the_dashboard_leads_from_all_runs_to_a_comparison(tab, config):
    server = open_dashboard(config, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        server.watch.refresh()
        for width in (1400, 390):
            tab.open(server.url, width=width, dark=width == 390)
            tab.until("document.documentElement.dataset.rows === '3'")
            assert tab.value("document.documentElement.scrollWidth") == width and not tab.errors
        tab.value("[...document.querySelectorAll('#runs input')].forEach(each => each.click())")
        tab.value("document.getElementById('compare').click()")
        tab.until("location.pathname === '/compare' && document.documentElement.dataset.drawn")
        tab.until("document.getElementById('live').textContent.startsWith('live')")
        assert tab.value("document.querySelectorAll('#runs tbody tr').length") == 3 and not tab.errors
    finally:
        server.shutdown()
        server.server_close()
