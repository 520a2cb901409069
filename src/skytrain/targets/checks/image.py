"""The machine image: resolved by AWS's public parameter and pinned by its id."""

from __future__ import annotations

from ...aws import Call, find_image
from .check import Failed, Preflight

LINK = "https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html"


def image(preflight: Preflight) -> str:
    gpu = preflight.plan is None or preflight.plan.choice.gpus_per_node > 0
    found = find_image(preflight.session, gpu=gpu)
    described = preflight.session.perform(Call("ec2", "DescribeImages", {"ImageIds": [found.id]}))["Images"]
    if not described or described[0].get("State", "available") != "available":
        raise Failed(f"{found.id}, which {found.parameter} names, is not available", "try again later", link=LINK)
    preflight.image = found
    return f"{found.id} ({described[0].get('Name', 'no name')})"
