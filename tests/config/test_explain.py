from pathlib import Path

import pytest
from typer.testing import CliRunner

from skytrain.cli.config import app
from skytrain.config import ConfigError, explain, settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def said(key: str) -> str:
    result = CliRunner().invoke(app, ["explain", key])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_settings_page_is_what_the_schema_says():
    written = PAGE.read_text()
    assert written == settings_page(), "make it again: skytrain config explain --markdown > docs/settings.md"


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (
            "trainer.batch_tokens",
            [
                "Tokens per optimizer step",
                "2.5B",
                "524288",
                "trainer/default.yaml",
                "numbers",
                "recipe/quickstart.yaml",
            ],
        ),
        ("optimizer.momentum", ["optimizer.name=muon", "0 to below 1", "0.95", "optimizer/muon.yaml"]),
        ("model.name", ["A label", "Name on the hub", "must be given"]),
        (
            "data.source.separator",
            [
                "Argument of TextFiles",
                "`separator` is a line",
                "text, or null",
                "data.source.target=skytrain.corpus.sources.TextFiles",
                "data/text.yaml",
                "bytes of prepared data",
            ],
        ),
        ("data.source.my_own", ["Arguments of that class"]),
        ("data.workers", ["Processes that prepare data", "only speed, place or reporting", "null"]),
        ("optimizer", ["optimizer=adamw, optimizer=custom, optimizer=lion, optimizer=muon", "optimizer.beta2", "Lion"]),
        ("data/cleaning", ["data.cleaning.pii.emails", "Replace e-mail addresses"]),
        ("cloud.kind", ["cloud.eks.job_kind"]),  # its former name
    ],
)
def test_a_setting_or_group_is_explained(key, parts):
    text = said(key)
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("trainer.bach_tokens", "did you mean trainer.batch_tokens?"),
        ("warmup_steps", "did you mean lr_schedule.warmup_steps?"),
        ("optimiser", "did you mean optimizer"),
        ("zzzzzzzzzzzz", "config show"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(key, hint):
    with pytest.raises(ConfigError, match="no such setting") as error:
        explain(key)
    assert hint in str(error.value)
