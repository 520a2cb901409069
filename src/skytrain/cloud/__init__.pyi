from .actions import COMMAND_ACTIONS as COMMAND_ACTIONS, command_actions_table as command_actions_table
from .boot import BootScript as BootScript
from .bundle import (
    Bundle as Bundle,
    BundleContents as BundleContents,
    bundle_of as bundle_of,
    make_bundle as make_bundle,
)
from .calls import Call as Call, InvalidCall as InvalidCall, as_json as as_json, render_calls as render_calls
from .checks import (
    CHECKS as CHECKS,
    Finding as Finding,
    Preflight as Preflight,
    emr_checks as emr_checks,
    launch_checks as launch_checks,
    run_checks as run_checks,
    sagemaker_checks as sagemaker_checks,
)
from .docker_engine import (
    DockerError as DockerError,
    build_image as build_image,
    check_docker as check_docker,
    push_image as push_image,
    resolve_image as resolve_image,
)
from .ec2 import (
    GroupSpec as GroupSpec,
    group_name as group_name,
    kill_time as kill_time,
    launch_calls as launch_calls,
)
from .ec2_machines import (
    Ec2Machines as Ec2Machines,
    has_machines as has_machines,
    removal_calls as removal_calls,
    remove_quietly as remove_quietly,
)
from .eks import (
    TRAINER as TRAINER,
    EksJobSpec as EksJobSpec,
    check_eks_settings as check_eks_settings,
    check_grace as check_grace,
    kube_job_name as kube_job_name,
    run_labels as run_labels,
    to_yaml as to_yaml,
)
from .eks_host import PodHost as PodHost, read_pod as read_pod
from .eks_jobs import (
    EksJob as EksJob,
    EksPod as EksPod,
    check_quota as check_quota,
    jobs_in_cluster as jobs_in_cluster,
    pod_reason as pod_reason,
    remove_created as remove_created,
    remove_job as remove_job,
)
from .eks_pods import (
    METRICS_PORT as METRICS_PORT,
    POD_CONFIG_FOLDER as POD_CONFIG_FOLDER,
    PodSize as PodSize,
    offer_size as offer_size,
    smoke_size as smoke_size,
)
from .emr import (
    START_SECONDS as START_SECONDS,
    EmrJobSpec as EmrJobSpec,
    EmrPlaces as EmrPlaces,
    create_application as create_application,
    serverless_calls as serverless_calls,
    start_job_run as start_job_run,
)
from .emr_cluster import (
    BOOTSTRAP as BOOTSTRAP,
    cluster_call as cluster_call,
    cluster_subnet as cluster_subnet,
    submit_script as submit_script,
)
from .emr_jobs import (
    EmrJob as EmrJob,
    emr_jobs_of as emr_jobs_of,
    emr_log_folder as emr_log_folder,
    emr_log_lines as emr_log_lines,
    node_times as node_times,
    stop_emr_job as stop_emr_job,
)
from .endpoint_keys import (
    delete_key as delete_key,
    key_parameter as key_parameter,
    put_key as put_key,
    read_key as read_key,
)
from .environment import (
    ENTRY as ENTRY,
    SPARK_PYTHON as SPARK_PYTHON,
    PackedEnvironment as PackedEnvironment,
    environment_of as environment_of,
    pack_environment as pack_environment,
)
from .errors import CloudError as CloudError, cloud_error as cloud_error, cloud_errors as cloud_errors
from .image_lock import (
    LockedImage as LockedImage,
    read_lock as read_lock,
    render_manifests as render_manifests,
    resolve_lock as resolve_lock,
    write_lock as write_lock,
)
from .images import PLAIN_PYTHON as PLAIN_PYTHON, MachineImage as MachineImage, find_image as find_image
from .kube import (
    KubeCluster as KubeCluster,
    KubeError as KubeError,
    KubeKind as KubeKind,
    KubeObject as KubeObject,
    open_cluster as open_cluster,
)
from .launches import (
    LaunchedGroup as LaunchedGroup,
    LaunchId as LaunchId,
    LaunchRecord as LaunchRecord,
    create_launch as create_launch,
    launch_folder as launch_folder,
    launch_starts as launch_starts,
    launched_runs as launched_runs,
    launches_of as launches_of,
    mark_failed as mark_failed,
    next_launch as next_launch,
    read_launch as read_launch,
    recorded_at as recorded_at,
    stopped_key as stopped_key,
    withdraw_launch as withdraw_launch,
)
from .log_streams import stream_lines as stream_lines
from .market import offered_zones as offered_zones, quoted as quoted
from .offers_in_turn import (
    current_offer as current_offer,
    machines_in as machines_in,
    try_next_offer as try_next_offer,
)
from .outputs import (
    CLOUD_FILE as CLOUD_FILE,
    cloud_files as cloud_files,
    read_outputs as read_outputs,
    terraform_outputs as terraform_outputs,
)
from .parallelcluster import ClusterSpec as ClusterSpec, cluster_config as cluster_config
from .registry import RegistryError as RegistryError, tag_digest as tag_digest
from .removal import (
    FailedDeletion as FailedDeletion,
    GcSelection as GcSelection,
    Verdict as Verdict,
    delete_resources as delete_resources,
    deletion_calls as deletion_calls,
    judge as judge,
)
from .resources import (
    KINDS as KINDS,
    CloudResource as CloudResource,
    ResourceKind as ResourceKind,
    scale_to_zero as scale_to_zero,
)
from .sagemaker import (
    EcrImage as EcrImage,
    JobPlaces as JobPlaces,
    SageMakerJobSpec as SageMakerJobSpec,
    check_settings as check_settings,
    training_job_name as training_job_name,
)
from .sagemaker_host import SageMakerHost as SageMakerHost, read_host as read_host, write_failure as write_failure
from .sagemaker_jobs import (
    SageMakerJob as SageMakerJob,
    describe_job as describe_job,
    job_log_lines as job_log_lines,
    jobs_of as jobs_of,
    on_demand_usd as on_demand_usd,
    stop_job as stop_job,
)
from .sagemaker_start import StartScript as StartScript
from .scan import (
    AccountScan as AccountScan,
    ScanProblem as ScanProblem,
    enabled_regions as enabled_regions,
    scan_account as scan_account,
)
from .session import AwsIdentity as AwsIdentity, AwsSession as AwsSession, open_session as open_session
from .slurm import AUTO_RESUME as AUTO_RESUME, SlurmScript as SlurmScript, slurm_job_name as slurm_job_name
from .slurm_array import (
    ArrayTask as ArrayTask,
    SlurmArray as SlurmArray,
    array_tasks as array_tasks,
    requeue_task as requeue_task,
    stop_tasks as stop_tasks,
    submit_array as submit_array,
    task_log as task_log,
)
from .slurm_cluster import (
    SlurmError as SlurmError,
    SlurmJob as SlurmJob,
    cancel_jobs as cancel_jobs,
    check_slurm_version as check_slurm_version,
    preempt_mode as preempt_mode,
    slurm_jobs as slurm_jobs,
    slurm_partitions as slurm_partitions,
    submit_job as submit_job,
)
from .slurm_machines import SlurmMachines as SlurmMachines
from .tags import (
    EXPIRES_AT as EXPIRES_AT,
    OWNER as OWNER,
    PROJECT as PROJECT,
    RUN as RUN,
    Tags as Tags,
    project_filter as project_filter,
    read_tags as read_tags,
)
from .training_image import (
    ImageRepository as ImageRepository,
    PushedImage as PushedImage,
    digest_of as digest_of,
    image_repository as image_repository,
    pushed_image as pushed_image,
    record_image as record_image,
    registry_password as registry_password,
)
from .wheels import PLATFORMS as PLATFORMS, UBUNTU_PLATFORMS as UBUNTU_PLATFORMS, ImagePython as ImagePython
