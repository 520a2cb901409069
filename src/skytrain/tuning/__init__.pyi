from .axes import tune_axes as tune_axes
from .comparison import compare_sweeps as compare_sweeps
from .conclusions import Conclusion as Conclusion, OtherAnswer as OtherAnswer
from .costs import StepEstimate as StepEstimate
from .driver import SweepStopped as SweepStopped, TrialResult as TrialResult, TrialTaken as TrialTaken
from .hosts import TuneSession as TuneSession
from .joint import JointFit as JointFit
from .laws import combined_law as combined_law
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
from .problem import Observation as Observation, Problem as Problem, Rung as Rung, Trial as Trial
from .setting_up import sweep_name as sweep_name
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
    trial_config as trial_config,
    trunk_of as trunk_of,
)
