"""The four tags: one form out, any service's form in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from skytrain.aws import Call, Tags, read_tags
from skytrain.config import SkytrainError

OURS = Tags("demo", "ada", "gpt2-pile-1", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def test_every_form_of_the_tags_is_read_back() -> None:
    lower_case = [{"key": pair["Key"], "value": pair["Value"]} for pair in OURS.pairs()]
    for form in (OURS.mapping(), OURS.pairs(), OURS.for_group("g"), lower_case):
        assert read_tags(form) == OURS
    assert OURS.mapping() == {
        "skytrain:project": "demo",
        "skytrain:run": "gpt2-pile-1",
        "skytrain:owner": "ada",
        "skytrain:expires-at": "2026-01-02T03:04:05Z",
    }


def test_what_belongs_to_the_whole_project_has_no_run_and_no_end() -> None:
    assert read_tags(Tags("demo", "ada").pairs()) == Tags("demo", "ada")


@pytest.mark.parametrize("found", [None, [], {}, [{"Key": "Name", "Value": "x"}], {"skytrain:run": "x"}])
def test_what_does_not_carry_the_project_is_not_ours(found: object) -> None:
    assert read_tags(found) is None  # type: ignore[arg-type]


def test_an_edited_time_does_not_make_a_resource_unreadable() -> None:
    found = read_tags({**OURS.mapping(), "skytrain:expires-at": "tomorrow", "skytrain:owner": ""})
    assert found == Tags("demo", "unknown", "gpt2-pile-1", None)


@pytest.mark.parametrize(
    "edited",
    [
        {"skytrain:owner": "Ada (ML), <ada@example.com>"},
        {"skytrain:project": "demo; old"},
        {"skytrain:run": "r" * 300},
        {"skytrain:expires-at": "0001-01-01T00:00:00+23:00"},
    ],
)
def test_tags_that_someone_else_wrote_are_read_and_shown_as_they_are(edited: dict[str, str]) -> None:
    found = read_tags({**OURS.mapping(), **edited})
    assert found is not None
    shown = {**OURS.mapping(), **edited}
    if "skytrain:expires-at" in edited:
        del shown["skytrain:expires-at"]
    assert found.mapping() == shown


def test_a_value_that_aws_would_reject_is_named() -> None:
    with pytest.raises(SkytrainError, match=r"skytrain:owner(.|\n)*cloud\.owner=NAME"):
        Tags("demo", "ada; drop")
    for reserved in ("aws:ada", "AWS:ada"):
        with pytest.raises(SkytrainError, match="no aws: before"):
            Tags("demo", reserved)
    assert Tags("demo", "at aws: work").owner == "at aws: work"


def test_the_forms_are_what_the_services_take() -> None:
    launch = {"MinCount": 1, "MaxCount": 1, "TagSpecifications": OURS.specifications("instance", "volume")}
    Call("ec2", "RunInstances", launch, "run/1").body()
    Call("autoscaling", "CreateOrUpdateTags", {"Tags": OURS.for_group("g")}).body()
    Call("logs", "CreateLogGroup", {"logGroupName": "g", "tags": OURS.mapping()}).body()
