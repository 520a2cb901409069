"""DeepSpeed's presets: what a rank holds, how a run goes on, what is converted, and what is refused. Equality with one
process is in test_equivalence.py."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks.parallel import deepspeed_memory
from benchmarks.parallel.deepspeed_memory import PRESETS, TOLERANCE, expected, sizes
from benchmarks.parallel.processes import run_ranks

from skytrain.checkpoints import (
    CheckpointError,
    convert_deepspeed,
    convert_newest,
    deepspeed,
    load_model,
    open_checkpoint,
    open_deepspeed,
    open_weights,
    read_file,
    step_key,
)
from skytrain.checkpoints.errors import DamagedCheckpoint
from skytrain.config import ConfigError, MissingExtra, SkytrainError, compose, resolve_mesh
from skytrain.parallel import check_deepspeed, deepspeed_setup, zero_settings
from skytrain.parallel.deepspeed_setup import compiling, engine_config, load_operation
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from skytrain.storage import Store, open_store
from tests.parallel import deepspeed_workers
from tests.parallel.workers import losses
from tests.support.tiny import TINY, tiny_config

OPTIONS = ("trainer.batch_tokens=256", "trainer.micro_batch=2", "trainer.device=cpu", "trainer.validate_every=null")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A store with a run in it that one device has trained."""
    root = tmp_path_factory.mktemp("store")
    prepare(tiny_config(root), Silent())
    train(tiny_config(root, "run=never", "trainer.stop_at_step=10", *OPTIONS), Silent())
    return root


@pytest.fixture(scope="module")
def two_ranks(root) -> list:
    return run_ranks(2, deepspeed_workers.everything, root, OPTIONS)


@pytest.fixture
def store(root, two_ranks) -> Store:
    return open_store(str(root))


def check_memory(everyone: list[dict[str, dict[str, int]]]) -> None:
    elements = sizes()
    for preset in PRESETS:
        promised = expected(preset, len(everyone), elements)
        for rank in everyone:
            held = max(rank[preset].values())
            assert promised * (1 - TOLERANCE) <= held <= promised * (1 + TOLERANCE), (preset, held / promised)


def test_two_ranks_hold_what_zero_promises(two_ranks):
    check_memory([rank["memory"] for rank in two_ranks])


@pytest.mark.slow
def test_four_ranks_hold_what_zero_promises():
    check_memory(run_ranks(4, deepspeed_memory.measure_all, PRESETS))


@pytest.mark.parametrize("preset", PRESETS[1:])
def test_a_run_with_dropout_continues_bit_for_bit(two_ranks, preset):
    whole, stopped = two_ranks[0]["same"][preset]
    assert len(whole) == 5
    assert stopped == whole


def test_what_cannot_continue_a_deepspeed_checkpoint_is_told_to_convert_it(two_ranks):
    for refusal in ("to another mesh", "to another stage"):
        assert "skytrain checkpoints convert" in two_ranks[0][refusal]
    assert "ZeRO-2 on 2 ranks, float32; this run is ZeRO-3" in two_ranks[0]["to another stage"]


def test_converted_checkpoints_continue_on_every_mode_with_the_losses_of_one_process(root, two_ranks):
    """ZeRO-1, ZeRO-3, ZeRO-2, FSDP over two ranks, and at last one process alone."""
    train(tiny_config(root, "run=changing", "trainer.stop_at_step=10", *OPTIONS), Silent())
    changed = losses(root, "changing")
    assert len(changed) == 10
    assert changed == pytest.approx(losses(root, "never"), abs=5e-6)


def test_a_deepspeed_checkpoint_is_converted_where_deepspeed_is_not_installed(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # importing it fails
    convert_deepspeed(store, step_key("deepspeed-zero3-whole", 5), "elsewhere/converted")
    names = open_checkpoint(store, "elsewhere/converted").tensors.described()
    assert "model/embedding.tokens.weight" in names and "model/head.projection.weight" not in names  # tied: once
    assert "optimizer/0/blocks.0.mlp.up.weight/exp_avg_sq" in names


@pytest.mark.parametrize("run", ["deepspeed-zero2-whole", "deepspeed-zero3-whole"])
def test_the_weights_of_a_deepspeed_run_are_read_as_they_are_converted_once_and_the_store_is_not_changed(
    store, run, monkeypatch, tmp_path
):
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    before = [(stat.key, stat.etag) for stat in store.list()]
    key = step_key(run, 5)
    read = open_weights(store, key).model.read()
    loaded = load_model(store, f"{run}@5").model.state_dict()
    assert [(stat.key, stat.etag) for stat in store.list()] == before
    convert_deepspeed(store, key, f"elsewhere/{run}")
    converted = open_checkpoint(store, f"elsewhere/{run}").model.read()
    assert read.keys() == converted.keys()
    for name, value in converted.items():
        assert torch.equal(value, read[name]) and torch.equal(value, loaded[name]), name
    monkeypatch.setattr(deepspeed, "_convert_weights", None)  # once more would fail
    assert open_weights(store, key).commit == open_deepspeed(store, key).saved.commit


def test_a_disk_that_is_too_small_for_a_conversion_is_said_before_anything_is_fetched(store, monkeypatch, tmp_path):
    monkeypatch.setenv("SKYTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(deepspeed.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match="SKYTRAIN_CACHE"):
        open_weights(store, step_key("deepspeed-zero3-whole", 5))


def test_a_converted_checkpoint_is_loaded_to_be_used(store):
    assert convert_newest(store, "deepspeed-zero2-whole") == 5
    loaded = load_model(store, "deepspeed-zero2-whole@5")
    assert loaded.label == "deepspeed-zero2-whole@5"
    with pytest.raises(CheckpointError, match="Skytrain's format already"):
        convert_newest(store, "deepspeed-zero2-whole")


def test_an_altered_file_of_deepspeeds_is_not_read(store, root):
    key = step_key("deepspeed-zero3-stopped", 5)
    opened = open_deepspeed(store, key)
    assert opened is not None
    name = next(name for name in opened.files if "optim_states" in name)
    path = root / opened.saved.tensors.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SkytrainError, match=r"sha256|altered|differ"):
        convert_deepspeed(store, key, "elsewhere/altered")


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_code_in_a_file_of_deepspeeds_is_not_run(tmp_path):
    for number, data in enumerate(({"module": Malicious(tmp_path / "run")}, Malicious(tmp_path / "run"))):
        path = tmp_path / f"{number}.pt"
        torch.save(data, path)
        with pytest.raises(DamagedCheckpoint, match="was not read"):
            read_file(path)
        path.write_bytes(pickle.dumps(data))
        with pytest.raises(DamagedCheckpoint, match="was not read"):
            read_file(path)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_deepspeed_trains_in_a_single_process_too(root):
    command = [sys.executable, "-m", "skytrain", "train", *TINY, *OPTIONS, f"store.root={root}", "run=alone"]
    command += ["parallel=deepspeed-zero2", "trainer.steps=3", "trainer.precision=bf16-mixed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "alone: trained at step 3/3" in done.stdout
    assert "DeepSpeed" not in done.stdout + done.stderr  # it is talkative
    assert losses(root, "alone") == pytest.approx(losses(root, "never")[:3], abs=1e-2)


EVERY = (*PRESETS, "deepspeed-zero3-offload")


@pytest.fixture(scope="module")
def more(root) -> dict:
    return run_ranks(2, deepspeed_workers.more, root, OPTIONS, EVERY)[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("preset", EVERY)
def test_every_preset_continues_bit_for_bit_in_either_precision_and_is_converted(more, root, preset, precision):
    whole, stopped = more[precision][preset]
    assert stopped == whole
    run, lowered = (f"bf16-{preset}-stopped", "bf16-mixed") if precision == "bf16" else (f"{preset}-stopped", "32-true")
    assert convert_newest(open_store(str(root)), run) == 5
    train(
        tiny_config(root, f"run={run}", "trainer.stop_at_step=10", f"trainer.precision={lowered}", *OPTIONS), Silent()
    )
    assert losses(root, run) == pytest.approx(losses(root, "never"), abs=2e-2 if precision == "bf16" else 2e-4)


# DeepSpeed leaves what is smaller than a megabyte in memory.
LARGE = ("model.layers=1", "model.width=512", "model.heads=8", "trainer.batch_tokens=128")


@pytest.mark.slow
def test_a_run_offloaded_to_a_disk_is_that_offloaded_to_memory_and_is_stopped_continued_and_converted(root, tmp_path):
    try:
        check_deepspeed(config("parallel=deepspeed-zero3-offload", f"parallel.offload_folder={tmp_path}"), "cpu")
    except SkytrainError as error:
        if "libaio" not in str(error):
            raise
        pytest.skip(str(error))
    found = run_ranks(2, deepspeed_workers.to_disk, root, (*OPTIONS, *LARGE), tmp_path)[0]
    assert sum(path.stat().st_size for path in tmp_path.rglob("exp_avg-*.swp")) > 10e6  # it was there
    for precision, (memory, *others) in found.items():
        assert len(memory) == 3
        for losses_on_disk in others:
            assert losses_on_disk == pytest.approx(memory, abs=2e-4), precision
        run = f"disk-{precision}-deepspeed-zero3-offload-stopped"
        assert convert_newest(open_store(str(root)), run) == 3
        alone = f"{precision}-alone"
        for name in (run, alone):
            given = (f"run={name}", "trainer.stop_at_step=5", f"trainer.precision={precision}")
            train(tiny_config(root, *OPTIONS, *LARGE, *given), Silent())
        close = 2e-4 if precision == "32-true" else 2e-2
        assert losses(root, run) == pytest.approx(losses(root, alone), abs=close)


def skytrain(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "skytrain", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_command_line_saves_continues_and_converts_deepspeeds_checkpoints_in_a_bucket(s3_store):
    prepare(tiny_config(s3_store.root), Silent())
    place = f"store.root={s3_store.root}"
    words = [*TINY, *OPTIONS, place, "trainer.steps=8"]
    zero = ["parallel=deepspeed-zero3", "--processes", "2"]
    skytrain("train", *words, "run=whole", "trainer.stop_at_step=5", *zero)
    skytrain("train", *words, "run=parts", "trainer.stop_at_step=3", *zero)
    skytrain("train", *words, "run=parts", "trainer.stop_at_step=5", *zero)
    whole, parts = losses(s3_store.root, "whole"), losses(s3_store.root, "parts")
    assert len(whole) == 5 and parts == whole
    skytrain("checkpoints", "convert", "parts", place)
    assert open_deepspeed(s3_store, step_key("parts", 5)) is None
    skytrain("train", *words, "run=parts")
    skytrain("train", *words, "run=alone")
    assert losses(s3_store.root, "parts") == pytest.approx(losses(s3_store.root, "alone"), abs=5e-6)


def config(*overrides: str):
    return compose([*TINY, "trainer.device=cpu", *overrides]).config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("parallel=deepspeed-zero2", "parallel.tensor=2"), "only divides state among all ranks"),
        (("parallel=deepspeed-zero3", "parallel.pipeline=2"), "only divides state among all ranks"),
        (("parallel=fsdp", "parallel.offload_folder=/tmp"), "try parallel=deepspeed-zero3-offload"),
        (("parallel=deepspeed-zero3", "parallel.offload_folder=/tmp"), "try parallel=deepspeed-zero3-offload"),
        (("parallel=deepspeed-zero1", "trainer.precision=16-mixed"), "try trainer.precision=bf16-mixed"),
        (("parallel=deepspeed-zero1", "trainer.precision=bf16-true"), "try trainer.precision=bf16-mixed"),
        (("parallel=deepspeed-zero1", "optimizer=muon"), "'muon' needs whole matrices"),
        (("parallel=deepspeed-zero3-offload", "optimizer=lion"), "offloads AdamW only"),
        (("parallel=deepspeed-zero2", "trainer.spike_zscore=5"), "too late"),
        (("parallel=deepspeed-zero2", "trainer.compile=true"), "compile"),
        (
            ("parallel=deepspeed-zero2", "parallel.cpu_offload=true", "parallel.offload_folder=/tmp"),
            "keeps state on a disk",
        ),
    ],
)
def test_settings_that_deepspeed_cannot_serve_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        resolve_mesh(config(*overrides), 4)


def test_a_folder_that_cannot_be_written_to_is_refused():
    settings = config("parallel=deepspeed-zero3-offload", "parallel.offload_folder=/no/such")
    with pytest.raises(ConfigError, match="is not a writable folder"):
        check_deepspeed(settings, "cpu")


def test_a_missing_deepspeed_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(deepspeed_setup.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'skytrain\[deepspeed\]'"):
        check_deepspeed(config("parallel=deepspeed-zero1"), "cpu")


def test_offload_without_a_compiler_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SkytrainError, match=r"C\+\+ compiler 'no-such-compiler' is missing\n  install one"):
        check_deepspeed(config("parallel=deepspeed-zero3-offload"), "cpu")


def test_offload_to_a_disk_without_libaio_is_said_with_what_to_install(monkeypatch, tmp_path):
    from deepspeed.ops.op_builder import AsyncIOBuilder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda self, verbose: False)
    with pytest.raises(SkytrainError, match="apt-get install libaio-dev"):
        check_deepspeed(config("parallel=deepspeed-zero3-offload", f"parallel.offload_folder={tmp_path}"), "cpu")


def test_an_operation_that_does_not_compile_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")  # a compiler that fails
    with pytest.raises(
        SkytrainError, match=r"DeepSpeed's cpu_adam cannot be compiled here: .*'false'.*\n  .*ds_report"
    ):
        load_operation("CPUAdamBuilder")


def test_a_lock_that_a_killed_compilation_left_is_taken_away(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = deepspeed_setup.operations_folder() / "cpu_adam" / "lock"
    left.parent.mkdir(parents=True)
    left.touch()
    with compiling():
        assert not left.exists()
        assert os.environ["TORCH_EXTENSIONS_DIR"] == str(left.parents[1])


def test_buffers_are_as_large_as_a_block():
    settings = zero_settings(config("parallel=deepspeed-zero3-offload", "parallel.offload_folder=/nvme"), "cuda")
    zero = engine_config(settings, block_elements=1001, vector_elements=64)["zero_optimization"]
    assert zero["allgather_bucket_size"] == 1002  # even, as DeepSpeed wants it
    assert zero["stage3_max_live_parameters"] == 1002
    assert zero["offload_param"]["device"] == "nvme" and zero["offload_optimizer"]["nvme_path"] == "/nvme"
