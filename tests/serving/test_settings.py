"""The arguments of vLLM for a model on given GPUs, and what does not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.planning import ServedShape, fit_serving
from skytrain.planning.serving import serving_bytes
from skytrain.serving import ServeRefused, open_served, server_settings
from skytrain.serving.devices import LocalGpu
from skytrain.serving.engine import VllmEngine

GIB = 2.0**30
ENGINE = VllmEngine("python", "0.32.0", for_cpu=False, own_environment=True)
A10G = LocalGpu("NVIDIA A10G", 22.5 * GIB, 0.0, bf16=True)
# Llama 3.1 8B.
LLAMA = ServedShape(
    weight_bytes=16.06e9,
    value_bytes=2,
    layers=32,
    heads=32,
    kv_heads=8,
    head_size=128,
    width=4096,
    mlp_width=14336,
    vocab_size=128256,
    max_length=131072,
)


def command(folder: Path, gpus: list[LocalGpu], *words: str, engine: VllmEngine = ENGINE) -> dict[str, str]:
    config = compose(list(words)).config.serve
    settings = server_settings(open_served(folder, "tiny"), engine, gpus, config, ("127.0.0.1", 8000))
    said = list(settings.command)
    return {said[i]: said[i + 1] for i in range(3, len(said) - 1, 2)} | settings.environment


def test_flags_follow_from_model_and_gpus(folder: Path) -> None:
    flags = command(folder, [A10G, A10G])
    assert flags["--dtype"] == "bfloat16" and flags["--max-model-len"] == "128"
    assert flags["--tensor-parallel-size"] == "1" and flags["--gpu-memory-utilization"] == "0.9"
    assert command(folder, [dataclasses.replace(A10G, bf16=False)])["--dtype"] == "float16"
    assert command(folder, [A10G, A10G], "serve.gpus=2")["--tensor-parallel-size"] == "2"


def test_cpu_serves_float32_and_only_heads_that_its_kernels_take(folder: Path) -> None:
    engine = dataclasses.replace(ENGINE, for_cpu=True)
    flags = command(folder, [], "serve.cpu_cache_gib=2", engine=engine)
    assert flags["--dtype"] == "float32" and flags["VLLM_CPU_KVCACHE_SPACE"] == "2"
    model = open_served(folder, "tiny")
    odd = dataclasses.replace(model, config={**model.config, "n_head": 8})
    with pytest.raises(ServeRefused, match="heads have 16 numbers"):
        server_settings(odd, engine, [], compose([]).config.serve, ("127.0.0.1", 8000))


def test_no_gpu_for_a_vllm_of_cuda_is_refused(folder: Path) -> None:
    with pytest.raises(ServeRefused, match="no GPU"):
        command(folder, [])


def test_context_is_cut_to_the_memory_and_more_gpus_are_taken_where_that_is_not_enough() -> None:
    room = 0.9 * 22.5 * GIB
    alone = fit_serving(LLAMA, room, 1)
    assert alone is not None and alone.gpus == 1 and 512 <= alone.max_length < 131072
    assert serving_bytes(LLAMA, 1, alone.max_length) <= room < serving_bytes(LLAMA, 1, alone.max_length + 64)
    more = fit_serving(LLAMA, room, 4)
    assert more is not None and (more.gpus, more.max_length) == (2, 131072)
    assert fit_serving(LLAMA, room / 2, 1) is None


def test_a_model_too_large_says_by_how_much(folder: Path) -> None:
    small = dataclasses.replace(A10G, memory_bytes=0.5 * GIB)
    with pytest.raises(SkytrainError, match=r"too large: one GPU needs .* each.*too much") as refused:
        command(folder, [small])
    assert refused.value.exit_code == 3
