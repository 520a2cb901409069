"""Peaks by device name, as torch spells the names."""

from __future__ import annotations

import pytest

from skytrain.planning import device_peak
from skytrain.planning.hardware import A100_CHIP, ADA, BLACKWELL, GA102, GPUS, HOPPER


@pytest.mark.parametrize(
    ("device_name", "tera_flops"),
    [
        ("NVIDIA A10G", 70),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2250),
    ],
)
def test_the_peak_is_the_dense_bf16_figure_of_exactly_that_device(device_name: str, tera_flops: float) -> None:
    assert device_peak(device_name) == tera_flops * 1e12


@pytest.mark.parametrize(
    "device_name", ["cpu", "Tesla T4", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090", "NVIDIA GB200", ""]
)
def test_an_unknown_device_has_no_peak_rather_than_a_guess(device_name: str) -> None:
    assert device_peak(device_name) is None


def test_a_device_without_a_verified_peak_has_none() -> None:
    assert device_peak("NVIDIA RTX PRO 6000 Blackwell Server Edition") is None


def test_every_gpu_of_the_table_computes_in_bf16_as_plans_of_an_open_precision_assume() -> None:
    # A chip before Ampere (T4, V100) trains trainer.precision=auto in float32: one in the table needs plans that say so.
    assert {gpu.generation for gpu in GPUS} <= {A100_CHIP, GA102, ADA, HOPPER, BLACKWELL}
