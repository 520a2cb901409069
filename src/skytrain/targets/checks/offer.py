"""The plan's offer: fresh, sold in a zone that has a subnet, at a price within the plan's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...aws import Call, CloudError, Tags, block_options, find_block, find_image, offered_zones, spot_prices
from ...planning import IMAGE_LINES, ImageLine, Plan, image_line, lines_for
from .check import Failed, NotChecked, Preflight

MOST_ZONES_SHOWN = 6


def plan(preflight: Preflight) -> str:
    offer = preflight.offer
    assert preflight.plan is not None
    preflight.plan.check_fresh(preflight.now)
    allowed = preflight.config.cloud.instance_families
    family = offer.instance_type.split(".")[0]
    if allowed and family not in allowed:
        raise Failed(
            f"the operator role may not start {offer.instance_type}: it may start {', '.join(allowed)}",
            f"add {family} to the variable instance_families of infra/terraform/base, apply, and skytrain cloud init --force",
        )
    return f"{offer.nodes} x {offer.instance_type} ({offer.market}, {offer.region}), ${offer.cost.usd:.2f} in all"


def capacity_block(preflight: Preflight) -> str:
    offer = preflight.offer
    if offer.reservation is None:
        raise NotChecked("the plan uses no capacity block")
    block = preflight.block = find_block(preflight.session, offer, preflight.now)
    if block.zone not in preflight.subnets:
        raise Failed(
            f"{block.id} is in {block.zone}, and the subnets are in {', '.join(preflight.subnets)}",
            f"add a subnet in {block.zone} (variable zones of infra/terraform/base)",
        )
    ends = f", ends at {block.ends_at.isoformat(timespec='minutes')}" if block.ends_at else ""
    return f"{block.id}: {block.free} x {block.instance_type} in {block.zone}, {block.state}{ends}"


def zones(preflight: Preflight) -> str:
    offer = preflight.offer
    session = preflight.session
    offered = [preflight.block.zone] if preflight.block else offered_zones(session, offer.instance_type)
    if not offered:
        raise Failed(
            f"{session.region} does not offer {offer.instance_type}",
            "plan another type or region: skytrain plan --region NAME",
            cause="capacity",
        )
    ours = preflight.subnets
    usable = [zone for zone in offered if zone in ours] if ours else offered
    if not usable:
        raise Failed(
            f"{offer.instance_type} is offered in {', '.join(offered)}, and the subnets are in {', '.join(ours)}",
            f"add a subnet in {offered[0]} (variable zones of infra/terraform/base)",
            cause="capacity",
        )
    preflight.offered_zones = tuple(usable)
    return f"{offer.instance_type} is offered in {', '.join(usable[:MOST_ZONES_SHOWN])}"


def spot_price(preflight: Preflight) -> str:
    offer = preflight.offer
    if offer.market != "spot":
        raise NotChecked("the plan is on demand")
    prices = spot_prices(preflight.session, offer.instance_type, preflight.offered_zones, preflight.now)
    if not prices:
        raise Failed(
            f"no spot price of {offer.instance_type} in {', '.join(preflight.offered_zones)}",
            "it is not sold there now: plan again (skytrain plan), or --market on-demand",
            cause="capacity",
        )
    zone, price = min(prices.items(), key=lambda each: each[1])
    if price > offer.max_usd_per_hour_each:
        raise Failed(
            f"{offer.instance_type} costs ${price:.4f} per hour in {zone}, more than the plan's ${offer.max_usd_per_hour_each:.4f}",
            "plan again with today's prices: skytrain catalog refresh, then skytrain plan",
            cause="capacity",
        )
    return f"${price:.4f} per hour in {zone}; the plan allows ${offer.max_usd_per_hour_each:.4f}"


LINK = "https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html"


def image(preflight: Preflight) -> str:
    chosen = find_image(preflight.session, planned_lines(preflight.plan))
    described = preflight.session.perform(Call("ec2", "DescribeImages", {"ImageIds": [chosen.id]}))["Images"]
    if not described or described[0].get("State", "available") != "available":
        raise Failed(f"{chosen.id}, the newest of {chosen.line.name}, is not available", "try again later", link=LINK)
    preflight.image = chosen
    cloud = preflight.config.cloud
    python = f"Python {cloud.python_version or chosen.line.python_version} in {cloud.python or chosen.line.python}"
    return f"{chosen.id} ({described[0].get('Name', 'no name')}), {chosen.line.system}, {python}"


def planned_lines(plan: Plan | None) -> Sequence[ImageLine]:
    """Return the lines of images that may be used: the one that the plan has pinned, or any for GPUs without a plan."""
    if plan is None:
        return IMAGE_LINES
    if plan.image is not None:
        return [image_line(plan.image)]
    gpu = any(offer.gpus_per_node for offer in plan.offers)
    return lines_for((offer.instance_type for offer in plan.offers), gpu=gpu)


ALLOWED = "DryRunOperation"
ROOT_GB = 50


def trial_launch(preflight: Preflight) -> str:
    call = trial_call(preflight)
    try:
        preflight.session.perform(call)
    except CloudError as error:
        if error.code == ALLOWED:
            offer = preflight.offer
            return f"AWS would start {offer.nodes} x {offer.instance_type} with this role"
        raise
    raise Failed("AWS ignored DryRun", "run `skytrain status`: a machine may have started")


def trial_call(preflight: Preflight) -> Call:
    """Return the request: the planned type and image with the profile, network, tags and IMDSv2 of a real launch."""
    cloud = preflight.config.cloud
    offer = preflight.offer
    if cloud.project is None or cloud.instance_profile is None or cloud.security_group is None:
        raise NotChecked("cloud.project, cloud.instance_profile or cloud.security_group is not set")
    assert preflight.image is not None, "the check of the image has found it"
    zone = next((zone for zone in preflight.offered_zones if zone in preflight.subnets), None)
    owner = cloud.owner or preflight.session.identity.name
    tags = Tags(cloud.project, owner, "doctor", preflight.now)
    volume: dict[str, Any] = {"VolumeSize": ROOT_GB, "VolumeType": "gp3", "Encrypted": True}
    if cloud.kms_key:
        volume["KmsKeyId"] = cloud.kms_key
    parameters: dict[str, Any] = {
        "DryRun": True,
        "ImageId": preflight.image.id,
        "InstanceType": offer.instance_type,
        "MinCount": offer.nodes,
        "MaxCount": offer.nodes,
        "SubnetId": preflight.subnets[zone] if zone else next(iter(preflight.subnets.values())),
        "SecurityGroupIds": [cloud.security_group],
        "IamInstanceProfile": {"Name": cloud.instance_profile},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "BlockDeviceMappings": [{"DeviceName": preflight.image.root_device, "Ebs": volume}],
        "TagSpecifications": tags.specifications("instance", "volume", "network-interface"),
    }
    if offer.reservation is not None:
        parameters |= block_options(offer.reservation)
    elif offer.market == "spot":
        spot = {"SpotInstanceType": "one-time", "MaxPrice": f"{offer.max_usd_per_hour_each:.4f}"}
        parameters["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    return Call("ec2", "RunInstances", parameters, token_key=f"doctor/{preflight.now.isoformat()}")
