"""`skytrain bench serve`: levels, percentiles, dollars, and servers that refuse or die."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from skytrain.bench import LoadLevel, LoadSettings, run_load
from skytrain.bench.load import percentiles
from skytrain.cli.main import app
from skytrain.pipelines.bench_serve import LoadTest, bench_serve, choose_prompts, load_rows
from skytrain.report import load_svg
from skytrain.runs import Silent
from skytrain.serving import Endpoint
from tests.serving.conftest import KEY, Start


def test_sweep_writes_table_plot_and_json(
    endpoints: tuple[Endpoint, Endpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYTRAIN_API_KEY", KEY)
    words = [
        "--url",
        endpoints[0].url,
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


def test_refused_requests_are_counted_by_kind_and_a_server_that_dies_ends_the_sweep(start: Start) -> None:
    endpoint = start("--fail=third, then dies")
    results = bench_serve(endpoint, LoadTest((1,), 9, 4), Silent())
    [level] = results.levels
    assert (level.completed, level.errors) == (6, {"HTTP 500": 3})
    assert "3 x HTTP 500" in load_rows(results)[1][6]
    results = bench_serve(endpoint, LoadTest((1, 2), 12, 4), Silent())
    [level] = results.levels
    assert level.completed == 8 and sum(level.errors.values()) == 4  # ten requests before, and one warm-up
    assert results.failed == 4


def test_what_the_server_refuses_is_told_with_its_words(endpoints: tuple[Endpoint, Endpoint]) -> None:
    class Notes(Silent):
        said: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.said.append(text)

    [level, _] = bench_serve(endpoints[0], LoadTest((1, 2), 3, 500), Notes()).levels
    assert level.errors == {"HTTP 400": 3}
    assert Notes.said == ["HTTP 400: beyond the maximum context length"]


def test_server_that_accepts_requests_and_never_answers_ends_the_sweep_after_the_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_seconds=0.05)
        settings = LoadSettings("tiny", [2, 4], 100, 4)
        [level] = run_load(endpoint, settings, ["a"] * 104, Silent())
    assert (level.concurrency, level.completed, level.errors) == (2, 0, {"timed out": 2})


def test_prompts_of_a_file_and_their_order_follow_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {number}"}) + "\n" for number in range(20)))
    tests = [LoadTest((2,), 6, 4, prompts=path, seed=seed) for seed in (1, 1, 2)]
    first, again, other = map(choose_prompts, tests)
    assert first == again != other and len(first) == 8


def test_level_without_tokens_is_left_out_of_the_plot() -> None:
    """A logarithmic axis has no zero."""
    times = dict.fromkeys((50, 95, 99), 0.5)
    assert "<svg" in load_svg(
        "empty",
        [
            LoadLevel(
                concurrency=1,
                seconds=1.0,
                completed=4,
                errors={},
                tokens=0,
                prompt_tokens=12,
                first_token=times,
                between_tokens={},
                total=times,
            )
        ],
    )


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles([float(number) for number in range(100, 0, -1)]) == {50: 50.0, 95: 95.0, 99: 99.0}
    assert percentiles([]) == {}
