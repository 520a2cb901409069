"""The meeting protocol: an exhaustive search over what three hosts can do, and that the search finds broken protocols."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skytrain.jobs.generations import (
    EndGeneration,
    GenerationEnd,
    HostState,
    JobGeneration,
    Leave,
    MeetingRules,
    MeetingView,
    Propose,
    StopJob,
    decide,
    job_ended,
)
from tests.jobs.meeting_model import (
    NO_FAULTS,
    Faults,
    Variant,
    Violation,
    World,
    by_host_clocks,
    committed,
    explore,
    never_takes_over,
    paused,
    trusts_its_proposal,
    undisturbed,
)

# Only these faults, so that longer interleavings can be searched.
LATE_PROPOSALS = Faults(ticks=0, crashes=0, notices=0, duplicates=0, finishes=1)


def test_no_interleaving_of_three_hosts_has_two_first_nodes_or_a_stale_commit_and_each_can_progress():
    disturbed = explore(undisturbed(), Faults(), depth=3)
    woken = explore(paused(), NO_FAULTS, depth=5)
    print(f"{disturbed.states + woken.states} states, {disturbed.schedules + woken.schedules} fair schedules")
    assert disturbed.states > 10_000 and woken.states > 10_000
    assert disturbed.schedules > 200 and woken.schedules > 200


def test_after_the_end_of_a_run_no_interleaving_starts_another_generation_and_every_host_leaves():
    ended = explore(committed(), Faults(finishes=1), depth=5)
    late = explore(committed(), LATE_PROPOSALS, depth=12)
    print(f"{ended.states + late.states} states, {ended.schedules + late.schedules} fair schedules")
    assert ended.states + late.states > 10_000 and ended.schedules > 200


@pytest.mark.slow
def test_deeper_interleavings_keep_the_same_promises():
    disturbed = explore(undisturbed(), Faults(), depth=5, fair_every=200)
    woken = explore(paused(), Faults(ticks=1, together=2), depth=3, fair_every=200)
    explore(committed(), Faults(finishes=1), depth=7, fair_every=200)
    print(f"{disturbed.states + woken.states} states, {disturbed.schedules + woken.schedules} fair schedules")
    assert disturbed.states + woken.states > 400_000


@pytest.mark.parametrize(
    ("variant", "seeds", "faults", "depth", "words"),
    [
        (Variant(conditional_create=False), paused, NO_FAULTS, 4, "two node 0s"),
        (Variant(check_generation=False), paused, NO_FAULTS, 5, "commits after 2 has claimed"),
        (Variant(list_before_check=False), paused, NO_FAULTS, 5, "commit"),
        (Variant(end_is_final=False), committed, LATE_PROPOSALS, 8, "although the run is over"),
        (Variant(look=trusts_its_proposal), undisturbed, Faults(), 3, "two node 0s"),
        (Variant(look=by_host_clocks, host_clocks=True, clock_skew=(0, -5, 0)), paused, NO_FAULTS, 3, "was heard"),
        (Variant(look=never_takes_over), undisturbed, Faults(), 3, "no commit in 40 rounds"),
    ],
    ids=[
        "unconditional create",
        "unchecked claim",
        "check before list",
        "an end that is not final",
        "trusted answer",
        "host clocks",
        "no takeover",
    ],
)
def test_the_search_finds_what_is_wrong_with_a_broken_protocol(
    variant: Variant, seeds: Callable[[Variant], list[World]], faults: Faults, depth: int, words: str
):
    with pytest.raises(Violation, match=words):
        explore(seeds(variant), faults, depth, variant)


RULES = MeetingRules(wanted=2)
RUNNING = JobGeneration(number=1, members=("a.0", "b.0"), address="10.0.0.1", port=29500, rendezvous_id="one")


def test_an_outage_of_the_store_ends_no_generation():
    state = HostState("a.0", phase="running", joined=1)
    state, _ = decide(state, MeetingView({"a.0": 100, "b.0": 99}, RUNNING), RULES)
    # Nobody could write for ten minutes; this host is the first that can again.
    state, actions = decide(state, MeetingView({"a.0": 700, "b.0": 99}, RUNNING), RULES)
    assert actions == ()


def test_a_member_without_a_heartbeat_is_lost_after_the_silence_by_the_stores_clock():
    state = HostState("a.0", phase="running", joined=1)
    for beat in (99, 110, 121, 132, 143, 154):
        state, actions = decide(state, MeetingView({"a.0": beat, "b.0": 99}, RUNNING), RULES)
        assert actions == ()
    _, actions = decide(state, MeetingView({"a.0": 165, "b.0": 99}, RUNNING), RULES)
    lost = GenerationEnd("a.0", "lost b.0: no heartbeat")
    assert actions == (EndGeneration(1, lost), StopJob(lost.reason))


def test_a_host_that_was_lost_before_its_job_failed_is_not_invited_again():
    """The job's own timeout takes about 20 s; until then a lost host looks as if its heartbeat were a little late."""
    host = HostState("a.1")
    _, late = decide(host, MeetingView({"a.1": 100.0, "b.1": 100.0 - RULES.beat_seconds - 2.0}), RULES)
    assert [type(action) for action in late] == [Propose]
    _, lost = decide(host, MeetingView({"a.1": 100.0, "b.1": 75.0}), RULES)
    assert lost == ()


def test_a_host_under_a_rebalance_recommendation_goes_when_a_spare_is_ready():
    state = HostState("a.0", phase="running", joined=1, when_spare="rebalance recommended")
    state, actions = decide(state, MeetingView({"a.0": 100, "b.0": 99}, RUNNING), RULES)
    assert actions == ()
    state, actions = decide(state, MeetingView({"a.0": 100, "b.0": 99, "c.0": 98}, RUNNING), RULES)
    assert EndGeneration(1, GenerationEnd("a.0", "rebalance recommended", saves=True)) in actions
    assert not state.may_be_invited


def test_the_end_of_the_run_reaches_all_hosts_even_after_the_generation_has_ended_for_another_reason():
    done = GenerationEnd("b.0", "done", exit_code=0)
    state, actions = job_ended(HostState("b.0", phase="running", joined=1), done)
    assert actions == (EndGeneration(1, done),)
    # The request is lost, and the other host has ended the generation meanwhile.
    ended = GenerationEnd("a.0", "the job failed")
    state, actions = decide(state, MeetingView({"b.0": 100}, RUNNING, ended), RULES)
    assert actions == (EndGeneration(1, done),)
    _, actions = decide(state, MeetingView({"b.0": 100}, RUNNING, done), RULES)
    assert actions == (Leave(done),)


def test_where_somebody_deletes_the_meeting_numbers_go_on_and_a_run_that_is_over_stays_so():
    deleted = MeetingView({"a.1": 100.0, "b.1": 100.0})
    job = HostState(host="a.1", phase="running", joined=5)
    runs, actions = decide(job, deleted, MeetingRules(2))
    assert runs.phase == "running" and actions == ()  # its job goes on
    failed, _ = job_ended(job, GenerationEnd("a.1", "the job failed"))
    _, actions = decide(failed, deleted, MeetingRules(2))
    assert actions == (Propose(6, ("a.1", "b.1")),)
    done, _ = job_ended(job, over := GenerationEnd("a.1", "the run is over: exit code 0", 0))
    left, actions = decide(done, deleted, MeetingRules(2))
    assert left.phase == "gone" and actions == (Leave(over),)
