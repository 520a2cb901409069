"""The network: subnets with room, a way to S3, and a security group that EFA can work in."""

from __future__ import annotations

from typing import Any

from ...aws import Call
from .check import Failed, NotChecked, Preflight

EFA_LINK = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html#efa-start-security"
ENDPOINTS_LINK = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/privatelink-interface-endpoints.html"
APPLY = "terraform -chdir=infra/terraform/base apply"
CLOSED_SERVICES = (
    "ec2",
    "autoscaling",
    "ssm",
    "ssmmessages",
    "ec2messages",
    "sts",
    "kms",
    "logs",
    "monitoring",
    "ecr.api",
    "ecr.dkr",
)
EVERYWHERE = {"0.0.0.0/0", "::/0"}
ALL_PROTOCOLS = "-1"


def subnets(preflight: Preflight) -> str:
    ours = preflight.subnets
    if not ours:
        raise NotChecked(f"cloud.subnets.{preflight.config.cloud.subnets.nodes} is empty; skytrain cloud init sets it")
    nodes = preflight.plan.choice.nodes if preflight.plan else 1
    described = _subnets(preflight)
    room = {}
    for zone, name in ours.items():
        if described[name]["AvailabilityZone"] != zone:
            raise Failed(
                f"{name} is in {described[name]['AvailabilityZone']}, not in {zone}", "skytrain cloud init --force"
            )
        room[zone] = described[name]["AvailableIpAddressCount"]
    full = [zone for zone, free in room.items() if free < nodes]
    if full:
        raise Failed(
            f"too few free addresses for {nodes} machines in {', '.join(f'{ours[zone]} ({room[zone]})' for zone in full)}",
            "end what is not needed (skytrain gc), or use larger subnets",
        )
    return (
        f"{preflight.config.cloud.subnets.nodes} subnets in {', '.join(ours)}; at least {min(room.values())} addresses"
    )


def route_to_s3(preflight: Preflight) -> str:
    """Check that each subnet's route table leads to S3: by a gateway endpoint, a NAT or an internet gateway."""
    tables = _route_tables(preflight)
    ways = {}
    for zone, name in preflight.subnets.items():
        routes = [route for route in tables[name]["Routes"] if route.get("State", "active") == "active"]
        way = next((out for route in routes if (out := _way_out(route))), None)
        if way is None:
            raise Failed(
                f"{name} ({zone}) has no route to S3: no gateway endpoint, NAT or internet gateway in its route table",
                f"{APPLY} adds the gateway endpoint for S3, which costs nothing",
                link=ENDPOINTS_LINK,
            )
        ways[zone] = way
    return ", ".join(sorted(set(ways.values())))


def endpoints(preflight: Preflight) -> str:
    if not preflight.config.cloud.closed_network:
        raise NotChecked("the network is not closed; machines reach AWS through the internet")
    session = preflight.session
    vpc = next(iter(_subnets(preflight).values()))["VpcId"]
    named = {"Filters": [{"Name": "vpc-id", "Values": [vpc]}]}
    described = session.items(Call("ec2", "DescribeVpcEndpoints", named), "VpcEndpoints")
    there = {one["ServiceName"].removeprefix("cn.") for one in described}  # as some begin in China
    wanted = {service: f"com.amazonaws.{session.region}.{service}" for service in CLOSED_SERVICES}
    missing = [service for service, name in wanted.items() if name not in there]
    if missing:
        raise Failed(
            f"the closed network lacks endpoints for {', '.join(missing)}",
            f"{APPLY}, with its switch for interface endpoints on",
        )
    return f"all {len(wanted)} interface endpoints of a closed network"


def security_group(preflight: Preflight) -> str:
    """Check EFA's rule, all traffic to the group itself, in both directions; and that nothing else may come in.

    Egress to 0.0.0.0/0 does not replace the rule to the group itself: EFA's traffic is not IP.
    """
    name = preflight.config.cloud.security_group
    if name is None:
        raise NotChecked("cloud.security_group is not set; skytrain cloud init sets it")
    group = preflight.session.perform(Call("ec2", "DescribeSecurityGroups", {"GroupIds": [name]}))["SecurityGroups"][0]
    ways = {"inbound": group["IpPermissions"], "outbound": group["IpPermissionsEgress"]}
    closed = [way for way, rules in ways.items() if not any(_to_itself(rule, name) for rule in rules)]
    if closed:
        raise Failed(
            f"{name} lacks the {' and '.join(closed)} rule 'all traffic, this group itself': EFA cannot work",
            f"{APPLY}; or add the rule: protocol -1, with {name} itself as the other side",
            link=EFA_LINK,
        )
    if opened := [rule for rule in ways["inbound"] if _ranges(rule) & EVERYWHERE]:
        raise Failed(
            f"{name} lets anyone in ({_described(opened[0])} from {', '.join(sorted(_ranges(opened[0]) & EVERYWHERE))})",
            "remove the rule: skytrain shell needs no open port",
        )
    return f"{name}: all traffic with itself, both ways; nothing is open to the internet"


def _to_itself(rule: dict[str, Any], name: str) -> bool:
    return rule["IpProtocol"] == ALL_PROTOCOLS and any(
        pair.get("GroupId") == name for pair in rule.get("UserIdGroupPairs", [])
    )


def _ranges(rule: dict[str, Any]) -> set[str]:
    four = {one["CidrIp"] for one in rule.get("IpRanges", [])}
    return four | {one["CidrIpv6"] for one in rule.get("Ipv6Ranges", [])}


def _described(rule: dict[str, Any]) -> str:
    if rule["IpProtocol"] == ALL_PROTOCOLS:
        return "all traffic"
    return f"{rule['IpProtocol']} {rule.get('FromPort')}-{rule.get('ToPort')}"


def _way_out(route: dict[str, Any]) -> str | None:
    gateway = route.get("GatewayId", "")
    if gateway.startswith("vpce-"):
        return "gateway endpoint"
    if route.get("DestinationCidrBlock") != "0.0.0.0/0":
        return None
    if route.get("NatGatewayId"):
        return "NAT"
    return "internet gateway" if gateway.startswith("igw-") else None


def _subnets(preflight: Preflight) -> dict[str, dict[str, Any]]:
    named = {"SubnetIds": list(preflight.subnets.values())}
    subnets = preflight.session.perform(Call("ec2", "DescribeSubnets", named))["Subnets"]
    return {one["SubnetId"]: one for one in subnets}


def _route_tables(preflight: Preflight) -> dict[str, dict[str, Any]]:
    """Return the route table of each subnet: its own, or the main one of its VPC."""
    subnets_by_id = _subnets(preflight)
    vpcs = sorted({one["VpcId"] for one in subnets_by_id.values()})
    named = {"Filters": [{"Name": "vpc-id", "Values": vpcs}]}
    own = {}
    main = {}
    for table in preflight.session.items(Call("ec2", "DescribeRouteTables", named), "RouteTables"):
        for association in table["Associations"]:
            if association.get("Main"):
                main[table["VpcId"]] = table
            elif "SubnetId" in association:
                own[association["SubnetId"]] = table
    return {name: own.get(name) or main[one["VpcId"]] for name, one in subnets_by_id.items()}
