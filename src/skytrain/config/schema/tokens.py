"""From a corpus to batches: the tokenizer, and how tokens are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from .kinds import Bytes, Positive, Range, Seconds, Whole


@dataclass(frozen=True)
class GPT2TokenizerConfig:
    kind: Literal["gpt2"]
    name: str
    vocab_size: Positive


@dataclass(frozen=True)
class BPETokenizerConfig:
    """A byte-level BPE trained on a sample of the corpus."""

    kind: Literal["bpe"]
    name: str
    vocab_size: Annotated[int, Range(min=257)]  # 256 bytes and the end of text
    sample_bytes: Bytes


TokenizerConfig = GPT2TokenizerConfig | BPETokenizerConfig


@dataclass(frozen=True)
class MixturePhase:
    """From this step on, sequences come from these data sets in proportion to their weights."""

    from_step: Whole
    weights: dict[str, float]  # data set, or dataset@version where the store holds several


@dataclass(frozen=True)
class TokenFilesConfig:
    """Token files of another project, in place of what `skytrain prepare` makes."""

    format: Literal["llmc", "nanogpt", "megatron", "webdataset"]
    train: str  # a path or s3:// URL, with * in its last part
    validation: str | None
    dtype: Literal["uint16", "uint32"]  # of nanoGPT's files, which do not say theirs


@dataclass(frozen=True)
class LoaderConfig:
    """How prepared tokens become batches."""

    shuffle: Literal["global", "blocks"]
    block_shards: Positive  # shards whose windows are shuffled together with shuffle=blocks
    packing: Literal["windows", "documents"]
    separate_documents: bool  # attention and positions stay within a document, as if each stood alone
    cache_dir: str | None
    cache_limit: Bytes | None
    store_wait: Seconds
    mixture: list[MixturePhase]  # empty: the one data set that `data` names
    files: TokenFilesConfig | None
