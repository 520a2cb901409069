"""Rankings of the catalogue: GPU machines by effective FLOPs (peak times MFU) per dollar, others by dollars per vCPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..config import DecoderConfig, ModelConfig, SkytrainError, has_layers
from .catalog import Catalog, InstanceType, Market
from .communication import Node
from .flops import decoder_flops_per_token
from .memory import TrainingJob
from .search import Machines, Placement, best_placement

SEQUENCES_PER_GPU = 64  # batch on which instances are compared


@dataclass(frozen=True)
class Ranked:
    type: str
    region: str
    market: Market
    gpu: str
    gpus: int
    gpu_memory_gb: float
    peak_tflops: float | None  # of all GPUs
    vcpus: int
    memory_gib: float
    network_gbps: float
    efa_interfaces: int
    nvme_gb: int
    usd_per_hour: float | None  # the cheapest zone
    mfu: float | None
    usd_per_effective_exaflop: float | None
    price_date: str | None


def rank_catalog(catalog: Catalog, model: ModelConfig, market: Market, regions: Sequence[str]) -> list[Ranked]:
    """Return one row per type, in its cheapest region; types without a price or a known peak come last."""
    if not has_layers(model):
        raise SkytrainError("a plugged-in model has no known shape to rank by\n  try --model gpt2-124m")
    rows = []
    for instance in catalog.instances:
        prices = [price for region in regions if (price := catalog.price(instance.type, region, market))]
        price = min(prices, key=lambda one: one.usd_per_hour_min, default=None)
        peak = instance.device.peak_flops
        efficiency = _mfu(instance, model) if peak else None
        usd = price.usd_per_hour_min if price else None
        effective = usd / 3600 / (peak * instance.gpus * efficiency) * 1e18 if usd and peak and efficiency else None
        rows.append(
            Ranked(
                type=instance.type,
                region=price.region if price else "-",
                market=market,
                gpu=instance.gpu,
                gpus=instance.gpus,
                gpu_memory_gb=instance.gpu_memory_mib * 2**20 / 1e9,
                peak_tflops=peak * instance.gpus / 1e12 if peak else None,
                vcpus=instance.vcpus,
                memory_gib=instance.memory_gib,
                network_gbps=instance.network_gbps,
                efa_interfaces=instance.efa_interfaces,
                nvme_gb=instance.nvme_gb,
                usd_per_hour=usd,
                mfu=efficiency,
                usd_per_effective_exaflop=effective,
                price_date=price.date if price else None,
            )
        )
    return sorted(rows, key=lambda row: (row.usd_per_effective_exaflop is None, row.usd_per_effective_exaflop or 0.0))


@lru_cache(maxsize=256)
def _mfu(instance: InstanceType, model: DecoderConfig) -> float | None:
    """Return the predicted MFU of the model, compiled and in bfloat16; None if it does not fit."""
    node = Node.of(instance)
    length = min(2048, model.max_length)
    batch_tokens = SEQUENCES_PER_GPU * instance.gpus * length
    placement = best_placement(
        TrainingJob(model=model, sequence_length=length, micro_batch=1, compiled=True),
        Machines(node, instance.gpus, instance.gpu_memory_mib),
        batch_tokens,
    )
    if not isinstance(placement, Placement):
        return None
    assert node.gpu.peak_flops is not None
    return placement.tokens_per_s * decoder_flops_per_token(model, length) / (node.gpu.peak_flops * instance.gpus)


@dataclass(frozen=True)
class CpuMachine:
    """A machine without GPUs, in its cheapest region."""

    type: str
    region: str
    market: Market
    vcpus: int
    memory_gib: float
    network_gbps: float
    usd_per_hour: float  # the cheapest zone
    usd_per_vcpu_hour: float
    quota_code: str | None
    price_date: str


def rank_cpu_machines(catalog: Catalog, market: Market, regions: Sequence[str]) -> list[CpuMachine]:
    """Return the machines that have a price, cheapest per vCPU first, smaller ones first among equals."""
    rows = []
    for instance in catalog.cpu_instances:
        prices = [price for region in regions if (price := catalog.price(instance.type, region, market))]
        if not prices:
            continue
        price = min(prices, key=lambda one: one.usd_per_hour_min)
        rows.append(
            CpuMachine(
                type=instance.type,
                region=price.region,
                market=market,
                vcpus=instance.vcpus,
                memory_gib=instance.memory_gib,
                network_gbps=instance.network_gbps,
                usd_per_hour=price.usd_per_hour_min,
                usd_per_vcpu_hour=price.usd_per_hour_min / instance.vcpus,
                quota_code=instance.quota_code(market),
                price_date=price.date,
            )
        )
    return sorted(rows, key=lambda row: (round(row.usd_per_vcpu_hour, 6), row.vcpus, row.type))
