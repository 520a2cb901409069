"""What a run has cost: counted by machine and attempt, and billed by AWS."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from skytrain.aws import CloudError
from skytrain.pipelines.costs import bill_call, cost_notes, cost_rows, costs, read_bill
from skytrain.report import describe_status
from skytrain.runs import (
    Lines,
    attempt_key,
    claim_attempt,
    create_run,
    final_usd,
    host_key,
    new_record,
    run_status,
    spent_usd,
    write_billed,
)
from skytrain.storage import open_store
from tests.support.tiny import tiny_config


def spend(store, attempt: int, **machines: tuple[float, float]) -> None:
    counts = {key: {"usd": usd, "seconds": s, "boot": "b", "boot_seconds": s} for key, (usd, s) in machines.items()}
    lines = Lines(store, f"{attempt_key('r', attempt)}/spend/")
    lines.write({"at": "x", "usd": 1.0, "machines": {}})
    lines.write({"at": "x", "usd": 1.0, "machines": counts})
    lines.flush()


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = tiny_config(tmp_path_factory.mktemp("store"))
    store = open_store(config.store)
    create_run(store, new_record(config, name="r", data={}, tokenizer_id="x", parameters=1, hardware={}))
    for _ in range(3):
        claim_attempt(store, "r")
    spend(store, 0, one=(1.0, 3600.0), two=(1.0, 3600.0))
    spend(store, 2, one=(1.5, 5400.0), two=(1.0, 3600.0), three=(2.0, 1800.0))
    return config


def test_each_attempt_has_what_it_added_to_each_machine(config):
    found = costs(config, "r", None)
    assert [(each.attempt, each.machine, each.seconds, each.usd) for each in found.machines] == [
        (0, "one", 3600.0, 1.0),
        (0, "two", 3600.0, 1.0),
        (2, "one", 1800.0, 0.5),
        (2, "three", 1800.0, 2.0),
    ]
    assert found.usd == 4.5 and found.bill is None
    assert found.storage_usd_per_month == found.requests_usd == 0.0  # of a folder
    rows = cost_rows(found)
    assert rows[4] == ("2", "three", "30m", "4.000", "2.00") and rows[-1] == ("all", "", "3h", "", "4.50")


def test_what_machines_cost_beyond_the_attempts_comes_last(config, tmp_path):
    store = open_store(str(shutil.copytree(open_store(config.store).local_path(""), tmp_path / "store")))
    count = {"usd": 2.5, "seconds": 2250.0, "boot": "b", "boot_seconds": 1.0}
    waited = {"spend": {"usd": 0.5, "machines": {"three": count, "four": {**count, "usd": 0.25, "seconds": 900.0}}}}
    store.write(host_key("r", "left", "2x1", "three.0"), json.dumps(waited).encode())
    found = costs(replace(config, store=replace(config.store, root=store.root)), "r", None)
    assert [(each.attempt, each.machine, each.seconds, each.usd) for each in found.machines[4:]] == [
        (None, "three", 450.0, 0.5),
        (None, "four", 900.0, 0.25),
    ]
    assert cost_rows(found)[6][:2] == ("-", "four") and found.usd == 5.25


def test_a_run_whose_machines_have_all_ended_costs_what_ec2_says(config, tmp_path):
    store = open_store(str(shutil.copytree(open_store(config.store).local_path(""), tmp_path / "store")))
    config = replace(config, store=replace(config.store, root=store.root))
    spend(store, 1, **{"i-1 a": (0.5, 1800.0), "i-2 a": (0.5, 1800.0)})
    left = {
        "spend": {"usd": 1.0, "machines": {"i-1 a": {"usd": 0.6, "seconds": 2160.0, "boot": "", "boot_seconds": 0.0}}}
    }
    store.write(host_key("r", "left", "2x1", "i-1.0"), json.dumps(left).encode())
    write_billed(store, "r", "i-1", 2100.0, 0.58)
    found = costs(config, "r", None)
    assert found.usd == 5.6 and not found.settled  # i-2 may run
    assert run_status(store, "r", 10).usd == final_usd(store, "r") == 5.6
    write_billed(store, "r", "i-2", 1750.0, 0.49)
    found = costs(config, "r", None)
    assert [
        (each.attempt, each.machine, each.seconds, each.usd) for each in found.machines if "i-" in each.machine
    ] == [
        (1, "i-1 a", 1800.0, 0.5),
        (1, "i-2 a", 1750.0, 0.49),
        (None, "i-1 a", 300.0, pytest.approx(0.08)),
    ]
    assert found.usd == pytest.approx(5.57) and "EC2's own launch and end times" in found.to_text()
    status = run_status(store, "r", 10)
    assert (status.usd, status.metered_usd) == (pytest.approx(5.57), 5.6) and final_usd(store, "r") == status.usd
    assert spent_usd(store, "r") == 5.6  # from which machines of the next launch would count on
    assert dict(describe_status(status))["cost"].startswith("$5.57 by EC2's own times, $5.60 by the meter while it ran")
    spend(store, 3, **{"i-1 b": (0.1, 180.0)})  # stopped and started again: EC2 tells only of the last start
    assert final_usd(store, "r") > 5.6


class Explorer:
    """A session whose one answer is given."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def perform(self, call, region=None):
        self.asked.append((call.body(), region))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def group(service: str, amount: str):
    return {"Keys": [service], "Metrics": {"UnblendedCost": {"Amount": amount, "Unit": "USD"}}}


def test_the_bill_is_summed_by_service_over_months_and_asked_in_one_region(config):
    months = [{"Groups": [group("EC2", "1.25"), group("S3", "0.5")]}, {"Groups": [group("EC2", "2")]}, {}]
    explorer = Explorer({"ResultsByTime": months})
    found = costs(config, "r", explorer)
    assert found.bill.usd == 3.75 and found.bill.services == {"EC2": 3.25, "S3": 0.5}
    ((body, region),) = explorer.asked
    assert region == "us-east-1" and body["Filter"]["Tags"]["Values"] == ["r"]
    assert "AWS's bill so far (it lags by a day): $3.75: EC2 $3.25, S3 $0.50" in cost_notes(found)[-1]
    json.dumps(body)


def test_where_cost_explorer_is_denied_or_has_nothing_it_is_said(config):
    denied = costs(config, "r", Explorer(CloudError("ce GetCostAndUsage: AccessDenied: no", fix="ask")))
    assert cost_notes(denied)[-1] == "AWS's bill: unknown: ce GetCostAndUsage: AccessDenied: no"
    empty = read_bill(Explorer({"ResultsByTime": [{"Groups": []}]}), "r", "2026-01-01T00:00:00+00:00")
    assert "must be an active cost allocation tag" in empty.problem


def test_the_question_covers_the_days_of_the_run():
    period = bill_call("r", "2026-01-30T10:00:00+00:00", datetime(2026, 2, 2, tzinfo=UTC)).body()["TimePeriod"]
    assert period == {"Start": "2026-01-30", "End": "2026-02-03"}
