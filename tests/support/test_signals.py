import signal
import subprocess
import sys

from tests.support.signals import SIGNALS, signals_reset

PROGRAM = "import signal; print(*(signal.getsignal(each) == signal.SIG_IGN for each in (1, 2, 10, 15)))"


def ignored_by_programs() -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_signals_that_were_ignored_when_the_tests_began_act_in_a_test_that_sends_them():
    former = {each: signal.signal(each, signal.SIG_IGN) for each in SIGNALS}
    try:
        assert ignored_by_programs() == "True True True True"
        with signals_reset():
            assert ignored_by_programs() == "False False False False"
        assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_IGN}
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
