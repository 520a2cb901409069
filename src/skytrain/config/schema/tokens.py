"""From a corpus to batches: the tokenizer, and how tokens are read."""

from __future__ import annotations

from typing import Annotated, Literal

from .declare import DATA, EXECUTION, NUMBERS, setting, settings
from .kinds import Bytes, Positive, Range, Whole


@settings
class GPT2TokenizerConfig:
    """GPT-2's tokenizer."""

    kind: Literal["gpt2"] = setting(DATA, "The kind of tokenizer.")
    name: str = setting(DATA, "Name of the tokenizer, and of its folders in the store.")
    vocab_size: Positive = setting(DATA, "Tokens in the vocabulary.")


@settings
class BPETokenizerConfig:
    """A byte-level BPE trained on a sample of the corpus."""

    kind: Literal["bpe"] = setting(DATA, "The kind of tokenizer.")
    name: str = setting(DATA, "Name of the tokenizer, and of its folders in the store.")
    vocab_size: Annotated[int, Range(min=257)] = setting(
        DATA, "Tokens in the vocabulary, among them 256 bytes and the end of text."
    )
    sample_bytes: Bytes = setting(DATA, "Text of the corpus that the tokenizer is trained on.")


@settings
class HFTokenizerConfig:
    """Any fast tokenizer of Hugging Face's."""

    kind: Literal["hf"] = setting(DATA, "The kind of tokenizer.")
    name: str = setting(
        EXECUTION,
        "A folder with tokenizer.json, a name on the Hugging Face hub (owner/name, or owner/name@revision), or the id "
        "of a tokenizer in the store. What the store has of that name is used where there is no such folder.",
    )
    text_may_be_special: bool = setting(
        DATA, "Encode the spelling of a special token in a text as that token; false: as ordinary text."
    )
    vocab_size: Positive = setting(DATA, "The largest id plus one; read from the tokenizer's files.")
    id: str = setting(DATA, "Name in the store, with a hash of the tokenizer's files; read from them.")


TokenizerConfig = GPT2TokenizerConfig | BPETokenizerConfig | HFTokenizerConfig


@settings
class MixturePhase:
    """From this step on, sequences come from these data sets in proportion to their weights."""

    from_step: Whole = setting(NUMBERS, "First step of the phase.")
    weights: dict[str, float] = setting(
        NUMBERS, "Weight of each data set, written `dataset`, or `dataset@version` where the store holds several."
    )


@settings
class TokenFilesConfig:
    """Token files of another project, in place of what `skytrain prepare` makes."""

    format: Literal["llmc", "nanogpt", "megatron", "webdataset"] = setting(NUMBERS, "Format of the files.")
    train: str = setting(NUMBERS, "The training split: a path or s3:// URL, with * in its last part.")
    validation: str | None = setting(NUMBERS, "The validation split: a path or s3:// URL, with * in its last part.")
    dtype: Literal["uint16", "uint32"] = setting(NUMBERS, "Type of a token in nanoGPT's files, which do not say it.")


@settings
class LoaderConfig:
    """How prepared tokens become batches."""

    shuffle: Literal["global", "blocks"] = setting(
        NUMBERS,
        "global: any window may follow any other, and the whole split is cached; "
        "blocks: a few shards at a time, for a cache smaller than the split.",
    )
    block_shards: Positive = setting(NUMBERS, "Shards whose windows are shuffled together with shuffle=blocks.")
    packing: Literal["windows", "documents"] = setting(
        NUMBERS, "windows: sequences run across documents; documents: whole ones, best fit, with some padding."
    )
    separate_documents: bool = setting(
        NUMBERS, "Keep attention and positions within a document; slower, since it takes a mask."
    )
    cache_dir: str | None = setting(
        EXECUTION, "A node-local folder; null: /opt/dlami/nvme where it exists, else $XDG_CACHE_HOME or ~/.cache."
    )
    cache_limit: Bytes | None = setting(
        EXECUTION, "Most bytes in the cache, such as 200GiB, over all data sets; null: what the disk holds."
    )
    mixture: list[MixturePhase] = setting(
        NUMBERS,
        "Several prepared data sets by weight, such as [{from_step: 0, weights: {web: 0.7, code: 0.3}}]; "
        "empty: the one that `data` names.",
    )
    files: TokenFilesConfig | None = setting(
        NUMBERS, "Token files of llm.c, nanoGPT, Megatron or WebDataset to read instead: choose loader=files."
    )
