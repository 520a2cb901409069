"""`skytrain logs --follow` before a run has a log: the job's own lines, then the run's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skytrain.config import Config
from skytrain.pipelines.logs import EarlyLog, has_log
from skytrain.runs import attempt_key, claim_attempt
from skytrain.storage import open_store
from skytrain.targets import LaunchRequest, LaunchTarget, ReadyJob
from skytrain.targets.base import JobLog
from tests.support.tiny import tiny_config


class Told(LaunchTarget):
    """A target whose jobs say something else whenever they are asked."""

    name = "told"

    def __init__(self, *looks: JobLog) -> None:
        self.looks, self.wanted = list(looks), list[int | None]()

    def prepare(self, request: LaunchRequest) -> ReadyJob:
        raise AssertionError("nothing is launched")

    def job_log(self, config: Config, run: str, lines: int | None) -> JobLog:
        self.wanted.append(lines)
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def look(*lines: str, ended: bool = False) -> JobLog:
    return JobLog(lines, ended)


def followed(root: Path, target: Told, last: int | None = None, starts_after: int = 99) -> Sequence[str]:
    """The lines of the target's log; the run begins to write its own after so many looks."""
    config, waits = tiny_config(root), list[float]()
    store = open_store(config.store)
    claim_attempt(store, "a")  # which has written nothing yet

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 9, "it must have ended"
        if len(waits) == starts_after:
            attempt = claim_attempt(store, "a")
            store.write(f"{attempt_key('a', attempt)}/logs/0-00000.jsonl", b"{}")

    assert not has_log(config, "a")
    return list(EarlyLog(target, config, "a").lines(last, follow=True, wait=wait))


def test_new_lines_are_printed_once_wherever_they_come_until_the_run_has_a_log_of_its_own(tmp_path: Path) -> None:
    target = Told(look("[1] waits"), look("[1] up", "[1] up", "[2] waits"), look("[1] up", "[1] up", "[1] x", "[2] up"))
    found = followed(tmp_path, target, starts_after=3)
    assert found == ["[1] waits", "[1] up", "[1] up", "[2] waits", "[1] x", "[2] up"]
    assert has_log(tiny_config(tmp_path), "a") and len(target.wanted) == 4


def test_following_starts_with_the_last_lines_and_ends_with_a_job_that_never_trained(tmp_path: Path) -> None:
    target = Told(look("a", "b", "c"), look("a", "b", "c", "no such image", ended=True))
    assert followed(tmp_path, target, last=1) == ["c", "no such image"]


def test_without_following_the_target_is_asked_once_for_so_many_lines(tmp_path: Path) -> None:
    target = Told(look("a", "b"))
    assert list(EarlyLog(target, tiny_config(tmp_path), "a").lines(7)) == ["a", "b"] and target.wanted == [7]
