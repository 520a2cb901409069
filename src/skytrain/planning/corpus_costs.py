"""The work of preparing a corpus with Spark, and the options that `plan prepare` compares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .plan_prepare import TEXT_BYTES_PER_VCPU_SECOND, PrepareWork

# benchmarks/corpus/spark_growth.log: from 100 thousand to 1 million documents, (159.3 - 91.36) CPU-seconds for 900
# thousand documents of 40 words; those are de-duplication above all, and their text is counted again below.
CPU_SECONDS_PER_DOCUMENT = 75e-6
SPARK_START_CPU_SECONDS = 84.0  # from the same log: what 100 thousand documents took beyond that
SHUFFLE_BYTES_PER_DOCUMENT = 383.0
SHUFFLE_TIMES = 1.5  # room on the executors' disks: shuffled bytes are not spread evenly
VCPU_OF_A_CORE = 2 / 3  # as for one machine: assumed
BYTES_PER_DOCUMENT = 3000.0  # if the number of documents is not given; assumed


@dataclass(frozen=True)
class CorpusWork:
    """The amount of text, and the number of documents."""

    text_bytes: float
    documents: float
    assumed_documents: bool = False

    @property
    def vcpu_seconds(self) -> float:
        """Return the vCPU seconds that Spark computes, without its start."""
        text = self.text_bytes / TEXT_BYTES_PER_VCPU_SECOND
        return text + self.documents * CPU_SECONDS_PER_DOCUMENT / VCPU_OF_A_CORE

    def disk_gb(self, machines: int) -> int:
        """Return the disk that each of `machines` executors or nodes needs for its share of the shuffled bytes."""
        return math.ceil(SHUFFLE_TIMES * self.documents * SHUFFLE_BYTES_PER_DOCUMENT / machines / 1e9)


@dataclass(frozen=True)
class PreparationOption:
    """One way to prepare a corpus."""

    how: str  # one machine, or the name of a target
    machines: str
    hours: float
    hours_p90: float
    usd: float
    usd_p90: float
    fee_usd: float  # of `usd`, what the service takes besides the machines
    words: tuple[str, ...]  # arguments of `skytrain launch prepare`


def corpus_work(work: PrepareWork, documents: float | None) -> CorpusWork:
    """Return the work; without a number of documents, 3000 bytes each are assumed."""
    return CorpusWork(work.text_bytes, documents or work.text_bytes / BYTES_PER_DOCUMENT, documents is None)


def rank_options(options: Iterable[PreparationOption], deadline_hours: float) -> list[PreparationOption]:
    """Return the options, cheapest first; those that may take longer than the deadline last."""
    return sorted(
        options, key=lambda option: (option.hours_p90 > deadline_hours * 1.01, round(option.usd, 2), option.hours)
    )
