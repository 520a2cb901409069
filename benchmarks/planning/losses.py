"""Fits a law of the loss on some public runs and compares it, and the published laws, with others.

    python benchmarks/planning/losses.py            prints the tables and writes losses.log beside this file

Fitted on: open_lm's runs on C4 and RefinedWeb with at least 50M parameters in blocks and 20 tokens a parameter, and the
lowest loss of each size and length of Step Law's dense table. Exponents, and the tokens that are optimal for a size, are
pulled towards Besiroglu's: these runs have no curves of equal compute, and leave a valley of laws that fit alike.
Everything else was not used for the law: open_lm on RedPajama and
its models of 6M, the AdamW runs of the Marin project, Cerebras-GPT, llm.c. Each text has one factor, which is
fitted to all of its runs; what is left after it is the error. What Muon saves is the Marin table's; HellaSwag is fitted
on open_lm's C4 and RefinedWeb models and compared with those on RedPajama.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skytrain.planning import BESIROGLU, HOFFMANN, LossLaw, best_batch
from skytrain.planning.loss_laws import law_value, least_squares

HERE = Path(__file__).parent
TABLES = HERE.parent / "tuning" / "tables"
LEAST_BLOCKS = 5e7
LEAST_TOKENS_EACH = 18.0  # a parameter: shorter runs are mostly warm-up
EXPONENT_WIDTH = 0.03
OPTIMA = np.array([1e8, 1e9, 1e10])  # sizes whose optimal tokens are tied to Besiroglu's
OPTIMUM_WIDTH = 0.3  # ln: about what published optima differ by
NOISE = 0.02


@dataclass(frozen=True)
class Run:
    source: str
    text: str
    parameters: float
    blocks: float
    tokens: float
    loss: float
    hellaswag: float | None = None

    @property
    def regular(self) -> bool:
        return self.blocks >= LEAST_BLOCKS and self.tokens >= LEAST_TOKENS_EACH * self.parameters


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


def public_runs() -> list[Run]:
    return [
        Run(
            source=row["source"],
            text=row["text"],
            parameters=float(row["parameters"]),
            blocks=float(row["block_parameters"]),
            tokens=float(row["tokens"]),
            loss=float(row["loss"]),
            hellaswag=float(row["hellaswag"]) if row["hellaswag"] else None,
        )
        for row in rows(HERE / "losses.csv")
    ]


def best_of_cells(path: Path, source: str, family: str | None = None) -> list[Run]:
    """The lowest loss of each size and length; these tables count parameters of blocks only."""
    best: dict[tuple[float, float], float] = {}
    for row in rows(path):
        if family is None or row["family"] == family:
            key = (float(row["n"]), float(row["tokens"]))
            best[key] = min(best.get(key, math.inf), float(row["loss"]))
    return [
        Run(source=source, text=source, parameters=n, blocks=n, tokens=tokens, loss=loss)
        for (n, tokens), loss in sorted(best.items())
    ]


def fit(runs: list[Run]) -> LossLaw:
    """Least squares in nats, less sensitive to runs that are far off; the first text's factor is 1."""
    texts = sorted({run.text for run in runs})
    number = np.array([texts.index(run.text) for run in runs])
    blocks = np.array([run.blocks for run in runs])
    tokens = np.array([run.tokens for run in runs])
    losses = np.array([run.loss for run in runs])
    pull = BESIROGLU.constants

    def residuals(state: Any) -> Any:
        factors = np.concatenate([[1.0], state[5:]])
        missed = (factors[number] * law_value(state[:5], blocks, tokens) - losses) / NOISE
        robust = np.sign(missed) * np.sqrt(2 * (np.sqrt(1 + missed**2) - 1))
        _, ln_a, alpha, ln_b, beta = state[:5]
        optimum = (math.log(beta / alpha) + ln_b - ln_a + alpha * np.log(OPTIMA / 1e8)) / beta + math.log(1e9)
        ties = (optimum - np.log([BESIROGLU.optimal_tokens(n) for n in OPTIMA])) / OPTIMUM_WIDTH
        return np.concatenate([robust, (state[[2, 4]] - pull[[2, 4]]) / EXPONENT_WIDTH, ties])

    state = least_squares(residuals, np.array([*pull, *np.ones(len(texts) - 1)]))
    e, ln_a, alpha, ln_b, beta = (float(value) for value in state[:5])
    return LossLaw(
        name="open runs 2026",
        date="2026-11-16",
        source="this script",
        e=e,
        a=math.exp(ln_a + alpha * math.log(1e8)),
        b=math.exp(ln_b + beta * math.log(1e9)),
        alpha=alpha,
        beta=beta,
        c4_factor=1.0,
        blocks_only=True,
    )


def missed(law: LossLaw, runs: list[Run]) -> tuple[float, np.ndarray]:
    """The text's factor, and what is left in nats."""
    counted = np.array([run.blocks if law.blocks_only else run.parameters for run in runs])
    predicted = np.array([law.loss(n, run.tokens) for n, run in zip(counted, runs, strict=True)])
    losses = np.array([run.loss for run in runs])
    factor = float(np.mean(losses / predicted))
    return factor, losses - factor * predicted


def line(name: str, laws: list[LossLaw], runs: list[Run]) -> str:
    cells = []
    for law in laws:
        factor, left = missed(law, runs)
        cells.append(f"{factor:.3f}, {np.sqrt(np.mean(left**2)):.3f}, {abs(left).max():.3f}")
    return f"| {name} | {len(runs)} | " + " | ".join(cells) + " |"


def muon_efficiency(law: LossLaw) -> list[str]:
    """How many of AdamW's tokens one of Muon's is worth, by the law's slope between lengths at the same size."""
    adamw = {(run.blocks, run.tokens): run.loss for run in best_of_cells(TABLES / "marin_optimizers.csv", "m", "adamw")}
    muon = {(run.blocks, run.tokens): run.loss for run in best_of_cells(TABLES / "marin_optimizers.csv", "m", "muon")}
    factor, _ = missed(
        law,
        [
            Run(source="m", text="m", parameters=n, blocks=n, tokens=tokens, loss=loss)
            for (n, tokens), loss in adamw.items()
        ],
    )
    found = []
    lines = []
    for (blocks, tokens), loss in sorted(muon.items()):
        if (blocks, tokens) not in adamw:
            continue
        slope = factor * law.beta * law.b / tokens**law.beta  # nats for each e-fold of tokens
        worth = math.exp((adamw[blocks, tokens] - loss) / slope)
        found.append(worth)
        lines.append(
            f"- {blocks / 1e6:.0f}M, {tokens / 1e9:.1f}B tokens: {adamw[blocks, tokens] - loss:+.4f} nats, {worth:.2f}"
        )
    middle = math.exp(float(np.mean(np.log(found))))
    return [*lines, f"- geometric mean {middle:.2f}, ln deviation {np.std(np.log(found)):.2f}"]


def batch_misfit(law: LossLaw, path: Path) -> list[str]:
    """What a token is worth in steps of another batch than Step Law's, with the lowest loss of all rates at each batch.

    One number for all sizes and lengths: ln(worth) = -k ln(batch / best)^2, within a factor of three of the best.
    """
    best: dict[tuple[float, float], dict[float, float]] = {}
    for row in rows(path):
        cell = best.setdefault((float(row["n"]), float(row["tokens"])), {})
        batch = float(row["batch_tokens"])
        cell[batch] = min(cell.get(batch, math.inf), float(row["loss"]))
    factor, _ = missed(law, best_of_cells(path, "step-law"))
    found: list[tuple[int, float, float, float]] = []
    for number, ((_, tokens), cell) in enumerate(sorted(best.items())):
        slope = factor * law.beta * law.b / tokens**law.beta  # nats for each e-fold of tokens
        found += [(number, slope, math.log(batch / best_batch(tokens)), loss) for batch, loss in sorted(cell.items())]

    def fitted(factor_most: float, kept: list[tuple[int, float, float, float]]) -> tuple[float, float]:
        near = [one for one in kept if abs(one[2]) <= math.log(factor_most)]
        cells = sorted({one[0] for one in near})
        known = np.zeros((len(near), len(cells) + 1))
        for place, (number, slope, distance, _) in enumerate(near):
            known[place, cells.index(number)] = 1.0
            known[place, -1] = slope * distance**2
        losses = np.array([one[3] for one in near])
        state = np.linalg.lstsq(known, losses, rcond=None)[0]
        return float(state[-1]), float(np.sqrt(np.mean((known @ state - losses) ** 2)))

    lines = []
    for most in (3.0, 16.0):
        k, rms = fitted(most, found)
        lines.append(f"- batches within a factor of {most:g}: k {k:.3f}, root mean square error {rms:.4f} nats")
    each = [fitted(3.0, [one for one in found if one[0] == number])[0] for number in range(len(best))]
    return [
        *lines,
        f"- of each size and length alone (within 3): {min(each):.2f} to {max(each):.2f}, mean {np.mean(each):.2f}",
    ]


def hellaswag(law: LossLaw, runs: list[Run]) -> tuple[Any, float, float, tuple[float, float]]:
    """accuracy = 0.25 + 0.75 / (1 + exp((L - middle) / width)) over the law's loss with factor 1."""
    have = [
        run
        for run in runs
        if run.source == "open_lm" and run.hellaswag is not None and run.tokens >= LEAST_TOKENS_EACH * run.parameters
    ]

    def of(chosen: list[Run]) -> tuple[Any, Any]:
        return (
            np.array([law.loss(run.blocks, run.tokens) for run in chosen]),
            np.array([run.hellaswag for run in chosen], dtype=float),
        )

    losses, accuracy = of([run for run in have if run.text != "redpajama"])
    found = least_squares(lambda state: hellaswag_of(state, losses) - accuracy, np.array([2.6, 0.25]))
    others, truth = of([run for run in have if run.text == "redpajama"])
    inside = float(np.sqrt(np.mean((hellaswag_of(found, losses) - accuracy) ** 2)))
    outside = float(np.sqrt(np.mean((hellaswag_of(found, others) - truth) ** 2)))
    return found, inside, outside, (float(losses.min()), float(losses.max()))


def hellaswag_of(state: Any, losses: Any) -> Any:
    return 0.25 + 0.75 / (1 + np.exp((losses - state[0]) / state[1]))


def report() -> str:
    public = public_runs()
    step = best_of_cells(TABLES / "steplaw_dense.csv", "step-law")
    marin = best_of_cells(TABLES / "marin_optimizers.csv", "marin", "adamw")
    fitted = [run for run in public if run.source == "open_lm" and run.text != "redpajama" and run.regular]
    law = fit([*fitted, *step])
    laws = [law, BESIROGLU, HOFFMANN]
    lines = [
        f"open runs 2026: E {law.e:.4f}, A {law.a:.4g}, alpha {law.alpha:.4f}, B {law.b:.4g}, beta {law.beta:.4f}; N of blocks",
        "tokens a parameter of blocks that it calls optimal: "
        + ", ".join(f"{law.optimal_tokens(n) / n:.1f} at {n:.0e}" for n in (1e8, 1e9, 1e10)),
        "",
        "Each cell: the text's factor, then root mean square and largest error in nats after it.",
        "",
        "| runs | count | open runs 2026 | Besiroglu 2024 | Hoffmann 2022 |",
        "| --- | --- | --- | --- | --- |",
        line("fitted: open_lm, C4", laws, [run for run in fitted if run.text == "c4"]),
        line("fitted: open_lm, RefinedWeb", laws, [run for run in fitted if run.text == "refinedweb"]),
        line("fitted: Step Law, dense", laws, step),
        line(
            "not fitted: Cerebras-GPT 111M to 13B, Pile", laws, [run for run in public if run.source == "cerebras-gpt"]
        ),
        line("not fitted: Marin, AdamW, C4", laws, marin),
        line(
            "not fitted: open_lm, RedPajama", laws, [run for run in public if run.text == "redpajama" and run.regular]
        ),
    ]
    for text in ("c4", "refinedweb", "redpajama"):
        tiny = [
            run
            for run in public
            if run.text == text and run.blocks < LEAST_BLOCKS and run.tokens >= LEAST_TOKENS_EACH * run.parameters
        ]
        lines.append(line(f"not fitted: open_lm's 6M, {text}", laws, tiny))
    for run in public:
        if run.text == "fineweb":
            factors = ", ".join(f"{one.name} {missed(one, [run])[0]:.3f}" for one in laws)
            lines.append(
                f"\n{run.source}, {run.tokens / 1e9:.0f}B tokens of FineWeb, one run, so its factor only: {factors}"
            )
    lines += [
        "",
        "Tokens of AdamW that one of Muon's is worth (Marin; both at their best rate):",
        *muon_efficiency(law),
    ]
    lines += [
        "",
        "What a token is worth in another batch than 0.58 D^0.571 (Step Law, dense): exp(-k ln(batch / best)^2), with the best rate of each batch:",
        *batch_misfit(law, TABLES / "steplaw_dense.csv"),
    ]
    found, inside, outside, span = hellaswag(law, public)
    lines += [
        "",
        f"HellaSwag = 0.25 + 0.75 / (1 + exp((L - {found[0]:.3f}) / {found[1]:.3f})), L the law's loss on C4: root mean square error "
        f"{inside:.3f} on C4 and RefinedWeb (fitted), {outside:.3f} on RedPajama (not fitted); L from {span[0]:.2f} to {span[1]:.2f}",
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    text = report()
    print(text)
    (HERE / "losses.log").write_text(text)
