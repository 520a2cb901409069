"""The campaigns of benchmarks/checkpoints: small here, whole among the slow tests."""

import re
import shutil

import pytest
from benchmarks.checkpoints import mesh_campaign, storage_campaign

from tests.support.s3 import start_server


def test_through_a_bad_network_every_committed_checkpoint_is_whole(s3_server, s3_root):
    lines = storage_campaign.bad_network(s3_server, s3_root, wanted=40)
    assert "faults" in lines[0] and "all whole" in lines[-1]


def test_training_goes_on_through_a_bad_network_bit_for_bit(s3_server, s3_root):
    assert "bit for bit" in storage_campaign.training(s3_server, s3_root)[0]


def test_a_full_disk_refuses_a_save_and_harms_none(tmp_path):
    assert "File too large" in storage_campaign.full_disk(tmp_path / "store")[0]


def test_credentials_that_may_not_write_refuse_a_save_and_still_read(s3_root):
    assert "cannot write s3://" in storage_campaign.revoked_rights(s3_root)[0]


def test_of_two_attempts_at_once_the_newer_one_counts(s3_root):
    assert "the newer one's checkpoints all count" in storage_campaign.two_attempts(s3_root, rounds=2)[-1]


@pytest.mark.slow
def test_through_a_thousand_faults_and_every_other_trouble_each_committed_checkpoint_is_whole(tmp_path, no_aws):
    process, server = start_server(tmp_path)
    for name, value in server.environment().items():
        no_aws.setenv(name, value)
    try:
        lines, process = storage_campaign.campaign(process, server, tmp_path, faults=1000, kills=3, rounds=10)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(tmp_path, ignore_errors=True)
    said = "\n".join(lines)
    faults = re.match(r"bad network: (\d+) faults", said)
    assert faults and int(faults[1]) >= 1000
    for proof in (
        "all whole; no load gave a wrong value",
        "its losses are those of a quiet network, bit for bit",
        "full disk: cannot write",
        "revoked rights: cannot write",
        "two attempts at once, 10 times",
        "after 3 kills, all whole",
    ):
        assert proof in said


@pytest.mark.slow
def test_from_mesh_to_mesh_losses_stay_and_data_is_exact(tmp_path):
    lines = mesh_campaign.campaign(tmp_path / "store")
    assert "the very sequences" in lines[-1]
