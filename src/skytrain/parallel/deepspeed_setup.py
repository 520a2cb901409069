"""What DeepSpeed is asked for and what it needs on this machine: its settings, its optimizer for the CPU, its disk library."""

from __future__ import annotations

import hashlib
import importlib.util
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

LARGEST_BUCKET = 500_000_000  # elements; DeepSpeed's own default, which a small model would pay for in memory


@dataclass(frozen=True)
class ZeroSettings:
    """How DeepSpeed divides the work; sizes of the model are in elements."""

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
    """DeepSpeed's own configuration. Buffers are as large as one block, not as large as its defaults, which hold 500M elements.

    Vectors, up to `vector_elements` long, stay whole under ZeRO-3: there is little to save and much to send.
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
            "stage3_max_live_parameters": block,  # one layer's worth is gathered, what is fetched ahead included
            "stage3_max_reuse_distance": 0,  # which would keep a layer past its use
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
        "zero_allow_untested_optimizer": True,  # whatever works on each element alone works on a part of them
        "train_micro_batch_size_per_gpu": settings.micro_batch,
        "gradient_clipping": settings.clip_norm or 0.0,
        "steps_per_print": sys.maxsize,
    }
    if settings.bf16:
        # Gradients add up and travel in float32, as on our own mesh.
        found |= {"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}
    return found


def check_deepspeed(config: Config, device: str) -> None:
    """Raise where this machine lacks what a DeepSpeed preset needs."""
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
    """DeepSpeed's operations come as source: they are there from its installation, or a compiler makes them when first used."""
    from deepspeed.git_version_info import installed_ops

    if installed_ops.get(operation):
        return
    compiler = cpp_compiler()
    if shutil.which(compiler) is None:
        raise SkytrainError(
            f"parallel.cpu_offload=true needs DeepSpeed's {operation}, which is compiled when first used, and there is no C++ compiler {compiler!r} here\n"
            "  install one (apt-get install g++, yum install gcc-c++), "
            f"or install DeepSpeed where there is one with DS_BUILD_{operation.upper()}=1 pip install deepspeed"
        )


def _check_disk(folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError("parallel.offload_folder", f"{str(folder)!r} is no folder that can be written to")
    from deepspeed.ops.op_builder import AsyncIOBuilder

    with compiling():
        possible = AsyncIOBuilder().is_compatible(verbose=False)
    if not possible:
        raise SkytrainError(
            f"parallel.offload_folder={folder} needs the library libaio and its headers, which are not here\n"
            "  install them (apt-get install libaio-dev, yum install libaio-devel), or leave parallel.offload_folder out to offload to memory"
        )


def cpu_adam() -> Any:
    """DeepSpeed's AdamW for the CPU, compiled first where it is not there: two minutes on one core, once per machine."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    load_operation("CPUAdamBuilder")
    return DeepSpeedCPUAdam


def load_operation(builder: str) -> None:
    """Compiles one of DeepSpeed's operations where it is not there, and loads it: DeepSpeed, which would compile it in a place of its own, then finds it loaded."""
    import deepspeed.ops.op_builder as builders

    made = getattr(builders, builder)()
    with compiling():
        try:
            made.load(verbose=False)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            raise SkytrainError(
                f"DeepSpeed's {made.name} cannot be compiled here: {str(error).splitlines()[0]}\n"
                "  deepspeed's ds_report tells what it misses"
            ) from error


@contextmanager
def compiling() -> Iterator[None]:
    """One process of a machine compiles at a time, in a folder of its own.

    torch locks with a file that outlives a killed process, and then waits for ever; this lock ends with its process, and
    whoever holds it may remove what a dead one left. The folder is named by all that decides what is compiled, since
    torch's own would hand an old library to a new torch, or one processor's to another.
    """
    import fcntl  # not on Windows

    folder = operations_folder()
    folder.mkdir(parents=True, exist_ok=True)
    # Where ninja's program is, which need not be on the path of a command that was called by its full name.
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
