import copy
from dataclasses import replace

import pytest

from skytrain.aws import Tags
from skytrain.config import SkytrainError
from skytrain.config.schema.cloud import SubnetsConfig
from skytrain.planning import ZonePrice
from skytrain.targets import ClusterSpec, cluster_config
from tests.support.parallelcluster import load_in_parallelcluster
from tests.support.settings import CLOUD_DEFAULTS
from tests.targets.plans import offer

SUBNETS = SubnetsConfig(
    {"us-east-2a": "subnet-0aaaaaaaaaaaaaaaa", "us-east-2b": "subnet-0bbbbbbbbbbbbbbbb"}, {}, "private"
)
CLOUD = replace(CLOUD_DEFAULTS, project="p", subnets=SUBNETS, kms_key="arn:aws:kms:us-east-2:123456789012:key/k")
SPEC = ClusterSpec(CLOUD, Tags("p", "ada", None), "s3://bucket/project")
RESERVED = replace(SPEC, reservation="cr-0123456789abcdef0")
PLANS = {
    "two p4d with EFA": (SPEC, [offer("p4d.24xlarge")]),
    "p5 in a capacity block": (RESERVED, [offer("p5.48xlarge", 4, "on-demand")]),
    "a plan for a capacity block": (
        SPEC,
        [replace(offer("p4de.24xlarge", 2, "on-demand"), reservation=RESERVED.reservation, placement_group=False)],
    ),
    "one g6e on demand": (SPEC, [offer("g6e.12xlarge", 1, "on-demand")]),
    "spot with fallbacks": (
        SPEC,
        [offer("g5.12xlarge"), offer("g5.12xlarge", 4), offer("g6e.12xlarge", 2, "on-demand")],
    ),
    "p4de on demand": (SPEC, [offer("p4de.24xlarge", 2, "on-demand")]),
    "p6-b200 on demand": (SPEC, [offer("p6-b200.48xlarge", 2, "on-demand")]),
    "one small machine": (replace(SPEC, fsx_gb=2400), [offer("g5.xlarge", 1)]),
}


def test_a_plan_becomes_queues_with_what_its_machines_have():
    config = cluster_config(*PLANS["spot with fallbacks"])
    spot, on_demand = config["Scheduling"]["SlurmQueues"]
    assert spot["CapacityType"] == "SPOT" and spot["Networking"]["PlacementGroup"] == {"Enabled": True}
    assert spot["ComputeResources"][0] | {"Efa": None} == {
        "Name": "g5-12xlarge", "InstanceType": "g5.12xlarge", "MinCount": 0, "MaxCount": 4, "SpotPrice": 2.92, "Efa": None,
    }  # fmt: skip
    assert on_demand["CapacityType"] == "ONDEMAND" and "SpotPrice" not in on_demand["ComputeResources"][0]
    assert config["Imds"] == {"ImdsSupport": "v2.0"} and "CustomActions" not in str(config)
    p4d = cluster_config(*PLANS["two p4d with EFA"])["Scheduling"]["SlurmQueues"][0]
    assert p4d["ComputeResources"][0]["Efa"] == {"Enabled": True} and p4d["HealthChecks"] == {"Gpu": {"Enabled": True}}
    for plan in ("p5 in a capacity block", "a plan for a capacity block"):
        block = cluster_config(*PLANS[plan])["Scheduling"]["SlurmQueues"][0]
        assert block["CapacityType"] == "CAPACITY_BLOCK" and "PlacementGroup" not in block["Networking"]
        target = block["ComputeResources"][0]["CapacityReservationTarget"]
        assert target == {"CapacityReservationId": RESERVED.reservation}
    queues = [queue for plan in PLANS.values() for queue in cluster_config(*plan)["Scheduling"]["SlurmQueues"]]
    assert max(len(queue["Name"]) for queue in queues) <= 25


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SPEC, store="/data"), "linked to a bucket"),
        (replace(SPEC, fsx_gb=1000), "steps of 1200"),
        (replace(SPEC, cloud=CLOUD_DEFAULTS), "no subnets"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(spec, message):
    with pytest.raises(SkytrainError, match=message):
        cluster_config(spec, [offer()])


def test_a_cluster_is_in_a_zone_of_the_plan_or_refused_with_the_zones_that_exist():
    prices = [ZonePrice(zone, 1.0, "2026-11-16T00:00:00+00:00") for zone in ("us-east-2c", "us-east-2b")]
    config = cluster_config(SPEC, [replace(offer(), zones=prices)])
    assert config["HeadNode"]["Networking"]["SubnetId"] == SUBNETS.private["us-east-2b"]
    with pytest.raises(
        SkytrainError, match="are in us-east-2c, and the account's private subnets in us-east-2a, us-east-2b"
    ):
        cluster_config(SPEC, [replace(offer(), zones=prices[:1])])


@pytest.mark.slow
def test_plans_pass_parallelclusters_own_schema_and_validators():
    configs = [cluster_config(*each) for each in PLANS.values()]
    done = load_in_parallelcluster(configs)
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = copy.deepcopy(configs[0])
    wrong["Scheduling"]["SlurmQueues"][0]["ComputeResources"][0]["Gpus"] = 8
    assert load_in_parallelcluster([wrong]).returncode != 0
