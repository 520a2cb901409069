"""What counts as progress that proves a machine."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from skytrain.jobs.progress import lasting_progress
from skytrain.runs import claim_attempt
from skytrain.storage import open_store
from tests.support.tiny import tiny_config


def test_a_machine_of_a_sweep_is_proved_by_its_own_trials_and_not_by_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store = tiny_config(str(tmp_path)), open_store(str(tmp_path))

    def progress() -> int:
        return lasting_progress(store, "lr-machine-2", "tune", config)

    monkeypatch.setattr(platform, "node", lambda: "works")
    claim_attempt(store, "lr-000")
    store.write("sweeps/lr/trials/000.json", b"{}")
    assert progress() == 1
    monkeypatch.setattr(platform, "node", lambda: "broken")
    claim_attempt(store, "lr-001")
    assert progress() == 0  # its trial has no result
    store.write("sweeps/lr/trials/001.json", b"{}")
    assert progress() == 1
