"""A rank that is slower than the others shows, though all of them take each step together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.parallel.processes import run_ranks
from torch import nn

from skytrain.jobs import Ranks
from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from skytrain.training.straggler import PATIENCE, BlockTimer, RankTime, Straggler, Stragglers, find_straggler
from tests.support.tiny import tiny_config


def test_the_slowest_rank_is_compared_with_the_median():
    found = find_straggler([RankTime(0, 10, 4), RankTime(0, 10, 4), RankTime(0, 16, 4), RankTime(0, 10, 4)])
    assert found is not None
    assert found.rank == 2
    assert found.ratio == pytest.approx(1.6)


def test_of_two_ranks_the_faster_is_the_measure():
    found = find_straggler([RankTime(0, 20, 4), RankTime(0, 10, 4)])
    assert found is not None
    assert (found.rank, found.ratio) == (0, 2.0)


def test_waiting_for_data_counts_as_slowness():
    found = find_straggler([RankTime(0, 10, 4), RankTime(60, 10, 4)])
    assert found is not None
    assert (found.rank, found.ratio) == (1, 3.0)


def test_a_pipeline_rank_with_more_blocks_is_not_slower_for_it():
    found = find_straggler([RankTime(0, 10, 2), RankTime(0, 15, 3)])
    assert found is not None
    assert found.ratio == pytest.approx(1.0)


def test_nothing_is_said_where_nothing_was_timed():
    assert find_straggler([RankTime(0, 0, 0), RankTime(0, 0, 0)]) is None


def test_blocks_are_timed_only_when_asked():
    block = nn.Linear(2, 2)
    timer = BlockTimer([block], torch.device("cpu"))
    block(torch.ones(1, 2))
    assert timer.take() == (0, 0)
    timer.on = True
    block(torch.ones(1, 2))
    block(torch.ones(1, 2))
    milliseconds, blocks = timer.take()
    assert blocks == 2
    assert milliseconds > 0


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_a_rank_that_stays_slow_is_warned_of_once_and_only_where_it_matters():
    notes = Notes()
    watch = Stragglers(Ranks(0, 2, 0, 2), 1, None, notes, None, timed=True)  # type: ignore[arg-type]
    watch._hosts = ["a", "b"]
    for step in range(PATIENCE + 3):
        watch._warn_if_slow(Straggler(1, 40, 20), step, step_ms=50)
    assert len(notes.lines) == 1
    assert "rank 1 (b) holds up the others" in notes.lines[0]
    assert "2.0 times" in notes.lines[0]
    for step in range(PATIENCE):
        watch._warn_if_slow(Straggler(1, 4, 2), step, step_ms=5000)  # twice as slow in what hardly counts
    assert len(notes.lines) == 1


def slow_second_rank(root: Path) -> list[dict[str, float]]:
    """Trains on two ranks; one of them does the work of its MLPs two hundred times."""
    from skytrain.models import decoder
    from skytrain.pipelines.train import train

    if not Ranks.from_environment().first:
        forward = decoder.MLP.forward

        def again(self: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                for _ in range(200):
                    forward(self, *args, **kwargs)
            return forward(self, *args, **kwargs)

        decoder.MLP.forward = again  # type: ignore[method-assign]
    train(tiny_config(root, "run=slow", "parallel=fsdp", "trainer.steps=6", "trainer.micro_batch=2"), Silent())
    return [record for record in read_metrics(open_store(str(root)), "slow") if "perf/slowest_rank" in record]


@pytest.mark.slow
def test_a_slow_rank_shows_in_the_metrics_of_a_run(tmp_path):
    prepare(tiny_config(tmp_path), Silent())
    records = run_ranks(2, slow_second_rank, tmp_path)[0]
    assert len(records) == 6
    later = [record for record in records[1:] if record["perf/slowest_rank"] == 1]
    assert len(later) >= 3  # of five: on a busy machine another rank may have to wait for its core
    assert max(record["perf/straggler_ratio"] for record in later) > 1.5
