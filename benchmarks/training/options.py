"""What the trainer's options give on one GPU: documents kept apart, fp8 layers, and what happens when memory runs out.

python benchmarks/training/options.py [documents fp8 memory] [--device cpu]     # all parts where none is named; cpu is a trial
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from skytrain.config import Config, SkytrainError
from skytrain.config.compose import compose
from skytrain.models import Decoder, build_model, lm_loss
from skytrain.pipelines.bench import _fit_briefly
from skytrain.pipelines.measure import shortened
from skytrain.runs import Silent
from skytrain.training.optimizers import make_optimizer
from skytrain.training.paths import apply_fp8, choose_path

SMALL = ["model.layers=1", "model.width=64", "model.heads=4", "trainer.device=cpu", "trainer.sequence_length=64"]


def milliseconds(call: Callable[[], object], device: str, runs: int = 10) -> float:
    for _ in range(2):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(runs):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / runs


def documents(device: str) -> None:
    """GPT-2 124M with documents kept apart, against the plain decoder in float32, and beside windows that are not."""
    options = ["model=gpt2-124m", "trainer.precision=bf16-mixed", "loader.separate_documents=true"]
    config = compose([*options, *(SMALL if device == "cpu" else [])]).config
    length, rows = config.trainer.sequence_length, 2 if device == "cpu" else 32
    model = build_model(config.model, seed=0).to(device)
    separator = config.tokenizer.vocab_size - 1
    tokens = torch.randint(0, separator, (rows, length + 1), generator=torch.Generator().manual_seed(0)).to(device)
    begins = (
        torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)).to(device) < 1 / 400
    )  # a document in 400 tokens
    tokens = tokens.masked_fill(begins, separator)
    x, y = tokens[:, :-1], tokens[:, 1:]
    model.separator = separator
    path = choose_path(config, device)
    compute = path.compute_loss or lm_loss
    few = (x[:4], y[:4])

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        loss.backward()
        found = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        return found

    truth_loss = dense_loss(model, *few)
    truth, truth_loss = gradients(truth_loss), truth_loss.detach()
    ours_loss = compute(model, *few)
    ours, ours_loss = gradients(ours_loss), ours_loss.detach()
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(ours, truth, strict=True)]
    print(f"documents apart: {path.label}")
    print(
        f"   loss {float(ours_loss):.5f}, in float32 with a dense mask {float(truth_loss):.5f}; gradients' error median {statistics.median(errors):.4f}, worst {max(errors):.4f}"
    )
    apart = milliseconds(lambda: compute(model, x, y).backward(), device)
    model.separator = None
    together = milliseconds(lambda: compute(model, x, y).backward(), device)
    per_s = rows * length * 1e3
    print(f"   {per_s / apart:,.0f} tokens/s apart, {per_s / together:,.0f} together", flush=True)


def dense_loss(model: Decoder, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The plain decoder in float32 with a mask of length by length, whatever the device."""
    flex, model.documents = model.documents, lambda ids: type(flex(ids))(ids, {})  # type: ignore[method-assign]
    try:
        return model.loss(x, y)
    finally:
        model.documents = flex  # type: ignore[method-assign]


def fp8(device: str, tokens: torch.Tensor | None = None) -> None:
    """Four layers of Llama 3.2 1B's shape, compiled: speed, and the loss of the same steps on the same random walk of tokens."""
    shape = ["model=llama-3.2-1b", "model.layers=4", "model.vocab_size=50257", "trainer.sequence_length=2048"]
    small = [
        "model.kv_heads=2",
        "model.head_size=16",
        "model.mlp_width=64",
        "model.layers=1",
        *SMALL[1:],
        "trainer.compile=false",
    ]
    losses: dict[str, list[float]] = {}
    for scaling in ("off", "tensorwise", "rowwise"):
        options = [
            *shape,
            "tokenizer=gpt2",
            "trainer.precision=bf16-mixed",
            "trainer.compile=true",
            f"trainer.fp8={scaling}",
        ]
        config = compose([*options, *(small if device == "cpu" else [])]).config
        torch.compiler.reset()
        model = build_model(config.model, seed=0).to(device)
        if device == "cuda":
            apply_fp8(config, device, model)
        optimizer = make_optimizer(model, config.optimizer, fused=device == "cuda")
        compute = torch.compile(lm_loss, dynamic=False) if config.trainer.compile else lm_loss
        found, seconds = [], []
        for step in range(60 if device == "cuda" else 2):
            batch = walk(step, 8 if device == "cuda" else 2, config.trainer.sequence_length + 1).to(device)
            began = time.perf_counter()
            with torch.autocast(device, torch.bfloat16):
                loss = compute(model, batch[:, :-1], batch[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
            seconds.append(time.perf_counter() - began)
        losses[scaling] = found
        rate = batch[:, 1:].numel() / statistics.median(seconds)
        gap = statistics.mean(abs(a - b) for a, b in zip(found[-20:], losses["off"][-20:], strict=False))
        print(
            f"fp8 {scaling:10} {rate:9,.0f} tokens/s  loss {found[0]:.4f} -> {statistics.mean(found[-20:]):.4f} (the last 20), mean |difference| to bf16 {gap:.4f}  first step {seconds[0]:.0f} s",
            flush=True,
        )
        del model, optimizer


def walk(step: int, rows: int, length: int) -> torch.Tensor:
    """Tokens that can be learned: each is the last plus one of few strides."""
    generator = torch.Generator().manual_seed(step)
    strides = torch.tensor([1, 2, 3, 5])[torch.randint(0, 4, (rows, length), generator=generator)]
    return (torch.randint(0, 5000, (rows, 1), generator=generator) + strides.cumsum(1)) % 50257


def memory(device: str) -> None:
    """A micro-batch that cannot fit ends with a message, not a traceback."""
    options = ["model=gpt2-124m", "trainer.precision=bf16-mixed", "trainer.micro_batch=512", "trainer.steps=1"]
    config: Config = compose([*options, *(SMALL if device == "cpu" else []), "lr_schedule.warmup_steps=0"]).config
    if device == "cpu":
        print("memory: a trial on a CPU cannot run out")
        return
    try:
        _fit_briefly(shortened(config, 1), Silent())
        print("memory: 512 sequences fit")
    except SkytrainError as error:
        print(f"memory: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["documents", "memory", "fp8"])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen = parser.parse_args()
    print(torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu", torch.__version__)
    for part in chosen.parts:
        {"documents": documents, "fp8": fp8, "memory": memory}[part](chosen.device)
        sys.stdout.flush()
