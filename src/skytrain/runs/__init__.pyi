from .attempts import (
    Cause as Cause,
    Fence as Fence,
    Superseded as Superseded,
    attempt_key as attempt_key,
    attempt_numbers as attempt_numbers,
    check_newest as check_newest,
    claim_attempt as claim_attempt,
    failures_recorded as failures_recorded,
    now as now,
    read_attempt as read_attempt,
    read_failure as read_failure,
    read_fence as read_fence,
    read_outcome as read_outcome,
    record_resume as record_resume,
    write_outcome as write_outcome,
)
from .heartbeats import (
    BOOT_SHAPE as BOOT_SHAPE,
    HostHeartbeats as HostHeartbeats,
    HostRecord as HostRecord,
    HostSpends as HostSpends,
    Presence as Presence,
    host_key as host_key,
    host_record as host_record,
    meeting_folder as meeting_folder,
)
from .launches import (
    DEFAULT_TARGET as DEFAULT_TARGET,
    LaunchedGroup as LaunchedGroup,
    LaunchId as LaunchId,
    LaunchRecord as LaunchRecord,
    create_launch as create_launch,
    current_offer as current_offer,
    launch_folder as launch_folder,
    launch_starts as launch_starts,
    launched_runs as launched_runs,
    launches_of as launches_of,
    mark_failed as mark_failed,
    next_launch as next_launch,
    offer_key as offer_key,
    read_launch as read_launch,
    recorded_at as recorded_at,
    started_key as started_key,
    stopped_key as stopped_key,
    withdraw_launch as withdraw_launch,
)
from .logs import (
    LoggedReporter as LoggedReporter,
    LogLine as LogLine,
    LogSelection as LogSelection,
    RunLogs as RunLogs,
    libraries_logged as libraries_logged,
    log_record as log_record,
)
from .meter import (
    Count as Count,
    Meter as Meter,
    Spend as Spend,
    boot_clock as boot_clock,
    boot_id as boot_id,
    last_records as last_records,
    machine_price as machine_price,
    read_spend as read_spend,
    recorded_usd as recorded_usd,
    this_machine as this_machine,
)
from .metrics import (
    MetricsWriter as MetricsWriter,
    last_metrics as last_metrics,
    read_metrics as read_metrics,
    was_measured as was_measured,
)
from .prometheus import MetricsPage as MetricsPage, metrics_served as metrics_served
from .reading import DamagedRecord as DamagedRecord, read_object as read_object
from .record import (
    NoRuns as NoRuns,
    RunRecord as RunRecord,
    Start as Start,
    check_not_renamed as check_not_renamed,
    check_run_name as check_run_name,
    config_changes as config_changes,
    create_run as create_run,
    list_runs as list_runs,
    load_run as load_run,
    new_record as new_record,
    other_changes as other_changes,
    plain as plain,
    run_name as run_name,
    run_names as run_names,
    save_run as save_run,
)
from .reporting import Reporter as Reporter, Silent as Silent, progress_line as progress_line
from .status import RunStatus as RunStatus, hosts_usd as hosts_usd, run_status as run_status
from .stopping import (
    StopRequest as StopRequest,
    ask_stop as ask_stop,
    read_stop as read_stop,
    stop_asked as stop_asked,
    stop_key as stop_key,
    user_name as user_name,
)
from .sync import (
    EventCopies as EventCopies,
    EventFiles as EventFiles,
    Lines as Lines,
    Sync as Sync,
    cloudwatch_stream as cloudwatch_stream,
    events_key as events_key,
)
