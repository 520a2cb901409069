"""Shell completion of commands and settings, as the shells ask for it."""

import os
import subprocess
import sys

import pytest


def completed(shell: str, **asked: str) -> list[str]:
    environment = {**os.environ, "_SKYTRAIN_COMPLETE": f"complete_{shell}", **asked}
    program = [sys.executable, "-c", "from skytrain.cli.main import main; main()"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("skytrain quick", 1, "quickstart"),
        ("skytrain train trainer.ste", 2, "trainer.steps="),
        ("skytrain train recipe = quick", 4, "quickstart"),  # bash splits words at "="
        ("skytrain train seed=1 recipe =", 4, "quickstart"),
        ("skytrain plan parallel = tp-", 4, "tp-fsdp"),
        ("skytrain train --proc", 2, "--processes"),
    ],
)
def test_bash_completes_what_is_typed(line: str, word: int, expected: str) -> None:
    assert expected in completed("bash", COMP_WORDS=line, COMP_CWORD=str(word))


def test_zsh_completes_a_whole_setting() -> None:
    words = completed("zsh", _TYPER_COMPLETE_ARGS="skytrain train recipe=quick")
    assert any("recipe=quickstart" in word for word in words)


def test_a_completed_command_loads_no_torch() -> None:
    script = "import sys; from skytrain.config import complete; assert complete('trainer.pre'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
