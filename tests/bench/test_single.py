"""`bench single`, small, on a CPU."""

import pytest

from skytrain.bench import bench_single
from skytrain.bench.single import cold_start_seconds, peer_speeds
from skytrain.config import compose
from skytrain.runs import Silent
from tests.support.tiny import ONE_LAYER


def test_the_trainer_and_a_bare_loop_are_timed_at_the_micro_batch_that_was_found():
    composed = compose([*ONE_LAYER, "trainer.micro_batch=auto"])
    bench = bench_single(composed.config, Silent(), steps=1, peer=False, given=composed.given)
    assert [speed.name for speed in bench.speeds] == ["skytrain train", "bare loop"]
    assert {speed.micro_batch for speed in bench.speeds} <= {1, 2, 4}
    assert all(speed.tokens_per_s > 0 and speed.first_step_s > 0 for speed in bench.speeds)
    assert bench.cold_start_s is None


def test_hugging_face_is_timed_with_its_own_and_with_a_padded_vocabulary():
    config = compose([*ONE_LAYER, "trainer.batch_tokens=256", "model.pad_vocab_to=128"]).config
    speeds = peer_speeds(config, steps=1, reporter=Silent())
    assert [speed.name for speed in speeds] == [
        f"Hugging Face, vocabulary of {size:,}" for size in (config.model.vocab_size, config.model.padded_vocab)
    ]
    assert all(speed.micro_batch == 32 and speed.tokens_per_s > 0 for speed in speeds)


@pytest.mark.slow
def test_a_cold_start_is_timed_from_the_start_of_a_process():
    assert cold_start_seconds(compose([*ONE_LAYER, "trainer.micro_batch=2"]).config) > 0
