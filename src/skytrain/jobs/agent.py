"""torchrun under a supervisor: `python -m skytrain.jobs.agent OPTIONS -m MODULE ...`.

It ends with the supervisor, leaves signals to it, and counts restarts as the supervisor does.
"""

from __future__ import annotations

import signal
from typing import Any

from .lifeline import tie_to_supervisor
from .supervision import ResumeProgress, Supervision

# The supervisor passes these on to the workers. torchrun must not act on them: when a scheduler sends SIGTERM to every
# process of a job, it would kill the workers after 30 seconds, during their last checkpoint.
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def main() -> None:
    tie_to_supervisor()
    for number in PASSED_ON:
        # Not SIG_IGN, which the workers would inherit.
        signal.signal(number, lambda *_: None)
    from torch.distributed.run import main as torchrun

    supervision = Supervision.from_environment()
    if supervision is not None:
        count_restarts_without_progress(supervision)
    torchrun()


def count_restarts_without_progress(supervision: Supervision) -> None:
    """Make torchrun's `--max-restarts` a limit on restarts in a row without progress, not on all restarts of a job."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    monitor = LocalElasticAgent._monitor_workers
    progress = ResumeProgress()
    allowed: int | None = None

    def monitor_workers(agent: Any, group: Any) -> Any:
        nonlocal allowed
        result = monitor(agent, group)  # first, so that what a worker reported before it crashed can be read
        allowed = group.spec.max_restarts if allowed is None else allowed
        if progress.made(supervision.resumed_step()):
            # Both grow: their difference is the TORCHELASTIC_RESTART_COUNT of the workers.
            used = allowed - agent._remaining_restarts
            agent._remaining_restarts += used
            group.spec.max_restarts += used
        return result

    LocalElasticAgent._monitor_workers = monitor_workers  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
