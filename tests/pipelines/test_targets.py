"""The targets of `launch` by their names, and classes of the user's own that are none."""

from __future__ import annotations

import pytest

from skytrain.config import ConfigError
from skytrain.targets import LaunchRequest, LaunchTarget, ReadyJob
from skytrain.targets.registry import find_target


class WithoutName(LaunchTarget):
    def prepare(self, request: LaunchRequest) -> ReadyJob:
        raise NotImplementedError


class WithoutPrepare(LaunchTarget):
    name = "mine"


class WithArguments(WithoutName):
    def __init__(self, cluster: str) -> None:
        self.cluster = cluster


class Unrelated:
    name = "mine"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("WithoutPrepare", "has no method prepare"),
        ("WithArguments", "missing a required argument: 'cluster'"),
        ("Unrelated", "is not a launch target"),
        ("pytest", "is not a launch target"),
    ],
)
def test_a_class_that_cannot_be_a_target_is_refused_with_what_it_lacks(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        find_target(f"{__name__}.{name}")


def test_a_target_of_ones_own_is_named_by_its_path() -> None:
    assert find_target(f"{__name__}.WithoutName").name == f"{__name__}.WithoutName"
