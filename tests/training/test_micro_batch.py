"""The micro-batch that is found by measurement, and the message when one does not fit."""

import pytest
import torch

from skytrain.config import ConfigError, SkytrainError, compose
from skytrain.training import explaining_memory, make_module, make_trainer, outline, plan_training, with_micro_batch
from skytrain.training.micro_batch import MicroBatchTrial, fastest, find_micro_batch
from tests.support.tiny import ONE_LAYER

SIZES = [1, 2, 4, 8, 16, 32, 64, 128]
TINY = (*ONE_LAYER, "trainer.steps=2", "trainer.validate_every=null")


def device(limit: int, saturated_at: int):
    """A device that holds `limit` sequences and gets no faster from `saturated_at` on."""
    return lambda size: MicroBatchTrial(size, float(min(size, saturated_at)), 0) if size <= limit else None


@pytest.mark.parametrize(
    ("limit", "saturated_at", "chosen"), [(1000, 32, 32), (16, 1000, 16), (3, 1000, 2), (1, 1, 1), (1000, 1000, 128)]
)
def test_the_smallest_of_the_fastest_sizes_that_fit_is_found(limit, saturated_at, chosen):
    assert fastest(find_micro_batch(device(limit, saturated_at), SIZES)).micro_batch == chosen


def test_one_disturbed_trial_does_not_end_the_search():
    speeds = {32: 500.0, 64: 400.0, 128: 600.0}
    assert (
        fastest(find_micro_batch(lambda size: MicroBatchTrial(size, speeds[size], 0), [32, 64, 128])).micro_batch == 128
    )


def test_sizes_beyond_what_pays_are_not_tried():
    tried = [trial.micro_batch for trial in find_micro_batch(device(10**6, 32), [2**power for power in range(12)])]
    assert tried == [32, 64, 128]


def test_nothing_is_found_where_not_even_one_sequence_fits():
    assert find_micro_batch(device(0, 1), SIZES) == []


def test_auto_becomes_a_size_that_divides_the_step_and_is_told():
    told: list[str] = []
    config = with_micro_batch(compose([*TINY, "trainer.micro_batch=auto"]).config, "cpu", told.append)
    assert config.trainer.micro_batch in (1, 2, 4)
    assert f"micro-batch: {config.trainer.micro_batch}, the fastest measured here" in told[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_auto_becomes_a_size_for_the_fused_kernels_too():
    fused = ("trainer.device=auto", "trainer.precision=bf16-mixed", "model.width=64", "trainer.micro_batch=auto")
    config = compose([*TINY, *fused]).config
    assert with_micro_batch(config, "cuda", lambda text: None).trainer.micro_batch in SIZES


def test_a_size_that_is_given_is_kept():
    config = compose([*TINY, "trainer.micro_batch=2"]).config
    assert with_micro_batch(config, "cpu", print) is config


@pytest.mark.parametrize("value", ["0", "-1", "some"])
def test_anything_else_is_refused(value):
    with pytest.raises(ConfigError, match=r"trainer\.micro_batch"):
        compose([*TINY, f"trainer.micro_batch={value}"])


def test_running_out_of_memory_names_the_largest_micro_batch_that_fits(tmp_path):
    config = compose([*TINY, "trainer.micro_batch=4"]).config
    plan = plan_training(config)
    module = make_module(config, plan, outline(config), lambda text: None)

    def too_much(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    module.loss = too_much
    module.trainer = make_trainer(config, plan, store_at(tmp_path), [], [])
    with (
        pytest.raises(
            SkytrainError, match=r"micro-batches of 4 sequences of 8(.|\n)*trainer.micro_batch=2 makes the same"
        ),
        explaining_memory(config, plan, module),
    ):
        module.training_step(torch.zeros(4, 9, dtype=torch.long), 0)


def store_at(path):
    from skytrain.storage import open_store

    return open_store(str(path))
