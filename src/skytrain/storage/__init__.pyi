from .aws import aws_client_config as aws_client_config
from .base import Progress as Progress, Stat as Stat, Store as Store
from .errors import (
    AccessDenied as AccessDenied,
    NotFound as NotFound,
    StoreError as StoreError,
    StoreUnreachable as StoreUnreachable,
)
from .fsspec_face import register_fsspec as register_fsspec
from .hub import is_hub_name as is_hub_name, resolve_hub_or_folder as resolve_hub_or_folder
from .opening import open_store as open_store
from .retry import Patience as Patience, Retry as Retry
from .web import WebFiles as WebFiles
