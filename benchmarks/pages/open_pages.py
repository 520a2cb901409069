"""How long pages of large runs take to open in Chromium, and the dashboard of a large store to answer.

    python benchmarks/pages/open_pages.py FOLDER

Writes made-up runs to FOLDER: one of 100,000 steps with 20 metrics a step, 20 of 20,000 steps, and a store of 1,000 runs.
Opening counts from the navigation, by the browser's own clock: until what fits on the screen is drawn and the page
answers, and until every panel is drawn. Requests to the store are counted where the store is called.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # for tests.support

from store_of_runs import configuration, write_run  # noqa: E402
from tests.support.chromium import Browser, browser  # noqa: E402

from skytrain.pipelines.dashboard import DashboardServer, StoreWatch, open_dashboard  # noqa: E402
from skytrain.pipelines.report import compare, report  # noqa: E402
from skytrain.storage import Store  # noqa: E402

TIMES = 5


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(f"load of this machine: {Path('/proc/loadavg').read_text().split()[0]}")
    pages = {"one run, 100,000 steps x 20 metrics": _one(folder), "20 runs, 20,000 steps x 20 metrics": _twenty(folder)}
    with browser() as tab:
        for title, (path, seconds) in pages.items():
            print(f"{title}: written in {seconds:.1f} s, {path.stat().st_size / 1e6:.1f} MB")
            for width in (1400, 390):
                print(f"  opened at {width} pixels: {_opened(tab, path.as_uri(), width)}")
        _dashboard(folder, tab)


def _one(folder: Path) -> tuple[Path, float]:
    config = configuration(folder / "long")
    write_run(config, "long", steps=100_000)
    began = time.monotonic()
    (path := folder / "long.html").write_text(report(config, "long").html)
    return path, time.monotonic() - began


def _twenty(folder: Path) -> tuple[Path, float]:
    config = configuration(folder / "twenty")
    names = [f"run-{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        write_run(config, name, steps=20_000, every=5, seed=number)
    began = time.monotonic()
    (path := folder / "twenty.html").write_text(compare(config, names))
    return path, time.monotonic() - began


def _opened(tab: Browser, url: str, width: int) -> str:
    screen: list[float] = []
    everything: list[float] = []
    for _ in range(TIMES):
        tab.open(url, width=width)
        tab.until("document.documentElement.dataset.drawn")
        assert not tab.errors, tab.errors
        points = tab.value("[...document.querySelectorAll('figure')].map(each => Number(each.dataset.points))")
        assert points and all(points), "a panel is empty"
        screen.append(tab.value("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3)
        everything.append(tab.value("performance.getEntriesByName('drawn')[0].startTime") / 1e3)
    return f"first screen {_spread(screen)}; every panel {_spread(everything)}"


def _spread(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s of {TIMES}"


class CountedStore:
    """A store whose calls are counted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if name not in ("url", "local_path"):
                self.calls[name] += 1
            return found(*arguments, **options)

        return call


@contextmanager
def _serving(server: DashboardServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _dashboard(folder: Path, tab: Browser) -> None:
    config = configuration(folder / "thousand")
    for number in range(1000):
        write_run(config, f"run-{number:04d}", steps=100, attempts=1, every=10, seed=number)
    server = open_dashboard(config, 0)
    watch: StoreWatch = server.watch
    counted = CountedStore(watch.store)
    watch._store = counted  # type: ignore[assignment]
    with _serving(server):
        for title in ("first refresh", "second refresh, nothing changed"):
            counted.calls.clear()
            began = time.monotonic()
            watch.refresh()
            print(f"dashboard, 1,000 runs: {title} {time.monotonic() - began:.1f} s, calls {dict(counted.calls)}")
        for path in ("", "api/store", "run?name=run-0500", "compare?run=run-0001&run=run-0002"):
            seconds = []
            for _ in range(TIMES):
                began = time.monotonic()
                with urlopen(Request(server.url + path)) as answer:
                    size = len(answer.read())
                seconds.append(time.monotonic() - began)
            print(
                f"  /{path}: {size / 1e3:.0f} kB, median {statistics.median(seconds):.3f} s, slowest {max(seconds):.3f} s"
            )
        tab.open(server.url)
        tab.until("document.documentElement.dataset.rows === '1000'")
        assert not tab.errors, tab.errors
        loaded = tab.value("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3
        print(f"  opened in Chromium with {json.dumps(1000)} rows: {loaded:.2f} s")


if __name__ == "__main__":
    main()
