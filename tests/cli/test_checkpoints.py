"""`skytrain checkpoints`, as a person or a script sees it."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from skytrain.checkpoints import committed_steps, step_key, write_validation
from skytrain.checkpoints.saving import write_checkpoint
from skytrain.cli.checkpoints import app
from skytrain.config import SkytrainError, compose
from skytrain.runs import new_record, save_run
from skytrain.storage import open_store
from tests.checkpoints.conftest import some_state


@pytest.fixture
def store(tmp_path):
    """A run `mine` with checkpoints at 5, 10 and 15, of which 5 has the lowest loss."""
    store = open_store(str(tmp_path / "store"))
    config = compose(["model=gpt2-tiny", "tokenizer=bytes"]).config
    save_run(store, new_record(config, name="mine", data={}, tokenizer_id="bytes", parameters=1, hardware={}))
    for step in (5, 10, 15):
        write_checkpoint(store, step_key("mine", step), some_state(step))
        write_validation(store, "mine", step, float(step))
    return store


def skytrain_checkpoints(store, *words: str) -> str:
    result = CliRunner().invoke(app, [*words, f"store.root={store.folder}"], catch_exceptions=False)
    assert result.exit_code in (0, 2, 9)
    return f"{result.stdout}exit {result.exit_code}"


def damage(store, step: int) -> None:
    file = next(stat.key for stat in store.list(step_key("mine", step)) if stat.key.endswith(".bin"))
    data = bytearray(store.read(file))
    data[10] ^= 1
    store.write(file, bytes(data))


def test_list_shows_each_checkpoint_with_its_size_and_loss(store):
    lines = skytrain_checkpoints(store, "list", "mine").splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["step", "5", "10", "15"]
    assert "10.0000" in lines[2]
    assert "skytrain evaluate --from mine@15" in lines


def test_list_as_json_is_for_programs(store):
    found = json.loads(skytrain_checkpoints(store, "list", "mine", "--json").removesuffix("exit 0"))
    assert [(each["step"], each["attempt"], each["validation_loss"]) for each in found] == [
        (5, 0, 5.0),
        (10, 0, 10.0),
        (15, 0, 15.0),
    ]


def test_verify_says_that_all_is_whole(store):
    said = skytrain_checkpoints(store, "verify", "mine")
    assert said.count("whole") == 3 and said.endswith("exit 0")


def test_verify_names_what_is_damaged_and_what_to_resume_from(store):
    damage(store, 15)
    said = skytrain_checkpoints(store, "verify", "mine")
    assert said.count("  whole") == 2 and said.endswith("exit 9")
    assert "rank-00000.bin was altered: the bytes of model/weight are not those committed" in said
    assert "skytrain train --from mine@10" in said
    assert skytrain_checkpoints(store, "verify", "mine@10").endswith("exit 0")


@pytest.mark.parametrize(("marker", "words"), [(b"{", "is damaged"), (b'{"format": 9}', "has format 9; this version")])
def test_one_whose_marker_cannot_be_read_is_listed_with_the_reason_and_does_not_hide_the_others(store, marker, words):
    store.write(f"{step_key('mine', 15)}/COMMITTED.0", marker)
    said = skytrain_checkpoints(store, "list", "mine")
    assert words in said and "unreadable" in said and "skytrain evaluate --from mine@10" in said
    said = skytrain_checkpoints(store, "verify", "mine")
    assert words in said and said.count("  whole") == 2 and "skytrain train --from mine@10" in said


def test_prune_says_before_it_does(store):
    said = skytrain_checkpoints(store, "prune", "mine", "--best", "0", "--dry-run")
    assert "would delete 1 checkpoint, at step 5" in said
    assert committed_steps(store, "mine") == [5, 10, 15]
    assert "deleted 1 checkpoint, at step 5" in skytrain_checkpoints(store, "prune", "mine", "--best", "0")
    assert committed_steps(store, "mine") == [10, 15]
    assert store.list(step_key("mine", 5)) == []


def test_prune_keeps_the_best_unless_told_otherwise(store):
    skytrain_checkpoints(store, "prune", "mine")
    assert committed_steps(store, "mine") == [5, 10, 15]


def test_convert_writes_weights_that_safetensors_reads(store, tmp_path):
    target = tmp_path / "made" / "weights.safetensors"
    before = os.umask(0o027)
    try:
        skytrain_checkpoints(store, "convert", "mine@10", str(target), "--to", "safetensors")
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o640
    expected = some_state(10).tensors
    assert torch.equal(load_file(target)["weight"], expected["model/weight"])
    with pytest.raises(SkytrainError, match="not overwritten"):
        skytrain_checkpoints(store, "convert", "mine@10", str(target), "--to", "safetensors")
    both = tmp_path / "both.safetensors"
    skytrain_checkpoints(store, "convert", "mine@10", str(both), "--to", "safetensors", "--with-optimizer")
    assert torch.equal(load_file(both)["optimizer/0/weight/exp_avg"], expected["optimizer/0/weight/exp_avg"])


def test_a_checkpoint_in_skytrains_format_is_not_converted_to_it(store):
    with pytest.raises(SkytrainError, match="in Skytrain's own format already"):
        skytrain_checkpoints(store, "convert", "mine")


def test_an_unknown_step_is_answered_with_the_steps_that_exist(store):
    with pytest.raises(SkytrainError, match="no checkpoint at step '7'\n  it has 5, 10, 15"):
        skytrain_checkpoints(store, "verify", "mine@7")
