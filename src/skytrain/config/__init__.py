"""Settings: YAML groups, typed schemas, units, composition, and errors that name the bad key and the nearest good one."""

from .checks import total_steps
from .errors import ConfigError, MissingExtra, SkytrainError, nearest
from .plugins import load_class, make
from .schema import (
    AdamWConfig,
    BPETokenizerConfig,
    Config,
    CustomModelConfig,
    DataConfig,
    DecoderConfig,
    DynamicRope,
    GPT2TokenizerConfig,
    LinearRope,
    LionConfig,
    Llama3Rope,
    LRScheduleConfig,
    ModelConfig,
    OptimizerConfig,
    SourceConfig,
    StoreConfig,
    TokenizerConfig,
    TrainerConfig,
    YarnRope,
)
from .typed import build
from .units import Interval, format_bytes, format_count, format_seconds, parse_count

__all__ = [
    "AdamWConfig",
    "BPETokenizerConfig",
    "Config",
    "ConfigError",
    "CustomModelConfig",
    "DataConfig",
    "DecoderConfig",
    "DynamicRope",
    "GPT2TokenizerConfig",
    "Interval",
    "LRScheduleConfig",
    "LinearRope",
    "LionConfig",
    "Llama3Rope",
    "MissingExtra",
    "ModelConfig",
    "OptimizerConfig",
    "SkytrainError",
    "SourceConfig",
    "StoreConfig",
    "TokenizerConfig",
    "TrainerConfig",
    "YarnRope",
    "build",
    "format_bytes",
    "format_count",
    "format_seconds",
    "load_class",
    "make",
    "nearest",
    "parse_count",
    "total_steps",
]
