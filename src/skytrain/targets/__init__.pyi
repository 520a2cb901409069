from .account import (
    AccountState as AccountState,
    account_state as account_state,
)
from .base import (
    ClusterCosts as ClusterCosts,
    CostLine as CostLine,
    LaunchRequest as LaunchRequest,
    LaunchTarget as LaunchTarget,
    ReadyJob as ReadyJob,
    RunJobs as RunJobs,
)
from .bundle import config_files as config_files
from .checks import Check as Check, Finding as Finding, Preflight as Preflight, run_checks as run_checks
from .eks.jobs import cluster_of as cluster_of
from .eks.serve import keep_served as keep_served
from .follow import RunEnd as RunEnd, RunFollower as RunFollower
from .inputs import find_inputs as find_inputs, prepare_job as prepare_job
from .jobs import prepare_work as prepare_work
from .leftovers import GcRequest as GcRequest, Leftovers as Leftovers, active_launch as active_launch
from .limits import ask_account as ask_account, count_launches as count_launches, live_launch as live_launch
from .pipeline import ledger_rows as ledger_rows, prepare_pipeline as prepare_pipeline
from .plans import (
    Planned as Planned,
    PlannedJob as PlannedJob,
    Trials as Trials,
    compose_plan as compose_plan,
    plan_run as plan_run,
    plan_tokens as plan_tokens,
    plan_words as plan_words,
    planned_workload as planned_workload,
    startable_machines as startable_machines,
)
from .registry import (
    billing_targets as billing_targets,
    built_in_target as built_in_target,
    built_in_targets as built_in_targets,
    check_serve_options as check_serve_options,
    find_seller as find_seller,
    find_serve_target as find_serve_target,
    sellers as sellers,
    service_prices as service_prices,
    target_of as target_of,
)
from .run_status import (
    LAUNCHED as LAUNCHED,
    find_status as find_status,
    status as status,
    status_of as status_of,
)
from .run_view import NodeView as NodeView, RunView as RunView
from .serving import ServeJob as ServeJob, ServeRequest as ServeRequest
from .shell import check_tools as check_tools
from .slurm.parallelcluster import ClusterSpec as ClusterSpec, cluster_config as cluster_config
from .stopping import stop_whole_sweep as stop_whole_sweep
