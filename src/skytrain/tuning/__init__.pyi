from .axes import tune_axes as tune_axes
from .comparison import compare_sweeps as compare_sweeps
from .conclusions import (
    Conclusion as Conclusion,
    OtherAnswer as OtherAnswer,
    conclusion_of as conclusion_of,
    fitted_curves as fitted_curves,
    other_answers as other_answers,
)
from .costs import (
    known_estimates as known_estimates,
    measure as measure,
    missing_estimates as missing_estimates,
    priced_problem as priced_problem,
)
from .curve import u_shape as u_shape
from .driver import (
    SweepProgress as SweepProgress,
    SweepSetup as SweepSetup,
    SweepStopped as SweepStopped,
    TrialResult as TrialResult,
    TrialRunner as TrialRunner,
    TrialTaken as TrialTaken,
    begin_sweep as begin_sweep,
    check_budget as check_budget,
    conclude as conclude,
    is_over as is_over,
    run_sweep as run_sweep,
    search_of as search_of,
    work as work,
)
from .costs import StepEstimate as StepEstimate
from .hosts import (
    BEAT_SECONDS as BEAT_SECONDS,
    PRESENT_SECONDS as PRESENT_SECONDS,
    Heartbeats as Heartbeats,
    SweepHost as SweepHost,
    TuneSession as TuneSession,
    ended_sessions as ended_sessions,
    live_sessions as live_sessions,
)
from .joint import JointFit as JointFit, RungCurve as RungCurve, fit_jointly as fit_jointly
from .laws import (
    LAWS as LAWS,
    BatchAware as BatchAware,
    PublishedLaw as PublishedLaw,
    centred_law as centred_law,
    combined_law as combined_law,
    law_named as law_named,
    priors_for as priors_for,
)
from .ledger import (
    FINAL as FINAL,
    BudgetError as BudgetError,
    Entry as Entry,
    HourlyPrice as HourlyPrice,
    Ledger as Ledger,
)
from .machine import (
    SweepInterrupted as SweepInterrupted,
    SweepTools as SweepTools,
    TrialMetrics as TrialMetrics,
    TunedSweep as TunedSweep,
    find_estimates as find_estimates,
    tune_here as tune_here,
    work_in_slot as work_in_slot,
)
from .problem import (
    Answer as Answer,
    Law as Law,
    Observation as Observation,
    Priors as Priors,
    Problem as Problem,
    Rung as Rung,
    Search as Search,
    Trial as Trial,
)
from .rehearsal import rehearse as rehearse
from .setting_up import (
    check_axes as check_axes,
    check_range as check_range,
    make_problem as make_problem,
    sweep_name as sweep_name,
    sweep_price as sweep_price,
    sweep_spec as sweep_spec,
)
from .strategies.base import Strategy as Strategy
from .strategies.registry import all_strategies as all_strategies, find_strategy as find_strategy
from .sweep_plan import Schedule as Schedule, find_instance as find_instance, plan_sweep as plan_sweep
from .sweep_state import (
    SweepStatus as SweepStatus,
    find_sweep_status as find_sweep_status,
    newest_trial_run as newest_trial_run,
    stop_sweep as stop_sweep,
)
from .sweeps import Decision as Decision, SweepState as SweepState, SweepStore as SweepStore, find_sweep as find_sweep
from .trials import (
    AXES as AXES,
    RungShape as RungShape,
    axes_overrides as axes_overrides,
    decay_start as decay_start,
    shape_named as shape_named,
    target_shape as target_shape,
    trial_config as trial_config,
    trial_shapes as trial_shapes,
    trunk_of as trunk_of,
    value_overrides as value_overrides,
    with_value as with_value,
)
