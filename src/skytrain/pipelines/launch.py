"""Launch: rent a plan's machines, which train on their own from then on; the terminal may close."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ..cloud import (
    AwsSession,
    BootScript,
    Bundle,
    BundleContents,
    Call,
    CloudError,
    Finding,
    GroupSpec,
    ImagePython,
    LaunchedGroup,
    LaunchRecord,
    MachineImage,
    Preflight,
    Tags,
    bundle_of,
    create_launch,
    group_name,
    has_machines,
    kill_time,
    launch_calls,
    launch_checks,
    launch_folder,
    launches_of,
    make_bundle,
    mark_failed,
    next_launch,
    quoted,
    recorded_at,
    removal_calls,
    remove_quietly,
    run_checks,
)
from ..config import (
    GROUPS,
    Composed,
    Config,
    HFModelConfig,
    SkytrainError,
    plugin_targets,
    source_hash,
    uses_deepspeed,
)
from ..planning import Plan, plan_document, plan_hash, timestamp
from ..runs import Reporter, run_name
from ..storage import Store, open_store

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
FREE = ("budget", "cloud", "run", "store")  # settings that may differ from the plan's
BEGIN_SECONDS = 120  # in which a launch that has its record makes its requests
BOOT_FAILURES_PER_NODE = 3  # after which the group is set to zero


@dataclass(frozen=True)
class PreparedLaunch:
    """All that a launch will do, before anything is created."""

    run: str
    plan: Plan  # with current prices
    record: LaunchRecord
    session: AwsSession
    store: Store
    contents: BundleContents
    bundle: Bundle
    groups: tuple[GroupSpec, ...] = ()

    @property
    def calls(self) -> list[Call]:
        return launch_calls(self.groups)

    @property
    def usd_per_hour(self) -> float:
        first = self.plan.choice
        return first.nodes * first.zones[0].usd_per_hour


def prepare_launch(
    composed: Composed, plan: Plan, preflight: Preflight, tell: Callable[[Finding], None]
) -> PreparedLaunch:
    """Check everything that can be checked, and make the requests. Nothing is created.

    Raises SkytrainError with the exit code of the first problem: 3 preflight, 4 quota, 5 capacity, 11 credentials.
    """
    config, now = composed.config, preflight.now
    run = run_name(config)
    _check_place(config, plan)
    _check_same(composed, plan)
    for finding in run_checks(launch_checks(), preflight):
        tell(finding)
        if finding.verdict == "failed":
            raise CloudError(finding.text, fix=finding.fix, cause=finding.cause, link=finding.link)
    session, image, store = preflight.session, preflight.image, open_store(config.store)
    assert image is not None
    earlier = launches_of(store, run)
    _check_alone(earlier, store, session, now)
    current = quoted(plan, session, preflight.subnets, now)
    has = {"torch": image.torch_version} if image.torch_version else {}
    python = ImagePython(config.cloud.python_version, PLATFORMS, has)
    targets, packages = tuple(plugin_targets(composed.values)), tuple(config.cloud.packages)
    contents = BundleContents(_extras(config), targets, packages, python)
    bundle = bundle_of(contents)
    record = replace(_record(composed, current, preflight, next_launch(earlier)), bundle=bundle.key)
    draft = PreparedLaunch(run, current, record, session, store, contents, bundle)
    return replace(
        draft, groups=tuple(_group(config, draft, number, image, now) for number in range(len(current.offers)))
    )


def config_files(folders: Sequence[Path]) -> dict[str, bytes]:
    """Return the YAML files of the user's own groups, of several folders; the first folder wins."""
    found: dict[str, bytes] = {}
    for folder in folders:
        for group in GROUPS:
            for path in sorted((Path(folder) / group).glob("*.yaml")):
                found.setdefault(f"{group}/{path.name}", path.read_bytes())
    return found


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return the files as .tar.gz, for machines to unpack."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return body.getvalue()


def start_launch(prepared: PreparedLaunch, config_files: Mapping[str, bytes], reporter: Reporter) -> LaunchRecord:
    """Upload packages and configuration, write the record, create the machines. A failure leaves nothing running."""
    record, session, store = prepared.record, prepared.session, prepared.store
    made = make_bundle(store, prepared.contents, reporter)
    assert made.key == prepared.bundle.key
    store.write(f"{launch_folder(record)}/config.tar.gz", packed(config_files))
    store.write(f"{launch_folder(record)}/plan.json", json.dumps(plan_document(prepared.plan), indent=1).encode())
    create_launch(store, record)
    try:
        for call in prepared.calls:
            session.perform(call)
    except BaseException:
        reporter.note("the launch failed: removing what it had created")
        for call in removal_calls(record):
            remove_quietly(session, call, reporter.note)
        mark_failed(store, record)
        raise
    return record


def _check_place(config: Config, plan: Plan) -> None:
    if config.cloud.target is None:
        raise SkytrainError("cloud.target is not set\n  add cloud=ec2")
    if not config.store.root.startswith("s3://"):
        raise SkytrainError(
            f"store.root={config.store.root}: rented machines reach only a bucket\n"
            "  cloud=ec2 takes the account's bucket; copy data there first: skytrain store copy"
        )
    if plan.choice.region != config.cloud.region:
        raise SkytrainError(
            f"the plan is for {plan.choice.region}, the account's network and bucket are in {config.cloud.region}\n"
            f"  plan again: skytrain plan ... --region {config.cloud.region}"
        )
    if plan.code.source_hash != source_hash():
        raise SkytrainError(
            "the plan was made by another version of Skytrain\n  plan again with this one, or add --replan"
        )


def _check_same(composed: Composed, plan: Plan) -> None:
    """Raise unless the configuration is the plan's, apart from where it runs and what it may cost."""
    planned, given = (
        {key: value for key, value in json.loads(json.dumps(values, default=str)).items() if key not in FREE}
        for values in (plan.config, composed.values)
    )
    changed = [key for key in sorted({*planned, *given}) if planned.get(key) != given.get(key)]
    if changed:
        raise SkytrainError(
            f"the settings under {', '.join(changed)} are not those of the plan\n"
            f"  with a plan, only {', '.join(FREE)} may change; plan again with the others, or add --replan"
        )


def _check_alone(earlier: Sequence[LaunchRecord], store: Store, session: AwsSession, now: datetime) -> None:
    """Raise if an earlier launch of the run, in any region, has machines or is about to ask for some."""
    for record in earlier:
        if record.failed or record.over_at <= now:
            continue
        begins = now.timestamp() - recorded_at(store, record) < BEGIN_SECONDS
        if begins or has_machines(session, record):
            raise SkytrainError(
                f"run {record.run} was launched in {record.region} at {record.launched_at} by {record.launched_by}, "
                f"and {'that launch may not be complete yet' if begins else 'is not over'}\n"
                f"  watch it: skytrain status {record.run}; end it: skytrain stop {record.run}"
            )


def _record(composed: Composed, plan: Plan, preflight: Preflight, launch: str) -> LaunchRecord:
    config, session, image, now = composed.config, preflight.session, preflight.image, preflight.now
    project, run = config.cloud.project, run_name(config)
    assert project is not None and image is not None
    groups = []
    for number, offer in enumerate(plan.offers):
        kill_at = kill_time(now, offer)
        groups.append(
            LaunchedGroup(
                name=group_name(project, run, launch, number),
                zone=offer.zones[0].zone,
                instance_type=offer.instance_type,
                market=offer.market,
                nodes=offer.nodes,
                usd_per_hour=offer.zones[0].usd_per_hour,
                kill_at=timestamp(kill_at),
                placement_group=offer.placement_group,
            )
        )
    return LaunchRecord(
        id=launch,
        run=run,
        verb="train",
        launched_at=timestamp(now),
        launched_by=session.identity.name,
        account=session.identity.account,
        region=session.region,
        patience_seconds=config.cloud.patience,
        plan_hash=plan_hash(plan),
        image=image.id,
        bundle="",
        words=list(composed.words),
        groups=groups,
    )


def _group(config: Config, draft: PreparedLaunch, number: int, image: MachineImage, now: datetime) -> GroupSpec:
    offer, record, store = draft.plan.offers[number], draft.record, draft.store
    folder = store.url(launch_folder(record))
    command = (
        "node", *record.words, *offer.layout.overrides, f"run={draft.run}",
        f"budget.usd_per_hour={record.groups[number].usd_per_hour:.4f}",
        f"budget.planned_usd={offer.cost.usd:.2f}", f"budget.planned_step_seconds={offer.speed.step_seconds:.4f}",
        "--nodes", str(offer.nodes), "--processes", str(max(1, offer.gpus_per_node)), "--launch", record.id,
    )  # fmt: skip
    boot = BootScript(
        region=draft.session.region,
        group=record.groups[number].name,
        bundle=store.url(draft.bundle.key),
        config=f"{folder}/config.tar.gz",
        failures=f"{folder}/boot-failures",
        python=config.cloud.python,
        requirements=draft.bundle.requirements,
        command=command,
        most_failures=BOOT_FAILURES_PER_NODE * offer.nodes,
        meeting=store.url(f"runs/{draft.run}/meeting"),
        usd_per_hour=record.groups[number].usd_per_hour,
    )
    project = config.cloud.project
    assert project is not None
    tags = Tags(project, config.cloud.owner or draft.session.identity.name, draft.run)
    return GroupSpec(draft.run, record.id, number, offer, offer.zones[0].zone, image, boot, tags, config.cloud, now)


def _extras(config: Config) -> tuple[str, ...]:
    """Return the extras of Skytrain that the run needs."""
    extras = {"aws", "train"}
    if uses_deepspeed(config):
        extras.add("deepspeed")
    if isinstance(config.model, HFModelConfig) or config.tokenizer.kind == "hf":
        extras.add("export")
    if "wandb" in config.trainer.loggers:
        extras.add("wandb")
    return tuple(sorted(extras))
