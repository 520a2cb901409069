"""What a launch refuses before AWS is asked for anything: another plan, another place, a run that has machines."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

from ..aws import KINDS, AwsSession, enabled_regions, is_preview, scan_account
from ..config import Composed, Config, SkytrainError, error_text, format_seconds, source_hash
from ..jobs import generation_key, list_meeting
from ..planning import EC2, Budget, JobKind, Plan, load_catalog
from ..runs import (
    LaunchRecord,
    ended_key,
    is_superseded,
    launch_starts,
    preceding_launches,
    requested_at,
    spent_usd,
    stopped_key,
)
from ..storage import Store, read_object
from ..tuning import sweep_name
from .registry import built_in_target, sellers

MAY_DIFFER_FROM_PLAN = ("budget", "cloud", "run", "store")
FORGOTTEN = timedelta(weeks=6)  # after its kill time, AWS has no history of a launch's machines
LEAST_SECONDS = 180.0  # that a machine needs at least to boot and begin
KILL_GRACE_SECONDS = 60.0
BEGIN_SECONDS = 60  # in which a launch that has its record makes its next request, or another may take over

ENDPOINT_RUNS = "serve-"  # how the names of runs begin that only machines of endpoints may write


def check_place(config: Config, plan: Plan) -> None:
    """Raise unless the plan fits the account, its region and this version of Skytrain."""
    if config.cloud.target is None:
        raise SkytrainError("cloud.target is not set\n  add cloud=ec2")
    if not config.store.root.startswith("s3://"):
        raise SkytrainError(
            f"store.root={config.store.root}: rented machines reach only a bucket\n"
            "  cloud=ec2 takes the account's bucket; copy data there first: skytrain store copy"
        )
    if plan.job != "serve":
        refuse_endpoint_names(config, plan.job)
    if config.budget.usd == 0:
        raise SkytrainError(
            f"budget.usd=0: rented machines cost money, this plan ${plan.choice.cost.usd:.2f}\n  raise budget.usd"
        )
    if plan.choice.region != config.cloud.region:
        what = (
            "placeholders of a folder without an account"
            if is_preview(config.cloud)
            else "the account's network and bucket"
        )
        raise SkytrainError(
            f"the plan is for {plan.choice.region}, {what} are in {config.cloud.region}\n"
            f"  plan again: skytrain plan ... --region {config.cloud.region}"
        )
    seller = plan.choice.target
    if seller not in (EC2.name, config.cloud.target):  # EC2's prices stand in for those of every target
        title = next((one.title for one in sellers() if one.name == seller), seller)
        raise SkytrainError(
            f"the plan has {title}'s prices, and cloud.target is {config.cloud.target}\n"
            f"  plan again: skytrain plan ... --target {EC2.name}; or launch it with cloud={seller}"
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


def refuse_endpoint_names(config: Config, job: JobKind) -> None:
    """Raise if machines that do not serve would get the right to write runs of endpoints: it follows the names."""
    named = [("run", config.run or "")]
    named += [("tune.name", f"{sweep_name(config)}-")] if job == "tune" else []  # its trials are named after it
    for key, name in named:
        if name.startswith(ENDPOINT_RUNS):
            raise SkytrainError(
                f"{key}={name.rstrip('-')}: runs named {ENDPOINT_RUNS}... are those of endpoints, which other machines "
                f"may not write\n  choose another name: {key}=NAME"
            )


def check_same(composed: Composed, plan: Plan) -> None:
    """Raise unless the configuration is the plan's, apart from where it runs and what it may cost."""
    planned, given = (
        {
            key: value
            for key, value in json.loads(json.dumps(values, default=str)).items()
            if key not in MAY_DIFFER_FROM_PLAN
        }
        for values in (plan.config, composed.values)
    )
    changed = [key for key in sorted({*planned, *given}) if planned.get(key) != given.get(key)]
    if changed:
        raise SkytrainError(
            f"the settings under {', '.join(changed)} are not those of the plan\n"
            f"  with a plan, only {', '.join(MAY_DIFFER_FROM_PLAN)} may change; plan again with the others, or add --replan"
        )


def count_launches(
    session: AwsSession, store: Store, launches: Iterable[LaunchRecord], tell: Callable[[str], None]
) -> None:
    """Record what machines of these launches cost that did not record it themselves, as far as AWS still knows them."""
    since = datetime.now(UTC) - FORGOTTEN
    for record in launches:
        target = built_in_target(record.target)
        if target is None or record.over_at < since:
            continue
        try:
            target.count_machines(session, store, record)
        except Exception as error:  # whatever it is: what was recorded is counted, and this may be asked again
            tell(f"warning: machines of {record.run} could not be counted: {error_text(error)}")


def seconds_affordable(
    config: Config, store: Store, run: str, usd_per_hour: float | None, *, billed_usd: float = 0.0
) -> float:
    """Return how long what is left of `budget.usd` pays for machines of this price, all together.

    `billed_usd` is what a service says that the run has cost, which may be more than its machines have recorded.
    Raises SkytrainError where nothing is left, or so little that they would end while they boot.
    """
    budget = Budget.of(config.budget)
    spent = max(spent_usd(store, run), billed_usd)
    if budget.usd is None:
        return math.inf
    known = f"budget.usd={budget.usd:g}: run {run} has cost ${spent:.2f} already"
    remedy = "  raise budget.usd, which is for the whole run, or choose another name: run=NAME"
    if spent >= budget.usd:
        raise SkytrainError(f"{known}: nothing is left to rent machines with\n{remedy}")
    seconds = budget.after(spent).hours_at(usd_per_hour) * 3600 if usd_per_hour else math.inf
    if seconds < LEAST_SECONDS:
        raise SkytrainError(
            f"{known}, and what is left pays for {format_seconds(round(seconds))} of these machines, "
            f"at ${usd_per_hour:.2f} an hour: they would hardly boot\n{remedy}"
        )
    # The run stops by itself, saved, before its budget is spent; AWS's kill times are whole minutes, rounded down.
    return seconds + KILL_GRACE_SECONDS


Ask = Callable[[LaunchRecord], bool | None]  # whether the job of a launch has not ended; None: it cannot be asked


def check_alone(earlier: Sequence[LaunchRecord], store: Store, now: datetime, ask: Ask) -> None:
    """Raise if an earlier launch of the run, on any target, has a job or machines, or is about to ask for some."""
    record = live_launch(earlier, store, now, ask)
    if record is not None:
        state = "that launch may not be complete yet" if _begins(record, store, now) else "is not over"
        place = f" in {record.region}" if record.region else ""
        command = f"{shlex.quote(record.run)} {record.target_word}"
        raise SkytrainError(
            f"run {record.run} was launched{place} at {record.launched_at} by {record.launched_by} with {record.target_word}, "
            f"and {state}\n"
            f"  watch it: skytrain status {command}; end it: skytrain stop {command}"
        )


def live_launch(earlier: Sequence[LaunchRecord], store: Store, now: datetime, ask: Ask) -> LaunchRecord | None:
    """Return the launch among these that is not over. Of one that cannot be asked, the store tells."""
    for record in earlier:
        if record.failed or record.over_at <= now:
            continue
        said = ask(record)
        live = not ended_in_store(record, store) if said is None else said or _begins(record, store, now)
        if live:
            return record
    return None


def ask_account(session: AwsSession, store: Store) -> Ask:
    """Let AWS say whether a launch has machines, a training job or a Spark job."""

    def ask(record: LaunchRecord) -> bool | None:
        live = _is_live(session, record)
        return _waits_for_machines(record, store, session) if live is False else live

    return ask


def _is_live(session: AwsSession, record: LaunchRecord) -> bool | None:
    target = built_in_target(record.target)
    return None if target is None else target.is_live(session, record)


def ended_in_store(record: LaunchRecord, store: Store) -> bool:
    """Return whether people have ended the launch, it could not go on, or its hosts have recorded that the run is over."""
    if store.exists(stopped_key(record)) or store.exists(ended_key(record)):
        return True
    meeting = list_meeting(store, record.run)
    if not meeting.last_over:
        return False
    return bool(read_object(store, generation_key(record.run, meeting.last_over, "over")).get("launch") == record.id)


def _begins(record: LaunchRecord, store: Store, now: datetime) -> bool:
    """Return whether the launch is making its requests; one that stopped in the middle may sleep, and is taken over."""
    if now.timestamp() - requested_at(store, record) >= BEGIN_SECONDS:
        return False
    return not is_superseded(store, record) and not ended_in_store(record, store)


def _waits_for_machines(record: LaunchRecord, store: Store, session: AwsSession) -> bool | None:
    """Return whether a launch that this one waits for has machines; one that was never launched has none."""
    for earlier in preceding_launches(store, record):
        if (live := _is_live(session, earlier)) is not False:
            return live
        if launch_starts(store, earlier) is False:  # withdrawn, or not started: nothing comes after it
            return False
    return False


def check_regions(run: str, config: Config, session: AwsSession) -> None:
    """Raise if a run of this name has machines in another region: tags would not tell the two apart."""
    enabled = set(enabled_regions(session)[0]) & set(load_catalog().regions) - {session.region}
    if not enabled:
        return
    kinds = [KINDS["Auto Scaling group"], KINDS["instance"]]
    scan = scan_account(session, sorted(enabled), kinds, config.cloud.project)
    for each in scan.resources:
        if each.tags.run == run and each.facts.get("wanted", 1):
            raise SkytrainError(
                f"a run {run} has machines in {each.region} ({each.kind} {each.id})\n"
                f"  choose another name: run=NAME; or end that one: skytrain stop {shlex.quote(run)} cloud=aws"
            )
