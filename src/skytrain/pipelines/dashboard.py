"""Dashboard: all runs and sweeps of a store as live pages on this machine. It only reads.

A thread lists the store every few seconds. What the listing shows unchanged is not read again, and pages are answered
from memory, so that a store of a thousand runs costs a few listings a minute however many people look.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from ..config import Config, SkytrainError, error_text
from ..report import RunCurves, compare_html, dashboard_data, dashboard_html, page_data, run_html
from ..runs import MetricsReader, RunStatus, load_run
from ..storage import NotFound, Stat, Store, open_store, read_whole
from ..targets import AccountState, account_state, find_status, status_of
from ..tuning import SweepStatus, damaged_sweep, find_sweep_status
from .curves import check_count, run_curves
from .report import run_page
from .status import account_session

PORT = 7007
ADDRESS = "127.0.0.1"  # only this machine: there are no passwords
REFRESH_SECONDS = 10.0
MACHINES_SECONDS = 60.0  # between questions to AWS about machines; cloud.project names the account to ask
THREADS = 8
SILENT_SECONDS = 60.0  # after which a run that wrote nothing is stale; `runs` decides it when it reads one
KEPT_RUNS = 40  # curves in memory
T = TypeVar("T")


class StoreWatch:
    """What is known of a store: the status of each run and sweep, by what the last listing showed of it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = open_store(config.store)
        self._lock = threading.Lock()
        self._marks: dict[str, str] = {}  # run -> hash of its listing
        self._runs: dict[str, RunStatus] = {}
        self._sweep_marks: dict[str, str] = {}
        self._sweeps: dict[str, SweepStatus] = {}
        self._account: AccountState | None = None
        self._asked_account: float | None = None  # by the monotonic clock
        self._account_problem = ""
        self._loading: tuple[int, int] | None = (0, 0)
        self._problem = ""
        self._readers: OrderedDict[str, MetricsReader] = OrderedDict()
        self._curves: OrderedDict[str, tuple[str, RunCurves]] = OrderedDict()

    @property
    def store(self) -> Store:
        return self._store

    def refresh(self) -> None:
        """List the store, and read what has changed."""
        try:
            listed = listings(self._store.list("runs/"), "runs/")
            names = [name for name, stats in listed.items() if _is_run(stats)]
            marks = {name: listing_hash(listed[name]) for name in names}
            with self._lock:
                changed = [name for name in names if self._marks.get(name) != marks[name]]
                self._runs = {name: status for name, status in self._runs.items() if name in marks}
                self._loading = (0, len(changed)) if len(changed) > THREADS else None
            self._read_all(changed, marks)
            self._age()
            self._refresh_sweeps()
            self._refresh_machines()
            problem = self._account_problem
        except Exception as error:  # whatever it is, the next refresh may succeed
            problem = error_text(error).partition("\n")[0]
        with self._lock:
            self._loading = None
            self._problem = problem

    def _read_all(self, names: Sequence[str], marks: Mapping[str, str]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for done, (name, status) in enumerate(pool.map(lambda each: (each, self._status(each)), names), 1):
                with self._lock:
                    self._runs[name] = status
                    self._marks[name] = marks[name]
                    self._loading = (done, len(names)) if self._loading else None

    def _status(self, name: str) -> RunStatus:
        try:
            return find_status(self._store, name)
        except SkytrainError as error:
            return RunStatus(name, "damaged", str(error))

    def _age(self) -> None:
        """Mark as stale what has been silent since it was read: silence changes no listing."""
        now = datetime.now(UTC)
        with self._lock:
            for name, status in self._runs.items():
                if status.state == "running" and status.since is not None:
                    silent = (now - datetime.fromisoformat(status.since)).total_seconds()
                    if silent > SILENT_SECONDS:
                        self._runs[name] = replace(status, state="stale", eta_seconds=None)
                elif status.state == "starting":
                    self._marks.pop(name, None)  # it has no heartbeat yet; the next refresh reads it again

    def _refresh_sweeps(self) -> None:
        listed = listings(self._store.list("sweeps/"), "sweeps/")
        found = {}
        marks = {}
        for name, stats in listed.items():
            marks[name] = listing_hash(stats)
            known = self._sweeps.get(name)
            if known is None or self._sweep_marks.get(name) != marks[name] or known.state == "tuning":
                known = self._sweep_status(name)
            if known is not None:
                found[name] = known
        with self._lock:
            self._sweeps = found
            self._sweep_marks = marks

    def _sweep_status(self, name: str) -> SweepStatus | None:
        """Return the status of one of several sweeps: one that is damaged must not hide the others."""
        try:
            return find_sweep_status(self._config, name)
        except SkytrainError:
            return damaged_sweep(name, [])

    def _refresh_machines(self) -> None:
        """Ask AWS for the machines of the account that the settings name; if it does not answer, say so."""
        now = time.monotonic()
        if self._asked_account is not None and now - self._asked_account < MACHINES_SECONDS:
            return
        self._asked_account = now
        account = None
        problem = ""
        try:
            session = account_session(self._config)
            if session is not None:
                account = account_state(self._config, session, list(self._runs))
        except SkytrainError as error:
            problem = f"machines unknown: {error_text(error).partition(chr(10))[0]}"
        with self._lock:
            self._account = account
            self._account_problem = problem

    def data(self) -> dict[str, Any]:
        """Return what the overview shows now."""
        with self._lock:
            runs = sorted(self._runs.values(), key=lambda each: each.run)
            sweeps = sorted(self._sweeps.values(), key=lambda each: each.sweep)
            return dashboard_data(self._store.root, runs, sweeps, self._account, self._loading, self._problem)

    def mark(self, name: str) -> str:
        with self._lock:
            return self._marks.get(name, "")

    def curves(self, name: str) -> RunCurves:
        """Return the curves of a run: from memory while its listing is the same, else only its changed parts are read."""
        mark = self.mark(name)
        with self._lock:
            known = self._curves.get(name)
            reader = self._readers.setdefault(name, MetricsReader(self._store, name))
        if known is not None and mark and known[0] == mark:
            return known[1]
        record = load_run(self._store, name)
        curves = run_curves(self._store, record, status_of(self._store, record), reader.read())
        with self._lock:
            _keep(self._curves, name, (mark, curves))
            _keep(self._readers, name, reader)
        return curves


def _keep(kept: OrderedDict[str, T], name: str, value: T) -> None:
    kept[name] = value
    kept.move_to_end(name)
    while len(kept) > KEPT_RUNS:
        kept.popitem(last=False)


def listings(stats: Iterable[Stat], prefix: str) -> dict[str, list[Stat]]:
    """Return the objects of each folder below the prefix."""
    found: dict[str, list[Stat]] = {}
    for stat in stats:
        name, slash, _ = stat.key.removeprefix(prefix).partition("/")
        if slash:
            found.setdefault(name, []).append(stat)
    return found


def listing_hash(stats: Iterable[Stat]) -> str:
    """Return a hash that changes whenever an object is added, changed or deleted; a report of the run does not count."""
    text = "\n".join(f"{stat.key} {stat.size} {stat.etag}" for stat in stats if not stat.key.endswith("/report.html"))
    return hashlib.sha256(text.encode()).hexdigest()


def _is_run(stats: Sequence[Stat]) -> bool:
    """Return whether a folder is a run, or the launch of one that has not begun to train."""
    places = [stat.key.split("/")[2:] for stat in stats]
    return ["run.json"] in places or any(len(place) == 2 and place[0] == "launches" for place in places)


class DashboardServer(ThreadingHTTPServer):
    """The pages. They answer requests that name this machine, so that no page of the web can read them."""

    daemon_threads = True

    def __init__(self, config: Config, watch: StoreWatch, port: int) -> None:
        super().__init__((ADDRESS, port), DashboardHandler)
        self.config = config
        self.watch = watch

    def handle_error(self, request: object, client_address: object) -> None:
        """Show an error that nobody expected as the command line does: its text may be a store's."""
        sys.excepthook(*sys.exc_info())

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        return {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}


class DashboardHandler(BaseHTTPRequestHandler):
    """Answers GET, and nothing else."""

    server: DashboardServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.hosts:
            return self._answer(403, b"the dashboard answers on this machine only\n", "text/plain")
        address = urlsplit(self.path)
        page = PAGES.get(address.path)
        if page is None:
            return self._answer(404, b"there is no such page\n", "text/plain")
        try:
            page(self, parse_qs(address.query))
        except SkytrainError as error:
            self._answer(404, f"{error}\n".encode(), "text/plain; charset=utf-8")
        except BrokenPipeError:
            self.close_connection = True

    def show_store(self, query: Mapping[str, Sequence[str]]) -> None:
        self._html(dashboard_html(self.server.watch.data()))

    def show_run(self, query: Mapping[str, Sequence[str]]) -> None:
        name = _name(query)
        source = f"/api/curves?run={quote(name, safe='')}"
        page = run_page(self.server.config, self.server.watch.store, name)
        self._html(run_html(page, f' data-source="{source}"'))

    def show_comparison(self, query: Mapping[str, Sequence[str]]) -> None:
        names = check_count(query.get("run", []))
        source = "/api/curves?" + "&amp;".join(f"run={quote(name, safe='')}" for name in names)
        self._html(compare_html([self.server.watch.curves(name) for name in names], f' data-source="{source}"'))

    def show_sweep(self, query: Mapping[str, Sequence[str]]) -> None:
        """Show the page that the sweep has written. Whoever can write to the store decides it, so it runs no code."""
        name = _name(query)
        store = self.server.watch.store
        try:
            body = read_whole(store, f"sweeps/{name}/report/report.html")
        except NotFound:
            raise SkytrainError(f"the sweep {name} has no page yet: it is written with the answer") from None
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
        self._answer(200, body, "text/html; charset=utf-8", {"Content-Security-Policy": policy})

    def send_store(self, query: Mapping[str, Sequence[str]]) -> None:
        self._json(self.server.watch.data())

    def send_curves(self, query: Mapping[str, Sequence[str]]) -> None:
        names = check_count(query.get("run", []))
        self._json(page_data([self.server.watch.curves(name) for name in names]))

    def send_nothing(self, query: Mapping[str, Sequence[str]]) -> None:
        self._answer(204, b"", "image/x-icon")

    def _html(self, text: str) -> None:
        self._answer(200, text.encode(), "text/html; charset=utf-8")

    def _json(self, data: Mapping[str, Any]) -> None:
        body = json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == etag:
            return self._answer(304, b"", "application/json", {"ETag": etag})
        self._answer(200, body, "application/json", {"ETag": etag})

    def _answer(self, code: int, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
        self.send_response(code)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in {**headers, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page asks every few seconds."""


PAGES: dict[str, Callable[[DashboardHandler, Mapping[str, Sequence[str]]], None]] = {
    "/": DashboardHandler.show_store,
    "/run": DashboardHandler.show_run,
    "/compare": DashboardHandler.show_comparison,
    "/sweep": DashboardHandler.show_sweep,
    "/api/store": DashboardHandler.send_store,
    "/api/curves": DashboardHandler.send_curves,
    "/favicon.ico": DashboardHandler.send_nothing,
}


def _name(query: Mapping[str, Sequence[str]]) -> str:
    names = query.get("name", [])
    if len(names) != 1:
        raise SkytrainError("the address needs one name")
    return names[0]


def open_dashboard(config: Config, port: int | None) -> DashboardServer:
    """Return a server that listens; `serve_dashboard` answers."""
    watch = StoreWatch(config)
    for wanted in [port] if port is not None else [PORT, 0]:
        try:
            return DashboardServer(config, watch, wanted)
        except OSError as error:
            if port is not None:
                raise SkytrainError(
                    f"--port {port}: {error.strerror}\n  give another one, or none: a free one is chosen then"
                ) from None
    raise SkytrainError(f"no port is free on {ADDRESS}")


def serve_dashboard(server: DashboardServer) -> None:
    """Answer until the process is interrupted, and keep what is shown up to date."""
    over = threading.Event()

    def refresh() -> None:
        while not over.is_set():
            server.watch.refresh()
            over.wait(REFRESH_SECONDS)

    threading.Thread(target=refresh, daemon=True).start()
    try:
        server.serve_forever()
    finally:
        over.set()
        server.server_close()
