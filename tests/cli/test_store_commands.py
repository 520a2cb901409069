"""`store copy`, `logs` and `costs` as people and programs see them, on folders."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import SkytrainError
from skytrain.runs import Lines, attempt_key, claim_attempt, create_run, log_record, new_record
from skytrain.storage import Store, open_store
from skytrain.targets.leftovers import old_logs
from tests.support.tiny import tiny_config


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of two attempts, each with a log; the first ended long ago."""
    root = tmp_path_factory.mktemp("commands") / "store"
    store, config = open_store(str(root)), tiny_config(root)
    create_run(store, new_record(config, name="r", data={}, tokenizer_id="x", parameters=1, hardware={}))
    for attempt, ended in enumerate([timedelta(days=31), timedelta(days=1)]):
        claim_attempt(store, "r")
        for rank in (0, 1):
            lines = Lines(store, f"{attempt_key('r', attempt)}/logs/{rank}-")
            lines.write(log_record(f"rank {rank} of attempt {attempt}\nsecond line"))
            lines.flush()
        outcome = {"outcome": "done", "step": 1, "ended_at": (datetime.now(UTC) - ended).isoformat()}
        store.write(f"{attempt_key('r', attempt)}/outcome.json", json.dumps(outcome).encode())
    return root


@pytest.fixture
def store(root: Path) -> Store:
    return open_store(str(root))


def skytrain(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_logs_prints_the_newest_attempt_of_rank_0_or_what_is_chosen(root: Path) -> None:
    assert "  rank 0 of attempt 1\n" in skytrain("logs", "r", f"store.root={root}")
    chosen = skytrain("logs", "r", f"store.root={root}", "--attempt", "0", "--rank", "all", "--json")
    assert [json.loads(line)["rank"] for line in chosen.splitlines()] == [0, 1]
    with pytest.raises(SkytrainError, match="--rank x: give a number or all"):
        skytrain("logs", "r", f"store.root={root}", "--rank", "x")


def test_store_copy_shows_first_and_copies_then(root: Path, tmp_path: Path, store: Store) -> None:
    target = tmp_path / "copy"
    planned = skytrain("store", "copy", str(root), str(target), "--dry-run")
    assert "runs/r/run.json\n" in planned and "would copy 9 of 9 objects" in planned and not target.exists()
    assert "copied 9 of 9 objects" in skytrain("store", "copy", str(root), str(target))
    again = json.loads(skytrain("store", "copy", str(root), str(target), "--json"))
    assert again["kept"] == 9 and again["copied"] == again["bytes"] == 0
    copied = open_store(str(target))
    assert {stat.key: copied.read(stat.key) for stat in copied.list()} == {
        stat.key: store.read(stat.key) for stat in store.list()
    }


def test_costs_of_a_run_without_a_price_says_what_to_set(root: Path) -> None:
    assert "set budget.usd_per_hour" in skytrain("costs", "r", f"store.root={root}")


def test_old_logs_are_those_of_former_attempts_that_ended_long_ago(root: Path) -> None:
    config = tiny_config(root)
    assert [(logs.run, logs.attempt) for logs in old_logs(config, {"r": False})] == [("r", 0)]
    assert list(old_logs(config, {"r": True})) == []
