"""Quickstart: the whole pipeline at a small size, offline."""

from __future__ import annotations

from pathlib import Path

from ..config import Config
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


def quickstart(config: Config, reporter: Reporter) -> str:
    """Run the whole path; return a summary of what was made, where it is, and what to try next."""
    reporter.note("1/5 prepare: text -> documents -> tokens")
    prepared = prepare(config, reporter)
    reporter.note("\n2/5 train")
    trained = train(config, reporter)
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
    return f"""
The whole pipeline works on this machine.
  tokens      {prepared.folder}: {prepared.train.tokens} to train on
  run         {trained.url}: {trained.step} steps
  validation  loss {report.loss:.3f}, perplexity {report.perplexity:.1f}, {report.bits_per_byte:.3f} bits per byte
  sample      {_one_line(text)}
  export      {folder}: AutoModelForCausalLM.from_pretrained loads it

Try next:
  skytrain generate --prompt "{PROMPT}"
  skytrain train recipe=quickstart trainer.steps=5000
  skytrain prepare data=text data.source.paths='my/*.txt' tokenizer=bpe-4k
  skytrain config show recipe=quickstart
  tensorboard --logdir {trained.url.removeprefix("file://")}/tensorboard"""


def _one_line(text: str, length: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[:length].rpartition(' ')[0]} ..."
