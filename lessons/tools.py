"""What the lessons share: processes that meet, a small model, text, drawings, and the check of your answers."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import linecache
import math
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# One thread a process, here and in those that are started: two processes then have a core each.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

LIMIT_SECONDS = 300
# What every rank's program begins with. It shares nothing with this process but what it is given.
PRELUDE = """
from __future__ import annotations
import json, math, os, sys, time, warnings
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import Tensor, nn
torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=FutureWarning)  # names of collectives that newer versions replace
"""
MAIN = """
if __name__ == "__main__":
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    result = FUNCTION(rank, world, **json.load(open(f"{folder}/arguments.json")))
    json.dump(result, open(f"{folder}/result-{rank}.json", "w"))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # all have their results; at a usual exit the threads of gloo abort a process once in a while
"""


def run_ranks(function: Callable[..., Any], world: int, *needs: Any, **arguments: Any) -> list[Any]:
    """Run `function(rank, world, **arguments)` in `world` new processes joined by gloo; return what each returned.

    A process sees only the function, the functions and classes in `needs`, and torch. Arguments and results are
    JSON: numbers, lists, dictionaries. This is what torchrun does, in twenty lines.
    """
    parts = [textwrap.dedent(source_of(each)) for each in (*needs, function)]
    program = "\n\n".join([PRELUDE, *parts, MAIN.replace("FUNCTION", function.__name__)])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(program)
        Path(folder, "arguments.json").write_text(json.dumps(arguments))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, f"{folder}/program.py", str(rank), str(world), folder],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            texts = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        for rank, (process, text) in enumerate(zip(ranks, texts, strict=True)):
            if process.returncode:
                raise RuntimeError(f"rank {rank} failed:\n{text}")
            print(text, end="")
        return [json.loads(Path(folder, f"result-{rank}.json").read_text()) for rank in range(world)]


def source_of(each: Any) -> str:
    """Return the source of a function or class, of one in a cell of a notebook too."""
    try:
        return inspect.getsource(each)
    except OSError:  # a class of a cell: Python knows the file of its methods only
        method = next(value for value in map(inspect.unwrap, vars(each).values()) if inspect.isfunction(value))
        cell = "".join(linecache.getlines(method.__code__.co_filename))
        classes = (node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.ClassDef))
        return next(ast.unparse(node) for node in classes if node.name == each.__name__)


class Block(nn.Module):
    """One block: attention, then an MLP, each on a normalised copy and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x_btd: Tensor) -> Tensor:
        batch, time, width = x_btd.shape
        qkv = self.qkv(self.norm1(x_btd)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, width of a head)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btd = x_btd + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x_btd + self.down(F.gelu(self.up(self.norm2(x_btd))))


class TinyLM(nn.Module):
    """A whole language model in a dozen lines: tokens in, a score for every next token out."""

    def __init__(self, vocabulary: int = 256, width: int = 64, layers: int = 2, heads: int = 4, longest: int = 128):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        x_btd = self.embed(tokens_bt) + self.place(torch.arange(tokens_bt.size(1)))
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.head(self.norm(x_btd))


def next_token_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Return the mean cross-entropy of each token given those before it."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def text_windows(count: int, length: int, seed: int = 0) -> Tensor:
    """Return `count` windows of `length + 1` bytes of real text: the source of a module that every Python has."""
    import argparse

    data = torch.tensor(list(inspect.getsource(argparse).encode()))
    starts = torch.randint(len(data) - length - 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([data[start : start + length + 1] for start in starts.tolist()])


# Our own settings: small enough for two cores. The text is prepared once, in the folder lessons-store.
OURS = (
    "recipe=quickstart",
    "optimizer=adamw",
    "optimizer.lr=2e-3",
    "trainer.steps=12",
    "lr_schedule.warmup_steps=2",
    "trainer.batch_tokens=1024",
    "trainer.micro_batch=4",
    "trainer.log_every=1",
    "trainer.validate_every=null",
    "trainer.sample_every=null",
    "trainer.checkpoint_every=null",
    "store.root=lessons-store",
)


def compare_ours(preset: str, *settings: str, processes: int = 2) -> None:
    """Train the same run with one process and with a parallel preset; print both losses and the largest difference."""
    import skytrain

    base = skytrain.compose(*OURS)
    skytrain.prepare(base, quiet=True)
    one = skytrain.train(base, "run=one", quiet=True).metrics()["train/loss"]
    words = (f"parallel={preset}", *settings)
    other = skytrain.train(base, f"run={preset}", *words, processes=processes, quiet=True).metrics()["train/loss"]
    print(f"step   one process   {preset} on {processes} processes")
    for step in (1, 4, 8, 12):
        print(f"{step:4}   {one[step]:11.6f}   {other[step]:11.6f}")
    print(f"largest difference in {len(one)} steps: {float((one - other).abs().max()):.1e}")


# Drawings.

GREY = "#7d8896"  # can be read on light and dark pages
LANES = ("#2f6fb0", "#b5403f", "#2e7d5b", "#a4650c", "#6d55a8", "#5a6572", "#0f766e", "#9d4b78")


def timeline(rows: Sequence[Sequence[tuple[float, float, str, int]]], title: str, names: Sequence[str]) -> str:
    """Draw who computes what: in each row, boxes of (start, end, text, colour). Readable on light and dark pages."""
    end = max(box[1] for row in rows for box in row)
    left, top, high, wide = 70, 34, 30, 860
    x = lambda seconds: left + wide * seconds / end  # noqa: E731
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 10} {top + high * len(rows) + 10}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="{left}" y="20" font-size="14" fill="{GREY}">{title}</text>',
    ]
    for number, row in enumerate(rows):
        y = top + number * high
        parts.append(f'<rect x="{left}" y="{y}" width="{wide}" height="{high - 4}" fill="#8884"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 18}" text-anchor="end" fill="{GREY}">{names[number]}</text>')
        for start, stop, text, colour in row:
            width = max(1.0, x(stop) - x(start) - 1)
            parts.append(
                f'<rect x="{x(start):.1f}" y="{y}" width="{width:.1f}" height="{high - 4}" rx="2" '
                f'fill="{LANES[colour % len(LANES)]}"/>'
            )
            if width > 14:
                middle = (x(start) + x(stop)) / 2
                parts.append(f'<text fill="#fff" x="{middle:.1f}" y="{y + 18}" text-anchor="middle">{text}</text>')
    return "".join([*parts, "</svg>"])


def show(svg: str, file: str) -> None:
    """Show a drawing in a notebook; a script writes it to a file."""
    try:
        from IPython import get_ipython
    except ImportError:
        get_ipython = lambda: None  # noqa: E731
    if get_ipython() is not None:
        from IPython.display import SVG, display

        display(SVG(svg))
    else:
        Path(file).write_text(svg)
        print(f"wrote {file}")


# Answers.

# sha256 of "LESSON:ANSWER", so that the answer is not beside the question.
ANSWERS = {
    1: "1fd65566ddae073f",
    2: "fa70b304f0b46892",
    3: "d7d5bb806b4087ad",
    4: "e039d6fcac26056d",
    5: "2d1dc461a26fd6e5",
    6: "38e239237cdd692b",
    7: "119e62bee9372602",
    8: "6a3bb81f7131fd50",
    9: "61456c3ba4db5db7",
    10: "b90e3a3de552ac60",
}


def digest(lesson: int, answer: float) -> str:
    """Return how an answer is stored: three significant digits count."""
    rounded = float(f"{answer:.3g}") if math.isfinite(answer) else answer
    return hashlib.sha256(f"{lesson}:{rounded:g}".encode()).hexdigest()[:16]


def check(lesson: int, answer: float | None) -> None:
    """Print whether an answer is right, to three significant digits."""
    if answer is None:
        print("Write your number instead of None in `answer = None`, and run this again.")
    elif digest(lesson, float(answer)) == ANSWERS[lesson]:
        print("Right.")
    else:
        print("Not yet. Three significant digits count; the lesson has all that you need.")
