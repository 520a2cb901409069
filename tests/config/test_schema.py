"""What settings say of themselves, and what is derived from it."""

import pytest

from skytrain.config import DATA, EXECUTION, RESULT, WEIGHTS, Config, DataConfig, ModelConfig, compose, flatten, select
from skytrain.config.schema import Decides, fields_of
from skytrain.corpus import corpus_version, recipe_hash
from skytrain.runs import plain


def every_field(group=Config, key=""):
    for field in fields_of(group):
        name = f"{key}.{field.name}" if key else field.name
        yield name, field
        for inside in field.groups:
            yield from every_field(inside, name)


def test_every_setting_says_what_it_means_and_decides():
    silent = [key for key, field in every_field() if field.declared is None and not field.groups]
    assert silent == []
    vague = [key for key, field in every_field() if field.declared and len(field.declared.meaning) < 4]
    assert vague == []


def test_every_group_says_what_it_is():
    groups = {group for _, field in every_field() for group in field.groups}
    assert [group.__name__ for group in groups if (group.__doc__ or "").startswith(group.__name__ + "(")] == []


def test_each_setting_of_a_configuration_decides_one_thing():
    config = plain(compose(["model=llama-3.1-8b", "tokenizer=bpe-32k", "optimizer=muon"]).config)
    parts = [flatten(select(Config, config, {decides})) for decides in Decides]
    keys = [key for part in parts for key in part]
    assert sorted(keys) == sorted(flatten(config))
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("overrides", "recipe", "version"),
    [
        ([], "4d508cdbe7e0", "0656c73f269d"),
        (["recipe=gpt2-124m-pile"], "f1b1179d644a", "6511eda06c88"),
        (
            ["recipe=gpt2-124m-openwebtext", "data.workers=3", "data.version=abc"],
            "e29b49191310",
            "17a5c18784f7",
        ),
        (["data=fineweb-edu", "data/cleaning=web"], "f4eb9c3eff3a", "c3b8b312beb6"),
        (
            ["data=text", "data.source.paths=a.txt", "data.near_dedup.enabled=true", "data.target_tokens=2.5B"],
            "b7fe2cde4aff",
            "f4358f021dcc",
        ),
        (["data=synthetic"], "1dac9a98d562", "11434ee95c06"),
    ],
)
def test_data_that_was_prepared_before_is_still_found(overrides, recipe, version):
    """Versions name folders in users' stores: a change here orphans everything they have prepared."""
    data = compose(overrides).config.data
    assert (recipe_hash(data), corpus_version(data, {"a": 1})) == (recipe, version)


def test_the_variant_that_a_mapping_names_decides_which_settings_count():
    """A decoder's name is a label, that of a Hugging Face model is the model."""
    decoder, published = compose().config.model, compose(["model=hf", "model.name=gpt2"]).config.model
    assert "name" in select(ModelConfig, plain(decoder), {EXECUTION})
    assert "name" in select(ModelConfig, plain(published), RESULT)


def test_where_a_mapping_does_not_name_its_variant_the_settings_of_all_count():
    assert select(ModelConfig, {"width": 3, "dropout": 0.1, "unheard_of": 1}, {WEIGHTS}) == {"width": 3}


def test_settings_of_plugged_in_classes_count_as_the_key_that_holds_them():
    data = plain(compose(["data=text", "data.source.paths=[a,b]"]).config.data)
    assert flatten(select(DataConfig, data, {DATA}))["source.args.paths"] == ["a", "b"]
