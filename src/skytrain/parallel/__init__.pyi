from .apply import (
    Settings as Settings,
    blocks_of as blocks_of,
    use_fp8 as use_fp8,
)
from .auto import (
    choose_layout as choose_layout,
    laid_out as laid_out,
    problem_of as problem_of,
    this_machine as this_machine,
)
from .by_name import OneDevice as OneDevice, Replicas as Replicas, StateByName as StateByName
from .deepspeed import ZeroStrategy as ZeroStrategy
from .deepspeed_setup import check_deepspeed as check_deepspeed, zero_settings as zero_settings
from .lightning_internals import (
    call_through_wrapper as call_through_wrapper,
    count_batches_of_step as count_batches_of_step,
    datamodule_of as datamodule_of,
    dump_checkpoint as dump_checkpoint,
    ends_step as ends_step,
    quieten_lightning as quieten_lightning,
    recount_batches as recount_batches,
    start_at_step as start_at_step,
)
from .pipeline import Pipeline as Pipeline
from .state import local_part_of as local_part_of, zeros_by_row as zeros_by_row
from .strategy import MeshStrategy as MeshStrategy
