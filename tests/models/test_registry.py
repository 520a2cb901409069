"""A family is one module of `models.families` and its files among the configuration's groups."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

from skytrain.config import DecoderConfig
from skytrain.config.schema import tag_of
from skytrain.models.families import FAMILIES
from skytrain.models.sizes import describe_sizes


def test_every_family_has_its_configuration_files_and_the_other_way_round():
    assert sorted(FAMILIES) == sorted(tag_of(DecoderConfig)[1])
    assert {size.family for size in describe_sizes([], 128)} == set(FAMILIES)


def test_families_load_without_torch():
    code = "import sys, skytrain.models.families as found; assert found.FAMILIES and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_family_is_named_after_its_module():
    for name, family in FAMILIES.items():
        assert import_module(f"skytrain.models.families.{name}").FAMILY is family
