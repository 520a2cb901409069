"""gc against an account in moto with the same things of ours and of others in three regions."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from skytrain.aws import (
    KINDS,
    CloudResource,
    GcSelection,
    Tags,
    delete_resources,
    deletion_calls,
    judge,
    scan_account,
)
from skytrain.aws.errors import cloud_error
from skytrain.storage import Retry
from tests.support.actions import COMMAND_ACTIONS, command_actions_table
from tests.targets.conftest import client_error
from tests.targets.seeding import PER_REGION, complete_moto, hours_from_now, seed

REGIONS = ["eu-west-1", "us-east-1", "us-east-2"]
OURS = Tags("demo", "ada", "run-1", hours_from_now(5))


@pytest.fixture
def seeded(account, monkeypatch):
    """The account, and how many resources of ours it has."""
    count, groups = 0, complete_moto(monkeypatch)
    for region in REGIONS:
        groups[region] = {"ours": OURS.mapping(), "theirs": {"Name": "theirs"}}
        seed(account, region, OURS, "ours")
        count += PER_REGION + 1
    seed(account, REGIONS[0], None, "theirs")
    return account, count


def test_everything_of_ours_is_found_and_deleted_in_order_and_nothing_of_others(seeded, monkeypatch):
    session, count = seeded
    actions = set()
    for name in ("perform", "items"):
        real = getattr(session, name)
        monkeypatch.setattr(session, name, lambda call, *rest, real=real: actions.add(call.action) or real(call, *rest))
    found = scan_account(session, REGIONS)
    assert not found.problems
    assert not [each.id for each in found.resources if each.kind == "other" and ":vpc/" not in each.id]
    assert len(found.resources) == count >= 40
    assert set(Counter(each.kind for each in found.resources)) == set(KINDS) - {"multipart upload"}
    assert {each.region for each in found.resources} == set(REGIONS)
    assert all(each.tags == read_back(OURS) for each in found.resources)
    orders = [KINDS[resource.kind].order for resource, _ in deletion_calls(found.resources)]
    assert orders == sorted(orders)
    theirs = everything_of_others(session)
    doomed = [each for each in found.resources if judge(each, {}, GcSelection(run="run-1")).delete]
    assert len(doomed) == count - 2 * len(REGIONS) >= 40
    assert delete_resources(session, doomed) == []
    again = scan_account(session, REGIONS)
    kept = ["NAT gateway"] * 3 + ["other"] * 3  # the VPCs
    assert [each.kind for each in again.resources] == kept and not again.problems
    assert everything_of_others(session) == theirs
    assert actions <= {*COMMAND_ACTIONS["gc"], *COMMAND_ACTIONS["gc --delete"]}


def read_back(tags: Tags) -> Tags:
    assert tags.expires_at is not None
    return Tags(tags.project, tags.owner, tags.run, tags.expires_at.replace(microsecond=0))


def everything_of_others(session) -> list[list[str]]:
    region = REGIONS[0]
    ec2, eks = session.client("ec2", region), session.client("eks", region)
    schedules, fsx = session.client("scheduler", region), session.client("fsx", region)
    iam = session.client("iam", region)
    instances = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    found = [
        [each["InstanceId"] for each in instances if is_theirs(each) and each["State"]["Name"] == "running"],
        [each["VolumeId"] for each in ec2.describe_volumes()["Volumes"] if is_theirs(each)],
        [each["GroupId"] for each in ec2.describe_security_groups()["SecurityGroups"] if is_theirs(each)],
        [each["AllocationId"] for each in ec2.describe_addresses()["Addresses"] if is_theirs(each)],
        [name for name in eks.list_clusters()["clusters"] if name == "theirs"],
        [each["Name"] for each in schedules.list_schedule_groups()["ScheduleGroups"] if each["Name"] == "theirs"],
        [each["FileSystemId"] for each in fsx.describe_file_systems()["FileSystems"] if is_theirs(each)],
        [each["RoleName"] for each in iam.list_roles()["Roles"] if each["RoleName"].startswith("theirs")],
    ]
    assert all(found)
    return found


def is_theirs(found) -> bool:
    return any(tag["Value"] == "theirs" for tag in found.get("Tags", []))


def test_a_denied_or_missing_service_is_reported_and_the_rest_is_found(account, monkeypatch):
    def denied(session, region):
        raise cloud_error(ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "DescribeFileSystems"))
        yield

    def absent(session, region):
        raise cloud_error(EndpointConnectionError(endpoint_url="https://nowhere"))
        yield

    ec2 = account.client("ec2", "us-east-2")
    ec2.allocate_address(Domain="vpc", TagSpecifications=OURS.specifications("elastic-ip"))
    kinds = [replace(KINDS["file system"], find=denied), replace(KINDS["volume"], find=absent), KINDS["address"]]
    found = scan_account(account, ["us-east-2"], kinds)
    assert [each.kind for each in found.resources] == ["address"]
    assert sorted(problem.kind for problem in found.problems) == ["file system", "volume"]
    assert all(problem.region == "us-east-2" and problem.problem for problem in found.problems)


def thing(kind: str = "volume", run: str | None = "r", hours: float | None = 5) -> CloudResource:
    tags = Tags("demo", "ada", run, hours_from_now(hours) if hours is not None else None)
    return CloudResource(kind, "id", "us-east-2", tags)


@pytest.mark.parametrize(
    ("resource", "active", "selection", "delete", "reason"),
    [
        (thing(), {"r": True}, GcSelection(), False, "its run is active"),
        (thing(), {"r": False}, GcSelection(), True, "its run has ended"),
        (thing(), {}, GcSelection(), False, "its run is not in this store"),
        (thing(hours=-2), {"r": False}, GcSelection(), True, "expired 2h"),
        (thing(hours=-2), {}, GcSelection(), True, "expired 2h"),
        (thing(hours=-2), {"r": True}, GcSelection(), False, "its run is active, whatever its tag says"),
        (thing(hours=-2), {"r": True}, GcSelection(expired=True), False, "its run is active, whatever its tag says"),
        (thing(), {"r": False}, GcSelection(expired=True), False, "has not expired"),
        (thing(), {"r": True}, GcSelection(run="r"), True, "its run was named"),
        (thing(run="s", hours=-1), {}, GcSelection(run="r"), False, "of another run"),
        (thing(run=None, hours=None), {}, GcSelection(), False, "terraform destroy"),
        (thing("other", hours=-1), {"r": False}, GcSelection(), False, "does not delete resources of this kind"),
        (thing("multipart upload", run=None, hours=None), {}, GcSelection(), True, "left over"),
    ],
)
def test_what_is_deleted_follows_from_its_tags_and_its_run(resource, active, selection, delete, reason):
    verdict = judge(resource, active, selection)
    assert verdict.delete is delete and reason in verdict.reason


def test_a_deletion_waits_for_what_still_holds_it_and_takes_missing_things_for_deleted(stubbed):
    ec2, fast = stubbed.stub("ec2"), Retry(seconds=5.0, first_wait_seconds=0.001, longest_wait_seconds=0.002)
    ec2.add_client_error("delete_volume", **client_error("VolumeInUse"))
    ec2.add_client_error("delete_volume", **client_error("VolumeInUse"))
    ec2.add_response("delete_volume", {}, {"VolumeId": "id"})
    ec2.add_client_error("delete_launch_template", **client_error("InvalidLaunchTemplateId.NotFound"))
    ec2.add_client_error("delete_security_group", **client_error("UnauthorizedOperation"))
    sg, template = thing("security group"), thing("launch template")
    (failed,) = delete_resources(stubbed.session, [sg, thing(), template], retry=fast)
    assert failed.resource == sg and "UnauthorizedOperation" in failed.problem
    ec2.assert_no_pending_responses()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_deletion_is_a_request_that_botocore_accepts_and_its_iam_action_is_declared(kind):
    facts = {"association": "eipassoc-1", "nodegroups": ["n"], "bucket": "b", "key": "k", "upload": "u"}
    resource = CloudResource(kind.name, "fs-0123456789abcdef0", "us-east-2", OURS, facts=facts)
    calls = kind.delete(resource)
    assert bool(calls) == bool(kind.deletes)
    for call in calls:
        call.body()
        assert call.action in kind.deletes


def test_the_docs_hold_the_actions_of_every_command():
    assert command_actions_table() in (Path(__file__).parents[2] / "docs" / "aws.md").read_text()


def test_uploads_are_found_in_our_buckets_only_when_they_are_old(account, monkeypatch):
    s3 = account.client("s3", "us-east-1")
    for name in ("ours-1", "theirs-1"):
        s3.create_bucket(Bucket=name)
        s3.create_multipart_upload(Bucket=name, Key="tokens/shard")
    s3.put_bucket_tagging(Bucket="ours-1", Tagging={"TagSet": Tags("demo", "ada").pairs()})
    kind = [KINDS["multipart upload"]]
    with monkeypatch.context() as patch:  # moto's uploads all began in 2010
        patch.setattr("skytrain.aws.resources.ABANDONED", timedelta(days=36500))
        assert scan_account(account, ["us-east-1"], kind).resources == ()
    found = scan_account(account, ["us-east-1"], kind).resources
    assert [each.id for each in found] == ["s3://ours-1/tokens/shard"]
    assert delete_resources(account, found) == []
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="ours-1")
    assert len(s3.list_multipart_uploads(Bucket="theirs-1")["Uploads"]) == 1
