"""Settings of `skytrain tune`."""

from __future__ import annotations

from typing import Literal

from .declare import EXECUTION, setting, settings
from .kinds import Count, Fraction, NonNegative, PositiveFloat, Whole


@settings
class TuneConfig:
    """How the best learning rate for a run is searched within `budget.usd`, the final run included."""

    name: str | None = setting(
        EXECUTION, "Name of the sweep; null: the model, the data and a hash of what decides the result."
    )
    strategy: str = setting(EXECUTION, "How trials are chosen (docs/tuning.md); a+b runs one after another.")
    axis: Literal["lr", "weight_decay", "warmup", "batch_tokens"] = setting(
        EXECUTION, "What is tuned: the peak rate, weight decay, warm-up as a share of the steps, or tokens a step."
    )
    usd_per_hour: NonNegative | None = setting(
        EXECUTION, "Price of the machine; null: budget.usd_per_hour, or the catalogue's price for this EC2 instance."
    )
    instance: str | None = setting(
        EXECUTION, "EC2 instance type that --dry-run plans for, such as g5.xlarge; null: this machine."
    )
    margin: Fraction = setting(EXECUTION, "Safety margin on every estimate, as a share.")
    final: bool = setting(EXECUTION, "Reserve the final run before anything else.")
    final_from_step: Whole = setting(
        EXECUTION, "Step at which the final run starts, from a model that exists; only the rest is reserved."
    )
    lowest: PositiveFloat | None = setting(EXECUTION, "Lowest value of the axis; null: far below what is expected.")
    highest: PositiveFloat | None = setting(EXECUTION, "Highest value of the axis; null: far above what is expected.")
    expected: PositiveFloat | None = setting(
        EXECUTION, "Where the search starts; null: published laws for AdamW's rate, else the configured value."
    )
    sizes: list[str] | None = setting(
        EXECUTION, "Smaller models as LAYERSxWIDTH, such as [12x192, 12x384]; null: a quarter and half of the width."
    )
    horizons: list[Fraction] = setting(EXECUTION, "Lengths of trials, as shares of the target's steps.")
    steps: list[Whole] | None = setting(EXECUTION, "Lengths of trials in steps, in place of `horizons`.")
    trials_per_rung: Count | None = setting(
        EXECUTION, "Values that a grid, early stopping or a projection tries on each of its rungs; null: four or five."
    )
    shortest: Count = setting(EXECUTION, "Steps below which a horizon is left out: its schedule would mean nothing.")
    noise: PositiveFloat = setting(
        EXECUTION, "Standard deviation of the final loss between seeds, in nats; the fit weighs trials by it."
    )
    diverged_nats: PositiveFloat = setting(
        EXECUTION, "A trial whose loss rises so far above its lowest has diverged, and is stopped."
    )
    axes: list[str] | None = setting(
        EXECUTION,
        "Several axes, such as [lr, weight_decay]: one after another, then again while the budget lasts; null: `axis`.",
    )
    trunk: bool = setting(
        EXECUTION,
        "With lr_schedule=wsd: a longer trial starts from the end of the constant part of a shorter one at the same value.",
    )
    earlier: bool = setting(
        EXECUTION,
        "Start the search for a rate from what earlier sweeps of the store with this optimizer and parametrization found.",
    )
    parallel: Count = setting(
        EXECUTION,
        "Trials at the same time on a machine, each on its own GPU, or on its share of the cores.",
    )
    host: str | None = setting(EXECUTION, "Name of this machine among those that share a sweep; null: its own name.")
    machines: Count = setting(EXECUTION, "Machines that `launch tune` rents for the sweep.")
