"""Speed of scoring HellaSwag's 40,168 rows with GPT-2 124M, beside lm-evaluation-harness's own code on the same GPU.

python benchmarks/evaluation/h200.py --out benchmarks/evaluation/h200.json     # on a GPU, a few minutes
python benchmarks/evaluation/h200.py --device cpu --items 24                  # a trial with a tiny model

The items are random tokens with HellaSwag's lengths: contexts of 20-140 tokens, four endings of 5-45. Both sides hold
the same weights in the same precision and start from tokens in memory; loading and compilation are not counted.
The harness's side is `HFLM._loglikelihood_tokens` with the fastest of several batch sizes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skytrain.config import compose
from skytrain.evaluation import WholeModel
from skytrain.evaluation.continuations import Continuation, ContinuationScores
from skytrain.evaluation.scoring import score_continuations
from skytrain.models import build_model, load_hf_folder, save_hf_folder

MODEL = {"cuda": "gpt2-124m", "cpu": "gpt2-tiny"}
PRECISION = {"cuda": "bf16-true", "cpu": "32-true"}
BATCH_SIZES = {"cuda": (32, 64, 128, 256, 512, 1024), "cpu": (4, 16)}
ITEMS = 10_042
ENDINGS = 4
REPEATS = 3
TRIAL_ROWS = 6000  # with which the harness's batch sizes are compared
EXACT_ITEMS = 100  # compared in float32
VOCABULARY = 50257
Items = list[list[Continuation]]


def make_items(count: int) -> Items:
    made = np.random.default_rng(0)
    contexts = (20 + 121 * made.beta(2.0, 2.6, count)).astype(int).clip(20, 140)
    endings = (5 + 41 * made.beta(2.0, 2.2, (count, ENDINGS))).astype(int).clip(5, 45)
    items = []
    for context, lengths in zip(contexts, endings, strict=True):
        shared = made.integers(0, VOCABULARY - 1, context).tolist()
        rows = [(*shared, *made.integers(0, VOCABULARY - 1, length).tolist()) for length in lengths]
        items.append([Continuation(row, len(shared)) for row in rows])
    return items


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    found = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, found


def ours(folder: Path, items: Items, device: str, compiled: bool) -> dict[str, Any]:
    """The seconds of several runs, after one that compiles."""
    model = WholeModel(load_hf_folder(folder), torch.device(device), PRECISION[device])
    if compiled:
        model.compile_blocks()
    first, _ = timed(lambda: score_continuations(model, items), device)
    runs = [timed(lambda: score_continuations(model, items), device) for _ in range(REPEATS)]
    seconds = [each for each, _ in runs]
    return {"first_seconds": first, "seconds": seconds, "median": statistics.median(seconds), "scores": runs[-1][1]}


def make_harness(folder: Path, device: str, dtype: str) -> Any:
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    return HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(folder), device=device, batch_size=1)


def harness_scores(harness: Any, items: Items, batch: int) -> ContinuationScores:
    harness.batch_size_per_gpu = batch
    # Without a cache key, as its rolling log-likelihoods are passed.
    requests = [
        (None, list(each.tokens[: each.start]), list(each.tokens[each.start :])) for item in items for each in item
    ]
    found = harness._loglikelihood_tokens(requests, disable_tqdm=True)
    return ContinuationScores(np.array([each for each, _ in found]), np.array([each for _, each in found]))


def theirs(folder: Path, items: Items, device: str) -> dict[str, Any]:
    harness = make_harness(folder, device, "bfloat16" if device == "cuda" else "float32")
    trial = items[: max(1, min(len(items), TRIAL_ROWS // ENDINGS))]
    harness_scores(harness, trial[:8], 4)
    by_size: dict[int, float] = {}
    for batch in BATCH_SIZES[device]:
        try:
            harness_scores(harness, trial, batch)  # the allocator's first use of these sizes
            by_size[batch] = timed(lambda batch=batch: harness_scores(harness, trial, batch), device)[0]  # type: ignore[misc]
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        print(
            f"  harness, batch {batch}: {by_size.get(batch, float('nan')):.2f} s for {len(trial) * ENDINGS} rows",
            flush=True,
        )
    best = min(by_size, key=lambda batch: by_size[batch])
    runs = [timed(lambda: harness_scores(harness, items, best), device) for _ in range(2)]
    seconds = [each for each, _ in runs]
    return {"batch": best, "trials": by_size, "seconds": seconds, "best": min(seconds), "scores": runs[-1][1]}


def agreement(one: ContinuationScores, two: ContinuationScores) -> dict[str, float]:
    chosen = [scores.log_probs.reshape(-1, ENDINGS).argmax(-1) for scores in (one, two)]
    return {
        "largest_difference": float(np.abs(one.log_probs - two.log_probs).max()),
        "mean_difference": float(np.abs(one.log_probs - two.log_probs).mean()),
        "same_choice": float((chosen[0] == chosen[1]).mean()),
    }


def exact(folder: Path, items: Items, device: str) -> dict[str, float]:
    """The two sides in float32."""
    torch.set_float32_matmul_precision("highest")
    model = WholeModel(load_hf_folder(folder), torch.device(device), "32-true")
    return agreement(
        score_continuations(model, items), harness_scores(make_harness(folder, device, "float32"), items, 16)
    )


def save_model(folder: Path, device: str) -> None:
    """Weights larger than at the start, so that endings differ in likelihood, with a tokenizer that HFLM accepts."""
    from skytrain.tokens.tokenizers import gpt2

    settings = [f"model={MODEL[device]}", "tokenizer=gpt2", "trainer.sequence_length=256"]
    model = build_model(compose(settings).config.model, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.ndim > 1 else 1.0)
    save_hf_folder(model, folder)
    gpt2().save(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = options.device
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    items = make_items(options.items)
    rows = len(items) * ENDINGS
    tokens = sum(len(each.tokens) for item in items for each in item)
    print(f"{name}, torch {torch.__version__}: {rows} rows, {tokens} tokens, {PRECISION[device]}", flush=True)
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "rows": rows, "tokens": tokens}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_model(folder, device)
        found = {}
        for label, compiled in (("eager", False), ("compiled", True)):
            if compiled and device == "cpu":
                continue
            found[label] = ours(folder, items, device, compiled)
            seconds = ", ".join(f"{each:.2f}" for each in found[label]["seconds"])
            print(
                f"skytrain, {label}: {seconds} s after a first run of {found[label]['first_seconds']:.1f} s", flush=True
            )
        peer = theirs(folder, items, device)
        print(f"harness, batch {peer['batch']}: {', '.join(f'{each:.2f}' for each in peer['seconds'])} s", flush=True)
        result["exact"] = exact(folder, items[:EXACT_ITEMS], device)
    for label, mine in found.items():
        result[label] = {
            **mine,
            "times_faster": peer["best"] / mine["median"],
            **agreement(mine.pop("scores"), peer["scores"]),
        }
        print(
            f"{label}: {peer['best'] / mine['median']:.1f} times the harness's speed, {result[label]['same_choice']:.2%} same choices"
        )
    print(f"float32, {min(len(items), EXACT_ITEMS)} items: {result['exact']}")
    for each in (result, *(value for value in result.values() if isinstance(value, dict))):
        each.pop("scores", None)
    result["harness"] = {key: value for key, value in peer.items() if key != "scores"}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
