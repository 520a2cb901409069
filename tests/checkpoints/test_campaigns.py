"""The campaigns of benchmarks/checkpoints: small here, whole among the slow tests."""

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
def test_the_storage_campaign(tmp_path, no_aws):
    process, server = start_server(tmp_path)
    try:
        _, process = storage_campaign.campaign(process, server, tmp_path, faults=1000, kills=3, rounds=10)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
def test_the_mesh_campaign(tmp_path):
    lines = mesh_campaign.campaign(tmp_path / "store")
    assert "the very sequences" in lines[-1]
