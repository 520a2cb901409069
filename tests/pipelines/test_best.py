"""`plan --best`: the model that a budget buys."""

from dataclasses import replace
from pathlib import Path

import pytest

from skytrain.config import SkytrainError, check_words_of_file, compose, format_count
from skytrain.pipelines.best import BestAnswer, _best_now, best_as_json, best_plan, own_runs, rest_of_budget
from skytrain.planning import (
    BESIROGLU,
    BestRow,
    LossForecaster,
    PlanRequest,
    best_batch,
    decoder_size,
    read_plan,
    recipe_efficiency,
)
from skytrain.planning.loss_laws import OPEN_RUNS
from skytrain.report import best_lines
from skytrain.runs import MetricsWriter, claim_attempt, create_run, new_record, plain
from skytrain.storage import open_store
from skytrain.targets import Trials, compose_plan, plan_run


def best(tmp_path: Path, usd: float, *words: str) -> BestAnswer:
    """One machine type keeps it fast."""
    request = PlanRequest(budget_usd=usd, instance="p5.4xlarge", market="spot", region="us-west-2")
    given = ["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store", f"budget.usd={usd}", *words]
    return best_plan(given, [], request, tmp_path / "plan.json")


def test_the_plan_of_the_best_model_keeps_the_budget_and_can_be_launched(tmp_path: Path) -> None:
    answer = best(tmp_path, 40)
    plan = read_plan(tmp_path / "plan.json")
    assert plan.choice.cost.usd_p90 <= 40
    assert plan.choice.cost.usd_p90 > 39  # nothing is left over
    config = compose(answer.words).config
    assert config.model == answer.choice.model
    assert config.trainer.steps * config.trainer.batch_tokens == answer.choice.tokens
    assert min(row.forecast.loss for row in answer.sizes) == answer.choice.forecast.loss
    assert '"frontier"' in best_as_json(answer)


def test_the_command_that_launches_the_choice_names_again_what_a_launch_believes_no_plan_about(tmp_path: Path) -> None:
    store = f"store.root={tmp_path}/store"
    answer = best(tmp_path, 40, "trainer.steps=5")
    again = answer.launch_words(["recipe=modern-124m", store, "budget.usd=40", "trainer.steps=5"])
    assert again == [store]
    check_words_of_file(answer.words, again, [], "the plan", "whoever made it")
    with pytest.raises(SkytrainError, match="that you have not named: store"):
        check_words_of_file(answer.words, [], [], "the plan", "whoever made it")


def test_more_money_is_never_worse_and_a_cent_hardly_matters(tmp_path: Path) -> None:
    answer = best(tmp_path, 40)
    losses = [row.forecast.loss for row in answer.frontier]
    assert losses == sorted(losses, reverse=True)
    cent = best(tmp_path, 40.01).choice.forecast.loss
    assert 0 <= answer.choice.forecast.loss - cent < 0.001


def test_a_cent_hardly_matters_where_the_batch_doubles(tmp_path: Path) -> None:
    """Machines that exchange gradients over a network take much less time for each token of a larger step."""
    words = ["recipe=modern-350m", "data=fineweb", f"store.root={tmp_path}/store"]
    request = PlanRequest(instance="p5.4xlarge", market="spot", region="us-west-2", nodes=2)

    def row(cents: int) -> BestRow:
        return _best_now(words, [], replace(request, budget_usd=cents / 100))[0]

    less, more = 8000, 30000
    batch = row(less).config.trainer.batch_tokens
    assert row(more).config.trainer.batch_tokens > batch
    while more - less > 1:
        middle = (less + more) // 2
        less, more = (middle, more) if row(middle).config.trainer.batch_tokens == batch else (less, middle)
    assert 0 <= row(less).forecast.loss - row(more).forecast.loss < 0.0001


def test_typed_settings_that_the_answer_replaces_are_named(tmp_path: Path) -> None:
    answer = best(tmp_path, 40, "trainer.batch_tokens=1048576", "trainer.steps=10", "trainer.precision=bf16-true")
    line = "--best chooses these itself, whatever is typed: trainer.batch_tokens=1048576, trainer.steps=10."
    assert line in answer.reasons
    assert compose(answer.words).config.trainer.precision == "bf16-true"
    assert not any("whatever is typed" in line for line in best(tmp_path, 40).reasons)


def test_a_row_of_the_frontier_is_the_answer_for_its_budget(tmp_path: Path) -> None:
    # Beside the choice its neighbors are shown; for the other rows only sizes that may be the best are tried.
    rows = {row.budget_usd: row for row in best(tmp_path, 40).frontier}
    for usd in (10, 160):
        answer = best(tmp_path, usd).choice
        assert (rows[usd].model, rows[usd].tokens) == (answer.model, answer.tokens)


def test_serving_and_a_limit_make_the_model_smaller(tmp_path: Path) -> None:
    plain = best(tmp_path, 40).choice
    served = best(tmp_path, 40, "plan.serve_tokens=3B").choice
    assert served.serving_usd > 0
    assert served.purchase.estimate.usd_p90 + served.serving_usd <= 40
    assert served.size.parameters <= plain.size.parameters
    limited = best(tmp_path, 40, "plan.most_parameters=150M").choice
    assert limited.size.parameters <= 150e6
    with pytest.raises(SkytrainError, match="does not pay for serving"):
        best(tmp_path, 40, "plan.serve_tokens=1000T")


def test_little_text_is_repeated_and_asks_for_a_small_model(tmp_path: Path) -> None:
    plenty = best(tmp_path, 40).choice
    answer = best(tmp_path, 40, "plan.data_tokens=10M")
    little = answer.choice
    assert little.epochs > 16 and any("So many epochs are extrapolation" in line for line in answer.reasons)
    assert little.forecast.loss > plenty.forecast.loss + 0.1
    assert little.size.parameters < plenty.size.parameters


def test_the_largest_size_that_is_tried_is_said_to_be_so(tmp_path: Path) -> None:
    line = "It is the largest size that is tried: a larger one may be better."
    assert line not in best(tmp_path, 40).reasons
    request = PlanRequest(budget_usd=3e6, instance="p5.48xlarge", market="spot", region="us-east-2", nodes=64)
    words = ["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store", "budget.usd=3e6", "plan.data_tokens=100T"]
    answer = best_plan(words, [], request, tmp_path / "plan.json")
    assert (answer.choice.model.width, line in answer.reasons) == (8192, True)


def test_what_is_extrapolation_depends_on_the_law_that_decides(tmp_path: Path) -> None:
    said = "no run with fewer than 18 tokens a parameter"
    for law, expected in ((OPEN_RUNS, True), (BESIROGLU, False)):
        answer = best(tmp_path, 40, f"plan.law={law.name}")
        assert answer.choice.tokens < 18 * answer.choice.size.parameters
        assert (said in "".join(best_lines(answer.law, answer.second, answer.choice, 0, True))) is expected


def test_a_small_model_for_much_serving_is_said_to_be_extrapolation_with_its_own_numbers(tmp_path: Path) -> None:
    answer = best(tmp_path, 1000, "plan.serve_tokens=1T", "plan.most_parameters=60M")
    said = "".join(best_lines(answer.law, answer.second, answer.choice, 0, True))
    blocks = format_count(answer.choice.size.block_matrices)
    assert f"50M to 7B parameters without embeddings and head, and this one has {blocks}" in said
    assert "no run with more than 640 tokens a parameter, and this one has 5," in said


def test_what_serving_leaves_is_planned_to_the_cent(tmp_path: Path) -> None:
    """Six digits of it may be more than there is: the plan for so little was refused."""
    for served in ("1B", "3B", "7B"):
        answer = best(tmp_path, 123.45, f"plan.serve_tokens={served}", "plan.most_parameters=600M")
        budget = compose(answer.words).config.budget.usd
        assert budget is not None and 123.44 - answer.choice.serving_usd < budget <= 123.45 - answer.choice.serving_usd
    assert compose(best(tmp_path, 12345.678, "plan.most_parameters=600M").words).config.budget.usd == 12345.678


def test_a_model_without_a_text_is_planned_on_the_text_of_the_answer(tmp_path: Path) -> None:
    request = PlanRequest(budget_usd=40, instance="p5.4xlarge", market="spot", region="us-west-2")
    words = ["model=llama-3.2-1b", f"store.root={tmp_path}/store", "budget.usd=40"]
    answer = best_plan(words, [], request, tmp_path / "plan.json")
    assert (answer.text, answer.choice.distinct_tokens) == ("fineweb", 350e9)
    asked = best_plan([*words, "data.target_tokens=1B"], [], request, tmp_path / "plan.json")
    assert (asked.text, asked.choice.distinct_tokens) == ("fineweb", 1e9)


def test_finished_runs_in_the_store_refit_the_law(tmp_path: Path) -> None:
    composed = compose(["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store"])
    store = open_store(composed.config.store)
    assert own_runs(composed) == ()
    for name, loss, finished in (("a", 9.0, True), ("b", 8.0, True), ("c", 7.0, False)):
        record = new_record(composed.config, name=name, data={}, tokenizer_id="gpt2", parameters=1, hardware={})
        create_run(store, replace(record, finished_at=record.started_at if finished else None, step=100))
        number = claim_attempt(store, name, lambda: None)
        writer = MetricsWriter(store, name, number)
        writer.write(100, {"val/loss": loss})
        writer.lines.flush()
    (run,) = own_runs(composed)  # of two with the same size and length the better one; "c" has not finished
    assert (run.name, run.loss, run.tokens) == ("b", 8.0, 100.0 * composed.config.trainer.batch_tokens)
    assert run.parameters == decoder_size(composed.config.model).parameters  # type: ignore[arg-type]
    told = best(tmp_path, 40)
    assert len(told.runs) == 1
    row = told.choice
    public = LossForecaster(OPEN_RUNS, 1.0, recipe_efficiency(row.config)).loss(row.size, row.tokens)
    assert row.forecast.loss > public + 0.05  # a run that reached only 8 says that this text is harder than C4


def test_runs_that_continue_others_or_never_learned_do_not_count(tmp_path: Path) -> None:
    composed = compose(["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store"])
    store = open_store(composed.config.store)
    settings = plain(composed.config)
    tuned = {**settings, "model": {**settings["model"], "weights": "run:gpt2"}}
    tiny = {**settings, "model": {**settings["model"], "layers": 2, "width": 128, "heads": 1, "mlp_width": 256}}
    tiny = {**tiny, "trainer": {**settings["trainer"], "batch_tokens": 1024}}  # the law gives it 30 nats
    runs = (("tuned", 2.0, tuned), ("broken", 11.0, settings), ("tiny", 6.0, tiny), ("good", 8.0, settings))
    runs += (("impossible", -5.0, settings), ("perfect", 0.0, settings))
    for name, loss, config in runs:
        record = new_record(composed.config, name=name, data={}, tokenizer_id="gpt2", parameters=1, hardware={})
        create_run(
            store, replace(record, config=config, finished_at=record.started_at, step={"good": 50}.get(name, 100))
        )
        writer = MetricsWriter(store, name, claim_attempt(store, name, lambda: None))
        writer.write(100, {"val/loss": loss})
        writer.lines.flush()
    assert [run.name for run in own_runs(composed)] == ["good"]
    (run,) = own_runs(composed, distinct=1e6)
    assert 1e6 < run.tokens < 50 * composed.config.trainer.batch_tokens  # the plan knows how much text there is


def test_a_run_whose_settings_cannot_be_read_is_left_out_of_the_law_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    composed = compose(["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store"])
    store = open_store(composed.config.store)
    for name in ("good", "empty", "shapeless", "wordy"):
        record = new_record(composed.config, name=name, data={}, tokenizer_id="gpt2", parameters=1, hardware={})
        settings = {
            "good": record.config,
            "empty": {},
            "shapeless": {**record.config, "model": {**record.config["model"], "layers": "many"}},
            "wordy": {**record.config, "data": {**record.config["data"], "target_tokens": "many"}},
        }
        record = replace(record, config=settings[name], finished_at=record.started_at, step=100)
        create_run(store, record)
        writer = MetricsWriter(store, name, claim_attempt(store, name, lambda: None))
        writer.write(100, {"val/loss": 8.0})
        writer.lines.flush()
    (run,) = own_runs(composed)
    assert run.name == "good"
    assert all(f"'{name}'" in caplog.text for name in ("empty", "shapeless", "wordy"))


def test_a_budget_that_buys_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        SkytrainError, match=r"does not buy a single step: the least is .*\n  try: budget.usd=1 or more"
    ):
        best(tmp_path, 0.01)
    with pytest.raises(SkytrainError, match="the smallest model that is tried has 16,276,992 parameters"):
        best(tmp_path, 40, "plan.most_parameters=1M")
    with pytest.raises(SkytrainError, match="of which 1K are different: by the law no better than a guess"):
        best(tmp_path, 40, "plan.data_tokens=1K")
    with pytest.raises(SkytrainError, match="not a law"):
        best(tmp_path, 40, "plan.law=mine")


def test_nodes_that_no_batch_can_use_are_named_with_what_would_help(tmp_path: Path) -> None:
    words = ["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store", "budget.usd=1000"]
    request = PlanRequest(budget_usd=1000, instance="p5.48xlarge", nodes=10000)
    with pytest.raises(SkytrainError, match=r"sequences cannot be split over 80000 GPUs\n  try another .* or --nodes"):
        best_plan(words, [], request, tmp_path / "plan.json")
    composed, open_mesh = compose_plan(words, [], None)
    refusal = plan_run(composed, open_mesh, request, Trials(0, 1), tmp_path / "plan.json").refusal
    assert "cannot be split over 80000 GPUs\n  try fewer nodes (--nodes), or a larger trainer.batch_tokens" in str(
        refusal
    )


def test_more_money_is_never_worse_before_a_deadline(tmp_path: Path) -> None:
    request = PlanRequest(budget_usd=40, instance="p5.4xlarge", market="spot", region="us-west-2", deadline_hours=3.0)
    given = ["recipe=modern-124m", "data=c4", f"store.root={tmp_path}/store", "budget.usd=40"]
    answer = best_plan(given, [], request, tmp_path / "plan.json")
    losses = [row.forecast.loss for row in answer.frontier]
    assert losses == sorted(losses, reverse=True)
    assert all(row.purchase.estimate.hours_p90 <= 3 for row in answer.frontier)


def test_a_short_deadline_leaves_tokens_for_a_small_model_and_a_small_batch(tmp_path: Path) -> None:
    """Dollars and FLOPs alone would suggest a model of 65 billion parameters, and steps of millions of tokens."""
    request = PlanRequest(deadline_hours=1.0, instance="g5.12xlarge", market="on-demand", region="us-east-1")
    words = ["recipe=gpt2-124m-openwebtext", "plan.data_tokens=10M", f"store.root={tmp_path}/store"]
    less, more = (
        best_plan([*words, f"budget.usd={usd}"], [], replace(request, budget_usd=usd), tmp_path / "plan.json").choice
        for usd in (60.0, 500.0)
    )
    assert more.forecast.loss <= less.forecast.loss
    assert more.size.parameters < 2e9
    assert more.config.trainer.batch_tokens <= 2 * best_batch(more.tokens)


def test_a_store_that_cannot_be_read_is_said_and_the_public_law_decides(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "runs").write_text("not a folder")
    answer = best(tmp_path, 40)
    assert answer.runs == ()
    assert (answer.unread is None) or any("were not read" in line for line in answer.reasons)


def test_a_plan_that_leaves_most_of_the_budget_says_what_best_would_buy(tmp_path: Path) -> None:
    words = ["recipe=gpt2-124m-pile", f"store.root={tmp_path}/store"]
    request = PlanRequest(budget_usd=150, instance="p5.4xlarge", market="spot", region="us-west-2")
    composed, open_mesh = compose_plan(words, [], None)
    planned = plan_run(composed, open_mesh, request, Trials(0, 1), tmp_path / "plan.json")
    line = rest_of_budget(words, [], request, planned, composed.config)
    answer = best_plan(words, [], request, tmp_path / "best.json")
    row = answer.choice
    assert line is not None and f"{format_count(row.size.parameters)} parameters" in line
    assert f"{format_count(row.tokens)} tokens of pile" in line and f"loss of {row.forecast.loss:.2f}" in line
    assert planned.choice and planned.choice.estimate
    needed = replace(request, budget_usd=1.5 * planned.choice.estimate.usd_p90)
    assert rest_of_budget(words, [], needed, planned, composed.config) is None
    assert rest_of_budget(words, [], replace(request, budget_usd=None), planned, composed.config) is None
    pretrained = replace(composed.config, model=replace(composed.config.model, weights="owner/pretrained"))
    assert rest_of_budget(words, [], request, planned, pretrained) is None  # new weights are no substitute


def test_where_a_recipe_stops_reading_is_no_limit_of_its_text(tmp_path: Path) -> None:
    request = PlanRequest(budget_usd=150, instance="p5.4xlarge", market="spot", region="us-west-2")
    words = ["recipe=gpt2-124m-pile", f"store.root={tmp_path}/store"]
    assert compose(words).config.data.target_tokens == 2.5e9
    answer = best_plan(words, [], request, tmp_path / "plan.json")
    assert answer.choice.epochs < 0.1  # of the 371 billion of The Pile
    assert any("reads none of them twice" in line for line in answer.reasons)
    launched = compose(answer.words).config
    assert launched.data.target_tokens == answer.choice.tokens  # else it would repeat the recipe's 2.5 billion
    asked = best_plan([*words, "data.target_tokens=2.5B"], [], request, tmp_path / "plan.json")
    assert asked.choice.epochs > 2
    assert compose(asked.words).config.data.target_tokens == 2.5e9
