from .commits import (
    Commit as Commit,
    choose_commit as choose_commit,
    committed as committed,
    committed_steps as committed_steps,
    find_commit as find_commit,
    find_run as find_run,
    has_trained as has_trained,
    read_manifest as read_manifest,
    read_marker as read_marker,
    read_validation as read_validation,
    step_key as step_key,
    write_validation as write_validation,
)
from .deepspeed import (
    CLASSES as CLASSES,
    MODULE as MODULE,
    DeepSpeedCheckpoint as DeepSpeedCheckpoint,
    ZeroLayout as ZeroLayout,
    convert_deepspeed as convert_deepspeed,
    convert_newest as convert_newest,
    open_deepspeed as open_deepspeed,
    open_weights as open_weights,
    read_file as read_file,
    save_files as save_files,
)
from .errors import (
    AnotherModel as AnotherModel,
    CheckpointError as CheckpointError,
    SaveDenied as SaveDenied,
    SaveFailed as SaveFailed,
)
from .lightning_io import StoreCheckpointIO as StoreCheckpointIO, split_checkpoint as split_checkpoint
from .loading import (
    LoadedModel as LoadedModel,
    choose_checkpoint as choose_checkpoint,
    is_model_file as is_model_file,
    load_model as load_model,
    load_weights as load_weights,
    recorded_model as recorded_model,
    recorded_tokenizer as recorded_tokenizer,
)
from .manifest import NATIVE as NATIVE, SavedTensor as SavedTensor
from .retention import Keep as Keep, Pruned as Pruned, prune as prune
from .saved import SavedTensors as SavedTensors, open_checkpoint as open_checkpoint
from .saving import SaveOptions as SaveOptions, SaveTarget as SaveTarget, for_saves as for_saves
from .streamed import write_streamed as write_streamed
from .verification import check_sizes as check_sizes, newest_intact as newest_intact, verify as verify
