"""Runs lm-evaluation-harness with its own model class and through our bridge; prints what each found, as JSON.

python harness_worker.py MODEL DATA TASKS        # a Hugging Face folder, a folder of TASK.jsonl, names by commas
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

HARNESS_NAMES = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "arc-easy": "arc/arc_easy.yaml",
    "arc-challenge": "arc/arc_challenge.yaml",
    "winogrande": "winogrande/default.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "sciq": "sciq/sciq.yaml",
    "lambada": "lambada/lambada_openai.yaml",
    "wikitext": "wikitext/wikitext.yaml",
}


def write_task(folder: Path, task: str, data: Path) -> None:
    """The harness's own task, with its data from a file."""
    original = Path(lm_eval.__file__).parent / "tasks" / HARNESS_NAMES[task]
    lines = [
        f"include: {original}",
        f"task: made_{task}",
        "dataset_path: json",
        "dataset_name: null",
        f"dataset_kwargs: {{data_files: {{validation: '{data}'}}}}",
        "training_split: null",
        "validation_split: validation",
        "test_split: null",
    ]
    if task not in ("lambada", "wikitext"):
        lines += [
            "metric_list:",
            *(
                f"  - {{metric: {name}, aggregation: mean, higher_is_better: true}}"
                for name in ("acc", "acc_norm", "acc_bytes")
            ),
        ]
    (folder / f"made_{task}.yaml").write_text("\n".join(lines) + "\n")


def samples(results: dict[str, Any]) -> dict[str, Any]:
    """The answers to each item in order, and the results."""
    found = {}
    for name, items in results["samples"].items():
        ordered = sorted(items, key=lambda item: item["doc_id"])
        found[name.removeprefix("made_")] = {
            "responses": [item["filtered_resps"] for item in ordered],
            "values": [{key: item[key] for key in ("acc", "acc_norm", "acc_bytes") if key in item} for item in ordered],
            "results": {key: value for key, value in results["results"][name].items() if isinstance(value, float)},
        }
    return found


def main() -> None:
    model, data, tasks = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")
    folder = data / "harness"
    folder.mkdir(exist_ok=True)
    for task in tasks:
        write_task(folder, task, data / f"{task}.jsonl")
    names = [f"made_{task}" for task in tasks]
    window = int(json.loads((model / "config.json").read_text()).get("max_position_embeddings") or 0) or None
    theirs = HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=16, max_length=window)
    manager = TaskManager(include_path=str(folder))
    found = lm_eval.simple_evaluate(
        model=theirs, tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True
    )

    from skytrain.evaluation import HarnessRequest, WholeModel, run_harness
    from skytrain.models import load_hf_folder
    from skytrain.tokens import load_tokenizer_folder

    bridge = run_harness(
        WholeModel(load_hf_folder(model)),
        load_tokenizer_folder(model),
        HarnessRequest(tuple(names), folder=str(folder)),
    )
    print(json.dumps({"harness": samples(found), "bridge": samples(bridge)}, default=str))


if __name__ == "__main__":
    main()
