"""What a launch refuses before AWS is asked for anything: another plan, another place, a run that has machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from ..cloud import (
    KINDS,
    AwsSession,
    LaunchRecord,
    enabled_regions,
    has_machines,
    read_launch,
    recorded_at,
    scan_account,
)
from ..config import Composed, Config, SkytrainError, source_hash
from ..planning import Plan, load_catalog
from ..storage import NotFound, Store

FREE = ("budget", "cloud", "run", "store")  # settings that may differ from the plan's
BEGIN_SECONDS = 120  # in which a launch that has its record makes its requests


def check_place(config: Config, plan: Plan) -> None:
    if config.cloud.target is None:
        raise SkytrainError("cloud.target is not set\n  add cloud=ec2")
    if not config.store.root.startswith("s3://"):
        raise SkytrainError(
            f"store.root={config.store.root}: rented machines reach only a bucket\n"
            "  cloud=ec2 takes the account's bucket; copy data there first: skytrain store copy"
        )
    if config.budget.usd == 0:
        raise SkytrainError(
            f"budget.usd=0: rented machines cost money, this plan ${plan.choice.cost.usd:.2f}\n  raise budget.usd"
        )
    if plan.choice.region != config.cloud.region:
        raise SkytrainError(
            f"the plan is for {plan.choice.region}, the account's network and bucket are in {config.cloud.region}\n"
            f"  plan again: skytrain plan ... --region {config.cloud.region}"
        )
    if plan.choice.target == "sagemaker" and config.cloud.target != "sagemaker":
        raise SkytrainError(
            f"the plan has SageMaker's prices, and cloud.target is {config.cloud.target}\n"
            "  plan again: skytrain plan ... --target ec2; or launch it with cloud=sagemaker"
        )
    if config.cloud.reservation != plan.choice.reservation:
        raise SkytrainError(
            f"cloud.reservation is {config.cloud.reservation or 'not set'}, and the plan's is "
            f"{plan.choice.reservation or 'none'}\n  plan again: skytrain plan ... cloud.reservation=cr-..."
        )
    if plan.code.source_hash != source_hash():
        raise SkytrainError(
            "the plan was made by another version of Skytrain\n  plan again with this one, or add --replan"
        )


def check_same(composed: Composed, plan: Plan) -> None:
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


def check_alone(earlier: Sequence[LaunchRecord], store: Store, session: AwsSession, now: datetime) -> None:
    """Raise if an earlier launch of the run, in any region, has machines or is about to ask for some."""
    record = live_launch(earlier, store, session, now)
    if record is not None:
        state = "that launch may not be complete yet" if _begins(record, store, now) else "is not over"
        raise SkytrainError(
            f"run {record.run} was launched in {record.region} at {record.launched_at} by {record.launched_by}, "
            f"and {state}\n  watch it: skytrain status {record.run}; end it: skytrain stop {record.run}"
        )


def live_launch(
    earlier: Sequence[LaunchRecord], store: Store, session: AwsSession, now: datetime
) -> LaunchRecord | None:
    """Return the launch among these that has machines, or is about to ask for some."""
    for record in earlier:
        if record.failed or record.over_at <= now:
            continue
        if _begins(record, store, now) or has_machines(session, record) or _waits_for_machines(record, store, session):
            return record
    return None


def _begins(record: LaunchRecord, store: Store, now: datetime) -> bool:
    return now.timestamp() - recorded_at(store, record) < BEGIN_SECONDS


def _waits_for_machines(record: LaunchRecord, store: Store, session: AwsSession) -> bool:
    """Whether the smoke run that the launch waits for has machines; one that was never launched has none."""
    if record.after is None:
        return False
    try:
        return has_machines(session, read_launch(store, record.after.run, record.after.launch))
    except NotFound:
        return False


def check_regions(run: str, config: Config, session: AwsSession) -> None:
    """Raise if a run of this name has machines in another region: tags would not tell the two apart."""
    enabled = set(enabled_regions(session)[0]) & set(load_catalog().regions) - {session.region}
    if not enabled:
        return
    kinds = [KINDS["Auto Scaling group"], KINDS["instance"]]
    scan = scan_account(session, sorted(enabled), kinds, config.cloud.project)
    for found in scan.resources:
        if found.tags.run == run and found.facts.get("wanted", 1):
            raise SkytrainError(
                f"a run {run} has machines in {found.region} ({found.kind} {found.id})\n"
                f"  choose another name: run=NAME; or end that one: skytrain stop {run} cloud=aws"
            )
