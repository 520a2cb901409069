"""The whole job as one command: prepare, train, evaluate, export and report, with an interruption in each of them."""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

from skytrain.checkpoints import load_model
from skytrain.config import compose
from skytrain.runs import pipeline_ledger, read_metrics, read_pipeline
from skytrain.storage import Store, open_store
from skytrain.targets.jobs import job_name

from .checks import COMPARED, check_nothing_left
from .hypervisor import Life
from .laptop import RANKS, SETTINGS, Wanted
from .world import PATIENCE_SECONDS, RehearsalFailed, RehearsedRun, World

RUN = "pipeline"
WORDS = ("river", "stone", "slowly", "under", "lamp", "cut", "once", "fine")
STEPS = 40
ITEMS = 200
LOST_AT_STEP = 15
QUICK_SECONDS = 0.02
MOST_SHARE = 0.02  # by which the ledger may differ from the hypervisor's own count
DATA = ("data.source.tokens=3M", "data.workers=1", f"trainer.steps={STEPS}")
NOT_COMPARED = "README.md"  # the model card has the seconds that training took


def pipeline(world: World) -> None:
    """One command from text to the page of a model, interrupted in each of five stages; compared with the verbs by hand."""
    world.store.write("inputs/hellaswag.jsonl", questions())
    tasks = ("evaluation.tasks=[hellaswag]", f"evaluation.data.hellaswag={world.laptop.root}/inputs/hellaswag.jsonl")
    wanted = Wanted(RUN, settings=(*DATA, *tasks, "budget.usd=40"))
    words = world.laptop.launch_words(wanted, "pipeline")
    dry = world.laptop.upload_bundles(words)
    for line in dry.splitlines():
        world.say(f"  dry run: {line.strip()}")
    run = RehearsedRun(world, wanted)
    run.process = world.laptop.start(*words, "--yes", "--follow", log=run.log)
    preparing = job_name(compose([*SETTINGS, *DATA]).config, "prepare")
    lose_in_prepare(run, preparing)
    lose_in_training(run)
    for what, line, marker in (
        ("evaluate", r"^evaluate \S+ on hellaswag$", "scores/hellaswag.json"),
        ("export", r"^export \S+$", "export.json"),
        ("report", r"^report \S+$", "report.json"),
    ):
        lose_in_finish(run, what, line, f"runs/{RUN}/finish/step-{STEPS:09d}/{marker}")
    process = run.process
    run.until(lambda: process.poll() is not None, "the terminal ends", 2 * PATIENCE_SECONDS)
    if process.returncode != 0:
        raise RehearsalFailed(f"the terminal ended with {process.returncode}\n{run.consoles()}")
    run.wait_until_nothing_is_left()
    by_hand = verbs_by_hand(world, tasks)
    for check in (check_same_tokens, check_same_training, check_same_results):
        world.say(f"  {check(world, by_hand)}")
    world.say(f"  {check_ledger(run, preparing)}")
    world.say(f"  {check_nothing_left(run)}")
    again = world.laptop.command(*words, "--yes", check=False)
    if again.returncode == 0 or "everything is done" not in again.stderr:
        raise RehearsalFailed(f"the same command once more: {again.returncode}\n{again.stdout}{again.stderr}")
    world.say("  the same command once more: everything is done")


def questions() -> bytes:
    """Made questions in HellaSwag's format, short enough for a model that sees 64 bytes."""
    made = random.Random(0)
    items = [
        {
            "ind": number,
            "activity_label": "x",
            "ctx_a": made.choice(WORDS),
            "ctx_b": "",
            "ctx": made.choice(WORDS),
            "endings": [" ".join(made.choices(WORDS, k=2)) for _ in range(4)],
            "label": str(made.randrange(4)),
        }
        for number in range(ITEMS)
    ]
    return "".join(json.dumps(item) + "\n" for item in items).encode()


def lives_of(run: RehearsedRun, name: str) -> list[Life]:
    """All machines of a stage so far."""
    groups = re.compile(rf"-{re.escape(name)}-\d{{5}}-\d+")
    return [life for life in list(run.world.hypervisor.lives.values()) if groups.search(life.group)]


def quickly(run: RehearsedRun, done: Callable[[], Life | None], what: str) -> Life:
    """Wait as `until` does, and look more often: a stage of a tiny model takes a second."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := done()) is None:
        if run.process is not None and run.process.poll() is not None:
            raise RehearsalFailed(f"{what}: the terminal has ended\n{run.consoles()}")
        if time.monotonic() > deadline:
            raise RehearsalFailed(f"{what}: not within {PATIENCE_SECONDS:.0f} s\n{run.consoles()}")
        time.sleep(QUICK_SECONDS)
    return found


def lose(run: RehearsedRun, life: Life, stage: str, more: str) -> None:
    run.world.hypervisor.lose(life, "was lost")
    run.world.say(f"  {life.facts.id} is lost in stage {stage}: {more}")


def lose_in_prepare(run: RehearsedRun, name: str) -> None:
    folders = tuple(f"{kind}/synthetic/" for kind in ("corpora", "tokens"))
    before = {stat.key for folder in folders for stat in run.store.list(folder)}

    def written() -> Life | None:
        new = [stat.key for folder in folders for stat in run.store.list(folder) if stat.key not in before]
        at_work = [life for life in lives_of(run, name) if life.host.is_on]
        return at_work[0] if new and at_work else None

    life = quickly(run, written, "parts of the data are in the store")
    parts = sum(len(run.store.list(folder)) for folder in folders) - len(before)
    lose(run, life, "prepare", f"{parts} of its objects were in the store")


def lose_in_training(run: RehearsedRun) -> None:
    run.until(lambda: run.step() >= LOST_AT_STEP and run.is_training(), f"step {LOST_AT_STEP}")
    life = run.of_generation()[1]
    lose(run, life, "train", f"step {run.step()} of {STEPS}")


def lose_in_finish(run: RehearsedRun, what: str, line: str, marker: str) -> None:
    """Cut the power as soon as a machine says that it begins with this, and before its result is in the store."""

    def at_it() -> Life | None:
        alive = [life for life in lives_of(run, f"{RUN}-finish") if life.host.is_on and life.ended is None]
        return next((life for life in alive if life.host.printed(line) is not None), None)

    life = quickly(run, at_it, f"a machine begins to {what}")
    run.world.hypervisor.lose(life, "was lost")
    if run.store.exists(marker):
        raise RehearsalFailed(f"{what} was done before its machine was lost")
    run.world.say(f"  {life.facts.id} is lost in stage {what}: {marker} was not written")


def verbs_by_hand(world: World, tasks: tuple[str, ...]) -> Store:
    """Run the same verbs on this machine, one after the other, with a store of their own."""
    root = f"{world.laptop.root}-by-hand"
    settings = [*SETTINGS, *DATA, f"run={RUN}", f"store.root={root}"]
    world.laptop.command("prepare", *settings)
    world.laptop.command("train", *settings, "--processes", str(2 * RANKS))
    scores = world.laptop.command("evaluate", f"store.root={root}", *tasks, "--from", RUN, "--json").stdout
    folder = world.laptop.folder / "by-hand"
    world.laptop.command("export", f"store.root={root}", "--from", RUN, "--out", str(folder))
    world.laptop.command("report", RUN, f"store.root={root}")
    store = open_store(root)
    store.write("scores.json", scores.encode())
    for path in folder.iterdir():
        store.upload(path, f"export/{path.name}")
    return store


def check_same_tokens(world: World, by_hand: Store) -> str:
    """Shards and manifests, byte for byte."""
    theirs = {stat.key: by_hand.read(stat.key) for stat in by_hand.list("tokens/synthetic/")}
    mine = {key: world.store.read(key) if world.store.exists(key) else None for key in theirs}
    different = [key for key in theirs if mine[key] != theirs[key]]
    if different or not theirs:
        raise RehearsalFailed(f"tokens differ from those that were prepared by hand: {different}")
    return f"{len(theirs)} files of tokens and their manifests are byte for byte those of the verbs by hand"


def check_same_training(world: World, by_hand: Store) -> str:
    """Losses, norms and weights, bit for bit."""
    mine, theirs = (
        {(one["step"], name): one[name] for one in read_metrics(store, RUN) for name in COMPARED if name in one}
        for store in (world.store, by_hand)
    )
    if mine != theirs or not mine:
        different = [key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key)]
        raise RehearsalFailed(f"{len(different)} of {len(theirs)} losses and norms differ: {sorted(different)[:5]}")
    weights, others = (load_model(store, f"{RUN}@{STEPS}").model.state_dict() for store in (world.store, by_hand))
    unequal = [name for name, value in others.items() if not torch.equal(weights[name], value)]
    if unequal:
        raise RehearsalFailed(f"weights differ: {unequal}")
    return f"{len(mine)} losses and norms and {len(weights)} weights are bit for bit those of the verbs by hand"


def check_same_results(world: World, by_hand: Store) -> str:
    """Scores and the files of the export; and the page has the scores and the stages."""
    place = f"runs/{RUN}/finish/step-{STEPS:09d}"
    found = json.loads(world.store.read(f"{place}/scores/hellaswag.json"))["tasks"]
    expected = json.loads(by_hand.read("scores.json"))["tasks"]
    if found != expected:
        raise RehearsalFailed(f"scores differ: {found} and {expected}")
    hashes = json.loads(world.store.read(f"{place}/export.json"))["sha256"]
    names = [Path(stat.key).name for stat in by_hand.list("export/")]
    unequal = [
        name
        for name in names
        if name != NOT_COMPARED and hashes.get(name) != hashlib.sha256(by_hand.read(f"export/{name}")).hexdigest()
    ]
    if unequal or sorted(hashes) != sorted(names):
        raise RehearsalFailed(f"files of the export differ: {unequal} of {names}")
    page = world.store.read(f"runs/{RUN}/report.html").decode()
    missing = [text for text in ("Stages of the pipeline", "hellaswag", f"{RUN}-finish") if text not in page]
    if missing:
        raise RehearsalFailed(f"the page lacks {missing}")
    return (
        f"scores of {ITEMS} questions and {len(names)} exported files are those of the verbs by hand; the page has both"
    )


def check_ledger(run: RehearsedRun, preparing: str) -> str:
    """The ledger of the stages against the hypervisor's own count."""
    run.world.laptop.command("costs", RUN, "cloud=ec2")  # asks EC2 when the last machines ended
    record = read_pipeline(run.store, RUN)
    assert record is not None
    costs = pipeline_ledger(run.store, record)
    lives = {"prepare": lives_of(run, preparing), "train": lives_of(run, RUN), "finish": lives_of(run, f"{RUN}-finish")}
    for cost in costs:
        mine = lives[cost.stage.name]
        usd = sum(life.usd for life in mine)
        seconds = sum(life.billed_seconds for life in mine)
        run.world.say(
            f"    {cost.stage.name:<8} {len(mine)} machines, {seconds:.0f} s, ${usd:.4f}; the ledger says "
            f"{cost.machines} machines, {cost.seconds:.0f} s, ${cost.usd:.4f}"
        )
    counted = sum(cost.usd for cost in costs)
    true = sum(life.usd for some in lives.values() for life in some)
    share = counted / true - 1
    if abs(share) > MOST_SHARE:
        raise RehearsalFailed(f"the ledger says ${counted:.4f}, and the machines cost ${true:.4f}: {share:+.1%}")
    machines = sum(len(some) for some in lives.values())
    return f"{machines} machines cost ${true:.4f}; the ledger says ${counted:.4f}: {share:+.1%}"
