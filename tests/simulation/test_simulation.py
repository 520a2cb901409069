"""What a rented run promises, tried with the product's own code in a simulated world.

Whatever fails: one node 0 in each generation, no job after the run's end, at most 2 x nodes + 3 machines without a
committed step in between, dollars within the budget and a minute of each of them, no error that nobody handles, nothing
left rented. Once nothing fails any more, the run comes to its end.
"""

from __future__ import annotations

import pytest

from skytrain.checkpoints import committed_steps
from skytrain.runs import launches_of
from tests.simulation.schedules import delete_launches, end_machines, random_world, stop
from tests.simulation.world import RUN, Chaos, World

FATES = ("lost", "unanswered", "late", "slow", "lose", "freeze")


def finish(world: World, *, disturbed: bool = False) -> None:
    """Launch the run, let it end, and check what must hold."""
    with world.patched():
        world.launch(disturbed=disturbed)
        world.engine.run(lambda: world.engine.now > world.events_until and bool(world.over) and world.quiet(), 5 * 3600)
        text = "\n".join(world.log[-60:])
        assert world.quiet(), f"machines are left\n{text}"
        world.check()
        world.check_meter()


def test_a_run_without_faults_trains_every_step_and_gives_everything_back():
    world = World(1)
    finish(world)
    assert committed_steps(world.store, RUN)[-1] == world.steps
    assert len(world.machines) == world.nodes
    assert world.over[0][1] == 0


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_faults_break_no_promise(first: int):
    for seed in range(first, first + 20):
        try:
            finish(random_world(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None


@pytest.mark.slow
def test_a_thousand_random_schedules_break_no_promise():
    for seed in range(1000, 2000):
        try:
            finish(random_world(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None


def with_fault(number: int, fate: str) -> World:
    return World(7, steps=6, save_every=2, chaos=Chaos(planned={number: fate}))


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_each_single_fault_at_each_request_breaks_no_promise_and_loses_no_step(fate: str):
    undisturbed = with_fault(0, "")
    finish(undisturbed)
    for number in range(1, undisturbed.requests + 1):
        world = with_fault(number, fate)
        try:
            finish(world)
            assert world.over and world.over[0][1] == 0, f"the run did not end well\n{world.log[-40:]}"
            assert committed_steps(world.store, RUN)[-1] == world.steps
        except AssertionError as error:
            raise AssertionError(f"{fate} at request {number}: {error}") from None


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late", "slow"])
def test_each_single_fault_at_each_request_to_aws_leaves_nothing_rented(fate: str):
    undisturbed = World(7, steps=6, save_every=2)
    finish(undisturbed)
    for number in range(1, undisturbed.cloud.requests + 1):
        world = World(7, steps=6, save_every=2, chaos=Chaos(planned_cloud={number: fate}))
        try:
            finish(world, disturbed=True)
            failed = launches_of(world.store, RUN)[0].failed
            assert failed or world.over[0].exit_code == 0, f"the run did not end well\n{world.log[-40:]}"
        except AssertionError as error:
            raise AssertionError(f"{fate} at request {number}: {error}") from None


def test_the_simulation_finds_a_storm_where_groups_have_no_launch_hook():
    world = World(3, hooks=False)
    world.failing = lambda machine: "the bucket cannot be read"
    with pytest.raises(AssertionError, match="machines without a committed step"):
        finish(world)


def test_a_run_whose_records_of_launches_were_deleted_is_launched_under_a_new_number():
    """Its hosts have recorded that launch 00001 is over: machines of another one would leave as soon as they boot."""
    world = World(1, steps=6, save_every=2)
    with world.patched():
        world.launch()
        world.engine.later(700.0, lambda: delete_launches(world))
        world.engine.later(800.0, lambda: world.launch_again(0.0))
        world.engine.run(lambda: world.engine.now > 900 and len(world.over) == 2 and world.quiet(), 3600)
    assert [job.launch for job in world.started_jobs] == ["00001"] * 2 + ["00002"] * 2, "\n".join(world.log)


def test_a_spare_that_sees_a_request_to_stop_lets_the_run_save():
    world = World(5)
    world.spares = 1
    world.engine.later(200.0, lambda: stop(world))
    finish(world)
    (at, code, _), *_ = world.over
    assert code == 7 and any(abs(at - when) < 60 for when, *_ in world.commits), "\n".join(world.log)


@pytest.mark.parametrize("force", [False, True])
def test_a_stop_at_any_time_and_with_requests_that_fail_leaves_nothing_rented(force: bool):
    for at in range(5, 520, 60):
        world = World(at, chaos=Chaos(lost=0.03, unanswered=0.03, late=0.03, torn=0.05, cloud=0.1))
        world.events_until = at + 1.0
        world.engine.later(at, lambda world=world: stop_frozen(world) if force else stop(world))
        try:
            finish(world)
            assert max(machine.ended or 0.0 for machine in world.machines.values()) < at + 900, "it stops late"
        except AssertionError as error:
            raise AssertionError(f"at {at} s: {error}") from None


def stop_frozen(world: World) -> None:
    """Stop a run whose machines do nothing any more: only the command can end them."""
    for machine in world.cloud.running:
        machine.freeze(3600.0)
    end_machines(world)
