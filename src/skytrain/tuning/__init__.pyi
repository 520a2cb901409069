from .axes import tune_axes as tune_axes
from .comparison import compare_sweeps as compare_sweeps
from .conclusions import Conclusion as Conclusion, OtherAnswer as OtherAnswer
from .costs import StepEstimate as StepEstimate
from .driver import (
    SweepSetup as SweepSetup,
    SweepStopped as SweepStopped,
    TrialResult as TrialResult,
    TrialTaken as TrialTaken,
    run_sweep as run_sweep,
)
from .earlier import EarlierSweep as EarlierSweep, with_earlier as with_earlier
from .hosts import TuneSession as TuneSession
from .joint import JointFit as JointFit, RungCurve as RungCurve, fit_jointly as fit_jointly
from .laws import (
    LAWS as LAWS,
    BatchAware as BatchAware,
    combined_law as combined_law,
    law_named as law_named,
    priors_for as priors_for,
)
from .ledger import FINAL as FINAL, HourlyPrice as HourlyPrice, Ledger as Ledger
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
from .setting_up import make_problem as make_problem, sweep_name as sweep_name
from .strategies.base import Strategy as Strategy
from .strategies.registry import all_strategies as all_strategies, find_strategy as find_strategy
from .sweep_plan import Schedule as Schedule, plan_sweep as plan_sweep
from .sweep_state import (
    SweepStatus as SweepStatus,
    damaged_sweep as damaged_sweep,
    find_sweep_status as find_sweep_status,
    launched_sweep as launched_sweep,
    machines_of_sweep as machines_of_sweep,
    newest_trial_run as newest_trial_run,
    stop_sweep as stop_sweep,
    sweep_spent_usd as sweep_spent_usd,
)
from .sweeps import SweepStore as SweepStore, trial_run as trial_run
from .trials import (
    RungShape as RungShape,
    decay_start as decay_start,
    shape_named as shape_named,
    target_shape as target_shape,
    trial_config as trial_config,
    trial_shapes as trial_shapes,
    trunk_of as trunk_of,
)
