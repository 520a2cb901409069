"""A sweep on rented machines, one of which is lost in the middle of a trial."""

from __future__ import annotations

import json
import sys

from tests.support.tiny import TINY

from skytrain.checkpoints import committed_steps
from skytrain.runs import attempt_numbers
from skytrain.tuning import FINAL, Ledger, SweepStore

from .checks import check_nothing_left
from .hypervisor import Life
from .laptop import FIRST, Wanted
from .world import PATIENCE_SECONDS, RehearsalFailed, RehearsedRun, World

SWEEP = "sweep"
BUDGET_USD = 6.0
SETTINGS = (
    *TINY,
    f"budget.usd={BUDGET_USD}",
    "trainer.steps=800",
    "trainer.checkpoint_every=20",  # something to resume from, wherever a machine is lost
    f"tune.name={SWEEP}",
    "tune.strategy=grid",
    "tune.horizons=[0.25]",
    "tune.sizes=[1x16]",
    f"tune.instance={FIRST}",
    "tune.machines=2",
    "tune.parallel=1",
)


def sweep(world: World) -> None:
    """A sweep on two rented machines, one of which is lost in a trial: each trial is paid once, within the budget."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    place = [f"cloud.python={world.laptop.image}", f"cloud.python_version='{version}'"]
    launched = world.laptop.launch_job(["launch", "tune", *SETTINGS, "cloud=ec2", *place])
    world.say(f"  {next(line for line in launched.splitlines() if line.startswith('launched'))}")
    run = RehearsedRun(world, Wanted(f"{SWEEP}-machine"))  # of both machines: their names begin with it
    number, lost = run.until(lambda: trial_under_way(run), "a trial has a checkpoint")
    world.hypervisor.lose(lost, "was lost")
    world.say(f"  {lost.facts.id} is lost in trial {number}")
    found = SweepStore(world.store, SWEEP)
    run.until(lambda: found.answer() is not None, "the sweep has an answer", 2 * PATIENCE_SECONDS)
    run.wait_until_nothing_is_left()
    world.say(f"  {check_trials(run, number)}")
    world.say(f"  {check_money(run)}")
    world.say(f"  {check_nothing_left(run)}")


def trial_under_way(run: RehearsedRun) -> tuple[int, Life] | None:
    """A trial that has a checkpoint and is not finished, and the proven machine that runs it; None: none yet."""
    found = SweepStore(run.store, SWEEP)
    if not found.exists():
        return None
    state = found.state()
    for one in state.running:
        worker = state.claim_of(one.number).worker
        life = next((life for life in run.lives if worker.startswith(life.facts.id)), None)
        proven = life is not None and life.facts.id not in run.world.account.lifecycle.waits
        if life is not None and proven and committed_steps(run.store, f"{SWEEP}-{one.number:03d}"):
            return one.number, life
    return None


def check_trials(run: RehearsedRun, interrupted: int) -> str:
    """Every trial has one result, and the one that was interrupted was resumed, not begun anew."""
    state = SweepStore(run.store, SWEEP).state()
    if state.running or len(state.history) < 5:
        raise RehearsalFailed(f"{len(state.history)} trials have a result, and {len(state.running)} have none")
    entries = [one for one in SweepStore(run.store, SWEEP).entries() if one.what.startswith("trial-")]
    if len(entries) != len(state.history) or any(one.charged_usd is None for one in entries):
        raise RehearsalFailed(f"the ledger has {entries} for {len(state.history)} trials")
    attempts = {number: len(attempt_numbers(run.store, f"{SWEEP}-{number:03d}")) for number in state.history}
    again = [number for number, count in attempts.items() if count != 1]
    if again != [interrupted]:
        raise RehearsalFailed(f"trials {again} have more than one attempt, and {interrupted} was interrupted")
    return f"{len(entries)} trials, each charged once; trial {interrupted} was resumed after its machine was lost"


def check_money(run: RehearsedRun) -> str:
    """Machines and the final run's reserve stay within the budget, by the hypervisor's own count."""
    ledger = Ledger(run.store, f"sweeps/{SWEEP}", BUDGET_USD)
    spent = sum(life.usd for life in run.lives)
    final = ledger.usd(FINAL)
    if spent + final > BUDGET_USD or ledger.left_usd < 0:
        raise RehearsalFailed(f"${spent:.4f} of machines and ${final:.4f} for the final run, of ${BUDGET_USD}")
    open_entries = [one.what for one in ledger.entries if one.charged_usd is None and one.what != FINAL]
    if open_entries:
        raise RehearsalFailed(f"not charged: {open_entries}")
    shown = json.loads(run.world.laptop.command("costs", SWEEP, "--json", "cloud=ec2").stdout)[-1]
    # Its figures are whole cents.
    if not spent - 0.006 <= float(shown["DOLLARS"]) <= 1.02 * spent + 0.006:
        raise RehearsalFailed(f"the machines cost ${spent:.4f}, and skytrain costs says {shown}")
    return (
        f"{len(run.lives)} machines cost ${spent:.4f}, the ledger says ${ledger.spent_usd:.4f}, skytrain costs "
        f"${shown['DOLLARS']}; ${final:.4f} are kept for the final run, of ${BUDGET_USD:.2f}"
    )
