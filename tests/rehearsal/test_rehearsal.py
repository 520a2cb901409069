"""The rehearsal itself: what stands in for a machine behaves as one, and a short rehearsal passes."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

import pytest
from rehearsal.__main__ import main, rehearse
from rehearsal.hosts import missing
from rehearsal.init import parse_unit
from rehearsal.metadata import ROLE, InstanceFacts, MetadataService

from skytrain.targets.ec2.boot import STOP_SECONDS
from tests.targets.test_boot import in_an_hour, script


def test_the_unit_of_the_boot_script_is_read_as_systemd_reads_it() -> None:
    found = re.search(
        r"skytrain-node.service <<'END'\n(.*?)^END$", script().render(in_an_hour()), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    unit = parse_unit(found[1])
    assert unit.start[1:] == ["node", "run=gpt2", "data.pattern=50% $x", "--nodes", "2"]
    assert (unit.stop_post, unit.stop_seconds) == (["/opt/skytrain/ended"], STOP_SECONDS)
    assert unit.restarts and unit.restart_seconds == 2
    with pytest.raises(ValueError, match="does not know 'Restart=always'"):
        parse_unit("Restart=always\n")


def test_the_metadata_service_answers_nothing_without_a_token() -> None:
    facts = InstanceFacts(
        id="i-1",
        type="g5.xlarge",
        zone="us-east-2a",
        address="10.0.0.4",
        market="spot",
        image="ami-1",
        launched_at=datetime.now(UTC),
        tags={"a": "b"},
    )
    service = MetadataService(facts, ("key", "secret"))
    path = "meta-data/spot/instance-action"
    assert service.answer(path, None) == (401, "") and service.answer(path, "wrong") == (401, "")
    token = service.new_token(60)
    assert service.answer(path, token) == (404, "")
    service.spot_notice(120)
    assert service.answer(path, token)[0] == 200
    assert '"SecretAccessKey": "secret"' in service.answer(f"meta-data/iam/security-credentials/{ROLE}", token)[1]
    assert service.answer("meta-data/tags/instance/a", token) == (200, "b")


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("sys.argv", ["rehearsal"])
    assert main() == 3
    assert "needs root" in capsys.readouterr().err


@pytest.mark.slow
def test_a_quota_of_zero_and_a_zone_without_capacity_are_rehearsed() -> None:
    if problem := missing():
        pytest.skip(problem)
    assert rehearse(["quota", "capacity"], 0) == 0
