"""Every request in the source names an operation and parameters that AWS's service models know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import skytrain
from skytrain.aws.calls import _operation_model

SOURCE = Path(skytrain.__file__).parent


def requests() -> Iterator[tuple[str, str, str, ast.expr | None]]:
    """Place, service, operation and parameters of each `Call(...)` whose service and operation are written out."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "Call(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Call"):
                continue
            names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            if len(names) == 2:
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                yield place, names[0], names[1], node.args[2] if len(node.args) > 2 else None


def test_every_operation_and_every_parameter_written_out_exists() -> None:
    seen = 0
    for place, service, operation, parameters in requests():
        model = _operation_model(service, operation)
        seen += 1
        if not isinstance(parameters, ast.Dict):
            continue
        given = {key.value for key in parameters.keys if isinstance(key, ast.Constant)}
        known = set(model.input_shape.members) if model.input_shape else set()
        assert given <= known, f"{place}: {service} {operation} has no {given - known}"
        written_out = all(isinstance(key, ast.Constant) for key in parameters.keys)
        if written_out and model.input_shape:
            assert set(model.input_shape.required_members) <= given, f"{place}: {service} {operation}"
    assert seen >= 20


def test_the_walk_finds_the_requests_of_doctor() -> None:
    found = {(service, operation) for _, service, operation, _ in requests()}
    assert found >= {("ec2", "RunInstances"), ("service-quotas", "GetServiceQuota"), ("s3", "HeadObject")}


@pytest.mark.parametrize("name", ["boto3.client(", "boto3.resource(", "create_client("])
def test_the_package_cloud_sends_nothing_past_the_checked_calls(name: str) -> None:
    assert not [path for path in (SOURCE / "cloud").rglob("*.py") if name in path.read_text()]
