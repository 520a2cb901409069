"""Settings of a Slurm cluster: what the batch script of a run asks for."""

from __future__ import annotations

from .declare import EXECUTION, setting, settings
from .kinds import Positive, Seconds


@settings
class SlurmConfig:
    """A Slurm cluster; cloud=slurm."""

    nodes: Positive = setting(EXECUTION, "Nodes that train together.")
    processes: Positive | None = setting(EXECUTION, "Processes on each node; null: one for each GPU of the node.")
    gpus: Positive | None = setting(
        EXECUTION, "GPUs to ask for on each node; null: none by name, the node is exclusive."
    )
    partition: str | None = setting(EXECUTION, "Partition; null: the cluster's default.")
    account: str | None = setting(EXECUTION, "Account that is charged; null: the user's default.")
    qos: str | None = setting(EXECUTION, "Quality of service; null: the cluster's default.")
    time: Seconds = setting(EXECUTION, "Time limit of one job; a run that is not done by then continues in the next.")
    save_before: Seconds = setting(EXECUTION, "How long before the time limit the run saves and is requeued.")
    options: dict[str, str] = setting(EXECUTION, "Further options of sbatch, such as {constraint: a100}.")
    folder: str = setting(
        EXECUTION, "Folder of scripts and logs that all nodes share; a folder of each run is made in it."
    )
    python: str | None = setting(
        EXECUTION, "Python on the nodes that has Skytrain; null: this one, in a container python3."
    )
    modules: list[str] = setting(EXECUTION, "Environment modules to load.")
    environment: dict[str, str] = setting(EXECUTION, "Environment variables to set.")
    setup: list[str] = setting(EXECUTION, "Lines of shell to run on the first node before the agents start.")
    container: str | None = setting(EXECUTION, "Container image for Pyxis and enroot; null: no container.")
    container_mounts: list[str] = setting(
        EXECUTION, "Further folders that the container sees, such as /scratch:/scratch."
    )
