"""safetensors files tensor by tensor: reading and writing hold at most one tensor in addition to the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config import SkytrainError
from .safetensors_header import INDEX, SINGLE, read_headers

MAX_FILE_BYTES = 5 * 10**9  # what the hub and transformers have agreed on
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype and shape of a tensor that is to be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class SafetensorsFolder:
    """The tensors of a folder that holds model.safetensors, or its parts with their index."""

    def __init__(self, folder: Path) -> None:
        self._homes = read_headers(folder)
        self.shapes = {name: home.shape for name, home in self._homes.items()}

    def get(self, name: str) -> Tensor:
        """Return a view of the mapped file: only what is copied from it is read."""
        path = self._homes[name].path
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise SkytrainError(f"{path} cannot be read as safetensors: {error}\n  download it again") from None


def write_folder(
    folder: Path, specs: list[TensorSpec], tensors: Iterable[Tensor], max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Write `tensors`, one for each spec and in their order, as one file or as parts with an index."""
    files: list[list[TensorSpec]] = [[]]
    for spec in specs:
        if files[-1] and sum(each.bytes for each in files[-1]) + spec.bytes > max_file_bytes:
            files.append([])
        files[-1].append(spec)
    values = iter(tensors)
    if len(files) == 1:
        _write_file(folder / SINGLE, files[0], values)
        return
    names = [f"model-{number:05}-of-{len(files):05}.safetensors" for number in range(1, len(files) + 1)]
    for name, part in zip(names, files, strict=True):
        _write_file(folder / name, part, values)
    index = {
        "metadata": {"total_size": sum(spec.bytes for spec in specs)},
        "weight_map": {spec.name: name for name, part in zip(names, files, strict=True) for spec in part},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, specs: list[TensorSpec], values: Iterator[Tensor]) -> None:
    # safetensors' own save_file takes all tensors at once; the format is a length, a JSON header and the bytes in order.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        header[spec.name] = {
            "dtype": DTYPES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [end, end + spec.bytes],
        }
        end += spec.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for spec, value in zip(specs, values, strict=False):
            assert tuple(value.shape) == spec.shape and value.dtype == spec.dtype, spec
            file.write(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
