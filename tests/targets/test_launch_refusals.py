"""What a launch refuses: one message, the right exit code, and nothing left running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import CloudError
from skytrain.config import Composed, SkytrainError, compose, source_hash
from skytrain.planning import PlannedOffer
from skytrain.planning.plan_file import PlannedCode
from skytrain.runs import Silent, launches_of
from skytrain.storage import StoreUnreachable
from skytrain.targets import PlannedJob, bundle as bundles
from skytrain.targets.ec2.launch import PreparedLaunch, prepare_launch, start_launch, with_current_prices
from skytrain.targets.limits import refuse_endpoint_names

from .conftest import StubbedSession
from .ground import Ground
from .plans import offer, plan
from .test_checks import G_SPOT, quotas
from .test_launch import RUN, config_of, groups_of, s3_root  # noqa: F401 - a fixture

Answer = Callable[[str, str, dict[str, Any]], None]


@pytest.fixture
def answer(ground: Ground) -> Iterator[Answer]:
    """Decide what AWS answers to one operation; all others reach the local control plane."""
    registered: list[tuple[Any, str, Any]] = []

    def decide(service: str, operation: str, parsed: dict[str, Any]) -> None:
        events, name = ground.session.client(service).meta.events, f"before-call.{service}.{operation}"
        status = 403 if "Error" in parsed else 200

        def handler(**_: Any) -> Any:
            from botocore.awsrequest import AWSResponse

            return AWSResponse("", status, {}, None), {**parsed, "ResponseMetadata": {"HTTPStatusCode": status}}

        events.register_first(name, handler)
        registered.append((events, name, handler))

    yield decide
    for events, name, handler in registered:
        events.unregister(name, handler)


def launch(ground: Ground, root: str, chosen: PlannedOffer | None = None, **cloud: Any) -> PreparedLaunch:
    made = replace(plan(chosen or offer("g5.xlarge", 1)), code=PlannedCode("0", source_hash()))
    config = config_of(ground, root)
    config = replace(config, cloud=replace(config.cloud, **cloud))
    job, preflight = PlannedJob(Composed(config, {}, {}), made), replace(ground.preflight(made), config=config)
    return prepare_launch(job, preflight, lambda _: None)


def nothing_is_left(ground: Ground) -> bool:
    ec2 = ground.session.client("ec2")
    return (
        not groups_of(ground)
        and not ec2.describe_launch_templates()["LaunchTemplates"]
        and not ec2.describe_instances()["Reservations"]
    )


def denied(action: str, resource: str) -> dict[str, Any]:
    said = (
        f"User: arn:aws:sts::1:assumed-role/operator/ada is not authorized to perform: {action} on resource: {resource}"
    )
    return {"Error": {"Code": "AccessDenied", "Message": f"{said} because no identity-based policy allows it"}}


def gone_image(ground: Ground, answer: Answer) -> None:
    ground.session.client("ec2").deregister_image(ImageId=ground.image)


def no_route(ground: Ground, answer: Answer) -> None:
    ec2 = ground.session.client("ec2")
    own = ec2.create_route_table(VpcId=ground.vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=own, SubnetId=ground.subnets["us-east-2b"])


def not_sold(ground: Ground, answer: Answer) -> None:
    answer("ec2", "DescribeInstanceTypeOfferings", {"InstanceTypeOfferings": [{"Location": "us-east-2c"}]})


def may_not_start(ground: Ground, answer: Answer) -> None:
    answer("ec2", "RunInstances", denied("ec2:RunInstances", "arn:aws:ec2:us-east-2:1:instance/*"))


def elsewhere(ground: Ground, answer: Answer) -> None:
    tags = {"skytrain:project": "demo", "skytrain:run": RUN, "skytrain:owner": "bob"}
    ground.session.client("ec2", "us-west-2").run_instances(
        ImageId="ami-1", MinCount=1, MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "exit_code", "problem"),
    [
        (gone_image, 3, "is not available"),
        (no_route, 3, "has no route to S3"),
        (not_sold, 5, "g5.xlarge is offered in us-east-2c, and the subnets are in us-east-2a, us-east-2b"),
        (may_not_start, 11, r'policy statement {"Effect": "Allow", "Action": "ec2:RunInstances"'),
        (elsewhere, 2, f"a run {RUN} has machines in us-west-2"),
    ],
)
def test_a_launch_that_cannot_work_creates_nothing(
    ground: Ground, stubbed: StubbedSession, answer: Answer, s3_root: str, damage: Any, exit_code: int, problem: str  # noqa: F811
) -> None:  # fmt: skip
    quotas(stubbed, (G_SPOT, 96.0))
    damage(ground, answer)
    with pytest.raises(SkytrainError, match=problem) as error:
        launch(ground, s3_root)
    assert error.value.exit_code == exit_code and nothing_is_left(ground)


def test_a_plan_whose_price_on_demand_is_below_the_catalogues_is_refused(ground: Ground) -> None:
    edited = offer("g5.xlarge", 1, "on-demand", usd_per_hour_each=[0.01, 0.01], max_usd_per_hour_each=0.01)
    with pytest.raises(CloudError, match=r"for \$0.0100 an hour or less, the most that the plan accepts"):
        with_current_prices(plan(edited), ground.session, ["us-east-2a"], datetime.now(UTC))


def test_a_plan_of_a_machine_that_has_no_known_price_is_refused(ground: Ground) -> None:
    unknown = replace(offer("g5.xlarge", 1, "on-demand", usd_per_hour_each=[0.01, 0.01]), instance_type="t3.micro")
    with pytest.raises(SkytrainError, match=r"no price is known for t3.micro \(on-demand\) in us-east-2"):
        with_current_prices(plan(unknown), ground.session, ["us-east-2a"], datetime.now(UTC))


def test_a_role_that_may_not_create_groups_is_told_the_policy_and_nothing_stays(
    ground: Ground, stubbed: StubbedSession, answer: Answer, s3_root: str, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    quotas(stubbed, (G_SPOT, 96.0))
    monkeypatch.setattr(bundles, "fetch_wheels", lambda folder, requirements, image: None)
    ready = launch(ground, s3_root)
    group = "arn:aws:autoscaling:us-east-2:1:autoScalingGroup:*:autoScalingGroupName/*"
    answer("autoscaling", "CreateAutoScalingGroup", denied("autoscaling:CreateAutoScalingGroup", group))
    with pytest.raises(CloudError, match="autoscaling:CreateAutoScalingGroup") as error:
        start_launch(ready, {}, Silent())
    assert error.value.exit_code == 11 and f'"Resource": "{group}"' in error.value.fix
    assert nothing_is_left(ground) and launches_of(ready.store, RUN)[0].failed


def test_an_upload_that_is_cut_off_ends_the_launch_before_anything_is_created(
    ground: Ground, stubbed: StubbedSession, s3_root: str, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    quotas(stubbed, (G_SPOT, 96.0))
    monkeypatch.setattr(bundles, "fetch_wheels", lambda folder, requirements, image: None)
    ready = launch(ground, s3_root)

    def cut_off(path: Path, key: str, progress: Any = None) -> str:
        raise StoreUnreachable("write", key, "the connection was reset")

    monkeypatch.setattr(ready.store, "upload", cut_off)
    with pytest.raises(StoreUnreachable) as error:
        start_launch(ready, {}, Silent())
    assert error.value.exit_code == 10 and nothing_is_left(ground) and launches_of(ready.store, RUN) == []


BLOCK = "cr-0123456789abcdef0"


def block(**changed: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    found = {
        "CapacityReservationId": BLOCK, "InstanceType": "p5.48xlarge", "AvailabilityZone": "us-east-2b", "State": "active",
        "AvailableInstanceCount": 2, "TotalInstanceCount": 2, "StartDate": now - timedelta(hours=1),
        "EndDate": now + timedelta(hours=3), **changed,
    }  # fmt: skip
    return {"CapacityReservations": [found]}


def test_a_launch_takes_its_machines_from_a_capacity_block_and_ends_before_it(
    ground: Ground, answer: Answer, s3_root: str  # noqa: F811
) -> None:  # fmt: skip
    answer("ec2", "DescribeCapacityReservations", block())
    wide = offer("p5.48xlarge", 2, "on-demand", reservation=BLOCK, placement_group=False, max_usd_per_hour_each=60.0)
    ready = launch(ground, s3_root, wide, reservation=BLOCK)
    [template, group, _, _] = [call for call in ready.calls if call.service != "iam"]
    data = template.parameters["LaunchTemplateData"]
    assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert data["CapacityReservationSpecification"]["CapacityReservationTarget"] == {"CapacityReservationId": BLOCK}
    assert group.parameters["VPCZoneIdentifier"] == ground.subnets["us-east-2b"]
    left = ready.record.over_at - datetime.now(UTC)
    assert timedelta(hours=2, minutes=20) < left < timedelta(hours=2, minutes=30)


@pytest.mark.parametrize(
    ("found", "exit_code", "problem"),
    [
        (block(InstanceType="p4d.24xlarge"), 3, "has p4d.24xlarge, not p5.48xlarge"),
        (block(AvailableInstanceCount=1), 5, "has 1 free machines, and the plan needs 2"),
        (block(State="expired"), 3, "is expired"),
        (block(EndDate=datetime.now(UTC) + timedelta(minutes=20)), 3, "ends at"),
        (block(AvailabilityZone="us-east-2c"), 3, "is in us-east-2c, and the subnets are in"),
        ({"CapacityReservations": []}, 3, "does not exist in this region"),
    ],
)
def test_a_capacity_block_that_does_not_fit_the_plan_is_refused(
    ground: Ground, answer: Answer, s3_root: str, found: dict[str, Any], exit_code: int, problem: str  # noqa: F811
) -> None:  # fmt: skip
    answer("ec2", "DescribeCapacityReservations", found)
    wide = offer("p5.48xlarge", 2, "on-demand", reservation=BLOCK, placement_group=False)
    with pytest.raises(CloudError, match=problem) as error:
        launch(ground, s3_root, wide, reservation=BLOCK)
    assert error.value.exit_code == exit_code and nothing_is_left(ground)


def test_another_capacity_block_than_the_plans_is_refused(ground: Ground, s3_root: str) -> None:  # noqa: F811
    with pytest.raises(SkytrainError, match=r"cloud\.reservation is cr-1, and the plan's is none"):
        launch(ground, s3_root, reservation="cr-1")


def test_a_training_run_is_not_named_like_an_endpoint_whose_folder_its_machines_could_not_write(
    ground: Ground,
    s3_root: str,  # noqa: F811
) -> None:
    made = replace(plan(offer("g5.xlarge", 1)), code=PlannedCode("0", source_hash()))
    config = replace(config_of(ground, s3_root), run="serve-mine")
    with pytest.raises(SkytrainError, match=r"run=serve-mine: runs named serve-\.\.\. are those of endpoints"):
        prepare_launch(
            PlannedJob(Composed(config, {}, {}), made), replace(ground.preflight(made), config=config), lambda _: None
        )


@pytest.mark.parametrize("name", ["serve", "serve-mine"])
def test_a_sweep_is_not_named_so_that_its_trials_would_be_runs_of_endpoints(name: str) -> None:
    config = compose([f"tune.name={name}"]).config
    refuse_endpoint_names(config, "train")  # which has no trials
    with pytest.raises(SkytrainError, match=rf"tune\.name={name}: runs named serve-\.\.\. are those of endpoints"):
        refuse_endpoint_names(config, "tune")
