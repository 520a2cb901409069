"""A plan for `launch finish`: one machine with one GPU that has room for the model, to evaluate, export and report it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import Config, SkytrainError, format_bytes
from .catalog import MARKETS, InstanceType, Price
from .costs import BOOT_SECONDS, GP3_GB, INTERRUPTIONS_PER_HOUR, s3_seconds, tokens_of_tasks
from .flops import decoder_flops_per_token, decoder_size
from .memory import checkpoint_bytes, planned_precision, usable_bytes
from .one_machine import choose_machine, disk_usd_per_hour, machine_offer
from .plan_file import CostForecast, Plan, PlannedData, PlannedOffer
from .plan_making import JobOfPlan, PlanMaterial, plan_of
from .workload import job_of

WEIGHT_BYTES = 4  # checkpoints hold float32
GPU_TIMES = 1.25  # weights and activations of a batch of questions, over the weights
HOST_TIMES = 2.5  # the loaded weights, and those that are written
OTHER_BYTES = 3e9  # torch, CUDA, the tokenizer
SCORING_PEAK = 0.1  # share of the GPU's bf16 peak that short questions reach; assumed
UNKNOWN_PEAK = 50e12  # of a GPU whose peak is not known
FINISH_P90_FACTOR = 2.5  # p90 of the seconds of work over their median; assumed
ASSUMPTIONS = {
    "speed": "scoring at a tenth of the GPU's peak, p90 2.5 times as slow",
    "boot": "5 to 12 minutes; one interruption in 24 hours on spot, after which it continues where it was",
}


@dataclass(frozen=True)
class FinishWork:
    """The model to evaluate and export, and the text that its tasks have."""

    weight_bytes: float
    checkpoint_bytes: float
    scoring_flops: float
    folder: str  # of the results, relative to the store

    @property
    def gpu_bytes(self) -> float:
        return GPU_TIMES * self.weight_bytes + OTHER_BYTES

    @property
    def host_bytes(self) -> float:
        return HOST_TIMES * self.weight_bytes + OTHER_BYTES


def finish_work(config: Config, folder: str) -> FinishWork:
    """Return what finishing a run of this configuration needs. Raises ConfigError for a model of unknown size."""
    model = job_of(config).model
    tokens = tokens_of_tasks(config.evaluation)
    per_token = decoder_flops_per_token(model, config.trainer.sequence_length) / 3  # forward only
    precision = planned_precision(config.trainer.precision)
    return FinishWork(
        weight_bytes=float(WEIGHT_BYTES * decoder_size(model).padded_parameters),
        checkpoint_bytes=checkpoint_bytes(model, config.optimizer.facts, precision),
        scoring_flops=tokens * per_token,
        folder=folder,
    )


def finish_plan(work: FinishWork, material: PlanMaterial, families: tuple[str, ...] = ()) -> Plan:
    """Return the plan: the cheapest machine that has room, and its fallbacks.

    Raises SkytrainError if the model is too large for every GPU of the region, or none is within the budget.
    """
    request = material.request
    assert request.region is not None
    material.catalog.check_region(request.region)
    sold = [
        (instance, price)
        for instance in material.catalog.instances
        if not families or instance.family in families
        for market in ([request.market] if request.market else MARKETS)
        if (price := material.catalog.price(instance.type, request.region, market))
    ]
    fitting = [(instance, price) for instance, price in sold if _has_room(work, instance)]
    if sold and not fitting:
        raise SkytrainError(
            f"no machine in {request.region} has a GPU with {format_bytes(work.gpu_bytes)} and a memory of "
            f"{format_bytes(work.host_bytes)}, which evaluating and exporting this model needs\n"
            "  launch the other stages by themselves: skytrain launch prepare, skytrain launch train"
        )
    chosen = choose_machine(
        [_offer(work, instance, price, material) for instance, price in fitting],
        request,
        "evaluating and exporting the model",
        "raise the budget, or score fewer items: evaluation.limit=1000",
    )
    job = JobOfPlan(
        kind="finish",
        why=f"{chosen[0].instance_type} is the cheapest that has room for the model",
        data=PlannedData(work.folder, work.checkpoint_bytes),
        assumptions=ASSUMPTIONS,
    )
    return plan_of(job, chosen, material)


def _has_room(work: FinishWork, instance: InstanceType) -> bool:
    return work.gpu_bytes <= usable_bytes(instance.gpu_memory_mib) and work.host_bytes <= instance.memory_gib * 2**30


def _offer(work: FinishWork, instance: InstanceType, price: Price, material: PlanMaterial) -> PlannedOffer:
    boot = sum(BOOT_SECONDS) / 2
    scoring = work.scoring_flops / (SCORING_PEAK * (instance.device.peak_flops or UNKNOWN_PEAK))
    moved = work.checkpoint_bytes + 2 * work.weight_bytes  # twice read, by the evaluation and the export; once written
    seconds = scoring + s3_seconds(moved, instance)
    hours = (boot + seconds) / 3600
    slow = (max(BOOT_SECONDS) + FINISH_P90_FACTOR * seconds) / 3600
    interruptions = INTERRUPTIONS_PER_HOUR * hours if price.market == "spot" else 0.0
    disk_gb = GP3_GB + math.ceil(2 * work.weight_bytes / 1e9)
    disk = disk_usd_per_hour(disk_gb)
    mean = (price.usd_per_hour_min + price.usd_per_hour_max) / 2
    cost = CostForecast(
        hours=hours,
        hours_p90=slow,
        usd=hours * (mean + disk),
        usd_p10=min(BOOT_SECONDS) / 3600 * (price.usd_per_hour_min + disk),
        usd_p90=slow * (price.usd_per_hour_max + disk),
        interruptions=interruptions,
        parts_usd={"machine": hours * mean, "disk": hours * disk},
    )
    return machine_offer(instance, price, material, disk_gb=disk_gb, cost=cost)
