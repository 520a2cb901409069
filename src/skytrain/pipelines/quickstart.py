"""Quickstart: the whole pipeline at a small size, offline."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..config import INTERRUPTED, Config
from ..evaluation import Sampling
from ..report import loss_curve
from ..runs import Reporter, read_metrics
from ..storage import open_store
from .evaluate import LossRequest, evaluate
from .export import ExportRequest, export
from .generate import generate
from .prepare import prepare
from .train import train

PROMPT = "Return the"


@dataclass(frozen=True)
class Quickstarted:
    """What the command prints last, and its exit code."""

    summary: str
    exit_code: int = 0


def quickstart(config: Config, reporter: Reporter) -> Quickstarted:
    """Run the whole path; summarize what was made, where it is, and what to try next.

    An interrupted training run ends it: the same command resumes the run, and then evaluates and exports its model.
    """
    reporter.note("1/5 prepare: text -> documents -> tokens")
    prepared = prepare(config, reporter)
    reporter.note("\n2/5 train")
    trained = train(config, reporter)
    if trained.outcome == INTERRUPTED:
        return Quickstarted(trained.summary(), trained.exit_code)
    reporter.note(loss_curve(read_metrics(open_store(config.store), trained.run)))
    reporter.note("\n3/5 evaluate")
    _, report = evaluate(config, LossRequest(trained.run), reporter)
    reporter.note("\n4/5 generate")
    sampling = Sampling(temperature=0.5, top_k=50)
    text = PROMPT + "".join(generate(config, trained.run, PROMPT, sampling, max_tokens=64))
    reporter.note(text)
    reporter.note("\n5/5 export")
    folder = Path(config.store.root.removeprefix("file://")) / "exports" / f"{trained.run}-step{trained.step}"
    if not folder.exists():
        export(config, ExportRequest(trained.run, folder))
    return Quickstarted(f"""
The whole pipeline works on this machine.
  tokens      {prepared.folder}: {prepared.train.tokens} to train on
  run         {trained.url}: {trained.step} steps
  validation  loss {report.loss:.3f}, perplexity {report.perplexity:.1f}, {report.bits_per_byte:.3f} bits per byte
  sample      {_one_line(text)}
  export      {folder}: AutoModelForCausalLM.from_pretrained loads it

Try next:{_activation()}
  skytrain report
  skytrain generate --prompt "{PROMPT}"
  skytrain train recipe=quickstart trainer.steps=5000
  skytrain prepare data=text data.source.paths='my/*.txt' tokenizer=bpe-4k
  skytrain config show recipe=quickstart""")


def _activation() -> str:
    """Return the line that lets a shell find `skytrain`, where it cannot: `make quickstart` activates nothing."""
    script = Path(sys.prefix) / "bin" / "activate"
    return f"\n  source {script}" if shutil.which("skytrain") is None and script.exists() else ""


def _one_line(text: str, length: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[:length].rpartition(' ')[0]} ..."
