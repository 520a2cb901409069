"""Matrix products through the cuBLASLt library that torch has already loaded.

This offers what torch does not: GELU and its gradient in the epilogue of a product, and algorithms that are selected by
timing instead of by cuBLASLt's heuristic. Without a GPU only `cublaslt_available` may be called. Matrices are row-major
as in torch; cuBLASLt is column-major, so it computes the transposed product with the operands swapped.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_float, c_int, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WORKSPACE_BYTES = 64 * 2**20
CANDIDATES = 16  # algorithms timed per product shape
TUNING_SECONDS = 0.004  # per algorithm and round; shorter rounds end before the GPU reaches its power limit
TUNING_TURNS = 2

_DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_COMPUTE_FLOAT32 = 68
_POINTER_MODE, _TRANS_A, _TRANS_B, _EPILOGUE, _BIAS_POINTER = 2, 3, 4, 7, 8
_ON_DEVICE = 1  # pointer mode: scale factors are read from device memory
_AUX_POINTER, _AUX_LD, _AUX_TYPE, _BIAS_TYPE = 11, 12, 22, 26
_MAX_WORKSPACE = 1


class Epilogue(IntEnum):
    """Operation applied to the result of a product before it is written."""

    NONE = 1
    BIAS = 4  # + bias, one value per column
    GELU_AUX_BIAS = 164  # + bias, stored in `aux`, then tanh-GELU
    DGELU = 192  # times the derivative of GELU at `aux`
    DGELU_BGRAD = 208  # the same, and column sums written to `bias`
    BGRAD_X = 512  # sums of the rows of x (over `inner`) written to `bias`


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the library that torch loaded: a second copy would have its own context and other kernels."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # not Linux
        return None
    paths = sorted({line.split()[-1] for line in maps if "libcublasLt.so" in line})
    return ctypes.CDLL(paths[0]) if paths else None


@functools.cache
def cublaslt_available() -> bool:
    """Return whether cuBLASLt can be used.

    Call this once a GPU is in use: torch loads the library with its first matrix product.
    """
    if not torch.cuda.is_available() or torch.version.hip:
        return False
    torch.mm(*torch.zeros(2, 16, 16, device="cuda", dtype=torch.bfloat16))
    return _library() is not None


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt: {what} failed with status {status}")


@functools.cache
def _handle(device: int) -> c_void_p:
    library = _library()
    assert library is not None
    handle = c_void_p()
    with torch.cuda.device(device):
        _check(library.cublasLtCreate(byref(handle)), "cublasLtCreate")
    return handle


@functools.cache
def _workspace(device: int, stream: int) -> tuple[Tensor, Tensor]:
    """Return a workspace and a zero in device memory; one per stream, since products on a stream run in order."""
    on = torch.device("cuda", device)
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=on), torch.zeros((), device=on)


@dataclass(frozen=True)
class Shape:
    """Shape of `x @ y`, (rows, inner) @ (inner, columns), and which of the two operands is a transposed view."""

    rows: int
    columns: int
    inner: int
    x_transposed: bool
    y_transposed: bool
    dtype: torch.dtype
    out_dtype: torch.dtype
    epilogue: Epilogue
    device: int
    scaled: bool = False  # by a factor in device memory


@dataclass(frozen=True)
class Extras:
    """Optional arguments of a product in addition to its two matrices."""

    bias: Tensor | None = None
    aux: Tensor | None = None
    factor: Tensor | None = None  # scales the product: one float32 on the device


class ProductPlan:
    """Descriptors and candidate algorithms for one product shape, in the order of cuBLASLt's heuristic."""

    def __init__(self, shape: Shape, extras: Extras) -> None:
        bias, aux = extras.bias, extras.aux
        self.shape = shape
        library = _library()
        assert library is not None
        self._library, self._handle = library, _handle(shape.device)
        self._descriptor = c_void_p()
        _check(
            library.cublasLtMatmulDescCreate(byref(self._descriptor), _COMPUTE_FLOAT32, 0), "cublasLtMatmulDescCreate"
        )
        self._set(_TRANS_A, c_int32(shape.y_transposed))
        self._set(_TRANS_B, c_int32(shape.x_transposed))
        self._set(_EPILOGUE, c_int32(shape.epilogue))
        if shape.scaled:
            self._set(_POINTER_MODE, c_int32(_ON_DEVICE))
        self._point(bias, aux)
        if bias is not None:
            self._set(_BIAS_TYPE, c_int32(_DATA_TYPES[bias.dtype]))
        if aux is not None:
            self._set(_AUX_LD, ctypes.c_int64(shape.columns))
            self._set(_AUX_TYPE, c_int32(_DATA_TYPES[aux.dtype]))
        self._a = self._layout(shape.dtype, shape.columns, shape.inner, shape.y_transposed)
        self._b = self._layout(shape.dtype, shape.inner, shape.rows, shape.x_transposed)
        self._d = self._layout(shape.out_dtype, shape.columns, shape.rows, False)
        self.algorithms = self._heuristics()
        self.best = 0

    def _set(self, attribute: int, value: ctypes._SimpleCData[int]) -> None:
        status = self._library.cublasLtMatmulDescSetAttribute(
            self._descriptor, attribute, byref(value), c_size_t(ctypes.sizeof(value))
        )
        _check(status, f"attribute {attribute}")

    def _point(self, bias: Tensor | None, aux: Tensor | None) -> None:
        if bias is not None:
            self._set(_BIAS_POINTER, c_uint64(bias.data_ptr()))
        if aux is not None:
            self._set(_AUX_POINTER, c_uint64(aux.data_ptr()))

    def _layout(self, dtype: torch.dtype, rows: int, columns: int, transposed: bool) -> c_void_p:
        rows, columns = (columns, rows) if transposed else (rows, columns)
        layout = c_void_p()
        status = self._library.cublasLtMatrixLayoutCreate(
            byref(layout), _DATA_TYPES[dtype], c_uint64(rows), c_uint64(columns), ctypes.c_int64(rows)
        )
        _check(status, "cublasLtMatrixLayoutCreate")
        return layout

    def _heuristics(self) -> list[_Heuristic]:
        preference = c_void_p()
        library = self._library
        _check(library.cublasLtMatmulPreferenceCreate(byref(preference)), "cublasLtMatmulPreferenceCreate")
        limit = c_size_t(WORKSPACE_BYTES)
        status = library.cublasLtMatmulPreferenceSetAttribute(
            preference, _MAX_WORKSPACE, byref(limit), c_size_t(ctypes.sizeof(limit))
        )
        _check(status, "the workspace's limit")
        found, count = (_Heuristic * CANDIDATES)(), c_int()
        status = library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._descriptor, self._a, self._b, self._d, self._d, preference, CANDIDATES, found, byref(count)
        )  # fmt: skip
        library.cublasLtMatmulPreferenceDestroy(preference)
        _check(status, f"finding an algorithm for {self.shape}")
        return [each for each in found[: count.value] if each.state == 0]

    def run(self, x: Tensor, y: Tensor, out: Tensor, extras: Extras, choice: int | None = None) -> None:
        self._point(extras.bias, extras.aux)
        chosen = self.algorithms[self.best if choice is None else choice]
        stream = torch.cuda.current_stream().cuda_stream
        workspace, zero = _workspace(self.shape.device, stream)
        alpha: Any
        beta: Any
        if extras.factor is None:
            alpha, beta = byref(c_float(1.0)), byref(c_float(0.0))
        else:
            alpha, beta = c_void_p(extras.factor.data_ptr()), c_void_p(zero.data_ptr())
        status = self._library.cublasLtMatmul(
            self._handle, self._descriptor, alpha, c_void_p(y.data_ptr()), self._a, c_void_p(x.data_ptr()), self._b,
            beta, c_void_p(out.data_ptr()), self._d, c_void_p(out.data_ptr()), self._d, byref(chosen.algorithm),
            c_void_p(workspace.data_ptr()), c_size_t(WORKSPACE_BYTES), c_void_p(stream),
        )  # fmt: skip
        _check(status, f"a product of {self.shape}")

    def tune(self, x: Tensor, y: Tensor, out: Tensor, extras: Extras) -> list[float]:
        """Time every algorithm on these tensors in alternating rounds and select the fastest; returns milliseconds."""
        runs = max(2, round(TUNING_SECONDS * 1e3 / self._milliseconds(x, y, out, extras, 0, runs=2)))
        times = [0.0] * len(self.algorithms)
        for _ in range(TUNING_TURNS):
            for choice in range(len(times)):
                times[choice] += self._milliseconds(x, y, out, extras, choice, runs) / TUNING_TURNS
        self.best = times.index(min(times))
        return times

    def _milliseconds(self, x: Tensor, y: Tensor, out: Tensor, extras: Extras, choice: int, runs: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.run(x, y, out, extras, choice)
        start.record()
        for _ in range(runs):
            self.run(x, y, out, extras, choice)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / runs


_plans: dict[Shape, ProductPlan] = {}


def shape_of(x: Tensor, y: Tensor, out_dtype: torch.dtype, epilogue: Epilogue, scaled: bool = False) -> Shape:
    def transposed(matrix: Tensor) -> bool:
        if matrix.is_contiguous():
            return False
        assert matrix.t().is_contiguous(), "a product takes whole matrices, or transposed views of them"
        return True

    rows, inner = x.shape
    device = x.device.index or 0
    return Shape(
        rows=rows,
        columns=y.shape[1],
        inner=inner,
        x_transposed=transposed(x),
        y_transposed=transposed(y),
        dtype=x.dtype,
        out_dtype=out_dtype,
        epilogue=epilogue,
        device=device,
        scaled=scaled,
    )


def product(
    x: Tensor,
    y: Tensor,
    out_dtype: torch.dtype | None = None,
    epilogue: Epilogue = Epilogue.NONE,
    bias: Tensor | None = None,
    aux: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Return x @ y with an epilogue; the algorithm is the one that was fastest when this shape was first used."""
    shape, extras = shape_of(x, y, out_dtype or x.dtype, epilogue, factor is not None), Extras(bias, aux, factor)
    out = torch.empty(shape.rows, shape.columns, dtype=shape.out_dtype, device=x.device)
    plan = _plans.get(shape)
    if plan is None:
        plan = _plans[shape] = ProductPlan(shape, extras)
        if not torch.cuda.is_current_stream_capturing():
            plan.tune(x, y, out, extras)
    plan.run(x, y, out, extras)
    return out
