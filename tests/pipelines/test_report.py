"""The HTML page of a run, from what its attempts left in the store, and of a sweep."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import SkytrainError
from skytrain.pipelines.report import compare, report
from skytrain.runs import (
    Cause,
    Lines,
    MetricsWriter,
    claim_attempt,
    create_run,
    new_record,
    record_resume,
    write_outcome,
)
from skytrain.storage import open_store
from skytrain.tuning import SweepStore
from tests.support.tiny import tiny_config


@pytest.fixture
def config(tmp_path):
    """A run of two attempts: the first was interrupted at step 20, the second is done."""
    config = tiny_config(tmp_path / "store")
    store = open_store(config.store)
    create_run(
        store,
        new_record(
            config,
            name="r",
            data={f"tokens/{config.data.name}/v1/x/train": "0123456789abcdef"},
            tokenizer_id="x",
            parameters=894_000,
            hardware={"gpu": "<b>"},
        ),
    )
    for attempt, steps in enumerate((range(1, 21), range(11, 31))):
        assert claim_attempt(store, "r", mesh="single", world_size=1) == attempt
        record_resume(store, "r", attempt, steps[0] - 1)
        writer = MetricsWriter(store, "r", attempt)
        for step in steps:
            loss = 5.0 - step / 10 - attempt
            writer.write(step, {"train/loss": loss, "train/lr": 1e-3, "cost/usd": 0.01 * step, "perf/mfu": 0.5})
        for step in (steps[9], steps[-1]):
            loads = {"moe/load_max": 1.5, "moe/load_max/1": 1.5, "moe/entropy": 0.75, "moe/entropy/1": 0.75}
            writer.write(step, {**loads, "moe/dropped": 0.0, "moe/dropped/1": 0.0})
            task = {"harness_acc": 0.25 + attempt / 10, "harness_acc_stderr": 0.01, "chance": 0.25, "items": 1000.0}
            task = {f"eval/hellaswag/{name}": value for name, value in task.items()}
            writer.write(step, {"val/loss": 3.25 - attempt, **task})
        writer.lines.flush()
        spend = Lines(store, f"runs/r/attempts/{attempt}/spend/")
        count = {"usd": 0.3, "seconds": 60.0, "boot": "b", "boot_seconds": 1.0}
        spend.write({"at": "2026-01-01T00:00:00+00:00", "usd": 0.3, "machines": {"i-0123": count}})
        spend.flush()
        log = Lines(store, f"runs/r/attempts/{attempt}/logs/0-")
        log.write({"at": "2026-01-01T00:00:00+00:00", "text": f"sample: {'Once <upon> a time'!r}"})
        log.flush()
    write_outcome(store, "r", 0, "interrupted", 20, Cause("spot notice"))
    write_outcome(store, "r", 1, "done", 30, Cause("done"))
    return config


class Page(HTMLParser):
    """The words of a page, and the tags that are open at its end."""

    def __init__(self, html):
        super().__init__()
        self.words, self.open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.open += [] if tag in ("meta", "rect", "line", "circle", "polyline", "br") else [tag]

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.words += [data.strip()] if data.strip() else []


def data_of(html):
    """What the page's script draws."""
    return json.loads(re.search(r'id="data">(.*?)</script>', html)[1])


def test_the_page_of_a_run_tells_how_it_went(config):
    written = report(config, "r")
    assert open_store(config.store).read("runs/r/report.html").decode() == written.html
    page = Page(written.html)
    assert not page.open
    words = " | ".join(page.words)
    assert "done, step 30 of" in words
    assert "validation loss | 2.2500" in words and "training loss | 1.0000" in words and "spent | $0.30" in words
    assert "items | step | hellaswag | harness_acc | 0.35 ± 0.01 | 0.25 | 1,000 | 30 |" in words
    assert "spot notice" in words and "10 to 30" in words and "i-0123" in words
    assert "Once <upon> a time" in words and "gpu <b>" in words  # as text, not as HTML
    assert not re.search(r"(src|href)=|https?://(?!www.w3.org)", written.html), "it needs nothing from the network"
    assert "layer | busiest expert / mean | entropy / largest | dropped | step | 1 | 1.5 | 0.75 | 0 | 30" in words
    made = "Synthetic, tokens 20K, document_tokens 200, distribution zipf"
    source = f"source | {made} | data | tokens/{config.data.name}/v1/x/train (0123456789ab) | tokenizer | x"
    assert f"weights | new weights | {source}" in words, "from sources to weights"
    titles = [panel["title"] for panel in data_of(written.html)["panels"]]
    of_experts = ["busiest expert, worst layer", "evenness of experts, worst layer", "dropped rows, worst layer"]
    first = ["validation loss", "training loss", "hellaswag, harness_acc", "spend", "MFU", "learning rate"]
    assert titles == [*first, *of_experts]


def test_the_attempt_that_trains_now_is_running_and_has_come_this_far(config):
    store = open_store(config.store)
    attempt = claim_attempt(store, "r", mesh="single", world_size=1)
    record_resume(store, "r", attempt, 30)
    writer = MetricsWriter(store, "r", attempt)
    writer.write(33, {"train/loss": 1.0})
    writer.lines.flush()
    words = " | ".join(Page(report(config, "r").html).words)
    assert "30 to 33 | running" in words and "no word of its end" not in words


def test_a_run_without_an_attempt_has_a_page_too(tmp_path):
    config = tiny_config(tmp_path / "store")
    create_run(
        open_store(config.store), new_record(config, name="r", data={}, tokenizer_id="x", parameters=1, hardware={})
    )
    html = report(config, "r").html
    assert "not started" in html and data_of(html)["panels"] == []


def test_the_command_says_where_the_page_is_and_refuses_what_is_not_there(config, tmp_path):
    newest = CliRunner().invoke(app, ["report", f"store.root={config.store.root}"])
    assert newest.output == f"page: {open_store(config.store).root}/runs/r/report.html\n"
    run = CliRunner().invoke(app, ["report", "r", f"store.root={config.store.root}", "--out", str(tmp_path / "r.html")])
    assert run.output == f"page: {tmp_path / 'r.html'}\n" and (tmp_path / "r.html").read_text().startswith("<!DOCTYPE")
    with pytest.raises(SkytrainError, match="no run 'q'"):
        report(config, "q")


def test_a_sweep_has_a_page_as_soon_as_it_has_an_answer(config):
    store = open_store(config.store)
    SweepStore(store, "s").open({"tokenizer": "x"}, idle=True)
    with pytest.raises(SkytrainError, match="the sweep s has no answer yet"):
        report(config, "s")
    store.write("sweeps/s/report/report.html", b"<!DOCTYPE html>the answer")
    assert "the answer" in report(config, "s").html


def test_a_page_that_a_machine_wrote_is_shown_in_a_frame_that_runs_no_code(config):
    """Machines write the page of a sweep: whoever opens it must not run what one of them has put there."""
    store = open_store(config.store)
    SweepStore(store, "hostile").open({"tokenizer": "x"}, idle=True)
    attack = "<script>fetch('http://attacker/')</script><iframe srcdoc=\"<b>\"></iframe>'\"></iframe><img src=x onerror=alert(1)>"
    store.write("sweeps/hostile/report/report.html", attack.encode())
    page = _Elements(report(config, "hostile").html)
    assert "script" not in page.found and "img" not in page.found
    assert page.found["iframe"]["sandbox"] in ("", None) and page.found["iframe"]["srcdoc"] == attack
    assert "default-src 'none'" in page.found["meta"]["content"]


class _Elements(HTMLParser):
    """The elements of a page by their names, each with the attributes of the last of its kind."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str | None]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] = dict(attrs)


def test_runs_are_compared_on_one_page_with_their_minima_and_attempts(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(config.store)
    hostile = "<script>alert(1)<script>"
    create_run(store, new_record(config, name=hostile, data={"<b>": "x"}, tokenizer_id="&", parameters=1, hardware={}))
    done = CliRunner().invoke(app, ["report", "r", hostile, f"store.root={config.store.root}"])
    assert done.output == "page: compare.html\n"
    html = (tmp_path / "compare.html").read_text()
    assert "alert(1)<" not in html and "<b>" not in html.replace("<b>The plots", "")
    first, second = data_of(html)["runs"]
    assert second["name"] == hostile and not second["curves"]
    assert first["curves"]["val/loss"] == {"x": [10, 20, 30], "y": [3.25, 2.25, 2.25], "lowest": [20, 2.25]}
    assert [(each["state"], each["text"].rpartition(": ")[2]) for each in first["attempts"]] == [
        ("interrupted", "spot notice"),
        ("done", "done"),
    ]
    assert data_of(html)["axes"] == ["step", "tokens", "dollars"], "no step time was recorded, so there are no hours"


def test_a_page_has_at_most_twenty_runs(config):
    with pytest.raises(SkytrainError, match="21 runs: a page shows at most 20"):
        compare(config, [str(number) for number in range(21)])
