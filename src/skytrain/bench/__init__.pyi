from .load import LoadLevel as LoadLevel, LoadSettings as LoadSettings, run_load as run_load
from .measurement import measure as measure, time_steps as time_steps
from .parallel import (
    bench_parallel as bench_parallel,
    parallel_results as parallel_results,
    scaling_table as scaling_table,
)
from .single import bench_single as bench_single, speed_line as speed_line
