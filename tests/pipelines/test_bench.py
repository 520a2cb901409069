"""`bench single`, small, on a CPU."""

import pytest

from skytrain.config.compose import compose
from skytrain.pipelines.bench import bench_single, cold_start_seconds
from skytrain.runs import Silent

TINY = [
    "model=gpt2-tiny",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.max_length=16",
    "tokenizer=bytes",
]
TINY += ["trainer.sequence_length=8", "trainer.batch_tokens=32", "trainer.device=cpu", "lr_schedule.warmup_steps=0"]


def test_the_trainer_and_a_bare_loop_are_timed_at_the_micro_batch_that_was_found():
    composed = compose([*TINY, "trainer.micro_batch=auto"])
    bench = bench_single(composed.config, Silent(), steps=1, peer=False, given=composed.given)
    assert [speed.name for speed in bench.speeds] == ["skytrain train", "bare loop"]
    assert {speed.micro_batch for speed in bench.speeds} <= {1, 2, 4}
    assert all(speed.tokens_per_s > 0 and speed.first_step_s > 0 for speed in bench.speeds)
    assert bench.cold_start_s is None


@pytest.mark.slow
def test_a_cold_start_is_timed_from_the_start_of_a_process():
    assert cold_start_seconds(compose([*TINY, "trainer.micro_batch=2"]).config) > 0.5
