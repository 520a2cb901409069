"""Each check of `doctor` against an account that is well, and against one fault that it must find."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from typing import Any

import pytest
from botocore.stub import Stubber
from packaging.requirements import Requirement

from skytrain.aws import AwsSession, MachineImage
from skytrain.config.schema import SubnetsConfig
from skytrain.planning import IMAGE_LINES
from skytrain.planning.images import BASE_LINE, planned_image
from skytrain.targets import Finding, Preflight, run_checks
from skytrain.targets.checks import CHECKS
from skytrain.targets.checks.offer import trial_call
from skytrain.targets.eks.checks import CLUSTER_QUOTA, SPOT_ROLE
from tests.support.actions import COMMAND_ACTIONS

from .conftest import REGION, StubbedSession, client_error
from .ground import GPU_IMAGES, TRUST, Ground
from .plans import offer, plan

G_SPOT, G_ON_DEMAND = "L-3819A6DF", "L-DB2E81BA"


def found(name: str, preflight: Preflight) -> Finding:
    """What one check finds, whatever the others would."""
    check = next(one for one in CHECKS if one.name == name)
    return next(run_checks([replace(check, needs=())], preflight))


def quotas(stubbed: StubbedSession, *values: tuple[str, float]) -> None:
    for code, value in values:
        asked = {"ServiceCode": "ec2", "QuotaCode": code}
        answer = {"Quota": {"QuotaCode": code, "Value": value}}
        stubbed.stub("service-quotas").add_response("get_service_quota", answer, asked)


def recorded(session: AwsSession) -> set[str]:
    """The IAM actions of the calls that the session makes from now on."""
    actions: set[str] = set()
    for name in ("perform", "items"):
        real = getattr(session, name)
        setattr(session, name, lambda call, *rest, real=real: actions.add(call.action) or real(call, *rest))
    return actions


def test_an_account_as_the_base_leaves_it_passes_every_check(ground: Ground, stubbed: StubbedSession) -> None:
    quotas(stubbed, (G_SPOT, 96.0))
    sent = recorded(ground.session)
    findings = list(run_checks([one for one in CHECKS if one.group == "AWS"], ground.preflight(plan(offer()))))
    assert sent <= set(COMMAND_ACTIONS["doctor"]) and len(sent) > 10
    assert [(one.name, one.text) for one in findings if one.verdict == "failed"] == []
    passed = {one.name for one in findings if one.verdict == "ok"}
    assert passed >= {
        "credentials", "region", "roles", "plan", "quota", "zones", "spot price", "image", "subnets", "route to S3",
        "security group", "trial launch",
    }  # fmt: skip


def test_credentials_of_another_account_are_refused(ground: Ground) -> None:
    finding = found("credentials", ground.preflight(account="999999999999"))
    assert (finding.verdict, finding.exit_code) == ("failed", 11)
    assert "123456789012" in finding.text and "AWS_PROFILE" in finding.fix


def test_a_clock_that_is_wrong_is_found(stubbed: StubbedSession, ground: Ground) -> None:
    answer = {"Account": "1", "Arn": "arn:aws:iam::1:user/ada", "UserId": "x"}
    for late in (600, 0):
        date = (datetime.now(UTC) - timedelta(seconds=late)).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"ResponseMetadata": {"HTTPHeaders": {"date": date}}}
        stubbed.stub("sts").add_response("get_caller_identity", {**answer, **headers})
    preflight = replace(ground.preflight(), open=lambda *_: stubbed.session)
    wrong, right = found("clock", preflight), found("clock", preflight)
    assert wrong.verdict == "failed" and "s ahead of" in wrong.text and "chronyc" in wrong.fix
    assert right.verdict == "ok"


@pytest.mark.parametrize(
    ("region", "words"), [("us-east-9", "no region us-east-9"), ("af-south-1", "not enabled"), ("us-west-2", "plan")]
)
def test_a_region_that_cannot_be_used_is_named(ground: Ground, region: str, words: str) -> None:
    ground.session.region = region
    stub = Stubber(ground.session.client("ec2"))
    regions = [
        {"RegionName": "us-west-2", "OptInStatus": "opt-in-not-required"},
        {"RegionName": "af-south-1", "OptInStatus": "not-opted-in"},
    ]
    stub.add_response("describe_regions", {"Regions": regions}, {"AllRegions": True})
    with stub:
        finding = found("region", ground.preflight(plan()))
    assert finding.verdict == "failed" and finding.exit_code == 3 and words in finding.text and finding.fix


def test_a_role_that_is_gone_and_a_profile_with_another_role_are_named(ground: Ground) -> None:
    iam = ground.session.client("iam")
    iam.delete_role(RoleName="demo-viewer")
    assert "demo-viewer" in found("roles", ground.preflight()).text
    iam.create_role(RoleName="demo-viewer", AssumeRolePolicyDocument="{}")
    iam.remove_role_from_instance_profile(InstanceProfileName="demo-node", RoleName="demo-node")
    finding = found("roles", ground.preflight())
    assert finding.verdict == "failed" and "carries no role, not demo-node" in finding.text


@pytest.mark.parametrize("denied", ["get_role", "get_instance_profile"])
def test_roles_that_the_caller_may_not_see_are_not_called_missing(
    ground: Ground, stubbed: StubbedSession, denied: str
) -> None:
    iam = stubbed.stub("iam")
    for name in [] if denied == "get_role" else ("demo-operator", "demo-node", "demo-viewer"):
        role = {"Path": "/", "RoleName": name, "RoleId": "A" * 20, "Arn": f"arn:aws:iam::123456789012:role/{name}"}
        iam.add_response("get_role", {"Role": {**role, "CreateDate": datetime(2026, 1, 1, tzinfo=UTC)}})
    iam.add_client_error(denied, "AccessDenied", "not authorized to perform it", http_status_code=403)
    finding = found("roles", ground.preflight())
    assert finding.verdict == "not checked" and "you may not see demo-" in finding.text


def test_who_may_not_see_the_roles_still_tries_a_launch_and_who_sees_that_one_is_gone_does_not(
    ground: Ground, stubbed: StubbedSession
) -> None:
    iam = stubbed.stub("iam")
    for code in ("AccessDenied", "NoSuchEntity"):
        iam.add_client_error("get_role", code, "not authorized to perform it", http_status_code=403)
    tried: list[str] = []
    checks = [one for one in CHECKS if one.name in ("credentials", "roles")]
    [trial] = [one for one in CHECKS if one.name == "trial launch"]
    checks.append(replace(trial, run=lambda _: tried.append("tried") or "well", needs=("credentials",)))
    for verdicts in (["ok", "not checked", "ok"], ["ok", "failed", "not checked"]):
        assert [one.verdict for one in run_checks(checks, ground.preflight())] == verdicts
    assert tried == ["tried"]


def test_a_quota_is_compared_with_what_the_plan_needs_less_what_runs(ground: Ground, stubbed: StubbedSession) -> None:
    ec2 = ground.session.client("ec2")
    for kind, market in (("g5.xlarge", "spot"), ("g5.xlarge", None), ("c5.4xlarge", "spot"), ("p4d.24xlarge", "spot")):
        options: Any = {"InstanceMarketOptions": {"MarketType": "spot"}} if market else {}
        ec2.run_instances(ImageId=ground.image, InstanceType=kind, MinCount=1, MaxCount=1, **options)
    quotas(stubbed, (G_SPOT, 99.0), (G_SPOT, 100.0), (G_ON_DEMAND, 100.0))
    short = found("quota", ground.preflight(plan(offer())))
    assert (short.verdict, short.exit_code) == ("failed", 4)
    assert "needs 96 vCPUs; quota L-3819A6DF is 99, of which 4 are in use" in short.text
    assert "request 100" in short.fix and G_SPOT in short.link and "us-east-2.console" in short.link
    assert "96 of 100 are free" in found("quota", ground.preflight(plan(offer()))).text
    assert "96 of 100 are free" in found("quota", ground.preflight(plan(offer(market="on-demand")))).text


def test_a_quota_that_was_never_changed_has_awss_default(ground: Ground) -> None:
    stub = Stubber(ground.session.client("service-quotas"))
    stub.add_client_error("get_service_quota", **client_error("NoSuchResourceException"))
    stub.add_response("get_aws_default_service_quota", {"Quota": {"Value": 0.0}})
    with stub:
        assert "quota L-3819A6DF is 0" in found("quota", ground.preflight(plan(offer()))).text


def test_a_quota_without_a_published_code_is_looked_up_by_name(ground: Ground) -> None:
    stub = Stubber(ground.session.client("service-quotas"))
    names = {
        "L-1": "All P5 Spot Instance Requests",
        "L-2": "All P6 Spot Instance Requests",
        "L-3": "Running On-Demand P6",
    }
    listed = [{"QuotaCode": code, "QuotaName": name} for code, name in names.items()]
    stub.add_response("list_service_quotas", {"Quotas": listed}, {"ServiceCode": "ec2"})
    stub.add_response("get_service_quota", {"Quota": {"Value": 192.0}}, {"ServiceCode": "ec2", "QuotaCode": "L-2"})
    stub.add_response("list_service_quotas", {"Quotas": []}, {"ServiceCode": "ec2"})
    with stub:
        preflight = ground.preflight(plan(offer("p6-b200.48xlarge", 1)))
        assert found("quota", preflight).verdict == "ok"
        assert found("quota", preflight).verdict == "not checked"


def test_a_short_quota_of_a_fallback_is_told_but_stops_nothing(ground: Ground, stubbed: StubbedSession) -> None:
    quotas(stubbed, (G_ON_DEMAND, 0.0))
    finding = found("fallback quota", ground.preflight(plan(offer(), offer(market="on-demand"))))
    assert finding.verdict == "not checked" and "quota L-DB2E81BA is 0" in finding.text


def test_a_plan_that_has_expired_is_refused(ground: Ground) -> None:
    finding = found("plan", ground.preflight(plan(made_at=datetime(2026, 1, 1, tzinfo=UTC))))
    assert finding.verdict == "failed" and "expired" in finding.text and "skytrain plan" in finding.fix


def test_a_family_that_the_operator_may_not_start_is_named(ground: Ground) -> None:
    finding = found("plan", ground.preflight(plan(), instance_families=["p5", "c7i"]))
    assert finding.verdict == "failed" and "may not start g5.12xlarge" in finding.text and "g5" in finding.fix
    assert found("plan", ground.preflight(plan(), instance_families=["g5"])).verdict == "ok"


def test_a_type_that_no_zone_or_no_zone_of_ours_offers_is_a_lack_of_capacity(ground: Ground) -> None:
    stub = Stubber(ground.session.client("ec2"))
    stub.add_response("describe_instance_type_offerings", {"InstanceTypeOfferings": []})
    stub.add_response("describe_instance_type_offerings", {"InstanceTypeOfferings": [{"Location": "us-east-2c"}]})
    with stub:
        nowhere, elsewhere = (found("zones", ground.preflight(plan())) for _ in range(2))
    assert (nowhere.exit_code, elsewhere.exit_code) == (5, 5)
    assert "us-east-2 does not offer g5.12xlarge" in nowhere.text and "us-east-2c" in elsewhere.fix


@pytest.mark.parametrize(
    ("prices", "verdict", "words"),
    [
        ({"us-east-2a": "3.10", "us-east-2b": "2.50"}, "ok", "$2.5000 per hour in us-east-2b"),
        ({"us-east-2a": "3.10", "us-east-2c": "1.00"}, "failed", "more than the plan's $2.9200"),
        ({"us-east-2c": "1.00"}, "failed", "no spot price"),
    ],
)
def test_the_spot_price_of_our_zones_is_held_against_the_plans(
    ground: Ground, prices: dict[str, str], verdict: str, words: str
) -> None:
    stub = Stubber(ground.session.client("ec2"))
    history = [{"AvailabilityZone": zone, "SpotPrice": price} for zone, price in prices.items()]
    stub.add_response("describe_spot_price_history", {"SpotPriceHistory": history})
    preflight = replace(ground.preflight(plan()), offered_zones=("us-east-2a", "us-east-2b"))
    with stub:
        finding = found("spot price", preflight)
    assert (finding.verdict, finding.exit_code) == (verdict, 5 if verdict == "failed" else 0)
    assert words in finding.text


def test_an_image_is_chosen_with_its_python_and_one_that_is_not_known_is_not_used(ground: Ground) -> None:
    ground.publish({GPU_IMAGES.format("2.13"): "ami-00000000000000000"})  # nobody has said which Python it has
    preflight = ground.preflight(plan())
    assert ground.image in (text := found("image", preflight).text)
    assert "PyTorch 2.12, Python 3.12 in /opt/pytorch/bin/python" in text
    assert preflight.image == MachineImage(ground.image, IMAGE_LINES[0])


def test_images_have_a_pytorch_that_skytrain_may_be_installed_with() -> None:
    [needed] = [Requirement(one) for one in metadata.requires("skytrain") or () if one.startswith("torch")]
    assert [one.name for one in IMAGE_LINES if one.torch_version and one.torch_version not in needed.specifier] == []


def test_a_plan_pins_its_image(ground: Ground) -> None:
    older = "oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04"
    finding = found("image", ground.preflight(replace(plan(), image=older)))
    assert finding.verdict == "failed" and "ami-0old" in finding.text  # and not the newer one, which is available
    ground.withdraw(GPU_IMAGES.format("2.11"))
    finding = found("image", ground.preflight(replace(plan(), image=older)))
    assert finding.verdict == "failed" and "does not publish oss-nvidia-driver-gpu-pytorch-2.11" in finding.text
    assert "it has base-oss" in finding.text and "pytorch-2.12-ubuntu-24.04" in finding.text
    finding = found("image", ground.preflight(replace(plan(), image="pytorch-3.0")))
    assert finding.verdict == "failed" and "plan again" in f"{finding.text} {finding.fix}"


@pytest.mark.parametrize("instance_type", ["c7i.xlarge", "g7e.2xlarge", "p6-b300.48xlarge"])
def test_machines_that_pytorchs_images_do_not_serve_get_one_without_it(ground: Ground, instance_type: str) -> None:
    mixed = [offer("p5.48xlarge", 1), replace(offer("p5.48xlarge", 1), instance_type=instance_type)]
    preflight = ground.preflight(plan(*mixed))
    assert ground.plain_image in found("image", preflight).text  # all offers of a launch share one image
    assert planned_image(mixed) == BASE_LINE.name and planned_image(mixed[:1]) == IMAGE_LINES[0].name


def test_a_region_without_images_is_named(ground: Ground) -> None:
    ground.session.region = "us-west-2"
    finding = found("image", ground.preflight(plan()))
    assert finding.verdict == "failed" and "us-west-2 does not publish" in finding.text
    assert "it has no Deep Learning AMI" in finding.text


def test_subnets_that_are_gone_elsewhere_or_full_are_named(ground: Ground) -> None:
    first, second = ground.subnets.values()
    swapped = SubnetsConfig({"us-east-2a": second, "us-east-2b": first}, {}, "private")
    assert "is in us-east-2b, not in us-east-2a" in found("subnets", ground.preflight(subnets=swapped)).text
    crowd = found("subnets", ground.preflight(plan(offer(nodes=300))))
    assert crowd.verdict == "failed" and f"{first} (251)" in crowd.text
    ground.session.client("ec2").delete_subnet(SubnetId=second)
    gone = found("subnets", ground.preflight())
    assert gone.verdict == "failed" and "InvalidSubnetID.NotFound" in gone.text


def test_a_subnet_without_a_way_to_s3_is_named(ground: Ground) -> None:
    ec2 = ground.session.client("ec2")
    assert "gateway" in found("route to S3", ground.preflight()).text
    own = ec2.create_route_table(VpcId=ground.vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=own, SubnetId=ground.subnets["us-east-2b"])
    finding = found("route to S3", ground.preflight())
    assert (
        finding.verdict == "failed"
        and f"{ground.subnets['us-east-2b']} (us-east-2b) has no route to S3" in finding.text
    )


def test_a_closed_network_needs_every_endpoint(ground: Ground) -> None:
    assert found("endpoints", ground.preflight()).verdict == "not checked"
    ec2 = ground.session.client("ec2")
    missing = found("endpoints", ground.preflight(closed_network=True))
    assert missing.verdict == "failed" and "ssmmessages" in missing.text
    for service in (
        "ec2",
        "ssm",
        "ssmmessages",
        "ec2messages",
        "sts",
        "kms",
        "logs",
        "monitoring",
        "ecr.api",
        "ecr.dkr",
    ):
        ec2.create_vpc_endpoint(
            VpcId=ground.vpc, ServiceName=f"com.amazonaws.us-east-2.{service}", VpcEndpointType="Interface"
        )
    # Auto Scaling ends machines and starts their replacements. Its endpoint is one of those with another name in China.
    assert "autoscaling" in found("endpoints", ground.preflight(closed_network=True)).text
    ec2.create_vpc_endpoint(
        VpcId=ground.vpc, ServiceName="cn.com.amazonaws.us-east-2.autoscaling", VpcEndpointType="Interface"
    )
    assert found("endpoints", ground.preflight(closed_network=True)).verdict == "ok"


@pytest.mark.parametrize("way", ["ingress", "egress"])
def test_the_efa_rule_must_stand_in_both_directions(ground: Ground, way: str) -> None:
    ec2 = ground.session.client("ec2")
    getattr(ec2, f"revoke_security_group_{way}")(GroupId=ground.group, IpPermissions=[ground.to_itself])
    finding = found("security group", ground.preflight())
    assert finding.verdict == "failed"
    assert ("inbound" if way == "ingress" else "outbound") in finding.text and "EFA" in finding.text


def test_a_rule_for_tcp_only_or_for_another_group_is_not_efas(ground: Ground) -> None:
    ec2 = ground.session.client("ec2")
    other = ec2.create_security_group(GroupName="other", Description="x", VpcId=ground.vpc)["GroupId"]
    ec2.revoke_security_group_ingress(GroupId=ground.group, IpPermissions=[ground.to_itself])
    for rule in (
        {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": [{"GroupId": ground.group}]},
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]},
    ):
        ec2.authorize_security_group_ingress(GroupId=ground.group, IpPermissions=[rule])
    assert found("security group", ground.preflight()).verdict == "failed"


def test_a_port_that_is_open_to_everyone_is_named(ground: Ground) -> None:
    everyone = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ground.session.client("ec2").authorize_security_group_ingress(GroupId=ground.group, IpPermissions=[everyone])
    finding = found("security group", ground.preflight())
    assert finding.verdict == "failed" and "lets anyone in (tcp 22-22" in finding.text


def test_a_role_that_may_not_launch_is_told_by_awss_own_dry_run(ground: Ground) -> None:
    preflight = replace(
        ground.preflight(plan()), image=MachineImage(ground.image, BASE_LINE), offered_zones=("us-east-2b",)
    )
    call = trial_call(preflight)
    assert call.parameters["DryRun"] is True and call.parameters["SubnetId"] == ground.subnets["us-east-2b"]
    assert call.parameters["MetadataOptions"]["HttpTokens"] == "required"
    assert call.parameters["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    stub = Stubber(ground.session.client("ec2"))
    told = "You are not authorized. User: arn:aws:sts::1:assumed-role/x/y is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-2:1:instance/* because no identity-based policy allows it"
    stub.add_client_error("run_instances", **client_error("UnauthorizedOperation", told))
    with stub:
        finding = found("trial launch", preflight)
    assert (finding.verdict, finding.exit_code) == ("failed", 11) and '"Action": "ec2:RunInstances"' in finding.fix


def test_what_needs_a_failed_check_is_not_tried(ground: Ground) -> None:
    findings = {one.name: one for one in run_checks(CHECKS, ground.preflight(plan(), account="999999999999"))}
    assert findings["credentials"].verdict == "failed"
    assert findings["quota"].verdict == "not checked" and "needs credentials" in findings["quota"].text
    assert REGION not in findings["region"].text


@pytest.mark.parametrize(("held", "verdict"), [(96.0, "ok"), (95.0, "failed"), (0.0, "failed")])
def test_the_nodes_of_a_cluster_must_fit_into_the_accounts_quota(
    ground: Ground, stubbed: StubbedSession, held: float, verdict: str
) -> None:
    """What runs for the cluster may be used again; what others run may not."""
    ec2 = ground.session.client("ec2")
    one = {"ImageId": ground.image, "InstanceType": "g5.12xlarge", "MinCount": 1, "MaxCount": 1}
    tags = [{"Key": "kubernetes.io/cluster/training", "Value": "owned"}]
    ec2.run_instances(**one, TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])
    quotas(stubbed, (G_ON_DEMAND, held))
    needs = offer("g5.12xlarge", 2, "on-demand")  # 96 vCPUs
    preflight = ground.preflight(plan(needs))
    eks = replace(preflight.config.cloud.eks, cluster="training")
    preflight = replace(preflight, config=replace(preflight.config, cloud=replace(preflight.config.cloud, eks=eks)))
    finding = next(run_checks([CLUSTER_QUOTA], preflight))
    assert (finding.verdict, finding.exit_code) == (verdict, 4 if verdict == "failed" else 0)
    if verdict == "failed":
        assert "nodes would never come" in finding.text and G_ON_DEMAND in finding.fix


def test_quotas_that_an_operator_may_not_see_do_not_stop_a_launch_on_a_cluster(
    ground: Ground, stubbed: StubbedSession
) -> None:
    preflight = ground.preflight(plan(offer("g5.12xlarge", 2, "on-demand")))
    eks = replace(preflight.config.cloud.eks, cluster="training")
    preflight = replace(preflight, config=replace(preflight.config, cloud=replace(preflight.config.cloud, eks=eks)))
    stubbed.stub("service-quotas").add_client_error("get_service_quota", "AccessDeniedException", "no")
    finding = next(run_checks([CLUSTER_QUOTA], preflight))
    assert finding.verdict == "not checked" and "may not see the account's quotas" in finding.text


def test_spot_nodes_of_a_cluster_need_the_role_of_spot_machines(ground: Ground) -> None:
    """Karpenter may not create it, and waits for nodes forever."""
    preflight = ground.preflight(plan(offer(market="spot")))
    finding = next(run_checks([SPOT_ROLE], preflight))
    assert finding.verdict == "failed" and "--aws-service-name spot.amazonaws.com" in finding.fix
    ground.session.client("iam").create_role(RoleName="AWSServiceRoleForEC2Spot", AssumeRolePolicyDocument=TRUST)
    assert next(run_checks([SPOT_ROLE], preflight)).verdict == "ok"
    on_demand = ground.preflight(plan(offer(market="on-demand")))
    assert next(run_checks([SPOT_ROLE], on_demand)).verdict == "not checked"


def test_a_bucket_of_another_account_is_found(ground: Ground, stubbed: StubbedSession) -> None:
    preflight = ground.preflight(plan())
    config = replace(
        preflight.config,
        store=replace(preflight.config.store, root="s3://somebodys-bucket/project"),
        cloud=replace(preflight.config.cloud, account="123456789012"),
    )
    asked = {"Bucket": "somebodys-bucket", "ExpectedBucketOwner": "123456789012"}
    stub = stubbed.stub("s3")
    stub.add_response("get_bucket_location", {"LocationConstraint": "us-east-2"}, asked)
    stub.add_client_error("get_bucket_location", "AccessDenied", "Access Denied", expected_params=asked)
    stub.add_response("get_bucket_location", {}, asked)  # as us-east-1 answers
    stub.add_response(
        "get_bucket_location", {"LocationConstraint": "EU"}, asked
    )  # as it does for old buckets of eu-west-1
    ours, theirs, elsewhere, old = (found("bucket", replace(preflight, config=config)) for _ in range(4))
    assert ours.verdict == "ok"
    assert theirs.verdict == "failed" and "does not belong to account 123456789012" in theirs.text
    assert elsewhere.verdict == "failed" and "is in us-east-1, and the account is set up in us-east-2" in elsewhere.text
    assert "is in eu-west-1, and" in old.text


def test_a_bucket_of_another_account_is_named_although_nothing_can_be_written_there() -> None:
    assert next(check for check in CHECKS if check.name == "bucket").needs == ("credentials",)


@pytest.mark.parametrize("key", [None, "arn:aws:kms:us-east-2:123456789012:key/1"])
def test_roles_of_aws_itself_must_exist_where_disks_have_a_key(ground: Ground, key: str | None) -> None:
    preflight = ground.preflight(plan(offer(market="spot")))
    preflight = replace(preflight, config=replace(preflight.config, cloud=replace(preflight.config.cloud, kms_key=key)))
    finding = found("service roles", preflight)
    assert finding.verdict == ("failed" if key else "not checked")
    for service in ("autoscaling", "spot"):
        assert f"--aws-service-name {service}.amazonaws.com" in f"{finding.text} {finding.fix}"
    for name in ("AWSServiceRoleForAutoScaling", "AWSServiceRoleForEC2Spot"):
        ground.session.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    assert found("service roles", preflight).verdict == "ok"
