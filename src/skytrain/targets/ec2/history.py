"""What became of the machines of a launch: by AWS's activity history, EC2's descriptions, the store and the console.

A machine that cannot reach the store cannot report there why it ends. AWS still knows that it started and when it ended,
and its console has its last lines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ...aws import AwsSession, Call, CloudError, fix_of_words
from ...config import SkytrainError, format_seconds, plural
from ...runs import LaunchRecord, launch_folder
from ...storage import Store, read_object, read_whole
from .boot import ENDS
from .replacement import DEAD, StartedMachine, read_history, since_proof

GROUP_TAG = "aws:autoscaling:groupName"
ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
ACTIVITIES = 1000  # the newest of a group that are read; AWS has six weeks of them
CONSOLE_LINES = 3
CONSOLE_LINE = 120  # characters
CONSOLES = 2  # machines whose console is read: AWS allows few of these requests


def described(session: AwsSession, groups: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield EC2's descriptions of the groups' instances; the ended ones are included for about an hour."""
    filters = [{"Name": f"tag:{GROUP_TAG}", "Values": groups}]
    for reservation in session.items(Call("ec2", "DescribeInstances", {"Filters": filters}), "Reservations"):
        yield from reservation["Instances"]


def group_history(session: AwsSession, group: str, region: str) -> list[StartedMachine]:
    """Return the machines that a group has started; AWS keeps the history of a group for six weeks, also a deleted one's."""
    asked = Call(
        "autoscaling", "DescribeScalingActivities", {"AutoScalingGroupName": group, "IncludeDeletedGroups": True}
    )
    # A group without capacity fails every few minutes for days: those activities hide the machines on later pages.
    return read_history(itertools.islice(session.items(asked, "Activities", region), ACTIVITIES))


def started_machines(session: AwsSession, record: LaunchRecord) -> list[StartedMachine]:
    """Return the machines that AWS has started for the launch since one proved itself."""
    return since_proof(
        machine for group in record.groups for machine in group_history(session, group.name, record.region)
    )


def ended_at(instance: Mapping[str, Any]) -> datetime | None:
    """Return when an instance ended, where EC2 says so."""
    said = ENDED_AT.search(instance.get("StateTransitionReason", ""))
    return datetime.fromisoformat(said[1]).replace(tzinfo=UTC) if said else None


def why_not_started(session: AwsSession, group: str, region: str) -> str | None:
    """Return what AWS said when it last failed to start a machine of the group; None if its last try did not fail."""
    asked = Call("autoscaling", "DescribeScalingActivities", {"AutoScalingGroupName": group, "MaxRecords": 100})
    tries = (
        activity
        for activity in session.perform(asked, region).get("Activities", [])
        if activity.get("Description", "").startswith("Launching a new EC2 instance")
    )
    newest = next(tries, None)
    if newest is None or newest["StatusCode"] != "Failed":
        return None
    said = " ".join(newest.get("StatusMessage", "").split()) or "and does not say why"
    fix = fix_of_words(said, region)
    return f"AWS could not start a machine: {said}" + (f"\n  {fix}" if fix else "")


def why_ended(session: AwsSession, store: Store, record: LaunchRecord, *, console: bool = True) -> str | None:
    """Return in one line which machines ended before a committed step, how soon and why; None if none has.

    `console`: read the console where the store has no reason; machines themselves may not.
    """
    started = {machine.instance: machine.at for machine in started_machines(session, record)}
    lives: dict[str, float | None] = {}
    said_by_ec2: dict[str, str] = {}
    for one in described(session, [group.name for group in record.groups]):
        if one["InstanceId"] in started and one["State"]["Name"] in DEAD:
            end = ended_at(one)
            said_by_ec2[one["InstanceId"]] = _by_ec2(one, record.region)
            lives[one["InstanceId"]] = (end - one["LaunchTime"]).total_seconds() if end else None
    if not lives:
        return None
    known = [life for life in lives.values() if life is not None]
    within = f" within {format_seconds(round(max(1.0, *known)))} of their launch" if known else ""
    ended = f"{plural(len(lives), 'machine')} ended{within}"
    causes = _reported(store, record, list(lives))
    newest = sorted(lives, key=lambda name: started[name], reverse=True)
    if not causes and console:
        causes = [cause for name in newest[:CONSOLES] if (cause := _on_console(session, name))]
    causes = causes or [said for name in newest if (said := said_by_ec2[name])]
    return f"{ended}: {causes[0] if causes else 'neither the store nor a console says why'}"


def _by_ec2(instance: Mapping[str, Any], region: str) -> str:
    """Return why EC2 ended a machine; nothing if somebody, or the machine itself, asked for it.

    One whose disks cannot be encrypted never boots, so that nothing else can say it.
    """
    reason = instance.get("StateReason", {})
    if str(reason.get("Code", "")).endswith("InitiatedShutdown"):
        return ""
    said = str(reason.get("Message", ""))
    return "; ".join(filter(None, (said, fix_of_words(said, region))))


def _reported(store: Store, record: LaunchRecord, machines: Sequence[str]) -> list[str]:
    """Return the reasons that these machines left in the store, the newest first."""
    found: list[tuple[float, str]] = []
    try:
        for folder in ("boot-failures", "unfit"):
            for stat in store.list(f"{launch_folder(record)}/{folder}/"):
                if stat.key.rpartition("/")[2].partition(".")[0] in machines:
                    if folder == "unfit":
                        found.append((stat.modified, str(read_object(store, stat.key).get("reason", ""))))
                    else:
                        found.append((stat.modified, _cause_in(read_whole(store, stat.key).decode(errors="replace"))))
    except SkytrainError:  # the store does not answer, or a machine wrote something else
        return []
    return [cause.partition("\n")[0] for _, cause in sorted(found, reverse=True) if cause]


def _on_console(session: AwsSession, instance: str) -> str:
    """Return the cause that a machine printed, and its last lines; nothing if its console cannot be read."""
    try:
        answer = session.perform(Call("ec2", "GetConsoleOutput", {"InstanceId": instance}))
    except CloudError:
        return ""
    text = answer.get("Output", "")
    lines = [" ".join(line.split())[:CONSOLE_LINE] for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    last = "; last console lines: " + " | ".join(lines[-CONSOLE_LINES:])
    return (_cause_in(text) or f"{instance} does not say why") + last


def _cause_in(log: str) -> str:
    """Return the cause that a machine gave in its log, with the line before it, which is what the program said."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for number in reversed(range(len(lines))):
        _, said, cause = lines[number].partition(ENDS)
        if said:
            before = lines[number - 1] if number else ""
            return f"{cause} ({before})" if before and before not in cause else cause
    return ""
