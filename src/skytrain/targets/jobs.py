"""What differs between the jobs that `launch` runs on rented machines: name, packages, profile, command."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from ..aws import AwsSession, is_preview
from ..config import (
    Composed,
    Config,
    HFModelConfig,
    SkytrainError,
    finish_settings,
    format_bytes,
    make,
    uses_deepspeed,
)
from ..corpus import recipe_hash, unpacked_bytes
from ..jobs import FINISH_SUFFIX
from ..planning import (
    JobKind,
    Plan,
    PlanMaterial,
    PlannedOffer,
    PlanRequest,
    PrepareWork,
    corpus_work,
    finish_plan,
    finish_work,
    load_catalog,
    plan_hash,
    prepare_plan,
    scratch_bytes_per_document,
    timestamp,
)
from ..runs import DEFAULT_TARGET, LaunchedGroup, LaunchId, LaunchRecord, launch_origin, run_name
from ..tuning import sweep_name

GROUP_NAME_LENGTH = 100  # a launch template's name may have 128 characters
JOB_NAME_LENGTH = 63  # of a training job, an application and a cluster
KEPT_TEXT_FRACTION = 0.6  # of the text that is read; assumed
UNKNOWN_BYTES = 1e9  # of a source that is not made of files and has no target


def job_name(config: Config, job: JobKind) -> str:
    """Return the name of the run; preparing data is named after the data and its recipe."""
    if job == "train" or (config.run and job != "finish"):
        return run_name(config)
    if job == "tune":
        return machine_run(sweep_name(config), 1)
    if job == "finish":
        return finish_name(run_name(config))
    assert job == "prepare", "an endpoint is named by its target"
    return f"prepare-{config.data.name}-{recipe_hash(config.data)[:8]}"


def machine_run(sweep: str, number: int) -> str:
    """Return the name under which a machine of a sweep is launched, shown and ended."""
    return f"{sweep}-machine-{number}"


def finish_name(run: str) -> str:
    """Return the name under which a machine is launched that evaluates, exports and reports a run."""
    return f"{run}{FINISH_SUFFIX}"


def scheduler_job_name(project: str, run: str, launch: str) -> str:
    """Return the name of a launch's job. Long or odd run names are followed by their hash."""
    full = f"skytrain-{project}-{run}"
    most = JOB_NAME_LENGTH - len(launch) - 1
    plain = re.sub(r"[^A-Za-z0-9]+", "-", full).strip("-")
    if plain != full or len(plain) > most:
        plain = f"{plain[: most - 11].rstrip('-')}-{hashlib.sha256(f'{project}/{run}'.encode()).hexdigest()[:10]}"
    return f"{plain}-{launch}"


def own_launches(launches: Sequence[LaunchRecord], project: str | None) -> list[LaunchRecord]:
    """Return the launches whose jobs have the name that their launch gave them.

    Machines can write the record of their run: another name is that of somebody else's job, which `stop` would end.
    """
    return [
        record
        for record in launches
        if {group.name for group in record.groups} == {scheduler_job_name(project or "", record.run, record.id)}
    ]


def group_name(project: str, run: str, launch: str, number: int) -> str:
    """Return the name of a group, its template and its placement group, which no other launch has.

    Long or odd run names are followed by their hash.
    """
    plain = re.sub(r"[^A-Za-z0-9-]", "-", f"skytrain-{project}-{run}")
    if plain != f"skytrain-{project}-{run}" or len(plain) > GROUP_NAME_LENGTH:
        plain = f"{plain[: GROUP_NAME_LENGTH - 11]}-{hashlib.sha256(f'{project}/{run}'.encode()).hexdigest()[:10]}"
    return f"{plain}-{launch}-{number}"


def job_config(config: Config, job: JobKind) -> Config:
    """Return the configuration of the launch. In an older base machines share a role; three kinds have one each."""
    cloud = config.cloud
    profiles = {
        "prepare": ("prepare_profile", cloud.prepare_profile, "prepare data"),
        "serve": ("serve_profile", cloud.serve_profile, "serve models"),
    }
    if job not in profiles or cloud.machine_roles.boundary is not None:  # a launch creates a role of its own
        return config
    setting, profile, what = profiles[job]
    if profile is None:
        raise SkytrainError(
            f"cloud.{setting} is not set: the account has no role for machines that {what}\n"
            "  apply infra/terraform/base of this version, then: skytrain cloud init --force"
        )
    return replace(config, cloud=replace(cloud, instance_profile=profile, roles=replace(cloud.roles, node=None)))


def job_extras(config: Config, job: JobKind) -> tuple[str, ...]:
    """Return the extras of Skytrain that the job needs."""
    if job == "serve":
        return ("aws", "serve")
    extras = {"aws", "data"} if job == "prepare" else {"aws", "train"}
    if job == "tune" and "tpe" in config.tune.strategy.split("+"):
        extras.add("tune")
    if job == "prepare":
        if config.tokenizer.kind == "hf":
            extras.add("hf")
        if config.data.source.args.get("extraction") == "trafilatura":
            extras.add("html")
        return tuple(sorted(extras))
    if uses_deepspeed(config):
        extras.add("deepspeed")
    if isinstance(config.model, HFModelConfig) or config.tokenizer.kind == "hf" or job == "finish":
        extras.add("export")
    if "wandb" in config.trainer.loggers:
        extras.add("wandb")
    return tuple(sorted(extras))


def node_command(
    overrides: Sequence[str],
    launch: LaunchId,
    offer: PlannedOffer | None,
    *,
    job: JobKind = "train",
    nodes: int,
    processes: int,
    usd_per_hour: float | None,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the arguments of `skytrain` on a rented machine: the user's overrides, then what the plan decided.

    Without an offer nothing was planned: a smoke test on CPUs.
    """
    price = [f"budget.usd_per_hour={usd_per_hour:.4f}"] if usd_per_hour is not None else []
    return (
        "node", *overrides, *(_planned_arguments(offer, job) if offer is not None else ()), f"run={launch.run}", *price,
        *options, "--nodes", str(nodes), "--processes", str(processes), "--launch", launch.launch,
    )  # fmt: skip


def _planned_arguments(offer: PlannedOffer, job: JobKind) -> tuple[str, ...]:
    """Return the arguments of `skytrain node` that follow from the offer and the job."""
    if job in ("prepare", "serve", "finish"):
        return ("--job", job)
    if job == "tune":
        return ("tune.usd_per_hour=null", "--job", "tune")  # the price of the machine is that of its zone
    assert offer.layout is not None and offer.speed is not None
    planned = (
        f"budget.planned_usd={offer.cost.usd:.2f}",
        f"budget.planned_step_seconds={offer.speed.step_seconds:.4f}",
    )
    return (*offer.layout.overrides, *planned, *(["--efa", str(offer.efa_interfaces)] if offer.efa_interfaces else []))


def launch_record(
    composed: Composed,
    launch: LaunchId,
    at: datetime,
    groups: Sequence[LaunchedGroup],
    plan: Plan | None = None,
    session: AwsSession | None = None,
) -> LaunchRecord:
    """Return the record of a launch that begins. `session` says who launches, and in which account and region."""
    cloud = composed.config.cloud
    record = LaunchRecord(
        id=launch.launch,
        run=launch.run,
        verb=plan.job if plan is not None else "train",
        launched_at=timestamp(at),
        launched_by=cloud.owner or "unknown",
        account=cloud.account or "",
        region=cloud.region or "",
        patience_seconds=cloud.patience,
        plan_hash=plan_hash(plan) if plan is not None else "",
        image="",
        bundle="",
        words=list(composed.overrides),
        groups=list(groups),
        target=cloud.target or DEFAULT_TARGET,
        origin=launch_origin(session.identity.arn if session is not None else ""),
    )
    if session is None:
        return record
    caller = session.identity
    return replace(record, launched_by=caller.name, account=caller.account, region=session.region)


def plan_preparation(composed: Composed) -> Plan:
    """Return the plan of `launch prepare`. Lists the source's files for their size; reads and writes nothing."""
    config = composed.config
    if config.cloud.region is None:
        raise SkytrainError("cloud.region is not set\n  add cloud=ec2")
    if config.engine != "local":
        raise SkytrainError(
            f"engine={config.engine}: launch prepare rents one machine, which needs no cluster\n  leave it out"
        )
    request = PlanRequest(config.budget.usd, region=config.cloud.region)
    material = PlanMaterial(
        values=composed.values,
        overrides=composed.overrides,
        request=request,
        catalog=load_catalog(),
        now=datetime.now(UTC),
    )
    return prepare_plan(prepare_work(config), material)


def plan_finishing(composed: Composed) -> Plan:
    """Return the plan of `launch finish`: one machine that evaluates, exports and reports a run."""
    config = finish_settings(composed.config)
    if config.cloud.region is None:
        raise SkytrainError("cloud.region is not set\n  add cloud=ec2")
    material = PlanMaterial(
        values=composed.values,
        overrides=composed.overrides,
        request=PlanRequest(config.budget.usd, region=config.cloud.region),
        catalog=load_catalog(),
        now=datetime.now(UTC),
    )
    work = finish_work(config, f"runs/{run_name(config)}/finish")
    return finish_plan(work, material, tuple(config.cloud.instance_families))


def prepare_work(config: Config) -> PrepareWork:
    """Return how much text the machine will read, as far as sizes and settings tell."""
    data = config.data
    source = make(data.source.target, data.source.args, key="data.source")
    folder = f"tokens/{data.name}"
    target = None
    if data.target_tokens:
        target = data.target_tokens / (1 - data.validation_fraction) * data.bytes_per_token / KEPT_TEXT_FRACTION
    if not hasattr(source, "pieces"):
        return _work(config, target or UNKNOWN_BYTES, 0.0, folder)
    try:
        pieces = source.pieces()
    except SkytrainError:
        if not is_preview(config.cloud):
            raise
        return _work(config, target or UNKNOWN_BYTES, 0.0, folder)
    here = [piece.url for piece in pieces if piece.store is None and "://" not in piece.url]
    if here:
        raise SkytrainError(
            f"{here[0]} is a file of this computer, which rented machines cannot read\n"
            f"  copy the source to the bucket, and set data.source.paths='{config.store.root}/sources/*'"
        )
    outside = [piece.url for piece in pieces if piece.store is None]
    if outside and config.cloud.closed_network:
        raise SkytrainError(
            f"{outside[0]} is on the internet, which machines of this closed network cannot reach\n"
            f"  copy the source to the bucket, and set data.source.paths='{config.store.root}/sources/*'"
        )
    stored = float(sum(piece.size for piece in pieces))
    text = unpacked_bytes(pieces)
    share = min(1.0, target / text) if target and text else 1.0
    return _work(config, text * share, stored * share, folder)


def assumed_text(config: Config) -> str | None:
    """Return a line about a source whose size nobody can tell: hours and dollars are those of an assumed one."""
    if config.data.target_tokens:
        return None
    source = make(config.data.source.target, config.data.source.args, key="data.source")
    if hasattr(source, "pieces"):
        if not is_preview(config.cloud):  # it was listed
            return None
        try:
            source.pieces()
        except SkytrainError:
            pass
        else:
            return None
    return (
        f"how much text data={config.data.name} has is not known here, and hours and dollars are those of "
        f"{format_bytes(UNKNOWN_BYTES)}: skytrain plan prepare --bytes SIZE says what yours takes"
    )


def _work(config: Config, text: float, stored: float, folder: str) -> PrepareWork:
    work = PrepareWork(text, stored, folder)
    if not config.data.near_dedup.enabled:
        return work
    return replace(
        work,
        documents=corpus_work(work, None).documents,
        scratch_bytes_per_document=scratch_bytes_per_document(config.data.near_dedup),
    )
