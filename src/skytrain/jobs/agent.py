"""torchrun, tied to the supervisor that started it: `python -m skytrain.jobs.agent OPTIONS -m MODULE ...`.

The supervisor passes signals on to the workers itself. torchrun must not act on the ones it gets, as when a scheduler sends
SIGTERM to every process of a job: it would kill the workers after 30 seconds, in the middle of their last checkpoint.
"""

from __future__ import annotations

import signal

from .lifeline import tie_to_supervisor

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def main() -> None:
    tie_to_supervisor()
    for number in PASSED_ON:
        # Not SIG_IGN, which the workers would inherit.
        signal.signal(number, lambda *_: None)
    from torch.distributed.run import main as torchrun

    torchrun()


if __name__ == "__main__":
    main()
