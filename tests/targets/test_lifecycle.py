"""One life for every launch: what was created is removed after any failure, and what is not sure stays recorded."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from skytrain.aws import CloudError
from skytrain.config import compose
from skytrain.runs import LaunchedGroup, LaunchId, Silent, launches_of
from skytrain.storage import Store, StoreUnreachable, open_store
from skytrain.targets.jobs import launch_record
from skytrain.targets.lifecycle import LaunchSteps, MachinesLeft, run_launch


class Notes(Silent):
    """What people are told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


class Service:
    """Where a launch creates one thing."""

    def __init__(
        self, store: Store, fails: BaseException | None = None, cannot_remove: Exception | None = None
    ) -> None:
        self.store, self.there, self.seen = store, False, []
        self._fails, self._cannot_remove = fails, cannot_remove

    def steps(self, may_have_created: Callable[[BaseException], bool] = lambda error: True) -> LaunchSteps[str]:
        group = LaunchedGroup(
            name="job", zone="", instance_type="node", market="here", nodes=1, usd_per_hour=0.0, kill_at="",
            placement_group=False,
        )  # fmt: skip
        record = launch_record(compose([]), LaunchId("one", "00001"), datetime.now(UTC), [group])
        return LaunchSteps(
            store=self.store,
            record=record,
            create=self._create,
            remove=self._remove,
            may_have_created=may_have_created,
            upload=lambda reporter: self.seen.append("upload"),
            inputs={"plan.json": b"{}"},
        )

    def _create(self, advance: Callable[[], None]) -> str:
        assert self.store.exists("launches/one/00001/plan.json"), "files are there before the job that reads them"
        self.seen.append("create")
        self.there = True
        if self._fails is not None:
            raise self._fails
        return "job 7"

    def _remove(self, error: BaseException) -> None:
        assert error is self._fails
        self.seen.append("remove")
        if self._cannot_remove is not None:
            raise self._cannot_remove
        self.there = False


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def test_a_launch_uploads_records_creates_and_returns_the_answer(store: Store) -> None:
    service = Service(store)
    assert run_launch(service.steps(), Notes()) == "job 7"
    assert service.seen == ["upload", "create"] and [record.failed for record in launches_of(store, "one")] == [False]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(1), CloudError("no", fix="do"), OSError("disk")])
def test_any_failure_removes_what_was_created_and_is_raised_again(store: Store, failure: BaseException) -> None:
    service, notes = Service(store, failure), Notes()
    with pytest.raises(type(failure)):
        run_launch(service.steps(), notes)
    assert not service.there and [record.failed for record in launches_of(store, "one")] == [True]
    assert notes.texts == ["the launch failed: removing what it had created"]


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        (CloudError("AWS does not answer", fix="try again"), "end them: skytrain stop one cloud=ec2"),
        (AttributeError("a defect"), "end them: skytrain stop one cloud=ec2"),
        (MachinesLeft("machines may be left\n  end them: skytrain stop one"), "end them: skytrain stop one"),
        (StoreUnreachable("write", "s3://bucket/key", "no answer"), "no answer"),
    ],
)
def test_what_is_not_sure_to_be_gone_stays_a_launch_and_people_are_told(
    store: Store, problem: Exception, told: str
) -> None:
    service, notes = Service(store, KeyboardInterrupt(), problem), Notes()
    with pytest.raises(KeyboardInterrupt):
        run_launch(service.steps(), notes)
    assert service.there and [record.failed for record in launches_of(store, "one")] == [False]
    assert notes.texts[1].startswith("warning: ") and notes.texts[1].endswith(told)


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_pressed_again_before_the_removal_has_begun_does_not_prevent_it(store: Store) -> None:
    service, told = Service(store), Notes()

    def press(*_: object) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # lets Python call its handler
        return True

    steps = replace(service.steps(press), create=press, remove=lambda error: service.seen.append("remove"))
    with pytest.raises(KeyboardInterrupt):
        run_launch(steps, told)
    assert service.seen == ["upload", "remove"] and launches_of(store, "one")[0].failed
    assert told.texts[0].startswith("still removing")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_belongs_to_someone_else_is_left_alone(store: Store) -> None:
    service, notes = Service(store, CloudError("taken", fix="", code="ResourceInUse")), Notes()
    with pytest.raises(CloudError, match="taken"):
        run_launch(service.steps(lambda error: getattr(error, "code", "") != "ResourceInUse"), notes)
    assert service.there and service.seen == ["upload", "create"] and notes.texts == []


def test_a_number_that_another_terminal_has_taken_creates_nothing(store: Store) -> None:
    run_launch(Service(store).steps(), Notes())
    second = Service(store)
    with pytest.raises(Exception, match="launched by someone else at this moment"):
        run_launch(second.steps(), Notes())
    assert second.seen == ["upload"] and not second.there
