"""The inputs of a merge: a run's checkpoint, a Hugging Face folder or an llm.c file, read tensor by tensor."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoints import choose_checkpoint, open_weights, read_marker, recorded_tokenizer, step_key
from ..config import Config, ModelConfig, build
from ..export import check_sums
from ..models import FolderWeights, LlmcWeights, find_weights, is_pretrained, place_of, read_hf_decoder
from ..runs import RunRecord, plain
from ..storage import Store, record_of
from ..tokens import Tokenizer, load_tokenizer_folder, open_tokenizer

READ_BYTES = 16 << 20
LLMC_PADDING = 128


@dataclass(frozen=True)
class TensorFacts:
    """The shape of a tensor, and whether its values are numbers that can be averaged."""

    shape: tuple[int, ...]
    floating: bool = True


@dataclass(frozen=True)
class MergeInput:
    """A model to merge. `read` returns one of its tensors; tensors of folders and files have the decoder's names."""

    label: str  # RUN@STEP, or the folder or file
    sha256: str  # of a checkpoint's manifest, or of the weights of a folder or file
    model: Mapping[str, Any]  # its settings
    tokenizer: Tokenizer
    tensors: Mapping[str, TensorFacts]
    read: Callable[[str], Tensor]
    run: RunRecord | None = None
    step: int = 0


def open_inputs(config: Config, store: Store, sources: Sequence[str]) -> list[MergeInput]:
    """Open each source: RUN, RUN@STEP, a folder, OWNER/NAME on the hub, or an llm.c file.

    Folders and files get the vocabulary padding of the first run among the sources; a file has the configured tokenizer.
    """
    runs = {source: _open_run(store, source) for source in sources if not is_weights_only(source)}
    padding = next((each.model.get("pad_vocab_to") for each in runs.values()), None) or LLMC_PADDING
    return [
        runs[source]
        if source in runs
        else _open_file(config, store, source, padding)
        if Path(source).is_file()
        else _open_folder(store, source, padding)
        for source in sources
    ]


def is_weights_only(source: str) -> bool:
    """Return whether the source is a folder, a repository or a file, rather than a run."""
    return Path(source).is_file() or is_pretrained(source)


def _open_run(store: Store, source: str) -> MergeInput:
    record, step = choose_checkpoint(store, source)
    with record_of(store, f"runs/{record.name}/run.json"):
        build(ModelConfig, record.config["model"], "model")  # which is compared, key by key
    saved = open_weights(store, step_key(record.name, step))
    return MergeInput(
        label=f"{record.name}@{step}",
        sha256=read_marker(store, saved.commit).manifest_sha256,
        model=record.config["model"],
        tokenizer=recorded_tokenizer(store, record),
        tensors={
            name: TensorFacts(each.shape, "float" in each.dtype) for name, each in saved.weights.described().items()
        },
        read=saved.weights.read_one,
        run=record,
        step=step,
    )


def _open_folder(store: Store, source: str, padding: int) -> MergeInput:
    folder = find_weights(place_of(store, source))
    decoder = read_hf_decoder(folder, pad_vocab_to=padding)
    weights = FolderWeights(decoder, folder)
    check_sums(folder)
    return MergeInput(
        label=source,
        sha256=hash_files(sorted(folder.glob("*.safetensors"))),
        model=plain(decoder),
        tokenizer=load_tokenizer_folder(folder),
        tensors={name: TensorFacts(tuple(shape)) for name, shape in weights.shapes.items()},
        read=lambda name: weights.value(name, weights.shapes[name]),
    )


def _open_file(config: Config, store: Store, source: str, padding: int) -> MergeInput:
    weights = LlmcWeights(Path(source))
    weights = LlmcWeights(Path(source), dataclasses.replace(weights.config, pad_vocab_to=padding))
    return MergeInput(
        label=source,
        sha256=hash_files([Path(source)]),
        model=plain(weights.config),
        tokenizer=open_tokenizer(config.tokenizer, store),
        tensors={name: TensorFacts(tuple(shape)) for name, shape in weights.shapes.items()},
        read=weights.read,
    )


def hash_files(paths: Iterable[Path]) -> str:
    """Return the sha256 of the concatenated files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
    return digest.hexdigest()
