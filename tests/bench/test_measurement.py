"""Measuring a step here, and the planner's use of it."""

import pytest

from skytrain.bench import measure
from skytrain.config import compose
from skytrain.planning import load_measurements
from skytrain.runs import Silent
from tests.support.tiny import TINY


def test_twenty_steps_are_measured_and_kept_for_later_plans(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path))
    config = compose([*TINY, "trainer.steps=3"]).config
    timed = measure(config, Silent())
    found = timed.measurement
    assert len(timed.seconds) == 20
    assert load_measurements(tmp_path) == [found]
    assert found.device == "cpu" and found.step_seconds > 0
    assert found.tokens_per_s == pytest.approx(config.trainer.batch_tokens / found.step_seconds)
