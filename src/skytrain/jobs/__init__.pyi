from .cluster_environment import RanksEnvironment as RanksEnvironment
from .early_signals import (
    handle_early_signals as handle_early_signals,
    handle_interrupts as handle_interrupts,
    handled_signals as handled_signals,
)
from .health import NCCL_LOG as NCCL_LOG, uses_efa as uses_efa
from .lifeline import (
    adopt_orphans as adopt_orphans,
    die_with_parent as die_with_parent,
    identify as identify,
    is_alive as is_alive,
    tie_to_supervisor as tie_to_supervisor,
)
from .machines import RentedMachines as RentedMachines
from .network import address_of as address_of, count_efa_devices as count_efa_devices
from .node import NodeRequest as NodeRequest, run_node as run_node
from .node_job import job_log_key as job_log_key
from .nodes import host_name as host_name, node_facts as node_facts
from .processes import (
    kill_descendants as kill_descendants,
    kill_processes_with as kill_processes_with,
    kill_session as kill_session,
)
from .progress import ENDPOINT_PORT as ENDPOINT_PORT, FINISH_SUFFIX as FINISH_SUFFIX
from .ranks import JoinedJob as JoinedJob, Ranks as Ranks, ToldByFirstRank as ToldByFirstRank
from .rendezvous import (
    GenerationRecord as GenerationRecord,
    MeetingObjects as MeetingObjects,
    check_generation as check_generation,
    generation_key as generation_key,
    list_meeting as list_meeting,
    read_generation as read_generation,
)
from .supervision import (
    ClaimedAttempt as ClaimedAttempt,
    JoinedGeneration as JoinedGeneration,
    Supervision as Supervision,
    job_began as job_began,
    report_attempt as report_attempt,
)
from .supervisor import (
    ProcessLayout as ProcessLayout,
    choose_processes as choose_processes,
    count_gpus as count_gpus,
    describe_exit as describe_exit,
    restart_wait_seconds as restart_wait_seconds,
    supervise as supervise,
)
from .watchdog import Watchdog as Watchdog
