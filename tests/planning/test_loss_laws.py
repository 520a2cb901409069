"""What a loss is expected to be, and how the user's own runs change that."""

import math
from itertools import pairwise

import numpy as np
import pytest

from skytrain.config import DecoderConfig, compose
from skytrain.planning import (
    BESIROGLU,
    LossForecaster,
    OwnRun,
    best_batch,
    decoder_size,
    expected_loss,
    expected_loss_text,
    hellaswag,
    known_texts,
    lowest_of_each,
    model_sizes,
    useful_tokens,
)
from skytrain.planning.loss_laws import OPEN_RUNS, useful_parameters


def sizes() -> list[DecoderConfig]:
    model = compose(["model=modern-124m"]).config.model
    assert isinstance(model, DecoderConfig)
    return list(model_sizes(model))


def runs_of(law_factor: float, efficiency: float) -> tuple[OwnRun, ...]:
    """Runs of the three smallest models on a text that the public does not know."""
    truth = LossForecaster(OPEN_RUNS, law_factor, efficiency)
    found = []
    for model in sizes()[:3]:
        size = decoder_size(model)
        for tokens in (2e8, 8e8):
            found.append(
                OwnRun(
                    name="r",
                    parameters=size.parameters,
                    block_parameters=size.block_matrices,
                    tokens=tokens,
                    loss=truth.loss(size, tokens),
                )
            )
    return tuple(found)


def test_a_family_keeps_its_heads_and_its_mlp() -> None:
    by_width = {model.width: model for model in sizes()}
    assert (by_width[768].layers, by_width[768].heads, by_width[768].mlp_width) == (12, 6, 2048)
    assert all(model.head_width == 128 for model in sizes())
    assert [decoder_size(model).parameters for model in sizes()] == sorted(
        decoder_size(model).parameters for model in sizes()
    )


def test_the_users_runs_move_the_forecast_and_narrow_its_interval() -> None:
    target = decoder_size(next(model for model in sizes() if model.width == 768))
    truth = LossForecaster(OPEN_RUNS, 0.6, 2.0).loss(target, 3e9)
    blind = LossForecaster(OPEN_RUNS, None, 1.0).forecast(target, 3e9)
    told = LossForecaster(OPEN_RUNS, None, 1.0, runs_of(0.6, 2.0)).forecast(target, 3e9)
    assert abs(told.loss - truth) < 0.05 < abs(blind.loss - truth)
    assert told.low < truth < told.high
    assert told.high - told.low < 0.3 * (blind.high - blind.low)


def test_a_known_text_has_about_the_same_level_by_both_laws() -> None:
    size = decoder_size(sizes()[8])
    ours = LossForecaster(OPEN_RUNS, 1.0, 1.0).forecast(size, 2e10)
    theirs = LossForecaster(BESIROGLU, 1.0, 1.0).forecast(size, 2e10)
    assert theirs.low < ours.loss < theirs.high


def test_repeated_text_is_worth_less_and_never_harms() -> None:
    worth = [useful_tokens(tokens, 1e9) for tokens in np.linspace(1e8, 6e10, 200)]
    assert useful_tokens(9e8, 1e9) == 9e8
    assert 3.7e9 < useful_tokens(4e9, 1e9) < 4e9  # four epochs are almost as good as fresh text
    assert useful_tokens(1e12, 1e9) < 17e9
    assert all(later >= earlier for earlier, later in pairwise(worth))
    assert useful_tokens(5e9, None) == 5e9


def test_parameters_that_a_small_text_cannot_use_count_less() -> None:
    """Muennighoff et al. 2023, equation 6: a model 6.3 times as large as the text's is worth 4.4 of those, never over 6.3."""
    assert useful_parameters(3e8, 3e8) == 3e8 and useful_parameters(1e8, 3e8) == 1e8
    assert 4.35 < useful_parameters(6.31, 1.0) < 4.37
    worth = useful_parameters(np.linspace(1e6, 1e10, 200), 3e6)
    assert all(later >= earlier for earlier, later in pairwise(worth)) and worth[-1] < 6.32 * 3e6
    small, large = decoder_size(sizes()[2]), decoder_size(sizes()[-1])
    little = LossForecaster(OPEN_RUNS, 1.0, 1.0, distinct=1e7)
    assert little.loss(large, 1e10) > little.loss(small, 1e10) - 0.01  # a thousand times the parameters buy nothing
    plenty = LossForecaster(OPEN_RUNS, 1.0, 1.0, distinct=1e15)
    assert plenty.loss(large, 1e10) == LossForecaster(OPEN_RUNS, 1.0, 1.0).loss(large, 1e10)


def test_a_run_that_reads_nothing_twice_does_not_say_how_much_text_there_is() -> None:
    words = ["recipe=modern-1b", "data=c4", "trainer.steps=500"]
    endless = expected_loss(compose(words).config)
    assert endless == expected_loss(compose([*words, "data.target_tokens=2B"]).config)
    repeated = expected_loss(compose([*words, "data.target_tokens=20M"]).config)
    assert endless and repeated and repeated.loss > endless.loss


def test_a_batch_that_does_not_suit_the_tokens_costs_some_of_them() -> None:
    """Step Law's runs lose 5 to 15% of their tokens by half or twice the best batch (benchmarks/planning/losses.log)."""
    size = decoder_size(sizes()[4])
    law = LossForecaster(OPEN_RUNS, 1.0, 1.0)
    suited = round(best_batch(1e10))
    assert law.loss(size, 1e10, suited) == pytest.approx(law.loss(size, 1e10), abs=1e-6)
    for batch in (suited // 2, 2 * suited):
        assert law.loss(size, 0.95e10) < law.loss(size, 1e10, batch) < law.loss(size, 0.9e10)
    # More tokens are never worse, even where all of them repeat and the batch is as large as batches get.
    little = LossForecaster(OPEN_RUNS, 1.0, 1.0, distinct=1e8)
    losses = [little.loss(size, tokens, 2**16) for tokens in np.geomspace(1e8, 1e13, 40)]
    assert losses == sorted(losses, reverse=True)


def test_texts_that_are_read_in_hours_say_how_much_there_is() -> None:
    texts = known_texts()
    for name in ("wikitext", "tinystories", "python-docs", "openwebtext", "fineweb", "fineweb-edu"):
        assert compose([f"data={name}"]).config.data.name == name
        assert (texts[name].tokens or math.inf) < 2e10


def test_only_the_best_trial_of_a_size_and_length_counts() -> None:
    low, high = (
        OwnRun(name=name, parameters=1e6, block_parameters=1e6, tokens=1e8, loss=loss)
        for name, loss in (("low", 4.0), ("high", 5.0))
    )
    assert lowest_of_each([high, low]) == (low,)


def test_hellaswag_is_not_claimed_beyond_its_fit() -> None:
    assert hellaswag(decoder_size(sizes()[-1]), 1e14) is None
    small = hellaswag(decoder_size(sizes()[4]), 1e10)
    assert small is not None and 0.28 < small < 0.34  # GPT-2 124M has 0.29 to 0.31


def test_a_recipe_is_planned_with_the_loss_to_expect_of_it():
    """More tokens, Muon and rotary positions lower it; a text that no public run had is said to be unknown."""
    words = ["data=fineweb", "trainer.steps=5000"]
    gpt2 = expected_loss(compose(["recipe=gpt2-124m-openwebtext", *words]).config)
    longer = expected_loss(compose(["recipe=gpt2-124m-openwebtext", "data=fineweb", "trainer.steps=10000"]).config)
    modern = expected_loss(compose(["recipe=modern-124m", "trainer.batch_tokens=524288", *words]).config)
    larger = expected_loss(compose(["recipe=modern-350m"]).config)
    assert gpt2 and longer and modern and larger
    assert larger.loss < modern.loss < longer.loss < gpt2.loss
    assert all(each.low < each.loss < each.high for each in (gpt2, modern, larger))
    unknown = expected_loss_text(compose(["recipe=modern-124m"]).config)
    assert unknown and "no public run is known on data=openwebtext" in unknown
    assert expected_loss(compose(["model=custom", "model.target=a.B"]).config) is None


def test_no_loss_above_a_guess_among_all_tokens_is_expected() -> None:
    """Laws that were fitted on larger runs give 15 nats for the quickstart, whose vocabulary has 8.3."""
    assert expected_loss(compose(["recipe=quickstart"]).config) is None
    assert expected_loss_text(compose(["recipe=gpt2-124m-pile"]).config) is not None
