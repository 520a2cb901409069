"""Compile CUDA C++ at first use with the NVRTC that ships with torch; users need no toolkit or build step."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@functools.cache
def _nvrtc() -> ctypes.CDLL | None:
    """Load the NVRTC installed with torch, or the system's NVRTC of the same version."""
    if not torch.version.cuda:
        return None
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    beside_torch = [str(path) for folder in sys.path for path in Path(folder).glob(f"nvidia/*/lib/{name}")]
    for path in [*beside_torch, name]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def available() -> bool:
    return torch.cuda.is_available() and _nvrtc() is not None


class CudaKernel:
    """A compiled kernel, loaded on the current device."""

    def __init__(self, file: str, name: str, defines: Mapping[str, int], shared_bytes: int) -> None:
        source = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
        self._shared_bytes = shared_bytes
        self._module, self._function = c_void_p(), c_void_p()
        image = _compile(source, file, defines)
        torch.cuda.current_stream()  # makes torch create the CUDA context that the module is loaded into
        _check(_driver().cuModuleLoadData(byref(self._module), image), f"loading {file}")
        _check(_driver().cuModuleGetFunction(byref(self._function), self._module, name.encode()), f"finding {name}")
        status = _driver().cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED_BYTES, c_int(shared_bytes))
        _check(status, f"{shared_bytes} bytes of shared memory")

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int) -> None:
        """Launch the kernel; tensors are passed as pointers, integers as int."""
        values = [c_void_p(a.data_ptr()) if isinstance(a, Tensor) else c_int(a) for a in arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        status = _driver().cuLaunchKernel(
            self._function, blocks, 1, 1, threads, 1, 1, self._shared_bytes, stream, pointers, None
        )
        _check(status, "launching a kernel")


def _compile(source: str, file: str, defines: Mapping[str, int]) -> ctypes.Array[ctypes.c_char]:
    nvrtc = _nvrtc()
    assert nvrtc is not None
    major, minor = torch.cuda.get_device_capability()
    options = [f"--gpu-architecture=sm_{major}{minor}", *(f"-D{name}={value}" for name, value in defines.items())]
    program, size = c_void_p(), c_size_t()
    _check(nvrtc.nvrtcCreateProgram(byref(program), source.encode(), file.encode(), 0, None, None), file)
    words = (c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), words)
    if status:
        nvrtc.nvrtcGetProgramLogSize(program, byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{file} does not compile for sm_{major}{minor}:\n{log.value.decode()}")
    _check(nvrtc.nvrtcGetCUBINSize(program, byref(size)), file)
    image = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, image), file)
    nvrtc.nvrtcDestroyProgram(byref(program))
    return image


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}: {what}")
