"""Every setting with its type and range, a few groups in each file. Values are in the YAML files under `groups/`, never here."""

from __future__ import annotations

from typing import Annotated, Literal

from .cloud import CloudConfig, MachineRolesConfig, RolesConfig, SubnetsConfig
from .data import DataConfig, NearDedupConfig, SourceConfig, SparkConfig
from .declare import DATA, EXECUTION, NUMBERS, RESULT, WEIGHTS, Decides, Declared, declared, setting, settings
from .eks import EksConfig
from .emr import EmrConfig
from .evaluation import EvaluationConfig, TaskConfig
from .kinds import MOST_LAYERS, NonNegative, OneOf, OtherKeys, Precision, Range, Seconds, Unit, Whole
from .metrics import MetricsConfig, WandbConfig
from .model import (
    CustomModelConfig,
    DecoderConfig,
    DynamicRope,
    ExpertsConfig,
    HFModelConfig,
    LatentConfig,
    LinearRope,
    Llama3Rope,
    ModelConfig,
    YarnCustomRope,
    YarnRope,
    has_layers,
    scaled_parts,
)
from .optimizers import OPTIMIZERS, OptimizerConfig, OptimizerFacts
from .planning import PlanConfig
from .sagemaker import SageMakerConfig
from .serving import ServeConfig
from .slurm import SlurmConfig
from .tokens import (
    BPETokenizerConfig,
    GPT2TokenizerConfig,
    HFTokenizerConfig,
    LoaderConfig,
    MixturePhase,
    TokenFilesConfig,
    TokenizerConfig,
)
from .training import (
    BatchPhaseConfig,
    CallbackConfig,
    ConstantScheduleConfig,
    DecayScheduleConfig,
    EvaluatorConfig,
    LRScheduleConfig,
    ParallelConfig,
    PowerScheduleConfig,
    TrainerConfig,
    WSDScheduleConfig,
)
from .tuning import TuneConfig
from .walk import Field, fields_of, fill, flatten, groups_in, other_keys_of, select, tag_of

__all__ = [
    "DATA",
    "EXECUTION",
    "MOST_LAYERS",
    "NUMBERS",
    "OPTIMIZERS",
    "RESULT",
    "WEIGHTS",
    "BPETokenizerConfig",
    "BatchPhaseConfig",
    "BudgetConfig",
    "CallbackConfig",
    "CloudConfig",
    "Config",
    "ConstantScheduleConfig",
    "CustomModelConfig",
    "DataConfig",
    "DecayScheduleConfig",
    "Decides",
    "Declared",
    "DecoderConfig",
    "DynamicRope",
    "EksConfig",
    "EmrConfig",
    "EvaluationConfig",
    "EvaluatorConfig",
    "ExpertsConfig",
    "Field",
    "GPT2TokenizerConfig",
    "HFModelConfig",
    "HFTokenizerConfig",
    "LRScheduleConfig",
    "LatentConfig",
    "LinearRope",
    "Llama3Rope",
    "LoaderConfig",
    "MachineRolesConfig",
    "MetricsConfig",
    "MixturePhase",
    "ModelConfig",
    "NearDedupConfig",
    "OneOf",
    "OptimizerConfig",
    "OptimizerFacts",
    "OtherKeys",
    "ParallelConfig",
    "PlanConfig",
    "PowerScheduleConfig",
    "Precision",
    "Range",
    "RolesConfig",
    "SageMakerConfig",
    "ServeConfig",
    "SlurmConfig",
    "SourceConfig",
    "SparkConfig",
    "StoreConfig",
    "SubnetsConfig",
    "TaskConfig",
    "TokenFilesConfig",
    "TokenizerConfig",
    "TrainerConfig",
    "TuneConfig",
    "Unit",
    "WSDScheduleConfig",
    "WandbConfig",
    "YarnCustomRope",
    "YarnRope",
    "declared",
    "fields_of",
    "fill",
    "flatten",
    "groups_in",
    "has_layers",
    "other_keys_of",
    "scaled_parts",
    "select",
    "tag_of",
]


@settings
class StoreConfig:
    """Where data, runs and checkpoints are kept."""

    root: str = setting(EXECUTION, "A folder, file:///... or s3://bucket/prefix.")
    sse: Literal["s3", "kms"] | None = setting(EXECUTION, "Server-side encryption on S3; null: the bucket's own.")
    kms_key: str | None = setting(EXECUTION, "The KMS key, with sse=kms; null: the account's default key.")
    patience: Seconds = setting(
        EXECUTION,
        "How long a run keeps trying while the store cannot be read or written, before it stops resumably (exit 10; "
        "11 for credentials). Training continues meanwhile as long as it has data.",
    )


@settings
class BudgetConfig:
    """Dollars that a run may cost over all attempts and machines; it stops in time to save a checkpoint."""

    usd: NonNegative | None = setting(EXECUTION, "The limit; null: none.")
    usd_per_hour: NonNegative | None = setting(
        EXECUTION, "Price of one machine; null: the catalogue's price for this EC2 instance."
    )
    margin: Seconds = setting(EXECUTION, "Time kept back for the end, in addition to what saving a checkpoint took.")
    overrun: Literal["stop", "continue"] = setting(
        EXECUTION,
        "When the first 20 steps show that `usd` will not be enough: stop with a checkpoint (exit 6), or continue until "
        "it is spent.",
    )
    whole_machine: bool = setting(
        EXECUTION,
        "Count a rented machine from its launch; false: from the run's start, for a trial of a sweep that pays the rest.",
    )
    planned_usd: NonNegative | None = setting(
        EXECUTION, "What the plan expects the run to cost; `skytrain launch` sets it."
    )
    planned_step_seconds: NonNegative | None = setting(
        EXECUTION, "What the plan expects a step to take; `skytrain launch` sets it."
    )


@settings
class Config:
    """The complete configuration of a run."""

    run: str | None = setting(
        EXECUTION, "Name of the run; null: the model, the data and a hash of all settings that decide the result."
    )
    seed: Whole = setting(NUMBERS, "Seed of initial weights, the order of samples and dropout.")
    model: ModelConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    optimizer: Annotated[OptimizerConfig, OneOf(OPTIMIZERS)]
    lr_schedule: LRScheduleConfig
    parallel: ParallelConfig
    trainer: TrainerConfig
    evaluation: EvaluationConfig
    loader: LoaderConfig
    store: StoreConfig
    budget: BudgetConfig
    cloud: CloudConfig
    engine: Literal["local", "spark"] = setting(
        EXECUTION,
        "What prepares data: processes of this machine, or Spark. The result has the same bytes.",
    )
    spark: SparkConfig
    tune: TuneConfig
    metrics: MetricsConfig
    wandb: WandbConfig
    serve: ServeConfig
    plan: PlanConfig
