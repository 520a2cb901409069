"""What trainer options gain on one GPU: separate documents, fp8 layers, and the out-of-memory message.

python benchmarks/training/options.py [documents fp8 memory] [--text TOKENS.bin] [--device cpu]

All parts where none is named; `--text` are raw uint16 ids of GPT-2's vocabulary for fp8 to learn; cpu is a trial.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from skytrain.bench.measurement import fit_random_tokens, shortened
from skytrain.config import Config, SkytrainError, compose
from skytrain.models import Decoder, build_model, lm_loss
from skytrain.runs import Silent
from skytrain.training import apply_fp8, choose_loss, make_optimizer

# of fp8's runs
ROWS = {"cuda": 8, "cpu": 2}
STEPS = {"cuda": 300, "cpu": 3}
# steps over which the learning rate rises, and over which losses are averaged
WARM = 30
LAST = 50
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
    """GPT-2 124M with separate documents, against the plain decoder in float32 and against windows without masks."""
    options = ["model=gpt2-124m", "trainer.precision=bf16-mixed", "loader.separate_documents=true"]
    config = compose([*options, *(SMALL if device == "cpu" else [])]).config
    length = config.trainer.sequence_length
    rows = 2 if device == "cpu" else 32
    model = build_model(config.model, seed=0).to(device)
    separator = config.tokenizer.vocab_size - 1
    tokens = torch.randint(0, separator, (rows, length + 1), generator=torch.Generator().manual_seed(0)).to(device)
    begins = (
        torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)).to(device) < 1 / 400
    )  # a document in 400 tokens
    tokens = tokens.masked_fill(begins, separator)
    x, y = tokens[:, :-1], tokens[:, 1:]
    starts = begins[:, :-1]
    path = choose_loss(config, device)
    compute = path.loss
    few = (x[:4], y[:4], starts[:4])

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
    apart = milliseconds(lambda: compute(model, x, y, starts).backward(), device)
    together = milliseconds(lambda: compute(model, x, y, None).backward(), device)
    per_s = rows * length * 1e3
    print(f"   {per_s / apart:,.0f} tokens/s apart, {per_s / together:,.0f} together", flush=True)


def dense_loss(model: Decoder, x: torch.Tensor, y: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The plain decoder in float32 with a mask of length by length, whatever the device."""
    flex, model.documents = model.documents, lambda ids: type(flex(ids))(ids, {})  # type: ignore[method-assign]
    try:
        return model.loss(x, y, starts)
    finally:
        model.documents = flex  # type: ignore[method-assign]


def fp8(device: str, text: Path | None) -> None:
    """Four compiled layers of Llama 3.2 1B's shape: speed, and losses against bf16, whose two seeds show the spread."""
    shape = ["model=llama-3.2-1b", "model.layers=4", "model.vocab_size=50257", "trainer.sequence_length=2048"]
    shape += ["tokenizer=gpt2", "trainer.precision=bf16-mixed", "trainer.compile=true"]
    small = ["model.kv_heads=2", "model.head_size=16", "model.mlp_width=64", "trainer.compile=false", *SMALL]
    means: dict[tuple[str, int], float] = {}
    for scaling, seed in (("off", 0), ("off", 1), ("tensorwise", 0), ("rowwise", 0)):
        config = compose([*shape, f"trainer.fp8={scaling}", *(small if device == "cpu" else [])]).config
        torch.compiler.reset()
        model = build_model(config.model, seed=seed).to(device)
        if device == "cuda":
            apply_fp8(config, device, model)
        losses, seconds = train(config, model, device, batches(text, device, config.trainer.sequence_length + 1))
        means[scaling, seed] = statistics.mean(losses[-LAST:])
        rate = ROWS[device] * config.trainer.sequence_length / statistics.median(seconds)
        at = " ".join(f"{losses[step]:.4f}" for step in range(0, len(losses), max(1, len(losses) // 5)))
        print(
            f"fp8 {scaling:10} seed {seed} {rate:9,.0f} tokens/s  losses {at}  mean of the last {LAST} {means[scaling, seed]:.4f}"
            f" ({means[scaling, seed] - means['off', 0]:+.4f} to bf16)  first step {seconds[0]:.0f} s",
            flush=True,
        )
        del model


def train(
    config: Config, model: torch.nn.Module, device: str, tokens: Iterable[torch.Tensor]
) -> tuple[list[float], list[float]]:
    """Losses and seconds of a step for each batch."""
    optimizer = make_optimizer(model, config.optimizer, fused=device == "cuda")
    compute = torch.compile(lm_loss, dynamic=False) if config.trainer.compile else lm_loss
    losses = []
    seconds = []
    for step, batch in enumerate(tokens):
        batch = batch.to(device)
        for group in optimizer.param_groups:
            group["lr"] = config.optimizer.lr * min(1.0, (step + 1) / WARM)
        began = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            loss = compute(model, batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - began)
    return losses, seconds


def batches(text: Path | None, device: str, length: int) -> Iterator[torch.Tensor]:
    """The same ones for each run: pieces of the text in one order, or a walk that can be learned."""
    rows = ROWS[device]
    steps = STEPS[device]
    if text is None:
        yield from (walk(step, rows, length) for step in range(steps))
        return
    tokens = np.fromfile(text, dtype=np.uint16)
    order = np.random.default_rng(0).permutation(rows * steps) % (len(tokens) // length)
    for step in range(steps):
        starts = order[step * rows : (step + 1) * rows] * length
        yield torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]).astype(np.int64))


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
        fit_random_tokens(shortened(config, 1), Silent())
        print("memory: 512 sequences fit")
    except SkytrainError as error:
        print(f"memory: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["documents", "memory", "fp8"])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen = parser.parse_args()
    print(torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu", torch.__version__)
    for part in chosen.parts:
        {"documents": documents, "fp8": partial(fp8, text=chosen.text), "memory": memory}[part](chosen.device)
        sys.stdout.flush()
