from .calls import Call as Call, render_calls as render_calls
from .cloudwatch import (
    CloudWatch as CloudWatch,
    LogDestination as LogDestination,
    log_destination as log_destination,
    stream_lines as stream_lines,
)
from .errors import CloudError as CloudError, cloud_errors as cloud_errors, quota_page as quota_page
from .image_lock import (
    LockedImage as LockedImage,
    read_chart_image as read_chart_image,
    read_lock as read_lock,
    render_manifests as render_manifests,
    resolve_lock as resolve_lock,
    write_chart_image as write_chart_image,
    write_lock as write_lock,
)
from .machine_images import MachineImage as MachineImage, find_image as find_image
from .market import offered_zones as offered_zones, spot_prices as spot_prices
from .metadata import (
    Ec2Instance as Ec2Instance,
    Metadata as Metadata,
    Notice as Notice,
    find_metadata as find_metadata,
    on_ec2 as on_ec2,
)
from .outputs import (
    CLOUD_FILE as CLOUD_FILE,
    cloud_files as cloud_files,
    read_outputs as read_outputs,
    terraform_outputs as terraform_outputs,
)
from .preview import (
    PREVIEW_NOTE as PREVIEW_NOTE,
    PreviewSession as PreviewSession,
    account_folders as account_folders,
    is_preview as is_preview,
    is_preview_folder as is_preview_folder,
    preview_container as preview_container,
    preview_image as preview_image,
)
from .registry import (
    RegistryImage as RegistryImage,
    RegistryRepository as RegistryRepository,
    copy_image as copy_image,
    find_registry_image as find_registry_image,
    tag_digest as tag_digest,
)
from .remedies import fix_of_words as fix_of_words
from .removal import (
    ANSWERING as ANSWERING,
    WAITING as WAITING,
    FailedDeletion as FailedDeletion,
    GcSelection as GcSelection,
    Verdict as Verdict,
    delete_resources as delete_resources,
    deletion_calls as deletion_calls,
    judge as judge,
    remove as remove,
    remove_all as remove_all,
)
from .reservations import CapacityBlock as CapacityBlock, block_options as block_options, find_block as find_block
from .resources import (
    KINDS as KINDS,
    CloudResource as CloudResource,
    delete_role as delete_role,
    find_groups as find_groups,
    job_runs_of as job_runs_of,
    scale_to_zero as scale_to_zero,
)
from .scan import AccountScan as AccountScan, enabled_regions as enabled_regions, scan_account as scan_account
from .secrets import find_secret as find_secret, read_secrets as read_secrets, take_secrets as take_secrets
from .session import (
    FIRST_REGION as FIRST_REGION,
    REGIONS_LINK as REGIONS_LINK,
    AwsSession as AwsSession,
    open_session as open_session,
)
from .tags import RUN as RUN, Tags as Tags, read_tags as read_tags
from .training_image import (
    ImageRepository as ImageRepository,
    PushedImage as PushedImage,
    digest_of as digest_of,
    image_repository as image_repository,
    pushed_image as pushed_image,
    record_image as record_image,
    registry_password as registry_password,
)
