"""The ledger: reserves, charges and refusals."""

from __future__ import annotations

import pytest

from skytrain.storage import DamagedRecord, open_store
from skytrain.tuning import HourlyPrice, Ledger
from skytrain.tuning.ledger import BudgetError


def test_the_final_run_is_kept_back_from_trials(tmp_path):
    ledger = Ledger(open_store(str(tmp_path)), "sweeps/a", 10.0)
    ledger.reserve("final", 6.0)
    ledger.reserve("trial-001", 3.0)
    with pytest.raises(BudgetError, match=r"trial-002 may cost \$1.50, and \$1.00 are left"):
        ledger.reserve("trial-002", 1.5)
    assert ledger.left_usd == pytest.approx(1.0)


def test_a_charge_replaces_the_reserve_and_frees_the_rest(tmp_path):
    ledger = Ledger(open_store(str(tmp_path)), "sweeps/a", 10.0)
    ledger.reserve("trial-001", 4.0)
    ledger.charge("trial-001", 2.5)
    assert ledger.left_usd == pytest.approx(7.5)


def test_another_process_finds_every_entry_and_an_open_reserve_counts_in_full(tmp_path):
    first = Ledger(open_store(str(tmp_path)), "sweeps/a", 10.0)
    first.reserve("final", 5.0)
    first.reserve("trial-001", 2.0)
    first.charge("trial-001", 1.0)
    first.reserve("trial-002", 2.0)
    second = Ledger(open_store(str(tmp_path)), "sweeps/a", 10.0)
    assert second.spent_usd == pytest.approx(3.0)
    assert second.left_usd == pytest.approx(2.0)
    assert second.reserve("trial-002", 9.0).reserved_usd == 2.0  # what was promised keeps its amount


@pytest.mark.parametrize("usd", ["NaN", "-5.0"])
def test_an_entry_that_no_budget_could_be_compared_with_is_damage(tmp_path, usd):
    store = open_store(str(tmp_path))
    entry = f'{{"what": "trial-001", "reserved_usd": 2.0, "charged_usd": {usd}}}'
    store.write("sweeps/a/ledger/trial-001.json", entry.encode())
    with pytest.raises(DamagedRecord):
        Ledger(store, "sweeps/a", 10.0)


def test_the_margin_is_on_estimates_and_not_on_charges():
    price = HourlyPrice(usd_per_hour=1.5, margin=0.1)
    assert price.usd(3600) == pytest.approx(1.65)
    assert price.charged(3600) == pytest.approx(1.5)
