"""The AWS account of the rehearsal: moto's server, with what moto lacks or does otherwise.

Added: quotas of EC2, spot prices by zone, placement groups, capacity by zone, the limit of a group's size, and the
lifecycle of a group's machines with its hooks and history (`tests/support/scaling.py`). Not as on AWS: instances are
"running" at once and "terminated" at once, permissions are not checked (`tests/infra` evaluates the policies), and spot
machines are not marked as such in DescribeInstances.
"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import boto3
from moto.autoscaling.models import AutoScalingBackend, autoscaling_backends
from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.servicequotas.models import ServiceQuotasBackend
from tests.support.scaling import ScalingStandIn
from tests.targets.ground import ROLES_PATH, Ground
from tests.targets.seeding import group_item, response
from werkzeug.serving import make_server

from skytrain.aws import AwsSession

REGION = "us-east-2"
UNLIMITED = 1_000_000


@dataclass
class Account:
    """The control plane. `lock` is held by whoever reads or changes moto's state."""

    endpoint: str
    prices: Mapping[tuple[str, str], float]  # instance type, zone -> dollars an hour
    ground: Ground = None  # type: ignore[assignment]
    quota_vcpus: int = 512
    capacity: dict[str, int] = field(default_factory=dict)  # machines that a zone has; without an entry: enough
    lock: threading.RLock = field(default_factory=threading.RLock)
    placement_groups: dict[str, dict[str, str]] = field(default_factory=dict)
    # A scale-in does not end machines that wait for their proof: AWS does not say whether it does.
    lifecycle: ScalingStandIn = field(default_factory=lambda: ScalingStandIn(scale_in_waits=True))
    unreachable: bool = False  # requests have no effect and get no answer
    unanswered: str = ""  # an operation that has its effect, and gets no answer

    @property
    def scaling(self) -> AutoScalingBackend:
        return autoscaling_backends[DEFAULT_ACCOUNT_ID][REGION]

    @property
    def ec2(self) -> Any:
        return ec2_backends[DEFAULT_ACCOUNT_ID][REGION]

    def room(self, zone: str) -> int:
        running = sum(one.state == "running" and one.placement.zone == zone for one in self.instances())
        return max(0, self.capacity.get(zone, UNLIMITED) - running)

    def instances(self) -> list[Any]:
        return [one for held in self.ec2.reservations.values() for one in held.instances]

    def terminate(self, instance: str) -> None:
        """End an instance as EC2 does; its group asks for another."""
        with self.lock:
            if any(one.id == instance and one.state == "running" for one in self.instances()):
                self.ec2.terminate_instances([instance])
                self.scaling.notify_terminate_instances([instance])

    def leftovers(self) -> dict[str, list[str]]:
        """Return everything in the account that costs money, or that would ask for something that does."""
        with self.lock:
            found = {
                "instances": [one.id for one in self.instances() if one.state != "terminated"],
                "groups": list(self.scaling.autoscaling_groups),
                "launch templates": list(self.ec2.launch_templates),
            }
        return {kind: names for kind, names in found.items() if names}

    def roles(self) -> list[str]:
        """Return the roles that launches have created, which cost nothing: `gc` deletes them."""
        found = self.ground.session.client("iam").list_roles(PathPrefix=ROLES_PATH)["Roles"]
        return [role["RoleName"] for role in found]


@contextlib.contextmanager
def account(address: str, prices: Mapping[tuple[str, str], float]) -> Iterator[Account]:
    """Serve the account at this address, with the base of an account in it."""
    made = Account("", prices)
    application = DomainDispatcherApplication(create_backend_app)

    def one_at_a_time(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        if made.unreachable:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the connection is closed without an answer")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with made.lock:
            answer = application(environ, start)
        if made.unanswered and f"Action={made.unanswered}&".encode() in body + b"&":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the connection is closed without an answer")
        return answer

    server = make_server(address, 0, one_at_a_time, threaded=True, request_handler=_Quiet)
    made.endpoint = f"http://{address}:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.shutdown)
        for target, name, replacement in _additions(made):
            stack.enter_context(mock.patch.object(target, name, replacement, create=True))
        keys = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")
        made.ground = Ground(AwsSession(_Directed(keys, made.endpoint), REGION))
        yield made


class _Quiet(MotoRequestHandler):
    def log_request(self, *_: object) -> None:
        return

    def log_error(self, *_: object) -> None:  # connections that the rehearsal closes
        return


class _Directed:
    """A boto3 session whose clients all speak to one endpoint."""

    def __init__(self, session: Any, endpoint: str) -> None:
        self._session = session
        self._endpoint = endpoint

    def client(self, service: str, **more: Any) -> Any:
        return self._session.client(service, endpoint_url=self._endpoint, **more)


def _additions(made: Account) -> list[tuple[Any, str, Any]]:
    made.lifecycle.room = made.room

    def quota(_: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        return {"ServiceCode": service_code, "QuotaCode": quota_code, "Value": float(made.quota_vcpus)}

    def spot_prices(asked: Any) -> ActionResult:
        types = asked._get_param("InstanceTypes", [])
        found = [
            {
                "InstanceType": kind,
                "AvailabilityZone": zone,
                "SpotPrice": f"{usd:.6f}",
                "ProductDescription": "Linux/UNIX",
            }
            for (kind, zone), usd in made.prices.items()
            if kind in types
        ]
        return ActionResult({"SpotPriceHistory": found})

    def create_placement_group(asked: Any) -> str:
        tags = {
            one["Key"]: one["Value"] for one in (asked._get_param("TagSpecification", []) or [{}])[0].get("Tag", [])
        }
        made.placement_groups[asked._get_param("GroupName")] = tags
        return response("CreatePlacementGroup", "<return>true</return>")

    def delete_placement_group(asked: Any) -> str:
        made.placement_groups.pop(asked._get_param("GroupName"), None)
        return response("DeletePlacementGroup", "<return>true</return>")

    def describe_placement_groups(_: Any) -> str:
        items = "".join(group_item(name, tags) for name, tags in made.placement_groups.items())
        return response("DescribePlacementGroups", f"<placementGroupSet>{items}</placementGroupSet>")

    return [
        *made.lifecycle.patches(),
        (ServiceQuotasBackend, "get_service_quota", quota),
        (EC2Response, "describe_spot_price_history", spot_prices),
        (EC2Response, "create_placement_group", create_placement_group),
        (EC2Response, "delete_placement_group", delete_placement_group),
        (EC2Response, "describe_placement_groups", describe_placement_groups),
    ]
