import json
from dataclasses import replace

import boto3
import pytest
from moto import mock_aws

from skytrain.aws import CloudWatch, LogDestination, cloudwatch, log_destination
from skytrain.aws.cloudwatch import emf_line
from skytrain.config import CloudConfig, SkytrainError, compose
from skytrain.runs import cloudwatch_stream, sync

OWN = LogDestination("/skytrain/r", "", None, creates_group=True)
BASE = LogDestination("/skytrain/demo/nodes", "my_run/", "us-east-1")


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
    logs.create_log_group(logGroupName=BASE.group)  # by Terraform: nodes may not
    stream = CloudWatch(BASE, "attempt-2/rank-1", "my run")
    for n in range(7):
        stream.log(f"line {n}")
    stream.metrics(5, {"train/loss": 2.5, "val/loss": float("nan")})
    stream.flush()
    stream.flush()
    found = events(logs, BASE.group, "my_run/attempt-2/rank-1")
    assert found[:7] == [f"line {n}" for n in range(7)]
    (metric,) = [json.loads(text) for text in found[7:]]
    assert (metric["run"], metric["step"], metric["train/loss"]) == ("my run", 5, 2.5)


def test_a_metric_line_has_the_embedded_format_and_only_what_people_plot_becomes_a_metric():
    plotted = {"train/loss": 1.5, "perf/mfu": 0.4, "perf/tokens_per_s": 9.0, "cost/usd": 2.0, "eval/hellaswag/acc": 0.3}
    others = {"train/lr": 1e-4, "eval/hellaswag/acc_stderr": 0.01, "eval/hellaswag/items": 10.0}
    line = json.loads(emf_line("r", 3, {**plotted, **others}, 1000))
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert line["_aws"]["Timestamp"] == 1000
    assert directive["Namespace"] == "Skytrain" and directive["Dimensions"] == [["run"]]
    assert {metric["Name"] for metric in directive["Metrics"]} == plotted.keys()
    assert {name: line[name] for name in {**plotted, **others}} == {**plotted, **others}
    assert line["run"] == "r"  # the dimension's value
    assert "_aws" not in json.loads(emf_line("r", 3, {"train/lr": 1.0}, 1000))


def test_a_refusal_is_told_with_the_rights_that_are_missing_and_nothing_is_lost(logs, monkeypatch):
    stream = CloudWatch(OWN, "attempt-0/rank-0", "r")
    stream.flush()
    logs.delete_log_group(logGroupName="/skytrain/r")
    stream.log("kept")
    with pytest.raises(SkytrainError, match="logs:CreateLogGroup, logs:CreateLogStream and logs:PutLogEvents"):
        stream.flush()
    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(stream, "_send", lambda: sent.append(1))
        with pytest.raises(SkytrainError, match="does not take the log"):
            stream.flush()  # not asked again at once
    assert not sent
    stream._retry_at = 0.0
    stream.flush()  # it creates the group and the stream again
    assert events(logs, "/skytrain/r", "attempt-0/rank-0") == ["kept"]


def test_out_of_reach_is_said_at_the_first_try_and_nothing_is_lost(no_aws):
    no_aws.setenv("AWS_REGION", "us-east-1")
    no_aws.setenv("AWS_ACCESS_KEY_ID", "testing")
    no_aws.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    no_aws.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "http://127.0.0.1:1")
    stream = CloudWatch(OWN, "attempt-0/rank-0", "r")
    stream.log("kept")
    with pytest.raises(SkytrainError, match="CloudWatch /skytrain/r cannot be reached"):
        stream.flush()
    assert stream._next_batch()[0][1] == "kept"


def test_lines_that_cloudwatch_does_not_take_are_bounded_and_it_says_how_many_were_dropped(logs, monkeypatch):
    monkeypatch.setattr(cloudwatch, "WAITING_BYTES", 10 * (100 + cloudwatch.EVENT_BYTES))
    logs.create_log_group(logGroupName=BASE.group)
    stream = CloudWatch(BASE, "node-i-0", "my run")
    for n in range(1000):
        stream.log(f"{n:0100}")
    assert len(stream._waiting) == 10
    stream.flush()
    found = events(logs, BASE.group, "my_run/node-i-0")
    assert [int(line) for line in found[:10]] == list(range(990, 1000))
    assert found[10] == "990 lines before this one were dropped: CloudWatch did not take them in time"
    assert stream._bytes == 0


def test_a_request_keeps_within_the_limits_of_the_service(monkeypatch):
    stream = CloudWatch(BASE, "node-i-0", "my run", client=object())
    stream.log("\N{SNOWMAN}" * cloudwatch.LINE_BYTES)
    stream.log("next")
    stream._waiting[1] = (stream._waiting[1][0] + 25 * 3600 * 1000, "a day later", 11)
    batch = stream._next_batch()
    assert len(batch) == 1 and len(batch[0][1].encode()) <= cloudwatch.LINE_BYTES


def test_without_a_region_the_setting_is_named(no_aws):
    with pytest.raises(SkytrainError, match=r"trainer\.loggers: cloudwatch.*region"):
        CloudWatch(OWN, "attempt-0/rank-0", "r")


def test_problems_are_told_and_never_end_the_work(logs, monkeypatch):
    told: list[str] = []
    with cloudwatch_stream(BASE, "my run", "node-i-0", told.append) as stream:  # the group does not exist
        monkeypatch.setattr(sync, "CLOUDWATCH_CLOSE_SECONDS", 0.01)
        stream.log("lost")
    assert "logs:CreateLogStream and logs:PutLogEvents" in told[0]
    assert told[-1] == "warning: the last lines of the log and metrics did not reach CloudWatch"
    with cloudwatch_stream(None, "my run", "node-i-0", told.append) as stream:
        assert stream is None


def test_machines_of_a_launch_log_to_the_bases_group_and_local_runs_do_not(monkeypatch):
    config = compose().config
    cloud: CloudConfig = replace(config.cloud, region="us-east-1", log_groups={"nodes": BASE.group}, target="ec2")
    launched = replace(config, cloud=replace(cloud, cloudwatch=True))
    assert log_destination(launched, "my run", on_ec2=True) == BASE
    assert log_destination(launched, "my run", on_ec2=False) is None
    assert log_destination(replace(config, cloud=cloud), "my run", on_ec2=True) is None
    assert log_destination(config, "my run", on_ec2=True) is None
    asked = replace(config, trainer=replace(config.trainer, loggers=["cloudwatch"]))
    assert log_destination(asked, "r", on_ec2=False) == replace(OWN, region=config.cloud.region)
