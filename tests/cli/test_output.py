"""What commands print cannot command a terminal."""

from __future__ import annotations

import ast
import io
import logging
import sys
import threading
import warnings
from pathlib import Path

import pytest

import skytrain
from skytrain.cli.doctor import _show
from skytrain.cli.launch import _describe
from skytrain.cli.output import drawn_output, tell, visible_output
from skytrain.config import compose
from skytrain.pipelines.data import marked
from skytrain.targets import Finding, ReadyJob
from skytrain.tokens import Sample

HOSTILE = "\x1b]0;owned\x07"


def test_all_that_is_printed_is_shown_and_what_we_draw_is_not_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stdout", plain)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with visible_output():
        print(f"text of a store: {HOSTILE}")
        print("\x1b[2J", end="", file=drawn_output())
        tell(HOSTILE)
        sys.excepthook(ValueError, ValueError(HOSTILE), None)
    assert sys.stdout is plain and plain.getvalue() == "text of a store: \\x1b]0;owned\\x07\n\x1b[2J"
    assert "\x1b" not in capsys.readouterr().err


def test_what_is_printed_on_stderr_or_asked_is_a_text_of_ours_or_made_visible() -> None:
    """Standard output is filtered as a whole; on stderr libraries draw bars, so that every place does it itself."""
    source = Path(skytrain.__file__).parent
    raw = []
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.Constant):
                function, text = ast.unparse(node.func), ast.unparse(node.args[0])
                on_stderr = {"file=sys.stderr", "err=True"} & {ast.unparse(word) for word in node.keywords}
                shows = function == "sys.stderr.write" or (on_stderr and function in ("print", "typer.echo"))
                if (shows or function == "typer.confirm") and "visible(" not in text:
                    raw.append(f"{path.relative_to(source)}:{node.lineno} {text}")
    assert raw == []


def test_what_libraries_log_and_warn_of_and_how_threads_end_is_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """transformers logs values of a config.json as they are, by a handler of its own; warnings quote what was read."""
    for module, name in ((sys, "excepthook"), (threading, "excepthook"), (warnings, "formatwarning")):
        monkeypatch.setattr(module, name, getattr(module, name))
    library = logging.getLogger("a_library")
    library.propagate = False
    library.addHandler(handler := logging.StreamHandler(sys.stderr))
    factory = logging.getLogRecordFactory()

    def end() -> None:
        raise ValueError(HOSTILE)

    try:
        with visible_output():
            library.warning("a factor of %s", HOSTILE)
            sys.stderr.write(warnings.formatwarning(HOSTILE, UserWarning, "library.py", 1, ""))  # as Python shows one
            thread = threading.Thread(target=end)
            thread.start()
            thread.join()
    finally:
        logging.setLogRecordFactory(factory)
        library.removeHandler(handler)
    said = capfd.readouterr().err
    assert said.count("\\x1b]0;owned\\x07") == 3 and "\x1b" not in said


def test_the_summary_of_a_dry_run_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to stderr, and the plan that it tells of may be somebody else's."""
    summary = [("machines", HOSTILE)]
    _describe(ReadyJob("r", config=compose([]).config, requests="", summary=summary, start=lambda _: []), sys.stderr)
    assert "\\x1b]0;owned" in (said := capsys.readouterr().err) and "\x1b" not in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_marks_of_doctor_are_coloured_on_a_terminal_and_what_they_mark_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    with visible_output():
        _show(Finding("store", "AWS", "ok", f"a bucket of {HOSTILE}"))
    assert terminal.getvalue().startswith("  \x1b[32m\x1b[1m✔\x1b[0m store")
    assert terminal.getvalue().endswith("a bucket of \\x1b]0;owned\\x07\n")


def test_a_conversation_is_coloured_by_us_and_not_by_its_author() -> None:
    sample = Sample(0, 1, HOSTILE, ((True, HOSTILE), (False, "b")))
    assert marked(sample, colour=True) == "\x1b[32m\\x1b]0;owned\\x07\x1b[0mb"
