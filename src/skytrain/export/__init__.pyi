from .card import TrainingFacts as TrainingFacts
from .folder import check_new_folder as check_new_folder, follow_umask as follow_umask
from .hf import Dtype as Dtype, HFExport as HFExport, export_hf as export_hf, read_dtype as read_dtype
from .hub import check_hub_name as check_hub_name, push_folder as push_folder
from .llmc import export_llmc as export_llmc
from .sums import (
    SUMS as SUMS,
    check_sums as check_sums,
    files_of as files_of,
    hash_file as hash_file,
    read_sums as read_sums,
)
