"""Serve on a rented machine of EC2, launched as a run is, with a kill time. It listens only on its own address."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...aws import Call, Tags, render_calls
from ...config import SkytrainError, compose, format_bytes
from ...jobs import ENDPOINT_PORT as PORT
from ...planning import Plan, PlanMaterial, PlanRequest, ServeWork, load_catalog, serve_plan
from ...runs import Reporter, ended_launch, launches_of, next_launch
from ...serving import ApiKey, ServedModel, choose_api_key
from ...storage import open_store
from ..bundle import config_files
from ..checks import Finding, Preflight
from ..jobs import group_name
from ..lifecycle import rollback_on_error
from ..limits import ENDPOINT_RUNS
from ..plans import PlannedJob
from ..serving import EXPORTED, ServeJob, key_command, model_key, plain_name, upload_model
from .launch import PreparedLaunch, prepare_launch, price_text, start_launch
from .machines import remove_quietly

if TYPE_CHECKING:
    from ...export import Dtype

LONGEST = 60  # characters of a model's name in that of its run


@dataclass(frozen=True)
class _Endpoint:
    """One endpoint before anything is created."""

    prepared: PreparedLaunch
    key: ApiKey
    parameter: str
    put: Call
    model_key: str  # of the exported folder, relative to the store


class Ec2Target:
    """One machine with GPUs, which fetches the exported model from the store."""

    name = "ec2"
    reads = ("api_key_file", "hours", "market")
    cloud = "ec2"

    def check(self, job: ServeJob) -> Dtype:
        cloud = job.config.cloud
        if cloud.target != "ec2":
            raise SkytrainError(
                f"--target ec2 needs the settings of an account, and cloud.target is {cloud.target or 'not set'}\n"
                "  add cloud=ec2, after: skytrain cloud init"
            )
        if job.request.hours is None and job.config.budget.usd is None:
            raise SkytrainError("how long is the model served?\n  add --hours 4, or budget.usd=10")
        if job.config.run and not job.config.run.startswith(ENDPOINT_RUNS):
            raise SkytrainError(
                f"run={job.config.run}: the run of an endpoint is named {ENDPOINT_RUNS}...\n  leave it out"
            )
        return EXPORTED[job.config.serve.dtype or "bfloat16"]

    def serve(self, job: ServeJob, model: ServedModel, reporter: Reporter) -> int:
        endpoint = _prepare(job, model, reporter)
        prepared = endpoint.prepared
        reporter.table("serve", _rows(endpoint, model))
        if job.request.dry_run:
            print(render_calls([endpoint.put, *prepared.given(config_files(job.folders)).calls]))  # noqa: T201
            return 0
        job.confirm(prepared.session, "Serve?", prepared.usd_per_hour)
        upload_model(prepared.store, model, endpoint.model_key, reporter)
        with rollback_on_error(lambda error: remove_key(endpoint, reporter)):
            prepared.session.perform(endpoint.put)
            start_launch(prepared, config_files(job.folders), reporter)
        _announce(endpoint, model)
        return 0


def remove_key(endpoint: _Endpoint, reporter: Reporter) -> None:
    """Delete the API key of an endpoint that was not launched."""
    remove_quietly(endpoint.prepared.session, delete_key(endpoint.parameter), reporter.note)


def _prepare(job: ServeJob, model: ServedModel, reporter: Reporter) -> _Endpoint:
    """Plan the machine, check the account, and make the requests. Nothing is created."""
    store = open_store(job.config.store)
    cloud = job.config.cloud
    run = job.config.run or run_of(model.name)
    stored = _stored_key(job, model)
    assert cloud.project is not None
    number = next_launch(launches_of(store, run), ended_launch(store, run))
    parameter = key_parameter(cloud.project, run, number)
    overrides = [
        *job.composed.overrides, f"run={run}", f"serve.source={store.url(stored)}", f"serve.name={model.name}",
        f"serve.key_parameter={parameter}", "serve.python=null",
    ]  # fmt: skip
    composed = compose(overrides, job.folders)
    planned = PlannedJob(composed, _plan(replace(job, composed=composed), model, stored))

    def tell(finding: Finding) -> None:
        reporter.note(f"{finding.name}: {finding.text}")

    prepared = prepare_launch(planned, Preflight(composed.config, planned.plan), tell)
    assert prepared.record.groups and prepared.run == run
    key = choose_api_key(job.request.api_key_file)
    assert key is not None
    put = put_key(parameter, key.value, prepared.groups[0].own_tags, cloud.kms_key)
    return _Endpoint(prepared=prepared, key=key, parameter=parameter, put=put, model_key=stored)


def _plan(job: ServeJob, model: ServedModel, folder: str) -> Plan:
    config = job.config
    region = config.cloud.region
    serve = config.serve
    if region is None:
        raise SkytrainError("cloud.region is not set\n  add cloud=ec2, after: skytrain cloud init")
    work = ServeWork(
        shape=model.shape(serve.dtype or "bfloat16"),
        folder=folder,
        gpu_memory=serve.gpu_memory,
        max_length=serve.max_length,
        gpus=serve.gpus,
        hours=job.request.hours,
        families=tuple(config.cloud.instance_families),
    )
    request = PlanRequest(config.budget.usd, region=region, market=job.request.market)
    composed = job.composed
    return serve_plan(
        work,
        PlanMaterial(
            values=composed.values,
            overrides=composed.overrides,
            request=request,
            catalog=load_catalog(),
            now=datetime.now(UTC),
        ),
    )


def run_of(model: str) -> str:
    """Return the name of the run of an endpoint."""
    return f"{ENDPOINT_RUNS}{plain_name(model)[-LONGEST:]}"


def _stored_key(job: ServeJob, model: ServedModel) -> str:
    """Return where the model is in the store: where it was fetched from, or a folder named by its hash."""
    own = f"{job.config.store.root.rstrip('/')}/exports/"
    if job.source is not None and job.source.startswith(own):
        return f"exports/{job.source.removeprefix(own).rstrip('/')}"
    return model_key(model.name, model.sha256)


def key_parameter(project: str, run: str, launch: str) -> str:
    """Return the name of the parameter, which no other launch has. The role of serving machines reads below its path."""
    return f"/skytrain/{project}/serve/{group_name(project, run, launch, 0)}/api_key"


def put_key(name: str, value: str, tags: Tags, kms_key: str | None) -> Call:
    """Return the request that stores the key. `--dry-run` masks its value."""
    encrypted = {"KeyId": kms_key} if kms_key else {}
    text = "API key of an endpoint of Skytrain"
    return Call(
        "ssm",
        "PutParameter",
        {"Name": name, "Value": value, "Type": "SecureString", "Description": text, "Tags": tags.pairs(), **encrypted},
    )


def delete_key(name: str) -> Call:
    return Call("ssm", "DeleteParameter", {"Name": name})


def _rows(endpoint: _Endpoint, model: ServedModel) -> Sequence[tuple[str, str]]:
    offer = endpoint.prepared.plan.choice
    first = endpoint.prepared.record.groups[0]
    return [
        ("run", endpoint.prepared.run),
        ("model", f"{model.name}, {format_bytes(endpoint.prepared.plan.data.bytes)} of weights"),
        ("machine", f"{offer.instance_type} ({offer.market}), {offer.gpus_per_node} x {offer.gpu}, in {first.zone}"),
        ("price", f"{price_text(endpoint.prepared)}; at most ${offer.max_usd_per_hour_each:.2f}"),
        ("kill time", f"{first.kill_at}; at most ${offer.max_usd_per_hour_each * offer.cost.hours:.2f} by then"),
        ("store", endpoint.prepared.store.url(endpoint.model_key)),
    ]


def _announce(endpoint: _Endpoint, model: ServedModel) -> None:
    """Print how to reach the endpoint. A new key is shown here."""
    prepared = endpoint.prepared
    key = endpoint.key
    first = prepared.record.groups[0]
    run = prepared.run
    shown = f"{key.value} (new)" if not key.origin else f"*** (from {key.origin})"
    sys.stdout.write(
        f"launched {run}: {first.instance_type} in {first.zone} serves {model.name} until {first.kill_at}\n"
        f"API key: {shown}, kept as the parameter {endpoint.parameter}\n\n"
        "It answers after the boot and the start of vLLM, some ten minutes:\n"
        f"  skytrain logs {run} cloud=ec2\n"
        f"  skytrain shell {run} --forward {PORT} cloud=ec2   # leave it open\n"
        f"  export SKYTRAIN_API_KEY=$({key_command(endpoint.parameter, prepared.record.region)})\n"
        f"  skytrain chat --url http://127.0.0.1:{PORT}\n"
        f"  skytrain status {run} cloud=ec2\n"
        f"  skytrain stop {run} cloud=ec2\n"
    )


TARGET = Ec2Target()
