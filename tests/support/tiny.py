"""The smallest real run: a two-layer model on synthetic bytes, for tests of whole stories."""

from __future__ import annotations

from pathlib import Path

from skytrain.config import Config, compose

TINY = (
    "data=synthetic",
    "data.source.tokens=20K",
    "data.source.document_tokens=200",
    "tokenizer=bytes",
    "model=gpt2-tiny",
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "model.max_length=64",
    "trainer.sequence_length=32",
    "trainer.precision=32-true",
    "trainer.micro_batch=4",
    "trainer.batch_tokens=256",
    "trainer.steps=20",
    "trainer.validate_every=10",
    "trainer.validate_tokens=512",
    "trainer.checkpoint_every=null",
    "trainer.loggers=[]",
    "lr_schedule.warmup_steps=3",
    "optimizer.lr=3e-3",
)


# One layer for tests of a single part.
ONE_LAYER = (
    "model=gpt2-tiny",
    "tokenizer=bytes",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.max_length=16",
    "trainer.sequence_length=8",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=32",
    "trainer.device=cpu",
    "trainer.precision=32-true",
    "lr_schedule.warmup_steps=0",
)


def tiny_config(root: Path | str, *overrides: str) -> Config:
    return compose([*TINY, f"store.root='{root}'", *overrides]).config
