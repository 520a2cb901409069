"""One measurement in its own process: optimizer steps as the trainer runs them, with their time and memory.

A fresh process has a fresh allocator and no other model's leftovers, so that "does it run" means what a user would see.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from shapes import OPTIMIZER, SINGLE

from skytrain.models import Decoder, Kernels, lm_loss
from skytrain.models.kernels import cublaslt
from skytrain.models.kernels.attention import Backend, causal_attention
from skytrain.planning.memory import TrainingJob, path_of
from skytrain.training import make_optimizer
from skytrain.training.losses import FusedLoss
from skytrain.training.master_weights import MasterWeights
from skytrain.training.memory import grow_segments

Row = dict[str, Any]
Tell = Callable[[Row], None]


@dataclass
class Trained:
    """A model, its optimizer and its loss on one device."""

    job: TrainingJob
    device: torch.device
    model: Decoder = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        with self.device:  # torch's own initial values, made on the device: they do not matter here, and seconds do
            self.model = Decoder(self.job.model)
        if self.job.precision == "bf16-true":
            self.model.bfloat16()
        self.model.recompute = "full" if self.job.checkpointing else "none"
        fused = self.device.type == "cuda" and self.job.precision != "16-mixed"  # as the trainer chooses
        optimizer = make_optimizer(self.model, OPTIMIZER, fused=fused)
        self.optimizer = MasterWeights(optimizer) if self.job.precision == "bf16-true" else optimizer
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.job.precision == "16-mixed")
        self.loss = {
            "eager": lambda: lm_loss,
            "compiled": lambda: torch.compile(lm_loss, dynamic=False),
            "fused": lambda: _fused(self.job.graphs),
        }[path_of(self.job, SINGLE)]()

    def steps(self, micro_batch: int, length: int, accumulation: int, count: int) -> list[float]:
        """Seconds of each optimizer step: autocast, mean over micro-batches, a look at the norm, AdamW, as the trainer has it."""
        seconds = []
        narrow = torch.float16 if self.job.precision == "16-mixed" else torch.bfloat16
        autocast = self.job.precision in ("bf16-mixed", "16-mixed") and path_of(self.job, SINGLE) != "fused"
        for _ in range(count):
            began = time.perf_counter()
            for _ in range(accumulation):
                batch = torch.randint(self.job.model.vocab_size, (micro_batch, length + 1), device=self.device)
                with torch.autocast(self.device.type, narrow, enabled=autocast):
                    loss = self.loss(self.model, batch[:, :-1], batch[:, 1:])
                self.scaler.scale(loss / accumulation).backward()
                del loss
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)
            float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))  # the trainer's guard reads it
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return seconds


def _fused(graphs: bool) -> Any:
    """The path that the trainer takes for GPT-2's and Llama's shapes on a GPU."""
    hopper = torch.cuda.get_device_capability() >= (9, 0)
    lt = cublaslt.cublaslt_available()
    kernels = Kernels(attention="cudnn" if hopper else "flash", products=lt, epilogue=lt and hopper)
    return FusedLoss(kernels, graphs)


def memory(job: TrainingJob, sizes: list[tuple[int, int]], device: str, tell: Tell) -> None:
    """The peak of each (micro-batch, accumulation), smallest first, so that the last one's process state is the largest's."""
    trained = _start(job, device)
    for micro_batch, accumulation in sizes:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        tell({"micro_batch": micro_batch, "accumulation": accumulation} | _attempt(trained, micro_batch, accumulation))


def runs(job: TrainingJob, device: str, tell: Tell) -> None:
    """Whether this very job runs three optimizer steps in a process that has done nothing else."""
    began = time.perf_counter()
    try:
        found = _attempt(_start(job, device), job.micro_batch, job.accumulation, count=3)
    except RuntimeError as error:
        found = _failed(error)
    tell(found | {"seconds": time.perf_counter() - began})


def seconds(job: TrainingJob, at: list[tuple[int, int]], steps: int, device: str, tell: Tell) -> None:
    """Step times at each (length, micro-batch) with one model; the first row's shape runs once more before, to warm the chip."""
    third = steps // 3
    trained = _start(job, device)
    length, micro_batch = at[0]
    trained.steps(micro_batch, length, 1, 5)
    for length, micro_batch in at:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            found = trained.steps(micro_batch, length, 1, steps)
        except RuntimeError as error:
            tell({"length": length, "micro_batch": micro_batch} | _failed(error))
            continue
        tell({
            "length": length, "micro_batch": micro_batch, "steps_seconds": found,
            "worst_seconds": max(found[third : 2 * third]), "median_seconds": statistics.median(found[third:]),
            **_held(device),
        })  # fmt: skip


@dataclass(frozen=True)
class AttentionShape:
    """Causal attention of one layer: heads, those with keys of their own, and their size."""

    heads: int
    groups: int
    head: int

    def flops(self, tokens: int, length: int) -> float:
        """Return those of the causal half: two products forward and five backward."""
        return 7.0 * tokens * self.heads * self.head * length


def attention(shapes: list[AttentionShape], lengths: list[int], tokens: int, device: str, tell: Tell) -> None:
    """Seconds of attention, forward and backward, over `tokens` tokens in sequences of each length, by kernel."""
    backends: tuple[Backend, ...] = ("cudnn", "flash") if device == "cuda" else ("sdpa",)
    for shape, backend, length in itertools.product(shapes, backends, lengths):
        rows = max(1, tokens // length)
        sizes = ((shape.heads, shape.head), (shape.groups, shape.head), (shape.groups, shape.head))
        q, k, v = (
            torch.randn(rows, length, *size, device=device, dtype=torch.bfloat16, requires_grad=True) for size in sizes
        )
        row = {"heads": shape.heads, "groups": shape.groups, "head": shape.head, "kernel": backend, "length": length}
        try:
            took = [_timed(partial(_attend, q, k, v, backend), device) for _ in range(5)]
        except RuntimeError as error:
            tell(row | {"reason": str(error).splitlines()[0][:200]})
            continue
        seconds_ = statistics.median(took[2:])
        tell(row | {"seconds": seconds_, "flops_per_s": shape.flops(rows * length, length) / seconds_})


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: Backend) -> None:
    out = causal_attention(q, k, v, q.shape[-1] ** -0.5, backend)
    torch.autograd.grad(out, (q, k, v), torch.ones_like(out))


def _timed(call: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def machine(device: str, tell: Tell) -> None:
    cuda = device == "cuda"
    if cuda:
        torch.zeros(1, device="cuda")
    tell({
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "memory_bytes": float(torch.cuda.get_device_properties(0).total_memory) if cuda else 8.0 * 2**30,
        "free_bytes": torch.cuda.mem_get_info()[0] if cuda else None,
    })  # fmt: skip


def _start(job: TrainingJob, device: str) -> Trained:
    if device == "cuda":
        torch.cuda.init()  # as in training, which has looked at the GPU by then
        grow_segments()
    return Trained(job, torch.device(device))


def _attempt(trained: Trained, micro_batch: int, accumulation: int, count: int = 2) -> Row:
    try:
        took = trained.steps(micro_batch, trained.job.sequence_length, accumulation, count)
    except RuntimeError as error:  # out of memory is one, in torch's words or in those of a library that it calls
        return _failed(error)
    return {"ran": True, "last_step_seconds": took[-1], "reason": None} | _held(trained.device.type)


def _failed(error: Exception) -> Row:
    reason = f"{type(error).__name__}: {str(error).splitlines()[0][:600]}"
    return {"ran": False, "last_step_seconds": None, "reason": reason} | _held("cuda")


def _held(device: str) -> Row:
    """Bytes at the peak, and what CUDA itself takes outside torch's allocator."""
    if device != "cuda":
        return {"allocated": None, "reserved": None, "outside": None, "retries": None, "grows": None}
    stats = torch.cuda.memory_stats()
    (free, total) = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "outside": total - free - torch.cuda.memory_reserved(),
        "retries": stats["num_alloc_retries"],
        "grows": any(segment.get("is_expandable") for segment in torch.cuda.memory_snapshot()),
    }
