"""Settings of `skytrain serve`."""

from __future__ import annotations

from typing import Literal

from .declare import EXECUTION, setting, settings
from .kinds import Count, Fraction, PositiveFloat, Seconds


@settings
class ServeConfig:
    """How vLLM serves a model. What is null follows from the model and the GPUs."""

    python: str | None = setting(
        EXECUTION, "Python of the environment that has vLLM, such as ~/vllm/bin/python; null: this one."
    )
    dtype: Literal["bfloat16", "float16", "float32"] | None = setting(
        EXECUTION, "Type of weights and computation; null: bfloat16, float16 on GPUs without it, float32 on a CPU."
    )
    max_length: Count | None = setting(
        EXECUTION, "Longest prompt and answer together, in tokens; null: the model's, or what the memory has room for."
    )
    gpu_memory: Fraction = setting(EXECUTION, "Share of each GPU's memory that vLLM may take.")
    gpus: Count | None = setting(
        EXECUTION, "GPUs that share the model (tensor parallel); null: the fewest that have room for it."
    )
    cpu_cache_gib: PositiveFloat | None = setting(
        EXECUTION, "Memory for keys and values on a CPU, in GiB; null: a quarter of what is free, at most 8."
    )
    start: Seconds = setting(EXECUTION, "How long the server may take until it answers.")
    arguments: list[str] = setting(EXECUTION, "Further arguments of vLLM, such as [--max-num-seqs=64].")
    source: str | None = setting(
        EXECUTION, "What to serve where `skytrain serve` names nothing: a run, a folder, an s3:// URL."
    )
    name: str | None = setting(EXECUTION, "The model's name in requests, as --name.")
    key_parameter: str | None = setting(
        EXECUTION, "Parameter of AWS Systems Manager that has the API key, for rented machines."
    )
