"""`skytrain`: all commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from ..jobs import handle_early_signals

handle_early_signals(sys.argv[1:])  # before anything that takes time is imported

import typer
from typer.core import TyperGroup

from .. import __version__
from ..config import (
    EXIT_CODES,
    UNCOMMITTED,
    ConfigError,
    SkytrainError,
    exit_codes_text,
    forget_trust,
    naming_extras,
    visible,
    wait_without_spinning,
)
from ..jobs import Ranks, ToldByFirstRank, handle_interrupts
from . import (
    bench,
    branch,
    catalog,
    chat,
    checkpoints,
    cloud,
    config,
    costs,
    dashboard,
    data,
    doctor,
    evaluate,
    export,
    finish,
    gc,
    generate,
    image,
    launch,
    logs,
    merge,
    merge_report,
    models,
    node,
    plan,
    plot,
    prepare,
    quickstart,
    report,
    runs,
    serve,
    shell,
    status,
    stop,
    store,
    tensorboard,
    train,
    tune,
)
from .output import visible_output
from .reads import refuse_in

SECTIONS = {
    "Pipeline": ("quickstart", "prepare", "plan", "tune", "train", "evaluate", "generate", "export", "finish"),
    "Runs": ("status", "logs", "stop", "tensorboard", "report", "plot", "dashboard", "runs", "checkpoints"),
    "After training": ("branch", "merge", "merge-report", "serve", "chat"),
    "Rented machines": ("doctor", "cloud", "launch", "node", "shell", "costs", "gc", "catalog", "image"),
    "Look up, copy, measure": ("models", "config", "data", "store", "bench"),
}


class Sections(TyperGroup):
    """The commands of `skytrain --help`, under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        column = max(map(len, self.commands))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - column
                rows = [(name.ljust(column), self.commands[name].get_short_help_str(limit)) for name in names]
                formatter.write_dl(rows)


app = typer.Typer(
    cls=Sections,
    name="skytrain",
    help="Pretrain language models: from raw text to a trained, evaluated and served model.\n\n"
    "Start with: skytrain quickstart",
    epilog="\b\nSettings are key=value arguments:\n"
    "  skytrain train recipe=quickstart model=gpt2-124m trainer.steps=500\n"
    "  skytrain config show recipe=quickstart       every setting, and what set it\n"
    "  skytrain config explain trainer.precision    what one setting means",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error. Allowed anywhere.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=lambda value: _version(value)),
    ] = False,
) -> None:
    """Read the options of every command."""


app.command()(quickstart.quickstart)
app.command()(doctor.doctor)
app.command()(prepare.prepare)
app.command()(plan.plan)
app.command(epilog=exit_codes_text())(train.train)
app.command(epilog=exit_codes_text())(launch.launch)
app.command(epilog=exit_codes_text())(node.node)
app.command()(status.status)
app.command()(logs.logs)
app.command()(stop.stop)
app.command()(tensorboard.tensorboard)
app.command()(report.report)
app.command()(plot.plot)
app.command()(dashboard.dashboard)
app.command()(shell.shell)
app.command()(costs.costs)
app.command()(gc.gc)
app.command()(evaluate.evaluate)
app.command()(finish.finish)
app.command()(generate.generate)
app.command()(export.export)
app.command(epilog=exit_codes_text())(branch.branch)
app.command()(merge.merge)
app.command("merge-report")(merge_report.merge_report)
app.command()(serve.serve)
app.command()(chat.chat)
app.command()(models.models)
app.add_typer(bench.app, name="bench")
app.add_typer(catalog.app, name="catalog")
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(cloud.app, name="cloud")
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(image.app, name="image")
app.add_typer(runs.app, name="runs")
app.add_typer(store.app, name="store")
app.add_typer(tune.app, name="tune")
refuse_in(app)


def _version(value: bool) -> None:
    if value:
        print(f"skytrain {__version__}")
        raise typer.Exit


def main() -> None:
    arguments = sys.argv[1:]
    try:
        _run(arguments)
    except SystemExit as leaving:
        if "tune" in arguments[:1]:
            _leave_at_once(leaving.code)
        raise


def _run(arguments: list[str]) -> None:
    handle_interrupts()
    wait_without_spinning()
    debug = "--debug" in arguments
    first = Ranks.from_environment().first
    if not first:  # rank 0 prints for all ranks
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        forget_trust()
        with naming_extras(), visible_output():
            app(args=[word for word in arguments if word != "--debug"], prog_name="skytrain")
    except SkytrainError as error:
        if debug:
            raise
        if first or not isinstance(error, (ConfigError, ToldByFirstRank)):  # these are the same on every rank
            print(f"error: {visible(str(error))}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(EXIT_CODES[UNCOMMITTED]) from None
    except BrokenPipeError:
        # `skytrain generate | head` is not an error. stdout is replaced so that the interpreter's last flush is quiet.
        sys.stdout = open("/dev/null", "w")  # noqa: PTH123, SIM115
        raise SystemExit(0) from None


def _leave_at_once(code: str | int | None) -> None:
    """End this process without the interpreter's own end.

    That takes up to a quarter of the time in which torch is loaded, and comes after a sweep's ledger was closed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if code is None or isinstance(code, int):  # a text is the interpreter's to print
        os._exit(code or 0)
