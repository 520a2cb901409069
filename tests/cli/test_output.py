"""What commands print cannot command a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from skytrain.cli.output import drawn_output, tell, visible_output
from skytrain.pipelines.data import marked
from skytrain.tokens.inspection import Sample

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


def test_a_conversation_is_coloured_by_us_and_not_by_its_author() -> None:
    sample = Sample(0, 1, HOSTILE, ((True, HOSTILE), (False, "b")))
    assert marked(sample, colour=True) == "\x1b[32m\\x1b]0;owned\\x07\x1b[0mb"
