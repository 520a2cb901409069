"""Branch-train-merge on two domains of real text: the documentation and the source code of Python itself.

    python benchmarks/merging/btm.py FOLDER > benchmarks/merging/btm.log

A seed is trained on both domains for half of the steps; two experts branch off and train on one domain each; they are
merged. A dense run of equal compute trains on both domains throughout: its steps are those of the seed and of all experts.
FOLDER keeps the store: the same command resumes. Minutes on one core.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch

from skytrain.config import Composed, compose
from skytrain.evaluation import evaluate_loss, place_model
from skytrain.merging import DomainsFile
from skytrain.pipelines.branch import PlannedExpert, branch
from skytrain.pipelines.evaluate import EvaluatedModel, open_held_out, token_limit
from skytrain.pipelines.merge import MergeRequest, merge
from skytrain.pipelines.merge_report import MergeReportRequest, report_merge
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.report import merge_html, merge_table, text_table
from skytrain.runs import Silent
from skytrain.storage import open_store

# an expert ends at step 600, of which the seed trained the first 300
SEED_STEPS = 300
EXPERT_STEPS = 600
DENSE_STEPS = SEED_STEPS + 2 * (EXPERT_STEPS - SEED_STEPS)
HELD_OUT = "16K"  # bytes of each domain
MODEL = (
    "tokenizer=bytes",
    "model=gpt2-tiny",
    "model.layers=2",
    "model.width=128",
    "model.heads=4",
    "model.max_length=128",
    "trainer.sequence_length=128",
    "trainer.micro_batch=8",
    "trainer.batch_tokens=1024",
    "trainer.precision=32-true",
    "trainer.validate_every=null",
    "trainer.checkpoint_every=150",
    "trainer.loggers=[]",
    "optimizer.lr=4e-3",
    "lr_schedule.warmup_steps=30",
)
PACKAGES = ("asyncio", "email", "unittest", "http", "multiprocessing", "logging")
SOURCES = [f"{sysconfig.get_path('stdlib')}/{name}/*.py" for name in PACKAGES]
DOCS = ("data=python-docs",)
CODE = (
    "data=text",
    "data.name=python-code",
    f"data.source.paths=[{','.join(SOURCES)}]",
    "data.validation_fraction=0.1",
)
BOTH = ("loader.mixture=[{from_step: 0, weights: {python-docs: 0.5, python-code: 0.5}}]",)


class Lines(Silent):
    """Prints notes and the ends of stages."""

    def note(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, stage, done, total, detail="", seconds_left=None):
        if done == total or (stage == "train" and done % 50 == 0):
            print(f"{stage} {done:.0f}/{total:.0f} {detail}", flush=True)


def main(folder: Path) -> None:
    began = time.monotonic()
    lines = Lines()

    def composed(words: list[str]) -> Composed:
        return compose([*MODEL, f"store.root='{folder.resolve()}'", *words])

    print(f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for words in (DOCS, CODE):
        prepared = prepare(composed([*words]).config, Silent())
        held_out = prepared.validation.tokens if prepared.validation else 0
        print(f"{words[-1 if words is DOCS else 1]}: {prepared.train.tokens:,} training, {held_out:,} held-out bytes")
    seed = [*DOCS, *BOTH, "run=seed", f"trainer.steps={EXPERT_STEPS}", f"trainer.stop_at_step={SEED_STEPS}"]
    print(train(composed(seed).config, lines).summary())
    domains = DomainsFile(f"seed@{SEED_STEPS}", {"docs": DOCS, "code": CODE}, (f"trainer.steps={EXPERT_STEPS}",))

    def train_one(expert: PlannedExpert) -> int:
        trained = train(expert.config, lines, expert.start)
        print(trained.summary())
        return trained.exit_code

    branch(domains, composed, train_one, lines)
    print(train(composed([*DOCS, *BOTH, "run=dense", f"trainer.steps={DENSE_STEPS}"]).config, lines).summary())
    experts = ("seed-docs", "seed-code")
    for method in ("average", "ties", "task-arithmetic", "slerp"):
        settings = {"ties": {"density": 0.5}, "task-arithmetic": {"scale": 0.5}}.get(method, {})
        request = MergeRequest(experts, method=method, settings=settings)
        print(merge(composed([f"run={method}"]).config, request, Silent()).summary())
    request = MergeReportRequest("average", domains, "dense", points=5, max_tokens=HELD_OUT)
    report = report_merge(composed([*DOCS]).config, request, composed, lines)
    print(
        f"\naverage, {HELD_OUT} held-out bytes of each domain\n{text_table(merge_table(report))}\n"
        + "\n".join(report.verdicts)
    )
    for point in report.path:
        print(f"t {point.t:.2f} | " + " | ".join(f"{name} {loss:.4f}" for name, loss in point.losses.items()))
    (folder / "merge.html").write_text(merge_html(report), encoding="utf-8")
    for method in ("ties", "task-arithmetic", "slerp"):
        print(
            f"{method}: " + " | ".join(f"{name} {loss:.4f}" for name, loss in losses(composed, domains, method).items())
        )
    print(f"\n{time.monotonic() - began:.0f} seconds")


def losses(composed: Callable[[list[str]], Composed], domains: DomainsFile, run: str) -> dict[str, float]:
    """The held-out loss of a run on each domain, on the text of the report."""
    config = composed([]).config
    store = open_store(config.store)
    placed = place_model(config, store, run)
    model = EvaluatedModel(placed.tokenizer, placed.model.window, placed.label, None)
    limit = token_limit(HELD_OUT)
    return {
        name: evaluate_loss(
            placed.model, open_held_out(composed(domains.overrides(name)).config, store, model, "validation", limit)
        ).loss
        for name in domains.experts
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
