from .aws import (
    aws_client_config as aws_client_config,
    partition_of as partition_of,
    register_fsspec as register_fsspec,
)
from .base import (
    MANIFEST_BYTES as MANIFEST_BYTES,
    RECORD_BYTES as RECORD_BYTES,
    Stat as Stat,
    Store as Store,
    check_key as check_key,
)
from .bucket import WebFiles as WebFiles
from .copying import (
    CopyJournal as CopyJournal,
    CopyPlan as CopyPlan,
    plan_copy as plan_copy,
    refuse_replacing as refuse_replacing,
    run_copy as run_copy,
    total_progress as total_progress,
)
from .errors import (
    AccessDenied as AccessDenied,
    NotFound as NotFound,
    ObjectError as ObjectError,
    StoreError as StoreError,
    StoreUnreachable as StoreUnreachable,
    is_of_store as is_of_store,
)
from .hub import (
    RepositoryKind as RepositoryKind,
    asks_for_token as asks_for_token,
    explain_hub_error as explain_hub_error,
    hub_http_error as hub_http_error,
    is_hub_name as is_hub_name,
    resolve_hub_or_folder as resolve_hub_or_folder,
)
from .opening import open_store as open_store
from .reading import (
    AGAIN as AGAIN,
    MOST as MOST,
    NO_SHAPE as NO_SHAPE,
    DamagedRecord as DamagedRecord,
    Shape as Shape,
    damaged as damaged,
    data_of as data_of,
    is_amount as is_amount,
    is_clock as is_clock,
    is_list as is_list,
    is_mapping as is_mapping,
    is_number as is_number,
    is_text as is_text,
    is_texts as is_texts,
    is_time as is_time,
    is_whole as is_whole,
    maybe as maybe,
    parse_json as parse_json,
    parse_object as parse_object,
    read_data as read_data,
    read_file as read_file,
    read_file_object as read_file_object,
    read_lines as read_lines,
    read_numbers as read_numbers,
    read_object as read_object,
    read_text as read_text,
    read_typed as read_typed,
    read_whole as read_whole,
    record_of as record_of,
    unpack_gzip as unpack_gzip,
)
from .retry import Patience as Patience, Retry as Retry
from .scratch import ScratchFolder as ScratchFolder, ScratchFull as ScratchFull
from .staged import (
    STAGED as STAGED,
    StagedFile as StagedFile,
    StagedModel as StagedModel,
    locate_model as locate_model,
    read_staged as read_staged,
    staged_at as staged_at,
    staged_folder as staged_folder,
    staged_place as staged_place,
    write_staged as write_staged,
)
