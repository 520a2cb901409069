"""Trials as runs: complete schedules, other sizes, other axes; and the laws they start from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from skytrain.config import compose, total_steps
from skytrain.tuning import HourlyPrice, Observation, Problem, Rung, StepEstimate, Trial, combined_law, trial_config
from skytrain.tuning.laws import LAWS, priors_for, width_free_priors
from skytrain.tuning.problem import Search, nats_per_log_token
from skytrain.tuning.setting_up import make_problem
from skytrain.tuning.strategies.registry import find_strategy
from skytrain.tuning.trials import at_value, resized, target_shape, trial_shapes


@pytest.fixture(scope="module")
def homework():
    return compose(["recipe=tune-hw5"]).config


def test_every_rung_keeps_the_share_of_warmup_and_the_size_of_heads(homework):
    shapes = {shape.name: shape.config for shape in trial_shapes(homework)}
    assert set(shapes) == {"12x192-295", "12x192-591", "12x384-295", "12x384-591", "12x768-295", "12x768-591"}
    for config in shapes.values():
        assert config.lr_schedule.warmup_steps / total_steps(config) == pytest.approx(470 / 4725, abs=0.002)
        assert config.model.head_width == 64 and config.trainer.batch_tokens == 524_288


def test_a_trial_differs_from_its_rung_in_the_rate_alone_and_ends_with_a_validation(homework):
    shape = trial_shapes(homework)[0]
    config = trial_config(shape, Trial(shape.name, 3e-3), "s-001")
    assert (config.optimizer.lr, config.run, config.seed) == (3e-3, "s-001", homework.seed)
    assert replace(config.optimizer, lr=homework.optimizer.lr) == homework.optimizer
    assert (config.trainer.clip_norm, config.trainer.diverged_nats) == (homework.trainer.clip_norm, 1.0)
    assert config.trainer.validate_every <= total_steps(config)


@pytest.mark.parametrize(
    "axis, value, check",
    [
        ("weight_decay", 0.3, lambda config: config.optimizer.weight_decay == 0.3),
        ("warmup", 0.2, lambda config: config.lr_schedule.warmup_steps == 945),
        (
            "batch_tokens",
            262_144,
            lambda config: (config.trainer.batch_tokens, config.trainer.steps) == (262_144, 9450),
        ),
    ],
)
def test_other_axes_change_one_thing_and_keep_the_tokens(axis, value, check):
    config = at_value(compose(["recipe=tune-hw5", f"tune.axis={axis}"]).config, value)
    assert check(config)
    assert total_steps(config) * config.trainer.batch_tokens == 4725 * 524_288


def test_the_laws_give_known_rates_for_gpt2(homework):
    rung = target_shape(homework).rung(1.0)
    assert rung.parameters == pytest.approx(85e6, rel=0.01)
    rates = {law.name: law.rate(rung) for law in LAWS}
    assert rates["deepseek"] == pytest.approx(1.66e-3, rel=0.03)
    assert rates["step-law"] == pytest.approx(3.0e-3, rel=0.03)
    assert rates["gpt3-table"] == pytest.approx(7.8e-4, rel=0.05)  # 85M without embeddings, below its 125M
    assert all(law.source and law.caveat for law in LAWS)


def test_under_mup_the_law_does_not_depend_on_size_and_under_the_standard_one_it_does():
    target, small = (
        Rung(name="t", parameters=4e8, tokens=2e10, batch_tokens=5e5, usd=1.0),
        Rung(name="s", parameters=2.2e8, tokens=2e10, batch_tokens=5e5, usd=0.5),
    )
    assert combined_law(target, width_free=True)(small) == pytest.approx(combined_law(target, width_free=True)(target))
    assert combined_law(target)(small) > combined_law(target)(target) + 0.3


def test_every_shape_passes_through_the_expected_rate_of_the_target_also_after_a_move():
    target, small = (
        Rung(name="t", parameters=4e8, tokens=2e10, batch_tokens=5e5, usd=1.0),
        Rung(name="s", parameters=1e6, tokens=1e7, batch_tokens=2e4, usd=0.5),
    )
    assert 1e-3 < math.exp(combined_law(small)(small)) < 5e-2  # a power law would say 0.1
    problem = Problem(
        target=target, rungs=(small,), lowest=1e-5, highest=1.0, priors=priors_for(target, combined_law(target))
    )
    shapes = problem.around(3e-3).priors.all_shapes(target)
    assert [shape.name for shape in shapes] == ["law", "unchanged", "deepseek", "step-law", "horizon"]
    assert [shape.law(target) for shape in shapes] == pytest.approx([math.log(3e-3)] * 5)
    assert len({round(shape.law(small), 3) for shape in shapes}) == 5


def test_a_width_free_recipe_starts_from_no_dependence_on_size_and_trials_may_contradict_it():
    model = ["recipe=tune-hw5", "model.parametrization=mup", "model.base_width=192"]
    config = compose(model).config
    shapes = [shape.rung(0.1) for shape in trial_shapes(config)]
    problem = make_problem(config, target_shape(config).rung(1.0), shapes)
    law = problem.priors.law
    wide, narrow = (next(one for one in shapes if one.width == width) for width in (768, 192))
    assert law(narrow) == pytest.approx(law(replace(wide, tokens=narrow.tokens)))
    for exponent in (0.0, -0.5):
        history = [
            Observation(Trial(one.name, rate), 3.0 + 0.1 * math.log(rate / best) ** 2, 0.1)
            for one, best in ((wide, 1e-3), (narrow, 1e-3 * (narrow.parameters / wide.parameters) ** exponent))
            for rate in (best / 2, best, best * 2)
        ]
        answer = find_strategy("ladder").answer(Search(problem, history, 0.0, 1.0))
        assert any("contradict the parametrization" in words for words in answer.warnings) == (exponent != 0)


def test_a_width_free_recipe_takes_the_best_rate_of_a_much_smaller_model_nearly_as_it_is():
    target, small = (
        Rung(name="t", parameters=1.2e9, tokens=3e10, batch_tokens=2.6e5, usd=1.0),
        Rung(name="s", parameters=4.7e6, tokens=3e10, batch_tokens=2.6e5, usd=0.01),
    )
    priors = width_free_priors(target)
    problem = Problem(target=target, rungs=(small,), lowest=1e-5, highest=1.0, priors=priors)
    best = math.exp(priors.law(target)) / 3
    history = [
        Observation(Trial("s", best * factor), 3.0 + 0.08 * math.log(factor) ** 2, 0.01)
        for factor in (1 / 16, 1 / 4, 1, 4)
    ]
    answer = find_strategy("ladder").answer(Search(problem, tuple(history), 0.0, 1.0))
    assert answer.rate == pytest.approx(best, rel=0.35)


def test_an_optimizer_without_a_law_starts_from_its_configured_rate():
    config = compose(["recipe=quickstart"]).config  # Muon
    problem = make_problem(config, target_shape(config).rung(1.0), [shape.rung(0.1) for shape in trial_shapes(config)])
    assert problem.expected_rate(problem.target) == pytest.approx(5e-3)
    assert problem.lowest < 5e-3 / 16 and problem.highest > 5e-3 * 16


def test_an_estimate_takes_the_worst_of_steps_10_to_19_and_adds_what_comes_with_a_run(homework):
    seconds = [5.0] + [1.0] * 9 + [0.1] * 9 + [0.2]
    estimate = StepEstimate.of(seconds, wall_seconds=20.0)
    assert (estimate.step_seconds, estimate.first_seconds) == (0.2, 5.0)
    config = trial_shapes(homework)[0].config
    assert estimate.seconds(config, 1e7) > total_steps(config) * 0.2 + 10
    price = HourlyPrice(3.6, 0.1)
    assert estimate.usd(config, 1e7, price) == pytest.approx(1.1e-3 * estimate.seconds(config, 1e7))


def test_a_best_rate_far_above_an_optimizers_default_is_inside_the_search():
    config = compose(["model=gpt2-tiny", "optimizer=muon", "trainer.steps=200"]).config
    problem = make_problem(config, target_shape(config).rung(1.0), [shape.rung(0.1) for shape in trial_shapes(config)])
    assert problem.clip(100 * config.optimizer.lr) == pytest.approx(100 * config.optimizer.lr)


def test_the_fear_of_diverging_is_that_of_a_run_and_not_of_a_law_for_billions_of_tokens():
    target = Rung(name="t", parameters=1e5, tokens=1e5, batch_tokens=256, usd=1.0)
    problem = Problem(
        target=target, rungs=(target,), lowest=1e-6, highest=1.0, priors=priors_for(target, combined_law(target))
    )
    assert nats_per_log_token(problem, ()) <= 1.0


@pytest.mark.parametrize(("name", "width", "rank"), [("mixtral-tiny", 96, None), ("deepseek-tiny", 48, 32)])
def test_smaller_mixtures_have_narrower_experts_and_as_many(name, width, rank):
    target = compose([f"model={name}", "tokenizer=bytes"]).config.model
    small = resized(target, target.layers, target.width // 2)
    assert (small.experts.count, small.experts.per_token) == (target.experts.count, target.experts.per_token)
    assert small.experts.width == width and small.heads == target.heads // 2
    assert (small.latent and small.latent.rank) == rank
