"""Which checkpoints exist: those with a marker that counts."""

import json

import pytest

from skytrain.checkpoints import (
    CheckpointError,
    Keep,
    SaveFailed,
    committed_steps,
    open_checkpoint,
    prune,
    step_key,
    write_validation,
)
from skytrain.checkpoints.errors import TakenOver
from skytrain.runs import claim_attempt, record_resume


def attempt_from(store, step: int) -> int:
    number = claim_attempt(store, "r")
    record_resume(store, "r", number, step)
    return number


def files(store, step: int) -> list[str]:
    return [stat.key.removeprefix(step_key("r", step) + "/") for stat in store.list(step_key("r", step))]


def test_a_folder_without_its_marker_does_not_exist(store, saved):
    key = saved(5)
    assert committed_steps(store, "r") == [5]
    store.delete(f"{key}/COMMITTED.0")
    assert committed_steps(store, "r") == []
    with pytest.raises(CheckpointError, match="not a committed checkpoint"):
        open_checkpoint(store, key)


def test_an_older_attempt_that_wakes_up_cannot_commit(store, saved):
    attempt_from(store, 0)
    saved(5, attempt=0)
    attempt_from(store, 5)
    with pytest.raises(TakenOver, match=r"attempt 1 on .* has taken over"):
        saved(10, attempt=0)
    assert committed_steps(store, "r") == [5]
    saved(10, attempt=1)
    assert committed_steps(store, "r") == [5, 10]


def test_what_an_older_attempt_commits_at_the_last_moment_does_not_count(store, saved, monkeypatch):
    """It looked whether it was the newest, was suspended, and committed after another had begun."""
    attempt_from(store, 0)
    saved(5, attempt=0)
    attempt_from(store, 5)
    with monkeypatch.context() as patch:
        patch.setattr("skytrain.checkpoints.commits.check_newest", lambda *_: None)
        saved(10, attempt=0, seed=1)
    assert committed_steps(store, "r") == [5]
    saved(10, attempt=1, seed=2)
    assert open_checkpoint(store, step_key("r", 10)).commit.attempt == 1


def test_a_commit_whose_answer_was_lost_is_committed_once(store, saved):
    saved(5)
    before = store.read(f"{step_key('r', 5)}/COMMITTED.0")
    from skytrain.checkpoints.saving import write_checkpoint
    from tests.checkpoints.conftest import some_state

    write_checkpoint(store, step_key("r", 5), some_state(seed=9), attempt=0, number=1)
    assert store.read(f"{step_key('r', 5)}/COMMITTED.0") == before
    open_checkpoint(store, step_key("r", 5)).tensors.read()


def test_a_file_that_is_not_whole_when_it_is_to_be_committed_is_found(store, saved, monkeypatch):
    from skytrain.storage.folder import FolderStore

    written = FolderStore.write_parts
    monkeypatch.setattr(FolderStore, "write_parts", lambda self, key, parts: written(self, key, parts[:-1]))
    with pytest.raises(SaveFailed, match=r"rank-00000\.bin is incomplete"):
        saved(5)
    assert committed_steps(store, "r") == []


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (Keep(last=2), [40, 50]),
        (Keep(last=1), [40, 50]),  # never fewer than two
        (Keep(last=3), [30, 40, 50]),
        (Keep(last=2, every=20), [20, 40, 50]),
        (Keep(last=2, best=1), [10, 40, 50]),
        (Keep(last=2, best=2), [10, 30, 40, 50]),
    ],
)
def test_the_newest_every_nth_and_the_best_are_kept(store, saved, keep, left):
    for step in (10, 20, 30, 40, 50):
        saved(step)
    for step, loss in ((10, 1.0), (20, 3.0), (30, 2.0)):
        write_validation(store, "r", step, loss)
    gone = prune(store, "r", keep)
    assert committed_steps(store, "r") == left
    assert gone.steps == [step for step in (10, 20, 30, 40, 50) if step not in left]


def test_what_is_pruned_leaves_nothing_behind(store, saved):
    attempt_from(store, 0)
    for step in (10, 20, 30):
        saved(step)
    write_validation(store, "r", 10, 1.0)
    prune(store, "r", Keep(last=2), attempt=0)
    assert files(store, 10) == []
    assert committed_steps(store, "r") == [20, 30]


def test_pruning_removes_what_saves_that_never_finished_left_behind(store, saved):
    attempt_from(store, 0)
    for step in (10, 20, 30):
        saved(step)
    store.delete(f"{step_key('r', 20)}/COMMITTED.0")
    attempt_from(store, 10)
    store.write(f"{step_key('r', 40)}/1.1/rank-00000.bin", b"being written")
    gone = prune(store, "r", Keep(last=2))
    assert [key.rpartition("step-")[2] for key in gone.leftovers] == ["000000020/0.0", "000000030/0.0"]
    assert files(store, 20) == [] and files(store, 30) == []
    assert files(store, 40) == ["1.1/rank-00000.bin"]  # the newest attempt may still be at it
    assert committed_steps(store, "r") == [10]


def test_a_dry_run_deletes_nothing(store, saved):
    for step in (10, 20, 30):
        saved(step)
    assert prune(store, "r", Keep(last=2), dry_run=True).steps == [10]
    assert committed_steps(store, "r") == [10, 20, 30]


@pytest.mark.parametrize(("format", "hint"), [(99, "use a newer Skytrain"), (1, "of an older Skytrain")])
def test_another_format_is_named(store, saved, format, hint):
    key = saved(5)
    marker = json.loads(store.read(f"{key}/COMMITTED.0"))
    store.write(f"{key}/COMMITTED.0", json.dumps({**marker, "format": format}).encode())
    with pytest.raises(CheckpointError, match=hint):
        open_checkpoint(store, key)


def test_files_stay_as_long_as_their_marker_cannot_be_deleted(store, saved, monkeypatch):
    from skytrain.storage import StoreError
    from skytrain.storage.folder import FolderStore

    for step in (10, 20, 30):
        saved(step)
    monkeypatch.setattr(FolderStore, "delete", lambda self, key: None)  # says so, and does nothing
    with pytest.raises(StoreError, match="still exists"):
        prune(store, "r", Keep(last=2))
    assert committed_steps(store, "r") == [10, 20, 30]
    open_checkpoint(store, step_key("r", 10)).tensors.read()


def test_pruning_finds_what_a_kill_in_the_middle_of_a_file_left_on_the_disk(store, saved):
    attempt_from(store, 0)
    saved(10)
    cut_off = store.local_path(step_key("r", 20)) / "0.2" / ".skytrain-0123456789abcdef"
    cut_off.parent.mkdir(parents=True)
    cut_off.write_bytes(b"half of it")
    attempt_from(store, 10)
    prune(store, "r", Keep(last=2), attempt=1)
    assert not cut_off.exists()
    assert committed_steps(store, "r") == [10]
