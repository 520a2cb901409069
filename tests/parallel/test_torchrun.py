"""The command line under torchrun, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skytrain.pipelines.prepare import prepare
from skytrain.runs import Silent
from tests.support.tiny import TINY, tiny_config

STEPS = ("trainer.steps=4", "trainer.validate_every=2", "trainer.device=cpu", "lr_schedule.warmup_steps=1")


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=settings, check=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("store")
    prepare(tiny_config(root), Silent())
    return root


def test_two_processes_make_one_run_and_speak_with_one_voice(root):
    done = torchrun(
        "-m",
        "skytrain",
        "train",
        *TINY,
        *STEPS,
        f"store.root={root}",
        "run=both",
        "parallel=fsdp",
        "trainer.micro_batch=2",
        "trainer.precision=auto",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cpu, 32-true") == 1
    assert done.stdout.count("both: trained at step 4/4") == 1
    assert done.stderr.count("step 4/4 |") == 1
    assert done.stderr.count("validation loss") == 2
    assert [path.name for path in (root / "runs/both/attempts").iterdir()] == ["0"]
    assert json.loads((root / "runs/both/attempts/0/outcome.json").read_text())["outcome"] == "done"


def test_a_mesh_that_does_not_fit_is_said_once_and_ends_every_rank(root):
    done = torchrun("-m", "skytrain", "train", *TINY, *STEPS, f"store.root={root}", "parallel=tp", "model.heads=1")
    assert done.returncode != 0
    assert done.stderr.count("error: parallel.tensor: model.heads, which is 1, does not divide among 2 ranks") == 1
    assert "exitcode  : 2" in done.stderr


def test_when_a_rank_dies_the_others_say_so_and_stop(root, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, sys\n"
        "from skytrain.training.random_state import RandomState\n"
        "def die(self, trainer, module, step):\n"
        "    if step == 2 and os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "RandomState.on_train_batch_end = lambda self, trainer, module, *_: die(self, trainer, module, trainer.global_step)\n"
        "from skytrain.cli.main import main\n"
        "main()\n"
    )
    done = torchrun(
        str(script), "train", *TINY, *STEPS, f"store.root={root}", "run=dies", "parallel=fsdp", "trainer.micro_batch=2"
    )
    assert done.returncode != 0
    said = done.stderr.partition("rank 1 (")
    assert " is gone, and rank 0 (" in said[2]
    assert "was last seen at step " in said[2]
    assert "Traceback" not in said[0]
