"""RunInstances with DryRun: AWS itself says whether this role may start the planned machine; nothing starts."""

from __future__ import annotations

from typing import Any

from ...aws import Call, CloudError, Tags
from ..ec2.requests import block_options
from .check import Failed, NotChecked, Preflight

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
