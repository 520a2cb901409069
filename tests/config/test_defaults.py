"""Defaults are in YAML files only: every group is composed, and a second source of a default fails."""

import dataclasses
import importlib
import pkgutil
from pathlib import Path

import pytest

from skytrain.config import (
    BEFORE,
    GROUPS,
    Config,
    ConfigError,
    DecoderConfig,
    TaskConfig,
    compose,
    composition,
    flatten,
    schema,
    upgrade,
)
from skytrain.config.group_files import base_files, file_settings
from skytrain.config.schema import fields_of
from skytrain.runs import plain

GROUP_FOLDER = Path(schema.__file__).parents[1] / "groups"
DESCRIBED_ELSEWHERE = {
    "model=hf-weights",
    "tokenizer=hf",
    "tokenizer=weights",
}  # by the files of a model that somebody else trained
CHOICES = {
    # One of those files of a group that set the same keys: sizes of a model differ in nothing else.
    (group, *sorted(file_settings(f"{group}/{path.name}"))): f"{group}={path.stem}"
    for group in GROUPS
    for path in sorted((GROUP_FOLDER / group).glob("*.yaml"))
    if not path.stem.startswith("_") and f"{group}={path.stem}" not in DESCRIBED_ELSEWHERE
}.values()
IN_BASE_FILES = [key for file in base_files() for key in file_settings(file)]
ACCOUNT = "# @package _global_\ndefaults:\n  - none@cloud\n  - _self_\n"


def schema_classes(start: type) -> set[type]:
    found, waiting = set(), [start]
    while waiting:
        group = waiting.pop()
        if group not in found:
            found.add(group)
            waiting += [inside for field in fields_of(group) for inside in field.groups]
    return found


ALL_CLASSES = sorted(schema_classes(Config) | {TaskConfig}, key=lambda group: group.__name__)


@pytest.mark.parametrize("group", ALL_CLASSES, ids=lambda group: group.__name__)
def test_a_schema_declares_no_default(group):
    with_default = [
        field.name
        for field in dataclasses.fields(group)
        if not field.default is field.default_factory is dataclasses.MISSING
    ]
    assert with_default == []


def test_no_module_of_the_schema_holds_a_group_that_is_filled_in():
    for module in pkgutil.walk_packages(schema.__path__, f"{schema.__name__}."):
        values = vars(importlib.import_module(module.name)).items()
        assert [name for name, value in values if type(value) in ALL_CLASSES] == []


@pytest.fixture
def account(tmp_path, monkeypatch):
    """The file of an AWS account that has only what it must have, as cloud=ec2 and others need it."""
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud" / "aws.yaml").write_text(ACCOUNT)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_value_of_every_group_comes_from_a_file(choice, account):
    tokenizer = ["tokenizer=bytes"] if choice.startswith("model=") else []  # a vocabulary that any model can hold
    file = file_settings(f"{choice.replace('=', '/')}.yaml")
    given = [f"{key}=1024" for key, value in file.items() if value == "???"]  # a name, a path or a number
    experts = ["model=mixtral-tiny"] if "ep-fsdp" in choice else []  # which is refused without experts to divide
    composed = compose([choice, *tokenizer, *given, *experts])
    known = tuple(f"{key}." for key in composed.origins)
    for key in flatten(plain(composed.config)):
        if not f"{key}.".startswith(known) and ".args" not in key:  # arguments of a class stand directly in its group
            assert key in IN_BASE_FILES, f"{choice} leaves {key} out, and no base file has it"


def test_no_two_base_files_set_the_same():
    shared = [key for key in IN_BASE_FILES if IN_BASE_FILES.count(key) > 1]
    assert set(shared) == {"cloud.target"}  # which no file may leave out


def test_a_setting_that_a_file_may_leave_out_has_a_base_file():
    # A data set names its base file itself (defaults: [_base]).
    keys = (*IN_BASE_FILES, *file_settings("config.yaml"), *file_settings("data/_base.yaml"))
    names = {part for key in keys for part in key.split(".")}
    assert {name for added in BEFORE.values() for name in added} <= names


def test_a_group_of_your_own_may_be_older_than_a_setting(tmp_path):
    (tmp_path / "budget").mkdir()
    (tmp_path / "budget" / "mine.yaml").write_text("usd: 5\nusd_per_hour: 1\nmargin: 10s\n")
    mine = compose(["budget=mine"], config_dirs=[tmp_path])
    assert mine.config.budget == dataclasses.replace(compose().config.budget, usd=5.0, usd_per_hour=1.0, margin=10.0)
    assert mine.values["budget"] == {"usd": 5, "usd_per_hour": 1, "margin": "10s"}
    (tmp_path / "budget" / "mine.yaml").write_text("usd: 5\nusd_per_hour: 1\n")
    with pytest.raises(ConfigError, match=r"budget\.margin.*must be given"):
        compose(["budget=mine"], config_dirs=[tmp_path])


def test_an_old_record_keeps_its_meaning_whatever_the_files_say_today():
    today = plain(compose(["model=olmo-2-1b", "tokenizer=gpt2"]).config)
    old = {**today, "model": {**today["model"]}}
    for name in ("pre_norms", "qk_norm_scope", "parametrization", "base_width", "base_layers", "weights"):
        del old["model"][name]
    del old["tune"]
    upgraded = upgrade(Config, old)
    assert today["model"]["pre_norms"] is False and upgraded["model"]["pre_norms"] is True
    assert upgraded["model"]["qk_norm_scope"] == "head" and upgraded["model"]["parametrization"] == "standard"
    assert "tune" not in upgraded and "pre_norms" not in old["model"]
    assert upgrade(Config, today) == today
    assert upgrade(DecoderConfig, old["model"]) == upgraded["model"]


def test_a_former_name_of_a_setting_is_still_read_and_one_line_says_so(caplog, account):
    composition._tell_renamed.cache_clear()
    for choice in ("cloud=eks", "cloud=none"):
        assert compose([choice, "cloud.kind=trainjob"]).config.cloud.eks.job_kind == "trainjob"
    assert caplog.messages == [
        "cloud.kind (from command line) is now called cloud.eks.job_kind; the old name is still read"
    ]
    record = plain(compose(["cloud=eks"]).config)
    del record["cloud"]["eks"]["job_kind"]
    assert upgrade(Config, record)["cloud"]["eks"]["job_kind"] == "job"
    record["cloud"]["kind"] = "trainjob"
    upgraded = upgrade(Config, record)
    assert upgraded["cloud"]["eks"]["job_kind"] == "trainjob" and "kind" not in upgraded["cloud"]
