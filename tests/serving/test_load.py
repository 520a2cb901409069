"""`skytrain bench serve`: levels, percentiles, dollars, and servers that refuse or die."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.bench.load import percentiles
from skytrain.cli.main import app
from skytrain.config.composition import compose
from skytrain.pipelines.bench_serve import LoadTest, bench_serve, choose_prompts, load_rows
from skytrain.runs import Silent
from skytrain.serving import Endpoint, VllmServer, check_port, find_vllm, open_served, server_settings

KEY = "secret"
Start = Callable[..., Endpoint]


@pytest.fixture
def start(folder: Path, python: Path, tmp_path: Path) -> Iterator[Start]:
    servers: list[VllmServer] = []

    def started(*arguments: str) -> Endpoint:
        config = compose([f"serve.arguments={list(arguments)}", "serve.cpu_cache_gib=1"]).config.serve
        engine, port = find_vllm(str(python)), check_port("127.0.0.1", 0)
        settings = server_settings(open_served(folder, "tiny"), engine, [], config, ("127.0.0.1", port))
        servers.append(VllmServer(settings, engine, KEY, tmp_path / f"{port}.log"))
        servers[-1].start()
        endpoint = Endpoint(f"http://127.0.0.1:{port}", KEY)
        servers[-1].wait_until_ready(endpoint, 60, lambda seconds, line: None)
        return endpoint

    yield started
    for server in servers:
        server.stop()


def test_sweep_writes_table_plot_and_json(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYTRAIN_API_KEY", KEY)
    words = [
        "--url",
        start().url,
        "--concurrency",
        "1,3",
        "--requests",
        "6",
        "--max-tokens",
        "5",
        "--usd-per-hour",
        "1.5",
    ]
    done = CliRunner().invoke(app, ["bench", "serve", *words, "--out", str(tmp_path / "load")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "load/results.json").read_text())
    assert [level["concurrency"] for level in found["levels"]] == [1, 3]
    for level in found["levels"]:
        assert (level["completed"], level["errors"], level["tokens"]) == (6, {}, 30)
        assert level["prompt_tokens"] == 6 * 128  # words of real text; the stand-in counts words
        assert level["usd_per_mtok"] == pytest.approx(1.5 / 3600 / level["tokens_per_s"] * 1e6)
        assert set(level["first_token"]) == {"50", "95", "99"}
    assert (tmp_path / "load/load.svg").read_text().startswith("<svg")
    assert "FIRST TOKEN" in done.output


def test_refused_requests_are_counted_by_kind(start: Start) -> None:
    results = bench_serve(start("--fail=every third"), LoadTest((1,), 9, 4), Silent())
    [level] = results.levels
    assert (level.completed, level.errors) == (6, {"HTTP 500": 3})
    assert "3 x HTTP 500" in load_rows(results)[1][6]


def test_server_that_dies_ends_the_sweep(start: Start) -> None:
    results = bench_serve(start("--fail=tenth dies"), LoadTest((1, 2), 12, 4), Silent())
    [level] = results.levels
    assert level.completed == 8 and sum(level.errors.values()) == 4  # one request was the warm-up
    assert results.failed == 4


def test_prompts_of_a_file_and_their_order_follow_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(20)))
    tests = [LoadTest((2,), 6, 4, prompts=path, seed=seed) for seed in (1, 1, 2)]
    first, again, other = map(choose_prompts, tests)
    assert first == again != other and len(first) == 8


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles([float(number) for number in range(100, 0, -1)]) == {50: 50.0, 95: 95.0, 99: 99.0}
    assert percentiles([]) == {}
