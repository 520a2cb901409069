"""The table of GPUs: dense bf16 peak, memory, bandwidth, links, and torch's name for each device.

Peaks are dense. NVIDIA's headline figures for Hopper and later include sparsity, which training does not use, and are
twice as high.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

GIGA = 1e9
TERA = 1e12


@dataclass(frozen=True)
class Generation:
    """Fractions of peak that kernels reach. They are the same for all cards of a generation."""

    gemm: float  # fraction of the bf16 peak that a large matrix product sustains in training, at the card's power limit
    attention: float  # the same for torch's attention kernel, on the causal half
    fused_attention: float  # the same for the fused path's kernel: cuDNN's from Hopper on, torch's before
    fp8: bool  # whether fp8 matrix products are supported


@dataclass(frozen=True)
class Gpu:
    name: str
    device_pattern: str  # a regular expression on torch.cuda.get_device_name()
    peak_flops: float | None  # dense bf16 per second; None if no trustworthy figure was found
    fp32_flops: float  # per second without tensor cores, as for full float32 products
    generation: Generation
    power: float  # factor on the generation's fractions due to the power limit
    memory_bytes_per_s: float
    link: Literal["nvlink", "pcie"]  # between GPUs of one machine, as EC2 builds it
    link_bytes_per_s: float  # one direction, per GPU
    source: str

    @property
    def gemm(self) -> float:
        return self.generation.gemm * self.power

    def attention(self, fused: bool) -> float:
        """Return the fraction of peak that attention reaches, on the fused path or with torch's kernel."""
        return self.power * (self.generation.fused_attention if fused else self.generation.attention)


# A100 and Hopper are fitted on published runs (benchmarks/planning/published.log), Hopper's fused attention on
# measured steps on an H200 (benchmarks/planning/h200.md); the others are assumed.
A100_CHIP = Generation(gemm=0.84, attention=0.42, fused_attention=0.42, fp8=False)
GA102 = Generation(gemm=0.68, attention=0.52, fused_attention=0.52, fp8=False)
ADA = Generation(gemm=0.65, attention=0.35, fused_attention=0.35, fp8=True)
HOPPER = Generation(gemm=0.68, attention=0.25, fused_attention=0.45, fp8=True)
BLACKWELL = Generation(gemm=0.55, attention=0.20, fused_attention=0.36, fp8=True)

# Datasheet peaks, checked against the tables of torchtitan and nanochat. A10G: 80 SM x 256 FMA x 2 x 1.71 GHz
# = 70 TFLOP/s; the 125 that several libraries list is the A10's. Order matters where one name contains another.
# PCIe figures are NCCL's rates between GPUs of a G instance, which go through host memory.
# fmt: off
GPUS = (
    #   name                   torch's device name  bf16 dense   fp32          generation power memory        link      link bytes/s  source
    Gpu("a10g",                r"A10G\b",           70 * TERA,   31.5 * TERA,  GA102,     1.00, 600 * GIGA,   "pcie",   20 * GIGA,    "80 SM x 256 FMA x 2 x 1.71 GHz"),
    Gpu("a10",                 r"A10\b",            125 * TERA,  31.2 * TERA,  GA102,     0.80, 600 * GIGA,   "pcie",   20 * GIGA,    "NVIDIA A10 datasheet"),
    Gpu("l40s",                r"L40S\b",           362 * TERA,  91.6 * TERA,  ADA,       1.00, 864 * GIGA,   "pcie",   20 * GIGA,    "NVIDIA L40S datasheet"),
    Gpu("l40",                 r"L40\b",            181 * TERA,  90.5 * TERA,  ADA,       1.00, 864 * GIGA,   "pcie",   20 * GIGA,    "NVIDIA L40 datasheet"),
    Gpu("l4",                  r"L4\b",             121 * TERA,  30.3 * TERA,  ADA,       0.70, 300 * GIGA,   "pcie",   20 * GIGA,    "NVIDIA L4 datasheet"),
    Gpu("a100-40gb",           r"A100.*40GB",       312 * TERA,  19.5 * TERA,  A100_CHIP, 1.00, 1555 * GIGA,  "nvlink", 300 * GIGA,   "NVIDIA A100 datasheet"),
    Gpu("a100",                r"A100\b",           312 * TERA,  19.5 * TERA,  A100_CHIP, 1.00, 2039 * GIGA,  "nvlink", 300 * GIGA,   "NVIDIA A100 datasheet"),
    Gpu("h100-pcie",           r"H100 PCIe",        756 * TERA,  51 * TERA,    HOPPER,    0.90, 2039 * GIGA,  "pcie",   40 * GIGA,    "NVIDIA H100 datasheet, half of the sparse 1,513"),
    Gpu("h100-nvl",            r"H100 NVL",         835 * TERA,  60 * TERA,    HOPPER,    0.97, 3938 * GIGA,  "nvlink", 300 * GIGA,   "NVIDIA H100 NVL datasheet, half of the sparse 1,671"),
    Gpu("h100",                r"H100\b",           989 * TERA,  67 * TERA,    HOPPER,    1.00, 3350 * GIGA,  "nvlink", 450 * GIGA,   "NVIDIA H100 SXM datasheet, half of the sparse 1,979"),
    Gpu("h200-nvl",            r"H200 NVL",         835 * TERA,  60 * TERA,    HOPPER,    0.97, 4800 * GIGA,  "nvlink", 450 * GIGA,   "NVIDIA H200 NVL datasheet, half of the sparse 1,671"),
    Gpu("h200",                r"H200\b",           989 * TERA,  67 * TERA,    HOPPER,    1.00, 4800 * GIGA,  "nvlink", 450 * GIGA,   "NVIDIA H200 SXM datasheet, half of the sparse 1,979"),
    Gpu("b200",                r"\bB200\b",         2250 * TERA, 75 * TERA,    BLACKWELL, 1.00, 7700 * GIGA,  "nvlink", 900 * GIGA,   "NVIDIA HGX B200 datasheet, half of the sparse 4,500"),
    Gpu("b300",                r"\bB300\b",         2250 * TERA, 75 * TERA,    BLACKWELL, 1.00, 7700 * GIGA,  "nvlink", 900 * GIGA,   "NVIDIA HGX B300 datasheet, half of the sparse 4,500"),
    Gpu("rtx-pro-server-6000", r"RTX PRO 6000",     None,        120 * TERA,   BLACKWELL, 1.00, 1597 * GIGA,  "pcie",   40 * GIGA,    "no dense bf16 figure verified"),
)
# fmt: on


@lru_cache(maxsize=256)
def find_gpu(device_name: str) -> Gpu | None:
    """Return the row for a torch device name ("NVIDIA A100-SXM4-80GB") or a name of this table ("a100")."""
    for gpu in GPUS:
        if device_name == gpu.name:
            return gpu
    for gpu in GPUS:
        if re.search(gpu.device_pattern, device_name):
            return gpu
    return None


def device_peak(device_name: str) -> float | None:
    """Return the dense bf16 FLOP/s of a torch device, or None if it is unknown; then no MFU may be reported."""
    gpu = find_gpu(device_name)
    return gpu.peak_flops if gpu else None
