from .batches import (
    BatchSizes as BatchSizes,
    batch_sizes as batch_sizes,
    recorded_batches as recorded_batches,
    recorded_steps as recorded_steps,
    total_steps as total_steps,
    total_tokens as total_tokens,
)
from .capabilities import (
    COMBINATION_RULES as COMBINATION_RULES,
    MODEL_SIZE_RULES as MODEL_SIZE_RULES,
    Device as Device,
    HFShape as HFShape,
    Setup as Setup,
    check_setup as check_setup,
    fused_mesh_problem as fused_mesh_problem,
    fused_model_problem as fused_model_problem,
    fused_problem as fused_problem,
    fused_settings_problem as fused_settings_problem,
)
from .capabilities.kernels import KERNEL_RULES as KERNEL_RULES
from .checks import check as check, check_decoder as check_decoder
from .composition import (
    GROUPS as GROUPS,
    AdoptedSettings as AdoptedSettings,
    Composed as Composed,
    RecipeWeights as RecipeWeights,
    check_words_of_file as check_words_of_file,
    compose as compose,
)
from .discovery import discover as discover, folders_with as folders_with
from .environment import (
    agent_keeps_store as agent_keeps_store,
    aws_region as aws_region,
    child_environment as child_environment,
    cpp_compiler as cpp_compiler,
    has_aws_credentials as has_aws_credentials,
    has_aws_profile as has_aws_profile,
    has_torchrun_agent as has_torchrun_agent,
    is_spark_submitted as is_spark_submitted,
    is_worker as is_worker,
    master_address as master_address,
    master_port as master_port,
    metadata_endpoint as metadata_endpoint,
    metadata_is_disabled as metadata_is_disabled,
    s3_endpoint as s3_endpoint,
    set_default as set_default,
    set_variables as set_variables,
    skytrain_cache_folder as skytrain_cache_folder,
    temporarily as temporarily,
    torchrun_place as torchrun_place,
    torchrun_restarts as torchrun_restarts,
    triton_is_interpreted as triton_is_interpreted,
    user_cache_folder as user_cache_folder,
    variable as variable,
    variables as variables,
    visible_gpus as visible_gpus,
    wait_without_spinning as wait_without_spinning,
)
from .errors import (
    ConfigError as ConfigError,
    MissingExtra as MissingExtra,
    SkytrainError as SkytrainError,
    error_text as error_text,
    nearest as nearest,
)
from .exits import (
    DONE as DONE,
    EXIT_CODES as EXIT_CODES,
    INTERRUPTED as INTERRUPTED,
    OUTCOMES as OUTCOMES,
    STOPPED as STOPPED,
    SUPERSEDED as SUPERSEDED,
    UNCOMMITTED as UNCOMMITTED,
    exit_codes_text as exit_codes_text,
)
from .explanation import (
    Explained as Explained,
    Section as Section,
    complete as complete,
    default_of as default_of,
    explain as explain,
    group_choices as group_choices,
    set_by as set_by,
)
from .extras import naming_extras as naming_extras
from .main_module import hidden_main as hidden_main
from .mesh import (
    CHUNKS as CHUNKS,
    DEEPSPEED as DEEPSPEED,
    DIMENSIONS as DIMENSIONS,
    INTERLEAVED as INTERLEAVED,
    Mesh as Mesh,
    assumed_mesh as assumed_mesh,
    make_mesh as make_mesh,
    most_stages as most_stages,
    resolve_degrees as resolve_degrees,
)
from .mesh_resolution import (
    advice as advice,
    check_job as check_job,
    mesh_problem as mesh_problem,
    model_size_problem as model_size_problem,
    resolve_mesh as resolve_mesh,
    step_batches as step_batches,
    uses_deepspeed as uses_deepspeed,
    uses_mesh_strategy as uses_mesh_strategy,
    uses_process_group as uses_process_group,
)
from .other_tools import translated as translated
from .plugins import load_class as load_class, make as make, plugin_targets as plugin_targets
from .reference_page import settings_page as settings_page, shown as shown
from .schema import (
    DATA as DATA,
    EXECUTION as EXECUTION,
    RESULT as RESULT,
    WEIGHTS as WEIGHTS,
    BPETokenizerConfig as BPETokenizerConfig,
    BudgetConfig as BudgetConfig,
    CloudConfig as CloudConfig,
    Config as Config,
    ConstantScheduleConfig as ConstantScheduleConfig,
    CustomModelConfig as CustomModelConfig,
    DataConfig as DataConfig,
    DecoderConfig as DecoderConfig,
    DynamicRope as DynamicRope,
    EksConfig as EksConfig,
    EmrConfig as EmrConfig,
    EvaluationConfig as EvaluationConfig,
    EvaluatorConfig as EvaluatorConfig,
    ExpertsConfig as ExpertsConfig,
    HFModelConfig as HFModelConfig,
    HFTokenizerConfig as HFTokenizerConfig,
    LatentConfig as LatentConfig,
    Llama3Rope as Llama3Rope,
    LoaderConfig as LoaderConfig,
    LRScheduleConfig as LRScheduleConfig,
    MachineRolesConfig as MachineRolesConfig,
    MetricsConfig as MetricsConfig,
    ModelConfig as ModelConfig,
    NearDedupConfig as NearDedupConfig,
    OptimizerConfig as OptimizerConfig,
    OptimizerFacts as OptimizerFacts,
    ParallelConfig as ParallelConfig,
    PowerScheduleConfig as PowerScheduleConfig,
    Precision as Precision,
    SageMakerConfig as SageMakerConfig,
    ServeConfig as ServeConfig,
    SlurmConfig as SlurmConfig,
    SparkConfig as SparkConfig,
    StoreConfig as StoreConfig,
    TaskConfig as TaskConfig,
    TokenFilesConfig as TokenFilesConfig,
    TokenizerConfig as TokenizerConfig,
    TrainerConfig as TrainerConfig,
    WandbConfig as WandbConfig,
    WSDScheduleConfig as WSDScheduleConfig,
    YarnCustomRope as YarnCustomRope,
    YarnRope as YarnRope,
    flatten as flatten,
    has_layers as has_layers,
    scaled_parts as scaled_parts,
    select as select,
)
from .secrets import (
    MASK as MASK,
    SECRET_NAME as SECRET_NAME,
    SECRET_VALUE as SECRET_VALUE,
    hold_secrets as hold_secrets,
    secret_variables as secret_variables,
    without_secrets as without_secrets,
)
from .source import source_files as source_files, source_hash as source_hash
from .tasks import NamedTask as NamedTask, find_tasks as find_tasks, finish_settings as finish_settings
from .trusted_code import (
    check_named as check_named,
    check_trusted as check_trusted,
    forget_trust as forget_trust,
    trust as trust,
    trust_settings as trust_settings,
    visible as visible,
)
from .typed import build as build
from .units import (
    Interval as Interval,
    format_bytes as format_bytes,
    format_count as format_count,
    format_seconds as format_seconds,
    parse_bytes as parse_bytes,
    parse_count as parse_count,
    parse_seconds as parse_seconds,
    plural as plural,
)
from .upgrades import BEFORE as BEFORE, upgrade as upgrade
