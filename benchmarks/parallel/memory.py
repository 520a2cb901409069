"""Memory of a rank for three models under each preset, for docs/parallelism.md. Computed, nothing is run.

python benchmarks/parallel/memory.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.parallel.document import insert

from skytrain.config import DecoderConfig, compose
from skytrain.planning import Mesh
from skytrain.planning.memory import TrainingJob, rank_memory

MODELS = {"gpt2-355m": 1024, "llama-3.1-8b": 4096, "llama-2-13b": 4096}  # and the sequence length
MESHES = {
    "single": Mesh(),
    "ddp x8": Mesh(replicate=8),
    "fsdp x8": Mesh(shard=8),
    "hsdp 2x8": Mesh(replicate=2, shard=8),
    "tp x8": Mesh(tensor=8),
    "tp-fsdp 4x8": Mesh(shard=8, tensor=4),
    "pp x8": Mesh(pipeline=8),
    "pp-fsdp 4x8": Mesh(pipeline=4, shard=8),
    "pp-tp-fsdp 2x4x4": Mesh(pipeline=2, shard=4, tensor=4),
    "cp x8": Mesh(context=8),
    "cp x tp 8x4": Mesh(context=8, tensor=4),
}


def main() -> None:
    lines = [
        "| mesh | GPUs | " + " | ".join(f"{name}, {length} tokens" for name, length in MODELS.items()) + " |",
        "| --- " * (2 + len(MODELS)) + "|",
    ]
    for name, mesh in MESHES.items():
        cells = []
        for model, length in MODELS.items():
            decoder = compose(
                [f"model={model}", "tokenizer=bytes"] if model != "gpt2-355m" else [f"model={model}"]
            ).config.model
            assert isinstance(decoder, DecoderConfig)
            if decoder.heads % mesh.tensor or decoder.groups % mesh.tensor:
                cells.append("heads do not divide")
                continue
            job = TrainingJob(decoder, sequence_length=length, micro_batch=1, accumulation=mesh.pipeline, compiled=True)
            memory = rank_memory(job, mesh)
            state = memory.parameters + memory.gradients + memory.optimizer
            cells.append(f"{memory.total / 1e9:.1f} (state {state / 1e9:.1f})")
        lines.append(f"| {name} | {mesh.gpus} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    (Path(__file__).parent / "memory.log").write_text(text)
    insert("memory", text)


if __name__ == "__main__":
    main()
