"""The headers of safetensors files: which tensors a folder has, in which files. No torch.

A file is a length, a JSON header and the bytes of the tensors. Its size follows from the header, so that a truncated
file is found without reading it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import SkytrainError
from ..storage import data_of, parse_object, read_file_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 * 2**20  # the format's own limit
PART = re.compile(r"[\w.-]{1,200}\.safetensors")  # a name without folders
DOWNLOAD = "download it again"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class TensorHome:
    """The file that holds a tensor, and the tensor's shape."""

    path: Path
    shape: tuple[int, ...]
    dtype: str  # as the format writes it: F32, BF16


def read_headers(folder: Path) -> dict[str, TensorHome]:
    """Return every tensor of the folder by name; raise where files are missing, truncated or not safetensors."""
    found: dict[str, TensorHome] = {}
    for path in weight_files(folder):
        found |= _read_header(path)
    return found


def has_weights(folder: Path) -> bool:
    """Return whether the folder has files of weights, in whatever state."""
    return any(True for pattern in ("*.safetensors", INDEX, *PICKLES) for _ in folder.glob(pattern))


def weight_files(folder: Path) -> list[Path]:
    """Return model.safetensors, or the files that its index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        raise SkytrainError(f"{folder} has no weights: {_why_none(folder)}")
    try:
        with data_of(str(index), DOWNLOAD):
            names = sorted(set(read_file_object(index, MAX_HEADER_BYTES, DOWNLOAD)["weight_map"].values()))
    except OSError as error:
        raise SkytrainError(f"{index} cannot be read: {error}\n  {DOWNLOAD}") from None
    for name in names:
        if not isinstance(name, str) or not PART.fullmatch(name):  # whoever made the folder may name any file of yours
            raise SkytrainError(
                f"{index} names {name!r:.80}, which is not a safetensors file of this folder\n  download it again"
            )
        if not (folder / name).is_file():
            raise SkytrainError(f"{folder / name} is named by {INDEX} but missing\n  download it again")
    return [folder / name for name in names]


def _why_none(folder: Path) -> str:
    if not any(path for pattern in PICKLES for path in folder.glob(pattern)):
        return f"neither {SINGLE} nor {INDEX}"
    convert = f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    return (
        "only pickled files, which can run code when they are read\n"
        f'  convert them, if you trust them: python -c "from transformers import AutoModelForCausalLM; {convert}"'
    )


def _read_header(path: Path) -> dict[str, TensorHome]:
    try:
        with data_of(str(path), DOWNLOAD), path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError("it does not begin with a header")
            header: dict[str, dict[str, Any]] = parse_object(file.read(length), str(path), remedy=DOWNLOAD)
            header.pop("__metadata__", None)
            homes = {name: _tensor_home(path, entry) for name, entry in header.items()}
            end = LENGTH_BYTES + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except OSError as error:
        raise SkytrainError(f"{path} cannot be read: {error}\n  {DOWNLOAD}") from None
    if (size := path.stat().st_size) != end:
        raise SkytrainError(
            f"{path} has {size:,} bytes, its header asks for {end:,}: it is truncated or damaged\n  download it again"
        )
    return homes


def _tensor_home(path: Path, entry: dict[str, Any]) -> TensorHome:
    """Return what a header says of a tensor; raises ValueError where its shape and its bytes are not those of one."""
    shape, dtype, (start, end) = entry["shape"], entry["dtype"], entry["data_offsets"]
    whole = [*shape, start, end]
    if not isinstance(shape, list) or not isinstance(dtype, str) or any(type(each) is not int for each in whole):
        raise ValueError(f"{entry!r:.200} does not describe a tensor")
    bits = re.search(r"\d+", dtype)  # of one number: F32, BF16, F8_E4M3
    if min(whole) < 0 or start > end or (bits and math.prod(shape) * int(bits[0]) != 8 * (end - start)):
        raise ValueError(f"a tensor of shape {shape!r:.80} and type {dtype!r:.20} does not have {end - start} bytes")
    return TensorHome(path, tuple(shape), dtype)
