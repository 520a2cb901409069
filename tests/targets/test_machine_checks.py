"""The checks of `doctor` that look at this machine and the store, with tools and devices that a test supplies."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skytrain.storage import open_store
from skytrain.targets import Finding, Preflight, run_checks
from skytrain.targets.checks import CHECKS, machine as gpu
from tests.support.s3 import READER_KEY, READER_SECRET, S3Server

from .conftest import StubbedSession
from .ground import CONFIG

CARD = "NVIDIA A10G, {}, 23028 MiB"
EFA_LINE = "node:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)"


def found(name: str, preflight: Preflight) -> Finding:
    check = next(one for one in CHECKS if one.name == name)
    return next(run_checks([replace(check, needs=())], preflight))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preflight:
    monkeypatch.chdir(tmp_path)
    return Preflight(CONFIG())


def with_store(root: str, **changed: Any) -> Preflight:
    config = CONFIG()
    return Preflight(replace(config, store=replace(config.store, root=root, **changed)))


def test_a_machine_without_a_gpu_gets_one_line_about_it(here: Preflight) -> None:
    findings = {one.name: one.verdict for one in run_checks([one for one in CHECKS if one.group != "AWS"], here)}
    assert findings == {"python": "ok", "packages": "ok", "disk": "ok", "store": "ok", "GPU": "not checked"}


def test_a_package_that_is_missing_is_named_with_its_extra(here: Preflight, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(name: str) -> str:
        if name == "boto3":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("skytrain.targets.checks.machine.version", version)
    finding = found("packages", here)
    assert finding.verdict == "failed" and finding.fix == "pip install 'skytrain[aws]'"


def test_a_full_disk_is_named(here: Preflight, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 2e9))
    finding = found("disk", here)
    assert (finding.verdict, finding.exit_code) == ("failed", 3) and "only 2.00 GB free" in finding.text


def test_the_store_is_left_as_it_was(here: Preflight, tmp_path: Path) -> None:
    assert found("store", here).verdict == "ok"
    assert not list(tmp_path.iterdir())


def test_a_store_that_creates_an_object_twice_is_refused(here: Preflight, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(self: Any, key: str, data: bytes) -> bool:
        self.write(key, data)
        return True

    monkeypatch.setattr("skytrain.storage.folder.FolderStore.create", overwrite)
    finding = found("store", here)
    assert finding.verdict == "failed" and "two attempts could both win" in finding.text


def test_a_bucket_is_written_and_read_and_left_empty(s3_root: str) -> None:
    assert found("store", with_store(s3_root)).verdict == "ok"
    assert open_store(s3_root).list() == []


def test_a_bucket_that_may_only_be_read_is_a_matter_of_credentials(
    s3_root: str, s3_environment: pytest.MonkeyPatch
) -> None:
    s3_environment.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    s3_environment.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    finding = found("store", with_store(s3_root))
    assert (finding.verdict, finding.exit_code) == ("failed", 11) and s3_root in finding.text


def test_encryption_is_what_s3_reports_of_an_object_that_skytrain_wrote(
    s3_server: S3Server, s3_root: str, stubbed: StubbedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SeaweedFS has no KMS: the object is written there, and what S3 would report of it is supplied."""
    key = "arn:aws:kms:us-east-2:123456789012:key/right"
    for answer in ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}, {"ServerSideEncryption": "AES256"}):
        stubbed.stub("s3").add_response("head_object", answer)
    preflight = replace(with_store(s3_root, sse="kms", kms_key="right"), open=lambda *_: stubbed.session)
    monkeypatch.setattr("skytrain.targets.checks.store.open_store", lambda _: open_store(s3_root))
    right, wrong = found("encryption", preflight), found("encryption", preflight)
    assert right.verdict == "ok" and key in right.text
    assert wrong.verdict == "failed" and "AES256" in wrong.text and "store.kms_key" in wrong.fix


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with a GPU, whose tools print what the test wants; and a folder for its devices."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "nvidia0").touch()
    (tmp_path / "block").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu, "NVIDIA_DEVICE", tmp_path / "nvidia0")
    monkeypatch.setattr(gpu, "BLOCK_DEVICES", tmp_path / "block")
    monkeypatch.setattr(gpu, "MOUNTS", tmp_path / "mounts")

    def tool(name: str, prints: str, code: int = 0) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {code}\n")
        path.chmod(0o755)

    return tool


def test_the_driver_is_read_from_nvidia_smi(here: Preflight, tools: Any) -> None:
    assert "not installed" in found("GPU", here).text
    tools("nvidia-smi", "\n".join([CARD.format("595.91.07")] * 4))
    assert found("GPU", here).text == "4 x NVIDIA A10G (23028 MiB), driver 595.91.07"
    tools("nvidia-smi", CARD.format("470.10"))
    assert "older than 525" in found("GPU", here).text
    tools("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9)
    assert "couldn't communicate" in found("GPU", here).text


def test_efa_must_be_found_by_libfabric_and_used_by_nccl(
    here: Preflight, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found("EFA", here).verdict == "not checked"
    monkeypatch.setattr(gpu, "count_efa_devices", lambda: 4)
    assert "no fi_info" in found("EFA", here).text
    tools("fi_info", "fi_getinfo: -61 (No data available)", 61)
    assert found("EFA", here).verdict == "failed"
    tools("fi_info", "provider: efa\n    fabric: efa-direct")
    assert found("EFA", here).verdict == "ok"

    log = "import os; assert os.environ['NCCL_DEBUG'] == 'INFO'; print({!r})"
    monkeypatch.setattr(gpu, "ALL_REDUCE", log.format(EFA_LINE))
    assert found("NCCL", here).text == EFA_LINE[EFA_LINE.index("NET/OFI") :]
    monkeypatch.setattr(gpu, "ALL_REDUCE", log.format("NCCL INFO NET/Socket : Using [0]ens5:10.0.0.1"))
    assert "does not use EFA" in found("NCCL", here).text
    monkeypatch.setattr(gpu, "ALL_REDUCE", "raise SystemExit('unhandled cuda error')")
    assert "unhandled cuda error" in found("NCCL", here).text


def test_local_disks_must_be_mounted_alone_or_joined(here: Preflight, tools: Any, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("/dev/root / ext4 rw 0 0\n")
    assert found("NVMe", here).verdict == "not checked"
    for name, model in (("nvme0n1", "Amazon Elastic Block Store"), ("nvme1n1", gpu.INSTANCE_STORE)):
        (tmp_path / "block" / name / "device").mkdir(parents=True)
        (tmp_path / "block" / name / "device" / "model").write_text(f"{model}   \n")
    idle = found("NVMe", here)
    assert idle.verdict == "failed" and idle.text.startswith("nvme1n1 not mounted")
    (tmp_path / "block" / "nvme1n1" / "holders" / "dm-0").mkdir(parents=True)
    (tmp_path / "block" / "dm-0" / "dm").mkdir(parents=True)
    (tmp_path / "block" / "dm-0" / "dm" / "name").write_text("vg.01-lv_ephemeral\n")
    (tmp_path / "mounts").write_text("/dev/mapper/vg.01-lv_ephemeral /opt/dlami/nvme ext4 rw 0 0\n")
    assert found("NVMe", here).text == "1 local NVMe disks at /opt/dlami/nvme"


def test_torch_computes_on_the_gpu_in_a_process_of_its_own(
    here: Preflight, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "TORCH", "print('2.13.0', '13.0', 8, True)")
    assert found("torch", here).text == "torch 2.13.0, CUDA 13.0, 8 GPUs, bf16"
    monkeypatch.setattr(gpu, "TORCH", "import os; os.abort()")
    assert found("torch", here).verdict == "failed"
