"""What machines wrote to CloudWatch."""

from __future__ import annotations

from .calls import Call
from .errors import CloudError
from .session import AwsSession


def stream_lines(session: AwsSession, group: str, prefix: str, lines: int | None) -> list[str]:
    """Return the last lines of the streams whose names begin with `prefix`, each with the rest of its stream's name."""
    wanted = {"logGroupName": group, "logStreamNamePrefix": prefix}
    try:
        events = list(session.items(Call("logs", "FilterLogEvents", wanted), "events"))
    except CloudError as error:
        if error.code == "ResourceNotFoundException":  # nobody has written anything yet
            return []
        raise
    events.sort(key=lambda event: event["timestamp"])
    texts = [f"[{event['logStreamName'].removeprefix(prefix)}] {event['message'].rstrip()}" for event in events]
    return texts[-lines:] if lines else texts
