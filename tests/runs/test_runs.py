import pytest

from skytrain.config import SkytrainError, compose
from skytrain.runs import (
    MetricsWriter,
    Start,
    check_run_name,
    claim_attempt,
    config_changes,
    list_runs,
    load_run,
    new_record,
    other_changes,
    plain,
    read_metrics,
    record_resume,
    run_name,
    save_run,
)
from skytrain.storage import open_store


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def record(name: str, **overrides):
    config = compose([f"{key}={value}" for key, value in overrides.items()]).config
    return new_record(config, name=name, data={}, tokenizer_id="gpt2", parameters=1, hardware={"device": "cpu"})


def test_a_run_is_saved_and_found_by_name(store):
    save_run(store, record("one"))
    assert [load_run(store, "one")] == list_runs(store)
    assert load_run(store, "one").config["optimizer"]["lr"] == 6e-4


def test_the_run_that_started_last_is_listed_first(store):
    import dataclasses

    save_run(store, dataclasses.replace(record("b"), started_at="2026-01-01T00:00:00+00:00"))
    save_run(store, dataclasses.replace(record("a"), started_at="2026-01-02T00:00:00+00:00"))
    assert [each.name for each in list_runs(store)] == ["a", "b"]


def test_a_wrong_name_is_answered_with_the_nearest(store):
    save_run(store, record("gpt2-tiny-python-docs"))
    with pytest.raises(SkytrainError, match="did you mean gpt2-tiny-python-docs"):
        load_run(store, "gpt2-tiny-python-doc")


def test_an_empty_store_says_how_to_begin(store):
    with pytest.raises(SkytrainError, match="skytrain quickstart"):
        list_runs(store)


def test_the_made_name_changes_with_what_decides_the_result_and_only_that():
    base = run_name(compose().config)
    assert run_name(compose(["optimizer.lr=1e-3"]).config) != base
    assert run_name(compose(["seed=1"]).config) != base
    assert run_name(compose(["trainer.log_every=7", "trainer.stop_at_step=5", "store.root=elsewhere"]).config) == base


@pytest.mark.parametrize(
    "override", ["trainer.on_anomaly=skip", "trainer.spike_zscore=6", "trainer.kernels.residual=fp32"]
)
def test_a_setting_that_changes_updates_starts_another_run(override):
    assert run_name(compose([override]).config) != run_name(compose().config)


def test_the_number_of_processes_that_prepared_the_data_does_not_rename_a_run():
    assert run_name(compose(["data.workers=3"]).config) == run_name(compose().config)


def test_a_name_that_is_no_folder_is_refused():
    with pytest.raises(SkytrainError, match=r"folder's name\n  try run=a-b"):
        run_name(compose(["run=a/b"]).config)
    with pytest.raises(SkytrainError, match=r"folder's name\n  try run=other"):
        run_name(compose(["run=../other"]).config)
    for name in ("a\tb", "x" * 201, "é" * 101):
        with pytest.raises(SkytrainError, match="run: "):
            check_run_name(name)


def test_changes_are_listed_by_key():
    before, after = plain(compose().config), plain(compose(["optimizer=lion", "seed=3", "trainer.log_every=9"]).config)
    lines = config_changes(before, after)
    assert "seed: 1337 -> 3" in lines
    assert "optimizer.name: 'adamw' -> 'lion'" in lines
    assert not [line for line in lines if "log_every" in line]


def test_metrics_of_a_later_attempt_replace_those_it_repeats(store):
    first = MetricsWriter(store, "r", 0)
    for step in (1, 2, 3):
        first.write(step, {"train/loss": float(step)})
    first.lines.flush()
    second = MetricsWriter(store, "r", 1)
    for step in (3, 4):
        second.write(step, {"train/loss": 10.0 * step})
    second.lines.flush()
    assert [(r["step"], r["train/loss"]) for r in read_metrics(store, "r")] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
        (4, 40.0),
    ]


def test_what_an_attempt_measured_beyond_the_start_of_the_next_one_is_left_out(store):
    """Also where the later one has not come that far yet, or measured something else at that step."""
    for attempt, (resumed, steps) in enumerate([(0, (1, 2, 3)), (2, ())]):
        assert claim_attempt(store, "r") == attempt
        record_resume(store, "r", attempt, resumed)
        writer = MetricsWriter(store, "r", attempt)
        for step in steps:
            writer.write(step, {"train/loss": 0.5})
        writer.lines.flush()
    assert [record["step"] for record in read_metrics(store, "r")] == [1, 2]


def test_the_tenth_attempt_comes_after_the_second(store):
    for attempt in (2, 10):
        writer = MetricsWriter(store, "r", attempt)
        writer.write(1, {"train/loss": float(attempt)})
        writer.lines.flush()
    assert [record["train/loss"] for record in read_metrics(store, "r")] == [10.0]


def test_the_name_changes_with_what_a_run_starts_from():
    config = compose().config
    names = {run_name(config, start) for start in (Start(), Start("seed.bin"), Start("seed.bin", at_step=5))}
    assert len(names) == 3
    assert run_name(config, Start()) == run_name(config)


def test_how_to_start_needs_something_to_start_from():
    with pytest.raises(SkytrainError, match="--from is not given"):
        Start(at_step=3)


def test_settings_that_decide_no_number_are_reported_apart():
    before = plain(compose().config)
    after = plain(compose(["seed=3", "trainer.log_every=9", "trainer.micro_batch=4"]).config)
    assert other_changes(before, after) == ["trainer.log_every: 1 -> 9", "trainer.micro_batch: 8 -> 4"]
    del before["trainer"]["log_every"]  # a run of a version that had no such setting
    assert other_changes(before, after) == ["trainer.micro_batch: 8 -> 4"]
