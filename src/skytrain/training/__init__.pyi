from .callbacks import AtStep as AtStep, Profile as Profile, StepLog as StepLog
from .checkpointing import Checkpoints as Checkpoints, save_plan as save_plan
from .evaluations import Evaluations as Evaluations
from .factory import (
    TrainingPlan as TrainingPlan,
    choose_device as choose_device,
    device_name as device_name,
    make_loggers as make_loggers,
    make_module as make_module,
    make_trainer as make_trainer,
    outline as outline,
    plan_training as plan_training,
    with_precision as with_precision,
)
from .interruptions import BudgetWatch as BudgetWatch, Interruptions as Interruptions, Signals as Signals
from .kernel_table import GroupTime as GroupTime, group_table as group_table, profile_groups as profile_groups
from .losses import LossPath as LossPath, apply_fp8 as apply_fp8, choose_loss as choose_loss
from .micro_batch import (
    explaining_memory as explaining_memory,
    with_micro_batch as with_micro_batch,
    with_size as with_size,
)
from .module import CausalLM as CausalLM, Optimization as Optimization
from .optimizers import make_optimizer as make_optimizer
from .pieces import (
    describe as describe,
    make_data as make_data,
    make_evaluations as make_evaluations,
    make_step_log as make_step_log,
)
from .random_state import RandomState as RandomState, seed_of_rank as seed_of_rank
from .resume import (
    Attempt as Attempt,
    begin as begin,
    beginning_model as beginning_model,
    check_resume as check_resume,
    open_run as open_run,
)
from .schedules import learning_rate as learning_rate
from .services import (
    Beside as Beside,
    beside as beside,
    find_host as find_host,
    spent_before as spent_before,
    start_meter as start_meter,
)
from .start import BeginAt as BeginAt, SettingsNow as SettingsNow
from .straggler import watch_ranks as watch_ranks
