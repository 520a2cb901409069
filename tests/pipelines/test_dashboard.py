"""The dashboard: live, read-only, on this machine, and quiet towards a store in which nothing changes."""

import http.client
import json
import sys
import threading

import pytest

from skytrain.cli.output import _print_error
from skytrain.pipelines import dashboard
from skytrain.pipelines.dashboard import open_dashboard
from skytrain.runs import MetricsWriter, claim_attempt, create_run, new_record, write_outcome
from skytrain.storage import open_store
from skytrain.tuning import SweepStore
from tests.support.tiny import tiny_config

HOSTILE = "<script>alert(1)<script>"


def write_run(config, name, steps=3):
    store = open_store(config.store)
    create_run(store, new_record(config, name=name, data={}, tokenizer_id="x", parameters=1, hardware={}))
    add_steps(store, name, claim_attempt(store, name), range(1, steps + 1))
    write_outcome(store, name, 0, "done", steps)


def add_steps(store, name, attempt, steps):
    writer = MetricsWriter(store, name, attempt)
    for step in steps:
        writer.write(step, {"train/loss": 4.0 / step, "cost/usd": 0.5 * step})
    writer.lines.flush()


@pytest.fixture
def config(tmp_path):
    config = tiny_config(tmp_path / "store")
    write_run(config, "a")
    write_run(config, HOSTILE)
    return config


@pytest.fixture
def server(config):
    server = open_dashboard(config, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.watch.refresh()
    yield server
    server.shutdown()
    server.server_close()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_all_runs_and_their_dollars_are_shown_and_each_has_a_page(server):
    shown = json.loads(ask(server, "/api/store")[1])
    assert [run["name"] for run in shown["runs"]] == [HOSTILE, "a"] and shown["runs"][1]["cells"][0] == "done"
    for path in ("/", "/run?name=a", "/run?name=%3Cscript%3Ealert(1)%3Cscript%3E", f"/compare?run=a&run={HOSTILE}"):
        answer, html = ask(server, path)
        assert answer.status == 200 and "alert(1)<" not in html and "default-src 'none'" in html
    curves = json.loads(ask(server, "/api/curves?run=a")[1])
    assert curves["runs"][0]["curves"]["train/loss"]["lowest"] == [3, 1.33333]


def test_a_page_follows_its_run(server, config):
    answer, _ = ask(server, "/api/curves?run=a")
    etag = {"If-None-Match": answer.headers["ETag"]}
    assert ask(server, "/api/curves?run=a", **etag)[0].status == 304
    store = open_store(config.store)
    add_steps(store, "a", claim_attempt(store, "a"), range(4, 6))
    server.watch.refresh()
    answer, body = ask(server, "/api/curves?run=a", **etag)
    assert answer.status == 200 and json.loads(body)["runs"][0]["curves"]["train/loss"]["x"] == [1, 2, 3, 4, 5]


def counted(asked, name, call):
    def counting(self, key="", *more):
        asked.append((name, key))
        return call(self, key, *more)

    return counting


def test_an_unchanged_store_is_listed_and_not_read(server, monkeypatch):
    ask(server, "/compare?run=a")
    store = type(server.watch.store)
    asked = []
    for name in ("read", "list", "folders", "stat", "read_range"):
        monkeypatch.setattr(store, name, counted(asked, name, getattr(store, name)))
    server.watch.refresh()
    ask(server, "/")
    ask(server, "/api/curves?run=a")
    assert asked == [("list", "runs/"), ("list", "sweeps/")]


def test_a_damaged_run_hides_no_other_and_a_deleted_one_goes(server, config):
    store = open_store(config.store)
    store.write("runs/a/run.json", b"{")
    store.delete_all(f"runs/{HOSTILE}")
    write_run(config, "b")
    server.watch.refresh()
    shown = json.loads(ask(server, "/api/store")[1])["runs"]
    assert [(run["name"], run["cells"][0]) for run in shown] == [("a", "damaged"), ("b", "done")]
    assert ask(server, "/run?name=a")[0].status == 404


def test_the_page_of_a_sweep_comes_from_the_store_so_it_runs_no_code(server, config):
    store = open_store(config.store)
    SweepStore(store, "s").open({"tokenizer": "x"}, idle=True)
    server.watch.refresh()
    assert json.loads(ask(server, "/api/store")[1])["sweeps"][0]["name"] == "s"
    assert ask(server, "/sweep?name=s")[0].status == 404
    store.write("sweeps/s/report/report.html", b"<script>alert(1)</script>")
    answer, _ = ask(server, "/sweep?name=s")
    assert answer.status == 200 and answer.headers["Content-Security-Policy"].endswith("sandbox")


def test_an_error_that_nobody_expected_is_shown_and_does_not_command_the_terminal(server, monkeypatch, capfd):
    monkeypatch.setattr(sys, "excepthook", _print_error)  # as the command line sets it

    def fail(*_: object) -> None:
        raise RuntimeError("\x1b]0;owned\x07")

    monkeypatch.setitem(dashboard.PAGES, "/", fail)
    with pytest.raises(OSError):
        ask(server, "/")
    said = capfd.readouterr().err
    assert "RuntimeError: \\x1b]0;owned" in said and "\x1b" not in said


def test_nothing_can_be_written_and_no_other_site_can_read(server):
    assert ask(server, "/", "POST")[0].status == 501 and ask(server, "/", "DELETE")[0].status == 501
    assert ask(server, "/api/store", Host="evil.example")[0].status == 403, "a name that was rebound to this machine"
    for path in ("/run?name=../../etc/passwd", "/sweep?name=..", "/run", "/compare", "/etc/passwd", "/run?name=%00"):
        assert ask(server, path)[0].status == 404
