"""A run that is followed: what people see of it, and when and how the view ends."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from skytrain.aws import Notice
from skytrain.cli import console
from skytrain.cli.main import main
from skytrain.cli.options import seconds_of
from skytrain.cli.screen import LiveScreen, PlainScreen
from skytrain.config import Config, SkytrainError, compose
from skytrain.jobs import list_meeting, node_agent
from skytrain.report import view_rows
from skytrain.runs import (
    Cause,
    Lines,
    MetricsWriter,
    claim_attempt,
    new_record,
    now,
    record_resume,
    save_run,
    write_outcome,
)
from skytrain.storage import Store, StoreUnreachable, open_store
from skytrain.targets import RunFollower, RunView, follow as following
from tests.jobs.node_simulation import SimulatedHost, simulated_host, until

RUN = "simulated"
STEP = {
    "train/loss": 3.25,
    "perf/tokens_per_s": 5e4,
    "perf/mfu": 0.4,
    "perf/step_ms": 500.0,
    "cost/projected_usd": 30.0,
}
COMPOSED = cache(lambda: compose(["budget.usd=40"]).config)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """With agents that ask every moment: the folder is on this machine."""
    for name in ("LOOK_SECONDS", "NOTICE_SECONDS"):
        monkeypatch.setattr(node_agent, name, 0.05)
    monkeypatch.setattr(node_agent, "ROUND_SECONDS", 0.01)
    composed = COMPOSED()
    return replace(composed, store=replace(composed.store, root=str(tmp_path / "store")))


@pytest.fixture
def store(config: Config) -> Store:
    return open_store(config.store)


def write_attempt(store: Store, config: Config, step: int, **facts: int) -> int:
    """An attempt at the run, as a job leaves it in the store."""
    save_run(store, new_record(config, name=RUN, data={}, tokenizer_id="gpt2", parameters=1, hardware={}))
    number = claim_attempt(store, RUN, **facts)
    record_resume(store, RUN, number, 0)
    writer, spend = MetricsWriter(store, RUN, number), Lines(store, f"runs/{RUN}/attempts/{number}/spend/")
    writer.write(step, STEP)
    count = {"usd": 1.5, "seconds": 60.0, "boot": "b", "boot_seconds": 1.0}
    spend.write({"at": now(), "step": step, "usd": 1.5, "machines": {"machine": count}})
    writer.lines.flush()
    spend.flush()
    return number


class Shown:
    """A screen that keeps what it was given."""

    def __init__(self) -> None:
        self.views: list[RunView] = []
        self.notes: list[str] = []

    def show(self, view: RunView) -> None:
        self.views.append(view)

    def note(self, text: str) -> None:
        self.notes.append(text)


def states(view: RunView) -> list[tuple[str, str, int | None]]:
    return [(node.machine, node.state, node.rank) for node in view.nodes]


def training(hosts: list[SimulatedHost], generation: int) -> bool:
    """Whether the hosts run the generation's job and their heartbeats say so."""
    if not all(host.job is not None and host.job.generation.number == generation for host in hosts):
        return False
    store: Store = hosts[0].agent.meeting._store
    mine = {host.agent.identity.host for host in hosts}
    beats = [json.loads(store.read(each.stat.key)) for each in list_meeting(store, RUN).hosts if each.host in mine]
    return all(beat["phase"] == "running" and beat["generation"] == generation for beat in beats)


def test_nodes_generations_progress_and_dollars_are_shown_until_the_run_is_over(config, store, monkeypatch):
    one = simulated_host(store, "one", nodes=2, beat_seconds=0.05).start()
    follower, shown = RunFollower(config, RUN), Shown()
    write_attempt(store, config, 20, generation=1)
    until(lambda: [state for _, state, _ in states(follower.look())] == ["waits"], 20)
    assert dict(view_rows(follower.look()))["run"] == f"{RUN}: 1 of 2 nodes ready"
    two = simulated_host(store, "two", nodes=2, beat_seconds=0.05).start()
    until(lambda: training([one, two], 1), 20)
    view = follower.look()
    assert sorted(states(view), key=lambda node: node[0]) == [
        ("one", "trains", one.job.rank),
        ("two", "trains", two.job.rank),
    ]
    rows = dict(view_rows(view))
    assert rows["generation"] == "1" and rows["run"] == f"{RUN}: running"
    assert rows["step"].startswith("20/1000") and rows["loss"] == "3.2500"
    assert rows["speed"] == "50K tokens/s, MFU 40.0%" and rows["cost"] == "$1.50, $30.00 when it is done, budget $40"
    one.notice = Notice("spot", "EC2 will terminate this instance")
    three = simulated_host(store, "three", nodes=2, beat_seconds=0.05).start()
    until(lambda: training([two, three], 2), 20)
    one.join()
    write_outcome(store, RUN, 0, "interrupted", 20)  # of an attempt; the agents go on
    rows = dict(view_rows(follower.look()))
    assert rows["generation"] == "2" and rows["left"] == "1 node"
    assert rows["run"] == f"{RUN}: starting" and "speed" not in rows  # its job has not claimed an attempt yet
    assert follower.end_of(follower.look()) is None
    for host in (two, three):
        host.job.code = 6
    end = follower.follow(shown, lambda _: time.sleep(0.05))
    assert (end.exit_code, end.reason) == (6, "the run is over: exit code 6")
    assert dict(view_rows(shown.views[-1]))["run"] == f"{RUN}: over, exit code 6"
    assert [two.join(), three.join()] == [6, 6]


def test_a_host_whose_heartbeat_stays_away_is_silent(config, store, monkeypatch):
    hosts = [simulated_host(store, name, nodes=2, beat_seconds=0.05).start() for name in ("one", "two")]
    write_attempt(store, config, 20, generation=1)
    until(lambda: training(hosts, 1), 20)
    monkeypatch.setattr("skytrain.targets.run_view.SILENT_SECONDS", 0.5)
    hosts[0].vanish()
    follower = RunFollower(config, RUN)
    until(lambda: ("one", "silent") in [state[:2] for state in states(follower.look())], 20)
    assert ("two", "trains") in [state[:2] for state in states(follower.look())]
    hosts[1].job.code = 0
    hosts[1].join()


@pytest.mark.parametrize(("outcome", "code"), [("done", 0), ("stopped", 0), ("interrupted", 7)])
def test_a_local_run_ends_the_view_with_its_own_exit_code(config, store, outcome, code):
    number, follower = write_attempt(store, config, 20), RunFollower(config, RUN)
    assert follower.end_of(follower.look()) is None
    write_outcome(store, RUN, number, outcome, 20, Cause("SIGTERM received"))
    end = follower.end_of(follower.look())
    assert end is not None and (end.exit_code, end.reason) == (code, f"{outcome}: SIGTERM received")


@pytest.mark.parametrize(("outcome", "code"), [("budget", 6)])
def test_the_command_ends_with_the_exit_code_of_the_run(config, store, monkeypatch, capsys, outcome, code):
    number = write_attempt(store, config, 20)
    looks = iter([lambda: None, lambda: write_outcome(store, RUN, number, outcome, 20)])
    monkeypatch.setattr("skytrain.cli.screen.pause", lambda _: next(looks)())
    monkeypatch.setattr(sys, "argv", ["skytrain", "status", RUN, "--watch", f"store.root='{store.local_path('')}'"])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert (ended.value.code or 0) == code and len(lines) == 3  # the second look has shown nothing new
    assert f"{RUN} running | step 20/1000 | loss 3.2500 | 50K tokens/s | MFU 40.0% | $1.50 of $30.00" in lines[0]
    assert lines[-1] == f"{RUN}: {outcome} (exit code {code})"


def test_ctrl_c_ends_the_view_and_says_that_the_run_goes_on(config, store, monkeypatch, capsys):
    write_attempt(store, config, 20)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skytrain.cli.screen.pause", interrupt)
    monkeypatch.setattr(
        sys, "argv", ["skytrain", "status", RUN, "-f", "--json", f"store.root='{store.local_path('')}'"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert not ended.value.code and json.loads(shown.out)["status"]["step"] == 20
    assert f"{RUN} continues" in shown.err


def test_a_run_that_failed_and_was_not_restarted_ends_the_view(config, store, monkeypatch):
    number = write_attempt(store, config, 20)
    failure = {"reason": "the loss is nan", "host": "here", "failed_at": now()}
    store.write(f"runs/{RUN}/attempts/{number}/failure.json", json.dumps(failure).encode())
    follower = RunFollower(config, RUN)
    assert follower.end_of(follower.look()) is None  # a supervisor may restart it
    monkeypatch.setattr(following, "RESTART_SECONDS", -1.0)
    end = follower.end_of(follower.look())
    assert end is not None and (end.exit_code, end.reason) == (1, "failed: the loss is nan")


def test_a_store_that_does_not_answer_is_told_once_and_asked_again(config, store, monkeypatch):
    write_outcome(store, RUN, write_attempt(store, config, 20), "done", 20)
    follower, shown, look = RunFollower(config, RUN), Shown(), RunFollower.look
    answers = iter([False, False, True])

    def troubled(self: RunFollower) -> RunView:
        if not next(answers):
            raise StoreUnreachable("list", "s3://bucket", "no route to host")
        return look(self)

    monkeypatch.setattr(RunFollower, "look", troubled)
    assert follower.follow(shown, lambda _: None).exit_code == 0
    assert len(shown.notes) == 1 and "no route to host" in shown.notes[0]


def test_a_run_that_does_not_exist_is_refused(config):
    with pytest.raises(SkytrainError, match="no run"):
        RunFollower(config, "another").look()


def test_a_terminal_gets_a_table_that_is_redrawn_and_a_file_a_line_for_each_change(config, store, monkeypatch, capsys):
    write_attempt(store, config, 20)
    view, plain = RunFollower(config, RUN).look(), PlainScreen()
    plain.show(view)
    plain.show(replace(view, status=replace(view.status, step=30)))  # too soon for one more line
    plain.show(replace(view, status=replace(view.status, state="stale")))
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["running", "stale"]
    monkeypatch.setattr(sys, "stdout", terminal := io.StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    live = LiveScreen(lambda: [{"step": step, "train/loss": 3.0 - step / 10} for step in range(1, 9)])
    live.show(view)
    live.note("trying the next offer")
    live.close()
    assert "speed     50K tokens/s, MFU 40.0%" in terminal.getvalue()
    assert "losses    2.9000 █▇▆▅▄▃▂▁ 2.2000" in terminal.getvalue()
    assert "Ctrl-C ends this view, not the run" in terminal.getvalue() and "trying the next" in terminal.getvalue()


def test_a_reader_that_goes_ends_the_wait_at_once(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        console.pause(0.01)
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            console.pause(3600)
        monkeypatch.undo()


def test_a_time_before_now_is_refused(config, store, monkeypatch, capsys):
    write_attempt(store, config, 20)
    monkeypatch.setattr(sys, "argv", ["skytrain", "stop", RUN, "--wait", "-5s", f"store.root='{store.local_path('')}'"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "--wait -5s: give a time from now on" in capsys.readouterr().err
    assert not store.exists(f"runs/{RUN}/stop.json")
    for wrong in ("-1", "inf", "nan"):
        with pytest.raises(SkytrainError, match=f"--wait {wrong}"):
            seconds_of("--wait", wrong)
    assert seconds_of("--wait", "0s") == 0.0
