"""Node: this machine takes part in a run, on whatever target has started it."""

from __future__ import annotations

from collections.abc import Callable

from ..aws import log_destination
from ..config import Config
from ..jobs import NodeRequest, run_node
from ..runs import cloudwatch_stream
from ..targets import target_of


def take_part(config: Config, request: NodeRequest, note: Callable[[str], None]) -> int:
    """Take part in the run until it is over, as the target of the configuration does it; return the exit code."""

    def run_here(config: Config, request: NodeRequest) -> int:
        target = target_of(config)
        instance = target.instance(config, request)
        destination = log_destination(config, request.run, on_ec2=instance is not None)
        with cloudwatch_stream(destination, request.run, f"node-{instance}", note) as log:

            def tell(text: str) -> None:
                note(text)
                if log is not None:
                    log.log(text)

            machines = target.machines(config, request, instance, tell)
            try:
                return run_node(config, request, tell, machines)
            except Exception as error:
                # Its group would replace a machine that only ends, again and again: this one counts, with its reason.
                if machines is not None and instance is not None:
                    machines.replace_me(f"its agent failed: {error}")
                raise

    return target_of(config).take_part(config, request, run_here)
