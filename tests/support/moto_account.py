"""An AWS account in this process: moto's server, with the few actions that Terraform needs and moto lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def moto_account() -> Iterator[str]:
    """Yields the endpoint of an empty account; every client gets it as AWS_ENDPOINT_URL."""
    from moto.budgets.responses import BudgetsResponse
    from moto.cloudtrail.models import CloudTrailBackend
    from moto.moto_api._internal import moto_api_backend
    from moto.server import ThreadedMotoServer

    BudgetsResponse.describe_subscribers_for_notification = _subscribers  # type: ignore[attr-defined]
    BudgetsResponse.list_tags_for_resource = lambda self: json.dumps({"ResourceTags": []})  # type: ignore[attr-defined]
    BudgetsResponse.tag_resource = lambda self: "{}"  # type: ignore[attr-defined]
    CloudTrailBackend.delete_trail = _delete_trail  # type: ignore[method-assign]

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        moto_api_backend.reset()


def local_credentials(endpoint: str) -> dict[str, str]:
    """The environment that leads a program to the account, and nowhere else."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",
    }


def _delete_trail(self, name: str) -> None:  # type: ignore[no-untyped-def]
    """Terraform names a trail by its ARN, as AWS allows; moto deletes nothing then."""
    self.trails.pop(name.rpartition("/")[2], None)


def _subscribers(self) -> str:  # type: ignore[no-untyped-def]
    """DescribeSubscribersForNotification: moto stores what it answers, but has no such action."""
    wanted = self._get_param("Notification")
    budget = self.backend.budgets[self._get_param("AccountId")][self._get_param("BudgetName")]
    found = next(each for each in budget.notifications if each.details.items() >= wanted.items())
    return json.dumps({"Subscribers": found.subscribers})
