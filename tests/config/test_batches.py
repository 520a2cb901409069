"""The sizes of steps are a pure function of the step, whatever the phases."""

import pytest
from hypothesis import given, strategies as st

from skytrain.config import BatchSizes, ConfigError, batch_sizes, compose, resolve_mesh, total_steps, total_tokens

SCHEDULE = "trainer.batch_schedule=[{batch_tokens: 16K, until_tokens: 100K}, {batch_tokens: 32K, until_tokens: 1M}]"
SETTINGS = ("trainer.sequence_length=1000", "trainer.micro_batch=2", "trainer.batch_tokens=64K")
phases = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 300)), max_size=4).map(
    lambda found: tuple(sorted(found, key=lambda phase: phase[1]))
)


@given(st.integers(1, 50), phases, st.integers(0, 2000))
def test_sizes_and_positions_agree_with_counting_step_by_step(last, phases, whole):
    sizes = BatchSizes(last, phases)
    position = steps = 0
    for step in range(120):
        size = next((each for each, until in phases if position < until), last)
        assert (sizes.before(step), sizes.at(step)) == (position, size)
        position += size
        steps += position <= whole
    if position > whole:
        assert sizes.steps_in(whole) == steps
    assert sum(count * size for size, count in sizes.counts(120)) == position
    assert sizes.sizes(120) == tuple(dict.fromkeys(size for size, _ in sizes.counts(120)))


@given(st.integers(1, 9), phases)
def test_sequences_are_counted_as_tokens_are(length, phases):
    tokens = BatchSizes(7 * length, tuple((size * length, until) for size, until in phases))
    sequences = tokens.in_sequences(length)
    assert all(sequences.before(step) * length == tokens.before(step) for step in range(60))


def test_a_run_of_so_many_tokens_has_more_steps_with_smaller_ones_first():
    config = compose([*SETTINGS, SCHEDULE, "trainer.steps=null", "trainer.tokens=2M"]).config
    assert total_steps(config) == 7 + 28 + 15
    assert total_tokens(config) == 7 * 16_000 + 28 * 32_000 + 15 * 64_000
    assert batch_sizes(config.trainer).at(7) == 32_000


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        ("[{batch_tokens: 15K, until_tokens: 1M}]", "trainer.batch_schedule[0].batch_tokens", "not a multiple of 2000"),
        (
            "[{batch_tokens: 16K, until_tokens: 1M}, {batch_tokens: 32K, until_tokens: 1M}]",
            "trainer.batch_schedule[1].until_tokens",
            "1000000 is not after 1000000",
        ),
        ("[{batch_tokens: 16K}]", "trainer.batch_schedule", "until_tokens"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused_by_name(words, key, said):
    with pytest.raises(ConfigError) as error:
        compose([*SETTINGS, f"trainer.batch_schedule={words}"])
    assert key in str(error.value) and said in str(error.value)


@pytest.mark.parametrize(
    ("words", "ranks", "said"),
    [
        (("parallel=ddp",), 16, "trainer.batch_schedule[0].batch_tokens=32000"),
        (("parallel=deepspeed-zero2",), 2, "parallel=fsdp"),
        (("parallel=pp", "trainer.micro_batch=16"), 2, "1 micro-batches go through a pipeline of 2"),
    ],
)
def test_a_mesh_that_a_schedule_does_not_fit_is_refused_with_what_to_use_instead(words, ranks, said):
    with pytest.raises(ConfigError) as error:
        resolve_mesh(compose([*SETTINGS, SCHEDULE, *words]).config, ranks)
    assert said in str(error.value)
