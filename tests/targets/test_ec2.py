"""The requests that rent machines: exact bodies for real plans, and what a local control plane makes of them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from skytrain.aws import Call, MachineImage, Tags
from skytrain.config import CloudConfig, SkytrainError, compose
from skytrain.planning import (
    IMAGE_LINES,
    PlanMaterial,
    PlannedData,
    PlannedOffer,
    PlanRequest,
    PrepareWork,
    choose,
    find_offers,
    make_plan,
    prepare_plan,
    workload_of,
)
from skytrain.planning.catalog import packaged_catalog
from skytrain.planning.images import BASE_LINE
from skytrain.targets.ec2.boot import BootScript
from skytrain.targets.ec2.requests import GroupSpec, launch_calls, launch_template, network_interfaces
from skytrain.targets.jobs import group_name

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2026, 11, 15, 12, 30, 20, tzinfo=UTC)
CATALOG = packaged_catalog()
RUN = ["model=gpt2-124m", "trainer.steps=4725", "trainer.precision=bf16-mixed"]
LARGE = ["model=llama-3.2-1b", "trainer.tokens=20B", "trainer.precision=bf16-mixed"]
PLANS: dict[str, tuple[list[str], PlanRequest]] = {
    "two-g5-12xlarge-spot": (
        [*RUN, "parallel=tp-fsdp", "parallel.tensor=4"],
        PlanRequest(150, instance="g5.12xlarge", nodes=2, market="spot", region="us-east-2"),
    ),
    "g5-xlarge-spot": (RUN, PlanRequest(40, instance="g5.xlarge", nodes=1, market="spot", region="us-east-2")),
    "two-p4d-efa": (LARGE, PlanRequest(instance="p4d.24xlarge", nodes=2, market="spot", region="us-east-2")),
    "p5-capacity-block": (
        [*LARGE, "cloud.reservation=cr-0123456789abcdef0"],
        PlanRequest(instance="p5.48xlarge", nodes=1, market="on-demand", region="us-east-2"),
    ),
    "g6e-on-demand": (RUN, PlanRequest(instance="g6e.xlarge", nodes=1, market="on-demand", region="us-east-2")),
}
PREPARE = "c7i-prepare"


def offer_of(words: list[str], request: PlanRequest) -> PlannedOffer:
    composed = compose(words)
    workload = workload_of(composed.config, composed.given)
    choice = choose(find_offers(workload, CATALOG, request))
    assert choice is not None
    material = PlanMaterial(
        values=composed.values,
        overrides=(),
        request=request,
        catalog=CATALOG,
        now=NOW,
    )
    data = PlannedData("tokens/pile", 0.0)
    return make_plan([choice], material, why="", data=data, local_bytes=0.0).choice


@cache
def account(nodes: str = "private") -> CloudConfig:
    subnets = {"us-east-2a": "subnet-0aa", "us-east-2b": "subnet-0bb"}
    none = compose([]).config.cloud
    return replace(
        none,
        project="pile",
        region="us-east-2",
        kms_key="arn:aws:kms:us-east-2:123456789012:key/k",
        security_group="sg-0123456789abcdef0",
        instance_profile="pile-node",
        subnets=replace(none.subnets, private=subnets, public=subnets, nodes=nodes),
    )


def group_of(offer: PlannedOffer, number: int = 0, **changes: Any) -> GroupSpec:
    name = group_name("pile", "gpt2", "00001", number)
    boot = BootScript(
        region="us-east-2",
        group=name,
        bundle="s3://bucket/pile/bundles/0123456789abcdef",
        bundle_sha256="b" * 64,
        config="s3://bucket/pile/launches/gpt2/00001/config.tar.gz",
        config_sha256="c" * 64,
        failures="s3://bucket/pile/runs/gpt2/launches/00001/boot-failures",
        python="/opt/pytorch/bin/python",
        python_version="3.12",
        image="ami-0123456789abcdef0",
        command=("node", "run=gpt2", "store.root=s3://bucket/pile", "--launch", "00001"),
        most_machines=7,
        meeting="s3://bucket/pile/runs/gpt2/meeting",
        usd_per_hour=2.22,
        lasts_seconds=offer.kill_after_seconds,
    )
    image, tags = MachineImage("ami-0123456789abcdef0", IMAGE_LINES[0]), Tags("pile", "ada")
    spec = GroupSpec(
        run="gpt2",
        launch="00001",
        number=number,
        offer=offer,
        zone="us-east-2a",
        image=image,
        boot=boot,
        tags=tags,
        cloud=account(),
        launched_at=NOW,
    )
    return replace(spec, **changes)


@pytest.fixture(scope="module")
def offers() -> dict[str, PlannedOffer]:
    found = {name: offer_of(words, request) for name, (words, request) in PLANS.items()}
    material = PlanMaterial(
        values=compose([]).values, overrides=(), request=PlanRequest(20, region="us-east-2"), catalog=CATALOG, now=NOW
    )
    return {**found, PREPARE: prepare_plan(PrepareWork(1e12, 3e11, "tokens/pile"), material).choice}


def prepare_group(offer: PlannedOffer) -> GroupSpec:
    """As `launch prepare` makes it: the plain image and its Python, the profile that may write data, one command."""
    group = group_of(offer)
    command = ("node", "--job", "prepare", "run=gpt2", "store.root=s3://bucket/pile", "--launch", "00001")
    boot = replace(
        group.boot, python=BASE_LINE.python, image_packages=False, command=command, most_machines=5,
    )  # fmt: skip
    return replace(group, boot=boot, cloud=replace(group.cloud, instance_profile="pile-prepare"))


@pytest.mark.parametrize("name", [*PLANS, PREPARE])
def test_the_requests_of_a_plan_are_these(name: str, offers: dict[str, PlannedOffer]) -> None:
    group = prepare_group(offers[name]) if name == PREPARE else group_of(offers[name])
    calls = launch_calls([group])
    rendered = [call.render() for call in calls]
    for one in rendered:  # readable in the golden file
        data = one["parameters"].get("LaunchTemplateData", {})
        if "UserData" in data:
            data["UserData"] = base64.b64decode(data["UserData"]).decode().splitlines()
    text = json.dumps(rendered, indent=1) + "\n"
    assert text == (GOLDEN / f"{name}.json").read_text()


def template_data(call: Call) -> dict[str, Any]:
    return call.parameters["LaunchTemplateData"]  # type: ignore[no-any-return]


def test_every_machine_needs_imdsv2_tokens_encrypts_its_disk_and_terminates_on_shutdown(
    offers: dict[str, PlannedOffer],
) -> None:
    for offer in offers.values():
        data = template_data(launch_template(group_of(offer)))
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
        assert all(disk["Ebs"]["Encrypted"] for disk in data["BlockDeviceMappings"])
        assert data["InstanceInitiatedShutdownBehavior"] == "terminate" and "KeyName" not in data


def test_a_machine_has_as_many_efa_devices_as_its_type_allows_and_one_ip_interface(
    offers: dict[str, PlannedOffer],
) -> None:
    for offer in offers.values():
        found = network_interfaces(group_of(offer))
        assert sum(one["InterfaceType"] == "efa-only" for one in found) == offer.efa_interfaces
        assert found[0]["InterfaceType"] == "interface"
        places = [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in found]
        assert len(set(places)) == len(places)


def test_efa_in_public_subnets_is_refused_with_the_remedy(offers: dict[str, PlannedOffer]) -> None:
    with pytest.raises(SkytrainError, match="nat_gateway = true"):
        network_interfaces(group_of(offers["two-p4d-efa"], cloud=account("public")))
    single = network_interfaces(group_of(offers["g5-xlarge-spot"], cloud=account("public")))
    assert [one["AssociatePublicIpAddress"] for one in single] == [True]


def test_the_boot_script_ends_the_machine_in_its_first_command(offers: dict[str, PlannedOffer]) -> None:
    group = group_of(offers["g5-xlarge-spot"])
    script = base64.b64decode(template_data(launch_template(group))["UserData"]).decode()
    first = script.splitlines()[1]
    assert first.startswith(f"left=$(({int(group.kill_at.timestamp()) + 300} - ") and "shutdown -h now" in first


def test_long_and_odd_run_names_give_valid_and_different_names() -> None:
    long = [group_name("pile", "r" * 300, "00001", 0), group_name("pile", "r" * 301, "00001", 0)]
    assert long[0] != long[1] and max(map(len, long)) <= 128
    assert group_name("pile", "a_b", "00001", 0) != group_name("pile", "a-b", "00001", 0)


def test_user_data_has_room_for_the_longest_names_and_many_settings(offers: dict[str, PlannedOffer]) -> None:
    """A bucket of 63 characters, a run of 128, the longest region, and sixty settings of eighty characters."""
    group = group_of(next(iter(offers.values())))
    root = f"s3://{'b' * 63}/{'p' * 64}"
    run = "r" * 128
    words = [f"trainer.setting_{number:02d}={'x' * 60}" for number in range(60)]
    boot = replace(
        group.boot,
        region="ap-southeast-99",
        group="g" * 255,
        bundle=f"{root}/bundles/{'0' * 16}",
        config=f"{root}/launches/{run}/00001/config.tar.gz",
        failures=f"{root}/runs/{run}/launches/00001/boot-failures",
        meeting=f"{root}/runs/{run}/meeting",
        command=("node", *words, f"run={run}", f"store.root={root}", "--launch", "00001"),
    )
    launch_template(replace(group, boot=boot)).body()
    long = replace(boot, command=(*boot.command, *words, *words))
    with pytest.raises(SkytrainError, match=r"EC2 takes 16384.*(\n.*)trainer=mine"):
        launch_template(replace(group, boot=long))
