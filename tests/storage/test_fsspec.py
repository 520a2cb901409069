"""Other libraries reach the same objects through fsspec."""

from __future__ import annotations

import fsspec
import pytest

from skytrain.config import StoreConfig
from skytrain.storage import Store, register_fsspec
from tests.support.s3 import ACCESS_KEY, S3Server


@pytest.fixture
def registered(s3_environment: pytest.MonkeyPatch) -> None:
    register_fsspec()


def test_what_the_store_writes_fsspec_reads_and_back(s3_store: Store, registered: None) -> None:
    s3_store.write("a/key", b"from the store")
    with fsspec.open(s3_store.url("a/key"), "rb") as file:
        assert file.read() == b"from the store"
    with fsspec.open(s3_store.url("b/key"), "wb") as file:
        file.write(b"from fsspec")
    assert s3_store.read("b/key") == b"from fsspec"


def test_lightning_finds_saves_and_loads_there(s3_store: Store, registered: None) -> None:
    import torch
    from lightning.fabric.utilities.cloud_io import _atomic_save, _load, get_filesystem

    url = s3_store.url("checkpoints/last.ckpt")
    filesystem = get_filesystem(url)
    assert not filesystem.exists(url)
    _atomic_save({"weight": torch.arange(3.0)}, url)
    assert filesystem.exists(url)
    assert _load(url, weights_only=True)["weight"].tolist() == [0.0, 1.0, 2.0]
    assert s3_store.exists("checkpoints/last.ckpt")


def test_fsspec_encrypts_as_the_store_does(
    s3_root: str, s3_server: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    register_fsspec(StoreConfig(root=s3_root, sse="s3", kms_key=None, patience=60.0))
    with fsspec.open(f"{s3_root}/key", "wb") as file:
        file.write(b"1")
    key = f"{s3_root.removeprefix(f's3://{s3_server.bucket}/')}/key"
    assert s3_server.client().head_object(Bucket=s3_server.bucket, Key=key)["ServerSideEncryption"] == "AES256"


def test_registering_again_takes_the_settings_of_now(s3_store: Store, s3_environment: pytest.MonkeyPatch) -> None:
    s3_environment.setenv("AWS_ACCESS_KEY_ID", "nobody")
    register_fsspec()
    s3_store.write("key", b"1")
    with pytest.raises(Exception, match="403 Forbidden"), fsspec.open(s3_store.url("key"), "rb") as file:
        file.read()
    s3_environment.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    register_fsspec()
    with fsspec.open(s3_store.url("key"), "rb") as file:
        assert file.read() == b"1"
