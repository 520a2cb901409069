import json

import boto3
import pytest
from moto import mock_aws

from skytrain.config import SkytrainError
from skytrain.runs import cloudwatch
from skytrain.runs.cloudwatch import CloudWatch, emf_line


@pytest.fixture
def logs(no_aws):
    no_aws.setenv("AWS_REGION", "us-east-1")
    no_aws.setenv("AWS_ACCESS_KEY_ID", "testing")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        yield boto3.client("logs", region_name="us-east-1")


def events(logs, group: str, stream: str) -> list[str]:
    found = logs.get_log_events(logGroupName=group, logStreamName=stream, startFromHead=True)["events"]
    return [event["message"] for event in found]


def test_lines_and_metrics_arrive_in_the_ranks_stream_in_order(logs, monkeypatch):
    monkeypatch.setattr(cloudwatch, "MAX_EVENTS", 3)  # so that several requests are needed
    stream = CloudWatch("my run", attempt=2, rank=1)
    for n in range(7):
        stream.log(f"line {n}")
    stream.metrics(5, {"train/loss": 2.5, "val/loss": float("nan")})
    stream.flush()
    stream.flush()
    found = events(logs, "/skytrain/my_run", "attempt-2/rank-1")
    assert found[:7] == [f"line {n}" for n in range(7)]
    (metric,) = [json.loads(text) for text in found[7:]]
    assert (metric["run"], metric["step"], metric["train/loss"]) == ("my run", 5, 2.5)


def test_a_metric_line_has_the_embedded_format():
    line = json.loads(emf_line("r", 3, {"train/loss": 1.5, "perf/mfu": 0.4}, 1000))
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert line["_aws"]["Timestamp"] == 1000
    assert directive["Namespace"] == "Skytrain" and directive["Dimensions"] == [["run"]]
    assert {metric["Name"] for metric in directive["Metrics"]} == {"train/loss", "perf/mfu"}
    assert line["perf/mfu"] == 0.4


def test_a_refusal_is_told_with_the_rights_that_are_missing_and_nothing_is_lost(logs):
    stream = CloudWatch("r", 0, 0)
    stream.flush()
    logs.delete_log_group(logGroupName="/skytrain/r")
    stream.log("kept")
    with pytest.raises(SkytrainError, match="logs:PutLogEvents"):
        stream.flush()
    logs.create_log_group(logGroupName="/skytrain/r")
    logs.create_log_stream(logGroupName="/skytrain/r", logStreamName="attempt-0/rank-0")
    stream.flush()
    assert events(logs, "/skytrain/r", "attempt-0/rank-0") == ["kept"]


def test_out_of_reach_is_said_at_the_first_try_and_nothing_is_lost(no_aws):
    no_aws.setenv("AWS_REGION", "us-east-1")
    no_aws.setenv("AWS_ACCESS_KEY_ID", "testing")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    no_aws.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "http://127.0.0.1:1")
    stream = CloudWatch("r", 0, 0)
    stream.log("kept")
    with pytest.raises(SkytrainError, match="CloudWatch /skytrain/r is out of reach"):
        stream.flush()
    assert stream._next_batch()[0][1] == "kept"


def test_without_a_region_the_setting_is_named(no_aws):
    with pytest.raises(SkytrainError, match=r"trainer\.loggers: cloudwatch.*region"):
        CloudWatch("r", 0, 0)
