import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from skytrain.aws import Metadata, find_metadata
from skytrain.storage import Retry
from tests.support.imds import fake_metadata


@pytest.fixture
def fake():
    with fake_metadata() as server:
        yield server


def test_an_instance_tells_its_type_market_region_and_launch(fake):
    found = Metadata(fake.url).instance()
    assert found is not None
    assert (found.id, found.type, found.region, found.market) == ("i-0abc", "g5.12xlarge", "us-east-1", "spot")
    assert found.launched_at is not None and found.launched_at.isoformat() == "2026-01-01T00:00:00+00:00"


def test_no_notice_a_recommendation_and_the_end_are_told_apart(fake):
    metadata = Metadata(fake.url)
    assert metadata.notice() is None
    fake.recommend_rebalance()
    notice = metadata.notice()
    assert notice is not None and notice.kind == "rebalance"
    fake.give_notice()
    notice = metadata.notice()
    assert notice is not None and notice.kind == "spot"
    assert notice.text == "EC2 will terminate this instance at 2026-01-01T00:02:00Z"


def test_a_token_that_ran_out_is_replaced(fake):
    metadata = Metadata(fake.url)
    assert metadata.get("meta-data/instance-id") == "i-0abc"
    fake.tokens.clear()
    assert metadata.get("meta-data/instance-id") == "i-0abc"


def test_the_variable_of_aws_names_the_service(fake, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url + "/")
    found = find_metadata()
    assert found is not None and found.get("meta-data/instance-id") == "i-0abc"
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert find_metadata() is None


def test_a_variable_that_leads_nowhere_is_no_service(monkeypatch, tmp_path):
    monkeypatch.setattr("skytrain.aws.metadata.DMI", tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    assert find_metadata() is None


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("skytrain.aws.metadata.START_RETRY", Retry(5.0, 0.001, 0.01))
    monkeypatch.setattr("skytrain.aws.metadata.TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("tests.support.imds.HANG_SECONDS", 0.1)


@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize("fault", ["busy", "empty", "garbage", "hang"])
def test_a_service_in_trouble_is_asked_again(fake, quick, monkeypatch, fault, method):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
    fake.fail(fault, times=4, method=method)
    found = find_metadata()
    assert found is not None
    instance = found.instance()
    assert instance is not None and instance.type == "g5.12xlarge" and instance.market == "spot"
    assert fake.happened[fault] == 4


def test_a_service_that_stays_in_trouble_is_still_this_machines(fake, quick, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", fake.url)
    monkeypatch.setattr("skytrain.aws.metadata.START_RETRY", Retry(0.05, 0.001, 0.01))
    fake.fail("busy")
    found = find_metadata()
    assert found is not None
    with pytest.raises(OSError, match="503"):
        found.instance()


def test_a_notice_that_cannot_be_read_is_an_error_and_no_notice(fake):
    fake.tree["meta-data/spot/instance-action"] = "<html>"
    with pytest.raises(OSError, match="the spot notice cannot be read: '<html>'"):
        Metadata(fake.url).notice()


def test_a_group_that_takes_the_instance_out_of_service_is_a_notice(fake):
    metadata = Metadata(fake.url)
    fake.tree["meta-data/autoscaling/target-lifecycle-state"] = "InService"
    assert metadata.notice() is None
    fake.tree["meta-data/autoscaling/target-lifecycle-state"] = "Terminated"
    notice = metadata.notice()
    assert notice is not None and notice.kind == "lifecycle" and notice.at_once
    assert notice.text == "its Auto Scaling group is moving this instance to Terminated"


@pytest.mark.parametrize(("minutes", "at_once"), [(5, True), (24 * 60, False)])
def test_scheduled_maintenance_stops_a_run_shortly_before_it_begins(fake, minutes, at_once):
    start = format_datetime(datetime.now(UTC) + timedelta(minutes=minutes), usegmt=True)
    events = [{"Code": "system-reboot", "NotBefore": start, "State": "active", "EventId": "instance-event-0"}]
    fake.tree["meta-data/events/maintenance/scheduled"] = json.dumps(events)
    fake.recommend_rebalance()
    notice = Metadata(fake.url).notice()
    assert notice is not None and notice.kind == "maintenance" and notice.at_once == at_once
    assert "system-reboot" in notice.text
    fake.tree["meta-data/events/maintenance/scheduled"] = "[]"
    assert Metadata(fake.url).notice().kind == "rebalance"


def test_off_ec2_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    monkeypatch.setattr("skytrain.aws.metadata.DMI", tmp_path)
    (tmp_path / "sys_vendor").write_text("Framework\n")
    monkeypatch.setattr("skytrain.aws.metadata.Metadata.get", lambda *_: pytest.fail("asked"))
    assert find_metadata() is None
