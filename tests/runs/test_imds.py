import pytest

from skytrain.runs.imds import Metadata, find_metadata
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


def test_a_service_that_does_not_answer_is_no_service(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    assert find_metadata() is None


def test_off_ec2_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    monkeypatch.setattr("skytrain.runs.imds.DMI", tmp_path)
    (tmp_path / "sys_vendor").write_text("Framework\n")
    monkeypatch.setattr("skytrain.runs.imds.Metadata.get", lambda *_: pytest.fail("asked"))
    assert find_metadata() is None
