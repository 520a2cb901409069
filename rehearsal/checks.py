"""What must hold after a run, from the store's objects and the hypervisor's own count."""

from __future__ import annotations

import json
from collections import defaultdict

import torch

from skytrain.checkpoints import load_model
from skytrain.runs import attempt_numbers, read_attempt, read_metrics, read_spend
from skytrain.targets.ec2.machines import BILLED_SECONDS

from .hosts import namespaces
from .hypervisor import ROUND_SECONDS
from .laptop import STEPS
from .world import RehearsalFailed, RehearsedRun

COMPARED = ("train/loss", "val/loss", "train/grad_norm")
# of a machine's life, by the meter; the larger one counts
MOST_SECONDS_ABOVE = 15.0
MOST_SHARE_ABOVE = 0.02


def check_identical(found: RehearsedRun, expected: RehearsedRun) -> str:
    """Losses, gradient norms and final weights, bit for bit."""
    mine = numbers(found)
    theirs = numbers(expected)
    if mine != theirs:
        different = {
            key: (mine.get(key), theirs.get(key)) for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)
        }
        raise RehearsalFailed(
            f"{len(different)} numbers differ from the uninterrupted run: {dict(list(different.items())[:5])}"
        )
    weights, others = (load_model(one.store, f"{one.run}@{STEPS}").model.state_dict() for one in (found, expected))
    unequal = [name for name, value in others.items() if not torch.equal(weights[name], value)]
    if unequal or weights.keys() != others.keys():
        raise RehearsalFailed(f"weights differ from the uninterrupted run: {unequal}")
    return f"{len(mine)} losses and norms and {len(weights)} weights are bit for bit those of the uninterrupted run"


def numbers(run: RehearsedRun) -> dict[tuple[int, str], float]:
    return {
        (record["step"], name): record[name]
        for record in read_metrics(run.store, run.run)
        for name in COMPARED
        if name in record
    }


def check_spend(run: RehearsedRun) -> str:
    """The meter against the hypervisor's own count, for each machine; then what `skytrain costs` says of the ended run."""
    counts = read_spend(run.store, run.run).counts
    above = []
    problems = []
    for life in run.lives:
        found = [count for key, count in counts.items() if key.startswith(f"{life.facts.id} ")]
        counted = found[0].seconds if found else 0.0
        over = counted - max(life.seconds, BILLED_SECONDS)
        above.append(over)
        if over < 0:
            problems.append(
                f"{life.facts.id} ({life.interrupted or 'not interrupted'}) lived {life.seconds:.1f} s; counted: {counted:.1f} s"
            )
        # An agent that did not end the run itself writes its last record while EC2 shuts its machine down.
        most = max(MOST_SECONDS_ABOVE, MOST_SHARE_ABOVE * life.seconds) + life.shutdown_seconds
        if over > most:
            problems.append(
                f"{life.facts.id}: the meter is {over:.1f} s above its {life.seconds:.1f} s, more than {most:.1f} s"
            )
    usd = sum(count.usd for count in counts.values())
    true = sum(life.usd for life in run.lives)
    if problems:
        raise RehearsalFailed("the meter is wrong:\n  " + "\n  ".join(problems))
    return (
        f"{len(run.lives)} machines, {sum(life.seconds for life in run.lives):.0f} machine-seconds, ${true:.4f}; the meter "
        f"says ${usd:.4f}: {min(above):.1f} to {max(above):.1f} s above each life; {_check_settled(run)}"
    )


def _check_settled(run: RehearsedRun) -> str:
    """All machines have ended, so that the run costs what EC2's own times say: never less, and at most 2% more."""
    found = json.loads(run.world.laptop.command("costs", run.run, "--json", "cloud=ec2").stdout)
    true = sum(life.usd for life in run.lives)
    # The hypervisor sees an end up to a round after EC2 does, and EC2's times are whole seconds.
    below = sum(life.usd_per_hour for life in run.lives) * 2 * ROUND_SECONDS / 3600
    above = MOST_SHARE_ABOVE * true + sum(life.usd_per_hour for life in run.lives) / 3600
    if not found["settled"] or not true - below <= found["usd"] <= true + above:
        raise RehearsalFailed(f"the machines cost ${true:.4f}; skytrain costs: ${found['usd']:.4f}\n{found}")
    return f"settled: ${found['usd']:.4f}, {found['usd'] / true - 1:+.1%}"


def check_generations(run: RehearsedRun) -> str:
    """Never two node 0s in a generation: by what each host printed, and by the store's objects."""
    first: dict[int, set[str]] = defaultdict(set)
    for life in run.lives:
        for line in life.host.console.splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "generation" and words[3:6] == ["node", "0", "of"]:
                first[int(words[2].rstrip(":"))].add(life.facts.id)
    two = {number: names for number, names in first.items() if len(names) > 1}
    if two:
        raise RehearsalFailed(f"two node 0s in a generation: {two}")
    attempts = [
        read_attempt(run.store, run.run, number)["generation"] for number in attempt_numbers(run.store, run.run)
    ]
    if attempts != sorted(set(attempts)):
        raise RehearsalFailed(f"attempts are not one for each generation, in order: {attempts}")
    for number in range(1, max(attempts, default=0) + 1):
        named = run.generation(number)["members"][0].rpartition(".")[0]
        if first.get(number, {named}) != {named}:
            raise RehearsalFailed(f"generation {number} names {named} as node 0, and {first[number]} acted as such")
    return f"{max(attempts, default=0)} generations, {len(attempts)} attempts, one node 0 in each"


def check_nothing_left(run: RehearsedRun) -> str:
    """No instance, group or template in the account; no host, process or namespace on this machine."""
    left = run.world.account.leftovers()
    if left:
        raise RehearsalFailed(f"left in the account: {left}")
    alive = [life.facts.id for life in run.lives if life.host.is_on or life.host.processes()]
    if alive or namespaces():
        raise RehearsalFailed(f"left on this machine: {alive} {namespaces()}")
    return "nothing is left in the account, and no host"
