from .apply import Settings as Settings, blocks_of as blocks_of, parallelize as parallelize
from .auto import (
    choose_layout as choose_layout,
    laid_out as laid_out,
    problem_of as problem_of,
    this_machine as this_machine,
)
from .by_name import OneDevice as OneDevice, Replicas as Replicas, StateByName as StateByName
from .deepspeed import ZeroStrategy as ZeroStrategy
from .deepspeed_setup import check_deepspeed as check_deepspeed, zero_settings as zero_settings
from .state import local_part_of as local_part_of
from .strategy import MeshStrategy as MeshStrategy
