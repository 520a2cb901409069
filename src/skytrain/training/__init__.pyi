from .attempts import AttemptResult as AttemptResult, begin_attempt as begin_attempt, close_attempt as close_attempt
from .callbacks import AtStep as AtStep
from .context import RunContext as RunContext, join_run as join_run, start_worker as start_worker
from .factory import (
    choose_device as choose_device,
    device_name as device_name,
    make_module as make_module,
    make_trainer as make_trainer,
    outline as outline,
    plan_training as plan_training,
    with_precision as with_precision,
)
from .fitting import fit as fit
from .guard import Diverged as Diverged
from .kernel_table import GroupTime as GroupTime, group_table as group_table, profile_groups as profile_groups
from .losses import apply_fp8 as apply_fp8, choose_loss as choose_loss
from .memory import peak_resident_bytes as peak_resident_bytes
from .micro_batch import (
    explaining_memory as explaining_memory,
    with_micro_batch as with_micro_batch,
    with_size as with_size,
)
from .opening import open_data as open_data, open_run as open_run
from .optimizers import make_optimizer as make_optimizer
from .resolution import TrainRequest as TrainRequest, resolve_settings as resolve_settings
from .schedules import learning_rate as learning_rate
from .step import CausalLM as CausalLM
