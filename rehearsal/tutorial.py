"""The tutorial of two spot machines (docs/tutorials/gpt2-150-dollars.md), command by command, with a tiny model."""

from __future__ import annotations

import json
import math
import re
import sys

from skytrain.runs import read_metrics

from .checks import check_generations, check_nothing_left, check_spend
from .interruptions import NOTICE_SECONDS, notice
from .laptop import Wanted
from .pipeline import questions
from .world import RehearsalFailed, RehearsedRun, World

STEPS = 30
NOTICE_AT_STEP = 10
CLOSE = 1e-3  # nats between the loss in training and that of the exported model
SIZE = (
    *("data=text", "data.source.separator='<|endoftext|>'", "data.min_chars=1", "data.target_tokens=null"),
    *("data.validation_fraction=0.1", "tokenizer=bytes"),
    *("model=gpt2-tiny", "model.layers=2", "model.width=32", "model.heads=4", "model.max_length=64"),
    *("trainer.sequence_length=64", "trainer.batch_tokens=512", "trainer.micro_batch=1", "trainer.tokens=null"),
    *(f"trainer.steps={STEPS}", "trainer.validate_every=10", "trainer.checkpoint_every=5", "trainer.loggers=[]"),
    *("trainer.precision=32-true", "trainer.compile=false", "lr_schedule.warmup_steps=3", "optimizer.lr=3e-3"),
)
MACHINES = ("--instance", "g5.12xlarge", "--nodes", "2", "--market", "spot", "--mesh", "shard=2,tensor=4")


def tutorial(world: World) -> None:
    """The tutorial of two spot machines, from its plan to its clean-up; one machine gets a notice."""
    laptop = world.laptop
    texts = [f"Line {number}: the quick brown fox jumps over the lazy dog." for number in range(400)]
    world.store.write("inputs/corpus.txt", "\n<|endoftext|>\n".join(texts).encode())
    world.store.write("inputs/hellaswag.jsonl", questions())
    settings = ("recipe=gpt2-124m-pile", f"data.source.paths={laptop.root}/inputs/*.txt", *SIZE)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    image = (f"cloud.python={laptop.image}", f"cloud.python_version='{version}'")

    laptop.command("plan", *settings, "budget.usd=150", "--region", "us-east-2", *MACHINES, "--out", "plan.json")
    prepared = launch(world, "prepare", "launch", "prepare", *settings, "cloud=ec2", "budget.usd=20", *image)
    prepared.until(lambda: prepared.process and prepared.process.poll() is not None, "the data is prepared")
    ends_well(prepared)
    prepared.wait_until_nothing_is_left()
    doctor = laptop.command("doctor", "--plan", "plan.json", "cloud=ec2", *image, check=False)
    world.say(f"  doctor: {doctor.stdout.strip().splitlines()[-1]}")

    run = launch(world, "train", "launch", "train", "--plan", "plan.json", "cloud=ec2", *image)
    run.until(lambda: run.step() >= NOTICE_AT_STEP and run.is_training(), f"step {NOTICE_AT_STEP}")
    world.say(f"  a notice at step {run.step()}: {notice(run, 1, NOTICE_SECONDS)}")
    run.until(lambda: run.process and run.process.poll() is not None, "the terminal ends")
    ends_well(run)
    run.wait_until_nothing_is_left()
    for check in (check_generations, check_spend, check_nothing_left):
        world.say(f"  {check(run)}")
    if len(run.lives) != 3:
        raise RehearsalFailed(f"{len(run.lives)} machines were rented, not two and a replacement")
    world.say(f"  {check_model(run)}")
    world.say(f"  {check_pages(run)}")


def launch(world: World, name: str, *words: str) -> RehearsedRun:
    """Start a launch and follow it; return its run, by the name that the launch gave it."""
    world.laptop.upload_bundles(words)
    log = world.folder / f"tutorial-{name}.log"
    process = world.laptop.start(*words, "--yes", "--follow", log=log)
    first = RehearsedRun(world, Wanted(f"tutorial-{name}"))
    first.process = process
    told = r"^launched (\S+)"
    first.until(lambda: process.poll() is not None or re.search(told, log.read_text(), re.MULTILINE), "the launch")
    found = re.search(told, log.read_text(), re.MULTILINE)
    if found is None:
        raise RehearsalFailed(f"nothing was launched:\n{log.read_text()}")
    run = RehearsedRun(world, Wanted(found[1].rstrip(":,")))
    run.process, run.log = process, log
    return run


def ends_well(run: RehearsedRun) -> None:
    assert run.process is not None
    if run.process.returncode:
        raise RehearsalFailed(f"{run.run}: the terminal ended with {run.process.returncode}\n{run.consoles()}")


def check_model(run: RehearsedRun) -> str:
    """Evaluate the run and its export: they have the loss that training measured, and the export speaks."""
    laptop = run.world.laptop
    items = f"evaluation.data.hellaswag={laptop.root}/inputs/hellaswag.jsonl"
    scored = laptop.command("evaluate", "--from", run.run, "tasks=[hellaswag]", items, "cloud=aws").stdout
    laptop.command("export", "--from", run.run, "--to", "hf", "--out", "gpt2-mine", "cloud=aws")
    [trained] = [
        one["val/loss"] for one in read_metrics(run.store, run.run) if one["step"] == STEPS and "val/loss" in one
    ]
    loss = json.loads(laptop.command("evaluate", "--from", run.run, "cloud=aws", "--json").stdout)["loss"]
    said = laptop.command("generate", "--from", "gpt2-mine", "--prompt", "Line 7", "--max-tokens", "8").stdout
    if not said.startswith("Line 7") or "hellaswag" not in scored:
        raise RehearsalFailed(f"the exported model says {said!r}, and evaluate {scored!r}")
    if not math.isclose(loss, trained, abs_tol=CLOSE):
        raise RehearsalFailed(f"the loss in training was {trained}, and evaluate says {loss}")
    return f"loss {trained:.4f} in training and {loss:.4f} by evaluate; the export says {said.strip()!r}"


def check_pages(run: RehearsedRun) -> str:
    """Look at the run as the tutorial does, at its status, page and costs; `gc` then removes the last it has left."""
    laptop = run.world.laptop
    status = laptop.command("status", run.run, "cloud=aws").stdout
    laptop.command("report", run.run, "cloud=aws")
    costs = laptop.command("costs", run.run, "cloud=aws").stdout
    laptop.command("gc", "--delete", "--yes", "cloud=aws")
    found = re.search(r"^all .* ([\d.]+)$", costs, re.MULTILINE)
    if f"{STEPS}/{STEPS}" not in status or found is None or not run.store.exists(f"runs/{run.run}/report.html"):
        raise RehearsalFailed(f"status and costs say:\n{status}\n{costs}")
    if left := run.world.account.roles():
        raise RehearsalFailed(f"gc has left the roles {left}")
    return f"costs says ${found[1]}; the page is in the store, and gc has removed the roles"
