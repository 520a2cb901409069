"""What a run will cost and where: hardware and prices, FLOPs, memory, communication, throughput, offers. No torch."""

from .hardware import Gpu, device_peak, find_gpu

__all__ = ["Gpu", "device_peak", "find_gpu"]
