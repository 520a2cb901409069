"""The learning-rate homework, from an empty folder to its plots: the commands of docs/homework.md, tiny."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.questions import write_records

from .shell import Shell

DATA = (
    "data=text",
    "data.source.paths=corpus.txt",
    "data.source.separator='<|endoftext|>'",
    "data.target_tokens=null",
    "data.validation_fraction=0.1",
    "tokenizer=bytes",
)
SIZE = (
    *("model=gpt2-tiny", "model.layers=2", "model.width=32", "model.heads=2", "model.max_length=256"),
    *("trainer.sequence_length=128", "trainer.micro_batch=2", "trainer.batch_tokens=512", "trainer.steps=24"),
    *("trainer.validate_every=8", "trainer.validate_tokens=512", "trainer.checkpoint_every=null"),
    *("trainer.precision=32-true", "trainer.loggers=[]", "lr_schedule.warmup_steps=3"),
    *("evaluation.every=12", "evaluation.limit=6"),
)
# A tenth of a cent a second, whatever the machine does: what is bought does not depend on how busy it is.
SEARCH = ("tune.instance=null", "tune.usd_per_hour=3.6", "budget.usd=20", "tune.expected=0.01", "tune.shortest=2")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    lines = [f"Line {n}: the quick brown fox jumps over the lazy dog, {n * n} times." for n in range(3000)]
    texts = ["\n".join(lines[start : start + 15]) for start in range(0, len(lines), 15)]
    (tmp_path / "corpus.txt").write_text("\n<|endoftext|>\n".join(texts))
    return Shell(tmp_path)


@pytest.mark.slow
def test_every_part_of_the_homework_ends_with_its_table_or_plot(shell: Shell, tmp_path: Path) -> None:
    items = write_records(tmp_path, "hellaswag", 12)
    settings = (*DATA, *SIZE, f"evaluation.data.hellaswag={items.name}")
    shell.run("prepare", "recipe=gpt2-124m-fineweb", *settings)

    ladder = ("tune.sizes=[1x16]", "tune.horizons=[0.25]")
    measured = shell.run(
        *("plan", "recipe=tune-hw5", *settings, *SEARCH, *ladder),
        *("--measure", "--steps", "20", "budget.usd_per_hour=1.5"),
    ).stderr
    assert re.search(r"20 steps: first \d+ ms, median \d+ ms, worst of the warm ones \d+ ms", measured)
    assert re.search(r"the whole run at its worst: 24 steps, .*\$\d+\.\d+ at \$1\.5 an hour", measured)
    assert re.search(r"the search at its worst: \d+ trials, .*\$\d+\.\d+ of \$20\.00", measured)

    parts = {
        "sizes": ("tune.sizes=[1x16,1x32]", "tune.steps=[8]", "tune.trials_per_rung=3"),
        "horizons": ("tune.steps=[4,8]", "tune.trials_per_rung=3"),
        "hyperband": ("tune.steps=[2,6]",),
    }
    for name, its_own in parts.items():
        words = (f"recipe=tune-hw5-{name}", *settings, *SEARCH, *its_own, f"tune.name={name}")
        planned = shell.run("tune", *words, "--dry-run").stdout
        answer = shell.run("tune", *words).stdout
        assert re.search(r"optimizer\.lr=\S+", answer), answer
        assert (tmp_path / f"skytrain-store/sweeps/{name}/report/report.html").exists()
        if name == "hyperband":
            assert "Hyperband's table over 2, 6 steps (eta 3)" in planned
        else:  # the projections side by side
            assert all(curve in answer for curve in ("power", "linear", "exponential")), answer
    shell.run("report", "sizes", "--out", "sizes.html")
    assert "sizes" in shell.run("tune", "compare", "sizes", "horizons").stdout

    for run, rate in (("final", "1e-2"), ("low", "1e-3")):
        shell.run("train", "recipe=gpt2-124m-fineweb", *settings, f"optimizer.lr={rate}", f"run={run}")
    for metric, file in (("val/loss", "loss.png"), ("eval/hellaswag/harness_acc_norm", "hellaswag.png")):
        drawn = shell.run("plot", "final", "low", "--metric", metric, "--out", file)
        assert "warning" not in drawn.stderr
        assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")
    shell.run("report", "final", "low", "--out", "compare.html")

    shell.run("export", "--from", "final", "--to", "llm.c", "--out", "model.bin")
    said = shell.run("generate", "--from", "model.bin", "--prompt", "Line", "--max-tokens", "8", *DATA[-1:])
    assert said.stdout.startswith("Line")
