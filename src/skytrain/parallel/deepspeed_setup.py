"""DeepSpeed's configuration, and what it needs on this machine: its optimizer for the CPU, its disk library."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import (
    DEEPSPEED,
    Config,
    ConfigError,
    MissingExtra,
    SkytrainError,
    cpp_compiler,
    set_variables,
    temporarily,
    user_cache_folder,
    variable,
)

if TYPE_CHECKING:
    from ..models import Recompute

log = logging.getLogger(__name__)
LARGEST_BUCKET = 500_000_000  # elements; DeepSpeed's default, too large for a small model


@dataclass(frozen=True)
class ZeroSettings:
    """The settings by which DeepSpeed shards the state; sizes of the model are in elements."""

    stage: int
    clip_norm: float | None
    micro_batch: int
    bf16: bool
    cpu_offload: bool
    offload_folder: str | None
    recompute: Recompute
    device: str


def zero_settings(config: Config, device: str) -> ZeroSettings:
    return ZeroSettings(
        stage=DEEPSPEED[config.parallel.name],
        clip_norm=config.trainer.clip_norm,
        micro_batch=config.trainer.micro_sequences,
        bf16=config.trainer.compute_precision == "bf16-mixed",
        cpu_offload=config.parallel.cpu_offload,
        offload_folder=config.parallel.offload_folder,
        recompute=config.trainer.activation_checkpointing,
        device=device,
    )


def engine_config(settings: ZeroSettings, *, block_elements: int, vector_elements: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration. Buffers are as large as one block; the default is 500M elements.

    Vectors, up to `vector_elements` long, stay whole under ZeRO-3: sharding them would save little and send much.
    """
    block = min(LARGEST_BUCKET, block_elements + block_elements % 2)
    half = block // 2 + block // 2 % 2
    zero: dict[str, Any] = {
        "stage": settings.stage,
        "reduce_bucket_size": block,
        "allgather_bucket_size": block,
        "overlap_comm": settings.device == "cuda",
        "contiguous_gradients": True,
    }
    if settings.stage == 3:
        zero |= {
            "reduce_bucket_size": half,
            "stage3_prefetch_bucket_size": half // 2,
            "stage3_max_live_parameters": block,  # one layer's worth is gathered, including prefetches
            "stage3_max_reuse_distance": 0,  # otherwise a layer is kept after its use
            "stage3_param_persistence_threshold": vector_elements + 1,
        }
    if settings.cpu_offload:
        there = {"device": "nvme" if settings.offload_folder else "cpu", "pin_memory": settings.device == "cuda"}
        if settings.offload_folder:
            there["nvme_path"] = settings.offload_folder
        zero["offload_optimizer"] = there
        if settings.stage == 3:
            zero["offload_param"] = {**there, "buffer_size": max(block, vector_elements)}
    found: dict[str, Any] = {
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # an elementwise optimizer works on a partition
        "train_micro_batch_size_per_gpu": settings.micro_batch,
        "gradient_clipping": settings.clip_norm or 0.0,
        "steps_per_print": sys.maxsize,
    }
    if settings.bf16:
        # Gradients are accumulated and reduced in float32, as on a mesh.
        found |= {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    return found


def check_deepspeed(config: Config, device: str) -> None:
    """Raise if this machine lacks what a DeepSpeed preset needs."""
    if device == "cpu":
        set_variables({"DS_ACCELERATOR": "cpu"})  # read when deepspeed is first imported, here or later
    parallel = config.parallel
    if importlib.util.find_spec("deepspeed") is None:
        raise MissingExtra("deepspeed", "deepspeed")
    if parallel.cpu_offload:
        _check_compiler("cpu_adam")
    if parallel.offload_folder:
        _check_disk(Path(parallel.offload_folder))


def _check_compiler(operation: str) -> None:
    """Raise if there is no compiler for an operation that was not built when DeepSpeed was installed."""
    from deepspeed.git_version_info import installed_ops

    if installed_ops.get(operation):
        return
    compiler = cpp_compiler()
    if shutil.which(compiler) is None:
        raise SkytrainError(
            f"parallel.cpu_offload=true needs DeepSpeed's {operation}, which is compiled when first used, and the C++ compiler {compiler!r} is missing\n"
            "  install one (apt-get install g++, yum install gcc-c++), "
            f"or install DeepSpeed where there is one with DS_BUILD_{operation.upper()}=1 pip install deepspeed"
        )


def _check_disk(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError("parallel.offload_folder", f"{str(folder)!r} is not a writable folder")
    from deepspeed.ops.op_builder import AsyncIOBuilder

    with compiling():
        possible = AsyncIOBuilder().is_compatible(verbose=False)
    if not possible:
        raise SkytrainError(
            f"parallel.offload_folder={folder} needs the library libaio and its headers, which are missing\n"
            "  install them (apt-get install libaio-dev, yum install libaio-devel), or leave parallel.offload_folder out to offload to memory"
        )


def cpu_adam() -> Any:
    """Return DeepSpeed's AdamW for the CPU, compiled first if needed: two minutes on one core, once per machine."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    load_operation("CPUAdamBuilder")
    return DeepSpeedCPUAdam


def load_operation(builder: str) -> None:
    """Load one of DeepSpeed's operations, compiled first if needed. DeepSpeed would compile it in another folder."""
    import deepspeed.ops.op_builder as builders

    made = getattr(builders, builder)()
    with compiling():
        if not list(operations_folder().glob(f"{made.name}/*.so")):
            log.warning(
                "compiling DeepSpeed's %s for this machine, once: some minutes; later runs find it in %s",
                made.name,
                operations_folder(),
            )
        try:
            made.load(verbose=False)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            raise SkytrainError(
                f"DeepSpeed's {made.name} cannot be compiled here: {str(error).splitlines()[0]}\n"
                "  deepspeed's ds_report shows what is missing"
            ) from error


@contextmanager
def compiling() -> Iterator[None]:
    """Let one process of a machine compile at a time, in Skytrain's own folder.

    torch's lock is a file that outlives a killed process, and others wait for it for ever. This lock ends with its process,
    and its holder removes torch's leftover files. The folder's name depends on all that decides what is compiled, since
    torch's own folder would offer an old library to a new torch, or one processor's to another.
    """
    import fcntl  # not on Windows

    folder = operations_folder()
    folder.mkdir(parents=True, exist_ok=True)
    # The folder of ninja, which may not be on PATH if Python was called by its full name.
    path = os.pathsep.join([str(Path(sys.executable).parent), variable("PATH") or ""])
    with (
        temporarily({"TORCH_EXTENSIONS_DIR": str(folder), "PATH": path}),
        (folder / "skytrain.lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob("*/lock"):
            left.unlink()
        yield


def operations_folder() -> Path:
    import deepspeed
    import torch

    processor = Path("/proc/cpuinfo")
    flags = (
        next((line for line in processor.read_text().splitlines() if line.startswith("flags")), "")
        if processor.exists()
        else ""
    )
    decides = [deepspeed.__version__, torch.__version__, sys.version, platform.machine(), flags]
    return user_cache_folder() / "skytrain" / "deepspeed" / hashlib.sha256("\n".join(decides).encode()).hexdigest()[:16]
