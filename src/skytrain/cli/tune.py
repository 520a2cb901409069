"""`skytrain tune`: the best learning rate that a budget can buy."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..config import ConfigError, SkytrainError, exit_codes_text
from .options import ConfigDirs, Overrides, compose_overrides
from .output import tell

if TYPE_CHECKING:
    from ..config import Config
    from ..runs import Reporter
    from ..tuning import OtherAnswer, Schedule, StepEstimate, TunedSweep

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the schedule of trials with their dollars; run none.")]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="With --dry-run: run twenty steps of each model on this machine, in place of a guess. A machine with GPUs "
        "always does.",
    ),
]


HELP = """
Find the best learning rate that a budget can buy.

budget.usd pays for the trials and for the final run.

Trials are smaller models and shorter runs with their own complete schedules. The final run is reserved
before anything else, and no trial starts that could break the budget. The same command continues a sweep.

\b
Strategies (tune.strategy), and a+b for one after the other:
  ladder          rungs of size and horizon, one posterior, next trial by the regret it saves at the target (default)
  greedy          double the rate until it diverges, then fractions around the best
  early-stopping  the target's model for fewer tokens
  model-scaling   optima of small models, projected to the target's size
  data-scaling    optima of short horizons, projected to the target's
  halving         successive halving over horizons
  hyperband       Hyperband's brackets over horizons
  random, grid, tpe   on one smaller setting; tpe needs skytrain[tune]
  transfer        muP or CompleteP: the best rate of a smaller model, unchanged
  literature      no trials: what published laws say

\b
Examples:
  skytrain tune recipe=quickstart budget.usd=0.30 tune.usd_per_hour=1
  skytrain tune recipe=tune-hw5 --dry-run
  skytrain tune recipe=quickstart budget.usd=1 tune.usd_per_hour=1 tune.axis=warmup
  skytrain tune recipe=quickstart budget.usd=1 tune.usd_per_hour=1 "tune.axes=[lr,weight_decay]"
  skytrain tune compare first second        # two sweeps of a store
"""


class TuneGroup(TyperGroup):
    """The group in which `tune KEY=VALUE...` is the sweep itself, and other words are commands about sweeps."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_default(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        return super().resolve_command(ctx, self._with_default(args))

    def _with_default(self, args: list[str]) -> list[str]:
        return args if not args or args[0] in (*self.commands, "--help") else ["run", *args]


app = typer.Typer(cls=TuneGroup, help=HELP, no_args_is_help=True, rich_markup_mode=None)


def _measure_steps(config: Config, reporter: Reporter) -> StepEstimate:
    from ..pipelines.tune import dry_run  # loads torch

    return dry_run(config, reporter)


@app.command("run", help=HELP.replace("tune recipe", "tune run recipe"), epilog=exit_codes_text())
def run_command(
    overrides: Overrides = None, config_dir: ConfigDirs = None, dry_run: DryRun = False, measure: Measure = False
) -> None:
    if measure and not dry_run:
        raise SkytrainError("--measure: a sweep measures in any case\n  leave it out, or add --dry-run")
    words = list(overrides or [])
    composed = compose_overrides(words, config_dir, recipe_weights="if-stored" if dry_run else "read")
    from .console import reporter

    if dry_run:
        from ..jobs import count_gpus
        from ..tuning import plan_sweep

        if composed.unread_weights is not None and composed.config.tune.instance is None:
            raise ConfigError(
                "tune.instance",
                f"{composed.unread_weights} is not here, so no step of it can be timed on this machine",
                hint="name the machine whose step times are predicted, such as tune.instance=p4d.24xlarge",
            )
        with reporter() as console:
            schedule = plan_sweep(composed.config, console, _measure_steps if measure or count_gpus() else None)
        print(_schedule_text(schedule, composed.config.tune.strategy))
        return
    from ..aws import take_secrets
    from ..tuning import SweepStopped
    from .train import check_installed

    check_installed()
    take_secrets(composed.config)
    try:
        from ..pipelines.tune import tune

        with reporter() as console:
            tuned = tune(composed.config, console)
    except SweepStopped as stopped:  # as asked: no failure
        tell(str(stopped))
        return
    print(_answer_text(tuned, words, composed.config.tune.usd_per_hour))


def _schedule_text(schedule: Schedule, strategy: str) -> str:
    problem = schedule.problem
    lines = [*schedule.announced, f"{'':>5} {'rung':<16} {'value':>9} {'tokens':>14} {'at most':>10} {'sum':>10}"]
    total = 0.0
    for number, one in enumerate(schedule.trials, 1):
        total += one.usd
        rung = problem.rung(one.trial.rung)
        lines.append(
            f"{number:>5} {rung.name:<16} {one.trial.rate:>9.3g} {rung.tokens:>14,.0f} {_usd(one.usd):>10} {_usd(total):>10}"
        )
    target = f"{problem.target.tokens:>14,.0f}"
    paid = f"{_usd(schedule.final_usd):>10} {_usd(total + schedule.final_usd):>10}"
    paid = paid if schedule.final_usd else "paid separately (tune.final=false)"
    lines.append(f"final {'the run itself':<16} {'?':>9} {target} {paid}")
    lines.append(
        f"budget {_usd(schedule.budget_usd)}; step times {schedule.source}. Later trials depend on what earlier ones show."
    )
    unspent = schedule.search_usd - total
    if not schedule.axes and unspent >= min(rung.usd for rung in problem.rungs):
        no_more = f"{strategy} asks for no further one that fits"
        why = "no further one is worth its money" if schedule.weighs_prices else no_more
        lines.append(f"{_usd(unspent)} would be left: if trials go as published laws say, {why}.")
    if schedule.axes:
        turns = ", ".join(schedule.axes)
        lines.append(
            f"These are for {schedule.axes[0]}, the first of {turns}: each has its share of the search's dollars."
        )
    return "\n".join(lines)


def _answer_text(tuned: TunedSweep, overrides: list[str], usd_per_hour: float | None) -> str:
    from ..report import text_table, trial_rows

    decided = tuple(f"{word.partition('=')[0]}=" for word in tuned.final_overrides.split())
    kept = [word for word in overrides if not word.startswith(("tune.", "tune=", "budget.usd=", "run=", *decided))]
    start = f"--from SEED --at-step {tuned.from_step}" if tuned.from_step else ""
    quoted = [shlex.quote(word) for word in kept]
    parts = [
        "skytrain train",
        *quoted,
        tuned.final_overrides,
        f"run={tuned.name}-final",
        _final_budget(tuned.conclusion.final_usd, usd_per_hour, tuned.rented),
        start,
    ]
    command = " ".join(part for part in parts if part)
    warnings = [f"warning: {line}" for line in tuned.conclusion.warnings]
    others = [("strategy", "value", "80% interval", "why"), *map(_other_row, tuned.others)]
    return "\n".join(
        [
            *tuned.turns,
            *tuned.conclusion.lines(),
            *warnings,
            "",
            "Final run:",
            f"  {command}",
            "",
            text_table(trial_rows(tuned.history)),
            "",
            "What each strategy answers from the same trials:",
            text_table(others),
            f"{tuned.url}/report/report.html",
        ]
    )


def _other_row(other: OtherAnswer) -> tuple[str, ...]:
    answer = other.answer
    span = "" if answer.low is None or answer.high is None else f"{answer.low:.3g} to {answer.high:.3g}"
    return (other.strategy, f"{answer.rate:.3g}", span, answer.why)


def _final_budget(usd: float, usd_per_hour: float | None, rented: bool) -> str:
    """Return the budget overrides of the final run: its reserve, rounded up, and the sweep's price.

    A rented machine's hours until now are the search's.
    """
    if usd == 0:
        return ""
    price = "" if usd_per_hour is None else f" budget.usd_per_hour={usd_per_hour:g}"
    counted = " budget.whole_machine=false" if rented else ""
    return f"budget.usd={math.ceil(1e4 * usd) / 1e4:.10g}{price}{counted}"


@app.command("compare")
def compare_command(
    first: Annotated[str, typer.Argument(help="Name of a sweep.")],
    second: Annotated[str, typer.Argument(help="Name of another one.")],
    overrides: Overrides = None,
    config_dir: ConfigDirs = None,
) -> None:
    """Show what two sweeps of a store asked, spent and answered.

    \b
    Example:
      skytrain tune compare first second
    """
    config = compose_overrides(overrides or [], config_dir).config
    from ..report import text_table
    from ..tuning import compare_sweeps

    print(text_table(compare_sweeps(config, first, second)))


def _usd(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 10 else f"${usd:.4f}"
