import re
from importlib.resources import files
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from skytrain.config import ConfigError, Interval, SkytrainError, compose, flatten
from skytrain.config.composition import COMMAND_LINE


def message(*overrides: str, **kwargs) -> str:
    with pytest.raises(SkytrainError) as error:
        compose(overrides, **kwargs)
    return str(error.value)


def test_values_come_from_groups_then_the_recipe_then_the_command_line():
    composed = compose(["recipe=quickstart", "optimizer.lr=0.5"])
    assert composed.config.model.name == "llama-micro"
    assert composed.config.optimizer.lr == 0.5
    assert composed.origins["optimizer.lr"] == COMMAND_LINE
    assert composed.origins["trainer.steps"] == "recipe/quickstart.yaml"
    assert composed.origins["optimizer.beta1"] == "optimizer/muon.yaml"


def test_every_setting_has_an_origin():
    composed = compose()
    assert {key for key in flatten(composed.values) if key not in composed.origins} == set()


def test_units_are_parsed_in_overrides_and_files():
    config = compose(["data.target_tokens=2.5B", "trainer.checkpoint_every=10m", "data.part_bytes=1MiB"]).config
    assert config.data.target_tokens == 2_500_000_000
    assert config.trainer.checkpoint_every == Interval(seconds=600)
    assert config.data.part_bytes == 2**20


def test_the_model_takes_the_vocabulary_of_the_tokenizer():
    assert compose(["tokenizer=bpe-4k"]).config.model.vocab_size == 4096


def test_a_custom_model_takes_a_target_and_free_arguments():
    model = compose(["model=custom", "model.target=a.B", "model.args.width=3", "model.args.deep.er=[1,2]"]).config.model
    assert (model.target, model.args) == ("a.B", {"width": 3, "deep": {"er": [1, 2]}})


def test_a_users_own_folder_adds_recipes_and_is_named_as_their_origin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "conf" / "recipe" / "mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("# @package _global_\nseed: 7\n")
    composed = compose(["recipe=mine"], config_dirs=["conf"])
    assert composed.config.seed == 7
    assert composed.origins["seed"] == str(Path("conf/recipe/mine.yaml"))


@pytest.mark.parametrize(
    "value", ["<|endoftext|>", "a|b", "it's", 'a "word"', "<|im_end|>=", "part(1).txt;", "a & b", "#", "*.txt", "plain"]
)
def test_text_needs_no_quotes_of_its_own(value):
    source = compose(["data=text", "data.source.paths=a.txt", f"data.source.separator={value}"]).config.data.source
    assert source.args["separator"] == value


def test_quoted_text_may_hold_what_would_else_be_a_list():
    overrides = ["data=text", "data.source.paths=a.txt", "data.source.separator='[end]'"]
    assert compose(overrides).config.data.source.args["separator"] == "[end]"


@pytest.mark.parametrize(
    ("model", "group"),
    [
        ("mixtral-tiny", "experts"),
        ("deepseek-tiny", "experts"),
        ("deepseek-tiny", "latent"),
        ("llama-3.1-8b", "rope_scaling"),
    ],
)
def test_a_model_can_be_had_without_a_group_of_settings_that_it_may_lack(model, group):
    composed = compose([f"model={model}", f"model.{group}=null", "tokenizer=gpt2"])
    assert getattr(composed.config.model, group) is None and composed.origins[f"model.{group}"] == "command line"


def test_a_group_of_settings_that_every_run_has_cannot_be_null():
    assert "data.near_dedup: None is not a group of settings" in message("data.near_dedup=null")


def test_another_kind_of_a_group_replaces_it_and_the_same_kind_changes_it():
    kinds = [{"kind": "linear", "factor": 2.0}, {"kind": "llama3", "factor": 2.0, "high_freq_factor": 4.0}]
    for given, expected in zip(("{kind: linear, factor: 2}", "{kind: llama3, factor: 2}"), kinds, strict=True):
        scaling = compose(["model=llama-3.1-8b", "tokenizer=gpt2", f"model.rope_scaling={given}"]).values["model"]
        assert scaling["rope_scaling"].items() >= expected.items()


def test_one_value_for_a_list_is_a_list_of_it():
    trainer = compose(
        [
            "trainer.batch_schedule={batch_tokens: 8192, until_tokens: 1M}",
            "trainer.evaluators={target: a.B, every: 3}",
            "trainer.callbacks=a.B",
        ]
    ).config.trainer
    assert [phase.until_tokens for phase in trainer.batch_schedule] == [10**6]
    assert [each.target for each in (*trainer.evaluators, *trainer.callbacks)] == ["a.B", "a.B"]
    assert compose(["trainer.callbacks={target: a.B, every: 3}"]).config.trainer.callbacks[0].args == {"every": 3}


@pytest.mark.parametrize("name", ["1e5", "007", "1_000", "true", "nan"])
def test_a_name_that_looks_like_a_number_is_taken_as_it_was_typed(name):
    assert compose([f"run={name}"]).config.run == name


@pytest.mark.parametrize("target", ["ec2", "sagemaker"])
def test_a_target_of_aws_without_an_account_says_how_to_name_one(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkytrainError, match=rf"^cloud={target} needs an AWS account: .*\n.*skytrain cloud init"):
        compose([f"cloud={target}"])


@pytest.mark.parametrize(
    ("overrides", "steps", "tokens"),
    [
        (["trainer.tokens=30B"], None, 30 * 10**9),
        (["recipe=gpt2-124m-pile", "trainer.steps=20"], 20, None),
        (["recipe=gpt2-124m-pile", "trainer.tokens=1B"], None, 10**9),
        (["trainer.tokens=null"], 1000, None),
    ],
)
def test_steps_replace_tokens_and_tokens_replace_steps(overrides, steps, tokens):
    trainer = compose(overrides).config.trainer
    assert (trainer.steps, trainer.tokens) == (steps, tokens)


@pytest.mark.parametrize("model", ["hf", "custom", "gpt2-tiny"])
def test_the_quickstart_takes_any_model(model):
    composed = compose(
        ["recipe=quickstart", f"model={model}", "model.name=x", *["model.target=a.B"] * (model == "custom")]
    )
    assert composed.config.model.name == "x"


def test_a_users_recipe_that_gives_tokens_need_not_mention_steps(tmp_path):
    recipe = tmp_path / "recipe" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text("# @package _global_\ntrainer:\n  tokens: 30B\n")
    trainer = compose(["recipe=mine"], config_dirs=[tmp_path]).config.trainer
    assert (trainer.steps, trainer.tokens) == (None, 30 * 10**9)


def test_every_recipe_is_whole_without_another_word():
    names = (path.name.removesuffix(".yaml") for path in files("skytrain.config.groups").joinpath("recipe").iterdir())
    recipes = sorted(name for name in names if name != "none" and not name.startswith("_"))
    data = {recipe: compose([f"recipe={recipe}"]).config.data.name for recipe in recipes}
    continued = {recipe for recipe in recipes if recipe.endswith(("-p4d", "-p4de"))}  # the user brings the text
    assert len(continued) == 10
    assert {recipe: name for recipe, name in data.items() if recipe not in continued} == {
        "gpt2-124m-fineweb": "fineweb",
        "gpt2-124m-openwebtext": "openwebtext",
        "modern-124m": "openwebtext",
        "modern-350m": "fineweb",
        "modern-1b": "fineweb",
        "gpt2-124m-pile": "pile",
        "quickstart": "python-docs",
        "tune-hw5": "fineweb",
        "tune-hw5-horizons": "fineweb",
        "tune-hw5-hyperband": "fineweb",
        "tune-hw5-sizes": "fineweb",
        "tune-hw5-tiniest": "fineweb",
    }


def test_an_unknown_key_in_a_users_file_is_named_with_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "conf" / "recipe" / "mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("# @package _global_\ntrainer:\n  bach_tokens: 7\n")
    text = message("recipe=mine", config_dirs=["conf"])
    assert "trainer.bach_tokens" in text
    assert "conf/recipe/mine.yaml" in text
    assert "did you mean trainer.batch_tokens" in text


def test_a_users_file_that_is_no_yaml_is_named_with_its_line(tmp_path):
    recipe = tmp_path / "recipe" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text("trainer:\n  steps: 3\n bad")
    assert re.search(r'cannot be read: .*mine\.yaml", line 3', message("recipe=mine", config_dirs=[tmp_path]))


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["trainer.bach_tokens=3"], ["trainer.bach_tokens", "3", "did you mean trainer.batch_tokens", "command line"]),
        (["steps=3"], ["steps", "did you mean trainer.steps=3"]),
        (["model=gpt2-125m"], ["gpt2-125m", "did you mean model=gpt2-124m"]),
        (["trainer.steps=-3"], ["trainer.steps", "-3", "at least 1"]),
        (
            ["loader.mixture=[{from_step: 0, weights: {web: much}}]"],
            ["loader.mixture[0].weights.web", "much", "number"],
        ),
        (["optimizer.lr=inf"], ["optimizer.lr", "inf is not a finite number", "give a finite number"]),
        (["optimizer.lr=nan"], ["optimizer.lr", "nan is not a finite number"]),
        (["optimizer.lr='1e999'"], ["optimizer.lr", "inf is not a finite number"]),
        (["budget.usd=inf"], ["budget.usd", "inf is not a finite number", "null"]),
        (["store.patience=inf"], ["store.patience", "inf"]),
        (["trainer.checkpoint_every=1e999s"], ["trainer.checkpoint_every", "finite"]),
        (
            ["trainer.batch_schedule=null"],
            ["trainer.batch_schedule", "null is not a list", "trainer.batch_schedule=[]"],
        ),
        (["optimizer.beta1=1"], ["optimizer.beta1", "1.0 must be less than 1"]),
        (["optimizer=muon", "optimizer.row_beta=1"], ["optimizer.row_beta", "must be less than 1"]),
        (["optimizer=muon", "optimizer.momentum=1"], ["optimizer.momentum", "must be less than 1"]),
        (["optimizer=lion", "optimizer.beta2=-0.1"], ["optimizer.beta2", "at least 0"]),
        (["trainer.ema_decay=1"], ["trainer.ema_decay", "must be less than 1"]),
        (["trainer.steps=1.5"], ["trainer.steps", "1.5", "whole number"]),
        (["model.width=wide"], ["model.width", "wide", "whole number"]),
        (["optimizer.name=lionn"], ["lionn", "did you mean optimizer.name=lion"]),
        (["data=text"], ["data.source.paths", "must be given", "data/text.yaml"]),
        (["data.source.pathz=x"], ["data.source.pathz", "no such setting"]),
        (["model.heads=7"], ["7 heads", "768", "try model.heads="]),
        (["trainer.sequence_length=4096"], ["4096", "1024", "model.max_length"]),
        (["model.vocab_size=100"], ["100", "50257"]),
        (["trainer.batch_tokens=1000"], ["1000", "8192", "try trainer.batch_tokens=8192"]),
        (["trainer.tokens=1B", "trainer.steps=5"], ["trainer.steps", "both", "leave one of them out"]),
        (["trainer.steps=null"], ["trainer.steps", "neither", "add trainer.steps=N or trainer.tokens=N"]),
        (
            ["trainer.steps=20", "lr_schedule.warmup_steps=21"],
            ["21 is more", "20 steps", "lr_schedule.warmup_steps=2,"],
        ),
        (["trainer.checkpoint_every=10x"], ["trainer.checkpoint_every", "10x", "unit"]),
        (["trainer=1"], ["trainer=1"]),
        (["model=3"], ["model=3"]),
        (["trainer.steps"], ["'trainer.steps'", "key=value"]),
        (["trainer.loggers=[a"], ["'trainer.loggers=[a'", "lists are [a, b]"]),
        (["trai ner.steps=<"], ["'trai ner.steps=<'", "key=value"]),
        (["trainer.loggers=[tensorbord]"], ["tensorbord", "tensorboard"]),
        (["store.kms_key=abc"], ["store.kms_key", "store.sse=kms"]),
        (
            ["evaluation.tasks=[hellaswagg]"],
            ["evaluation.tasks", "'hellaswagg' is not a task", "did you mean hellaswag?"],
        ),
    ],
)
def test_a_mistake_is_answered_with_key_value_and_a_way_out(overrides, parts):
    text = message(*overrides)
    assert [part for part in parts if part not in text] == []


def test_composition_leaves_no_hydra_behind():
    compose()
    assert not GlobalHydra.instance().is_initialized()


def test_errors_say_which_key_to_programs():
    with pytest.raises(ConfigError) as error:
        compose(["trainer.steps=0"])
    assert error.value.key == "trainer.steps"
