"""Control groups of jobs, where this machine lets us make them."""

import os
import subprocess

import pytest

from skytrain.jobs import identify
from skytrain.jobs.lifeline import lives
from skytrain.jobs.processes import ControlGroup, kill_job


@pytest.fixture
def group():
    found = ControlGroup.create(identify(os.getpid()))
    if found is None:
        pytest.skip("this machine lets us make no cgroup")
    yield found
    found.kill()
    found.remove()


def test_a_process_is_killed_by_its_group_although_nothing_marks_it(group):
    child = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True, preexec_fn=group.enter)
    kill_job("nobody", group)
    assert child.wait(10) == -9
    assert not lives(child.pid)


def test_groups_of_supervisors_that_are_gone_are_removed_when_they_are_empty(group):
    gone, used = (group.folder.with_name(f"skytrain-{number}-1") for number in (4194303, 4194302))
    gone.mkdir()
    used.mkdir()
    child = subprocess.Popen(["sleep", "600"], preexec_fn=ControlGroup(used).enter)
    try:
        group.remove()
        assert ControlGroup.create(identify(os.getpid())) == group
        assert not gone.exists() and used.exists() and lives(child.pid)
    finally:
        child.kill()
        child.wait()
        ControlGroup(used).remove()
