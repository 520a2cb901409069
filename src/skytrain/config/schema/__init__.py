"""Every setting, with its type and its range, one file a few groups. Values live in the YAML files under `groups/`, never here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .data import DataConfig, SourceConfig
from .kinds import NonNegative, Range, Seconds, Unit, Whole
from .model import (
    CustomModelConfig,
    DecoderConfig,
    DynamicRope,
    HFModelConfig,
    LinearRope,
    Llama3Rope,
    ModelConfig,
    YarnRope,
)
from .tokens import (
    BPETokenizerConfig,
    GPT2TokenizerConfig,
    LoaderConfig,
    MixturePhase,
    TokenFilesConfig,
    TokenizerConfig,
)
from .training import (
    AdamWConfig,
    ConstantScheduleConfig,
    DecayScheduleConfig,
    LionConfig,
    LRScheduleConfig,
    MuonConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainerConfig,
    WSDScheduleConfig,
)

__all__ = [
    "AdamWConfig",
    "BPETokenizerConfig",
    "BudgetConfig",
    "Config",
    "ConstantScheduleConfig",
    "CustomModelConfig",
    "DataConfig",
    "DecayScheduleConfig",
    "DecoderConfig",
    "DynamicRope",
    "GPT2TokenizerConfig",
    "HFModelConfig",
    "LRScheduleConfig",
    "LinearRope",
    "LionConfig",
    "Llama3Rope",
    "LoaderConfig",
    "MixturePhase",
    "ModelConfig",
    "MuonConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Range",
    "SourceConfig",
    "StoreConfig",
    "TokenFilesConfig",
    "TokenizerConfig",
    "TrainerConfig",
    "Unit",
    "WSDScheduleConfig",
    "YarnRope",
]


@dataclass(frozen=True)
class StoreConfig:
    root: str  # a folder, file:///... or s3://bucket/prefix
    sse: Literal["s3", "kms"] | None
    kms_key: str | None


@dataclass(frozen=True)
class BudgetConfig:
    """Dollars that a run may cost in all, over every attempt and machine; it stops in time to save a checkpoint."""

    usd: NonNegative | None  # null: no limit
    usd_per_hour: NonNegative | None  # of one machine; null: the catalogue's price for this EC2 instance
    margin: Seconds  # kept back for the end, beside the time that saving a checkpoint was seen to take


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    run: str | None  # a name; without one, the model, the data and a hash of what decides the result
    seed: Whole
    model: ModelConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    optimizer: OptimizerConfig
    lr_schedule: LRScheduleConfig
    parallel: ParallelConfig
    trainer: TrainerConfig
    loader: LoaderConfig
    store: StoreConfig
    budget: BudgetConfig
