"""What a run will cost and where: hardware and prices, FLOPs, memory, communication, throughput, offers. No torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .hardware import Gpu, device_peak, find_gpu

if TYPE_CHECKING:
    from .catalog import Catalog, load_catalog
    from .choice import choose
    from .experiments import CostSheet, Trial, cost_sheet
    from .measurements import Measurement, load_measurements, predict, save_measurement
    from .memory import Job, Memory, rank_memory
    from .mesh import Mesh
    from .offers import Offer, PlanRequest, find_offers
    from .plan_file import read_plan
    from .search import Machines, Placement, best_placement
    from .workload import Workload, workload_of

# The trainer asks for a peak and nothing more; what plans need is loaded when it is asked for.
_HOMES = {
    "catalog": ("Catalog", "load_catalog"),
    "experiments": ("CostSheet", "Trial", "cost_sheet"),
    "measurements": ("Measurement", "load_measurements", "predict", "save_measurement"),
    "memory": ("Job", "Memory", "rank_memory"),
    "mesh": ("Mesh",),
    "choice": ("choose",),
    "offers": ("Offer", "PlanRequest", "find_offers"),
    "plan_file": ("read_plan",),
    "search": ("Machines", "Placement", "best_placement"),
    "workload": ("Workload", "workload_of"),
}

__all__ = [
    "Catalog",
    "CostSheet",
    "Gpu",
    "Job",
    "Machines",
    "Measurement",
    "Memory",
    "Mesh",
    "Offer",
    "Placement",
    "PlanRequest",
    "Trial",
    "Workload",
    "best_placement",
    "choose",
    "cost_sheet",
    "device_peak",
    "find_gpu",
    "find_offers",
    "load_catalog",
    "load_measurements",
    "predict",
    "rank_memory",
    "read_plan",
    "save_measurement",
    "workload_of",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
