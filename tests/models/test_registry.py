"""A family is one module of `models.families` and its files among the configuration's groups."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib import import_module

import pytest

from skytrain.config import WEIGHTS, ConfigError, DecoderConfig, ModelConfig, build, compose, select, upgrade
from skytrain.config.schema import tag_of
from skytrain.models import describe_sizes
from skytrain.models.families import FAMILIES


def test_every_family_has_its_configuration_files_and_the_other_way_round():
    assert sorted(FAMILIES) == sorted(tag_of(DecoderConfig)[1])
    assert {size.family for size in describe_sizes([], 128)} == set(FAMILIES)


def test_families_load_without_torch():
    code = "import sys, skytrain.models.families as found; assert found.FAMILIES and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_family_is_named_after_its_module():
    for name, family in FAMILIES.items():
        assert import_module(f"skytrain.models.families.{name}").FAMILY is family


def test_a_block_has_norms():
    with pytest.raises(ConfigError, match=r"model.post_norms: must be true with model.pre_norms=false"):
        compose(["model=llama-tiny", "model.pre_norms=false"])


def test_a_record_from_before_a_setting_was_added_keeps_its_meaning():
    config = compose(["model=gpt2-tiny"]).config.model
    saved = dataclasses.asdict(config)
    before = {name: value for name, value in saved.items() if name not in ("pre_norms", "qk_norm_scope")}
    read = upgrade(ModelConfig, before)
    assert build(ModelConfig, read, "model") == config
    assert select(ModelConfig, read, {WEIGHTS}) == select(ModelConfig, saved, {WEIGHTS})
