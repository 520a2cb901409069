from .cluster_environment import RanksEnvironment as RanksEnvironment
from .lifeline import tie_to_supervisor as tie_to_supervisor
from .nodes import host_name as host_name, node_facts as node_facts
from .ranks import JoinedJob as JoinedJob, LostRank as LostRank, Ranks as Ranks, ToldByFirstRank as ToldByFirstRank
from .supervision import Supervision as Supervision, report_resume as report_resume
from .supervisor import (
    ProcessLayout as ProcessLayout,
    choose_processes as choose_processes,
    restart_wait_seconds as restart_wait_seconds,
    supervise as supervise,
)
from .watchdog import Watchdog as Watchdog
