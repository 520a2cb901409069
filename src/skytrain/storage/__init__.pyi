from .aws import (
    aws_client_config as aws_client_config,
    partition_of as partition_of,
    register_fsspec as register_fsspec,
)
from .base import (
    MANIFEST_BYTES as MANIFEST_BYTES,
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
    StoreError as StoreError,
    StoreUnreachable as StoreUnreachable,
    TooLarge as TooLarge,
)
from .hub import (
    explain_hub_error as explain_hub_error,
    hub_http_error as hub_http_error,
    is_hub_name as is_hub_name,
    resolve_hub_or_folder as resolve_hub_or_folder,
)
from .opening import open_store as open_store
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
